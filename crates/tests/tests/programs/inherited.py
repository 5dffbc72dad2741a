"""Sockets of the kernel's that come over exec from a program outside of the engine, or over fork.

`inherited.py outside NAME toe run …`: opens a socket, starts this script with it under `toe run`, and talks to it.
"""

import os
import select
import socket
import subprocess
import sys
import threading

PORTS = {"leaked": 7401, "listening": 7402, "bound": 7403, "forked": 7404, "waited": 7405}


def same(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found!r} instead of {wanted!r}")


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def outside(name, command):
    address = ("127.0.0.1", PORTS[name])
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(address)
    if name != "bound":
        held.listen(5)
    inside = subprocess.Popen([*command, __file__, name, str(held.fileno())], pass_fds=[held.fileno()])
    if name == "leaked":
        # It is this program's listener still, also for those who have it open.
        held.settimeout(20)
        connection, _ = held.accept()
        connection.sendall(b"from outside")
    same(inside.wait(), 0, "the status inside")


def leaked(_):
    with connect(PORTS["leaked"]) as c:
        same(c.recv(100), b"from outside", "who answered")


def serve(listener):
    """Accepts in a blocking way, with children in between, what a thread connects to."""

    def clients():
        for n in range(3):
            with connect(listener.getsockname()[1]) as c:
                c.sendall(bytes([n]))
                same(c.recv(1), bytes([n + 1]), "an answer")

    same(os.system("true"), 0, "a child")
    # From here on it is the engine's.
    select.select([listener], [], [], 0)
    others = threading.Thread(target=clients)
    others.start()
    for _ in range(3):
        c, _ = listener.accept()
        c.sendall(bytes([c.recv(1)[0] + 1]))
        c.close()
        same(os.system("true"), 0, "a child")
    others.join()


def listening(fd):
    serve(socket.socket(fileno=fd))


def bound(fd):
    listener = socket.socket(fileno=fd)
    listener.listen(5)
    serve(listener)


def forked(_):
    """Bound before the fork, listened on by the child, as Varnish does."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORTS["forked"] + 100))
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        listener.listen(5)
        os.write(tell, b"x")
        c, _ = listener.accept()
        c.sendall(b"child")
        os._exit(0)
    os.read(told, 1)
    with connect(PORTS["forked"] + 100) as c:
        same(c.recv(100), b"child", "who answered")
    os.waitpid(child, 0)


def waited(_):
    """The same, and the parent accepts, which did not listen itself."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORTS["waited"] + 100))
    child = os.fork()
    if child == 0:
        listener.listen(5)
        os._exit(0)
    os.waitpid(child, 0)
    # From here on it is the engine's.
    select.select([listener], [], [], 0)
    client = os.fork()
    if client == 0:
        with connect(PORTS["waited"] + 100) as c:
            os._exit(0 if c.recv(100) == b"parent" else 1)
    listener.settimeout(20)
    c, _ = listener.accept()
    c.sendall(b"parent")
    same(os.waitpid(client, 0)[1], 0, "the client's status")


def main():
    if sys.argv[1] == "outside":
        for name in PORTS:
            outside(name, sys.argv[2:])
        print("same")
    else:
        globals()[sys.argv[1]](int(sys.argv[2]))


main()
