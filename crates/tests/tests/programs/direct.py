"""Both ends of a connection that goes from program to program: `direct.py serve|client WHAT`."""

import os
import signal
import socket
import sys

PORT = 7300


def recv_exactly(s, n):
    out = bytearray()
    while len(out) < n:
        piece = s.recv(min(65536, n - len(out)))
        if not piece:
            raise SystemExit(f"end after {len(out)} of {n}")
        out += piece
    return bytes(out)


def recv_peek(s, n):
    while len(s.recv(n, socket.MSG_PEEK)) < n:
        pass


def pattern(n, seed):
    return bytes((i * 7 + seed + (i >> 8)) & 255 for i in range(n))


def is_child(c, what):
    """A child goes on with the connection, and its parent closes it: at once, or after the first messages."""
    (goes, may_go), (closed, has_closed) = os.pipe(), os.pipe()
    if os.fork() != 0:
        if what == "late":
            os.read(goes, 1)
        c.close()
        os.write(has_closed, b"c")
        assert os.wait()[1] == 0
        return False
    if what == "late":
        for _ in range(50):
            c.sendall(recv_exactly(c, 100))
        os.write(may_go, b"g")
    os.read(closed, 1)
    return True


def serve(what):
    l = socket.create_server(("127.0.0.1", PORT))
    print("ready", flush=True)
    c, _ = l.accept()
    if what in ("child", "late") and not is_child(c, what):
        return
    for _ in range(20):
        c.sendall(recv_exactly(c, 100))
    if what in ("fork", "child", "late"):
        # Some of it is read here, the rest by the child, while the parent only waits.
        head = recv_exactly(c, 1000)
        pid = os.fork()
        if pid == 0:
            rest = recv_exactly(c, 199000)
            assert head + rest == pattern(200000, 1), "child"
            c.sendall(b"child " + pattern(50000, 2))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert recv_exactly(c, 300000) == pattern(300000, 3), "parent"
        c.sendall(b"parent")
        c.shutdown(socket.SHUT_WR)
        assert c.recv(1) == b""
    elif what == "exec":
        os.set_inheritable(c.fileno(), True)
        os.dup2(c.fileno(), 0)
        os.dup2(c.fileno(), 1)
        c.sendall(b"go")
        os.execvp("cat", ["cat"])
    elif what == "unread":
        # It lies there, seen and not read.
        recv_peek(c, 5000)
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "read":
        assert recv_exactly(c, 5000) == pattern(5000, 1)
        os.kill(os.getpid(), signal.SIGKILL)


def client(what):
    c = socket.create_connection(("127.0.0.1", PORT))
    for i in range(70 if what == "late" else 20):
        m = pattern(100, i)
        c.sendall(m)
        assert recv_exactly(c, 100) == m
    if what in ("fork", "child", "late"):
        c.sendall(pattern(200000, 1))
        assert recv_exactly(c, 50006) == b"child " + pattern(50000, 2)
        c.sendall(pattern(300000, 3))
        assert recv_exactly(c, 6) == b"parent"
        assert c.recv(1) == b""
    elif what == "exec":
        assert recv_exactly(c, 2) == b"go"
        m = pattern(100000, 4)
        c.sendall(m)
        assert recv_exactly(c, 100000) == m
        c.shutdown(socket.SHUT_WR)
        assert c.recv(1) == b""
    elif what == "unread":
        c.sendall(pattern(5000, 1))
        try:
            print("no reset but", c.recv(1))
            return
        except ConnectionResetError:
            pass
    elif what == "read":
        c.sendall(pattern(5000, 1))
        assert c.recv(1) == b"", "FIN"
    print("same")


(serve if sys.argv[1] == "serve" else client)(sys.argv[2])
