"""a listener that the parent opens and passes as descriptor 3 (LISTEN_FDS, LISTEN_PID): by systemd-socket-activate
and by a parent of our own, a server that is started again on the same listener, several listeners, --accept"""

import os
import socket
import sys

from lib import connect, expect, octets, recv_exactly, recv_to_end, script, sha256, until

PORT, SECOND, ACCEPT = 8800, 8801, 8802

SERVER = """
import os, socket, sys
assert os.environ["LISTEN_PID"] == str(os.getpid()), "LISTEN_PID"
listeners = [socket.socket(fileno=3 + n) for n in range(int(os.environ["LISTEN_FDS"]))]
for listener in listeners:
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    listener.setblocking(True)
names = ",".join(str(listener.getsockname()[1]) for listener in listeners)
for n in range(int(sys.argv[1])):
    connection, peer = listeners[n % len(listeners)].accept()
    connection.sendall(b"%s %d\\n" % (names.encode(), os.getpid()))
    while piece := connection.recv(65536):
        connection.sendall(piece)
    connection.close()
"""

EACH = """
import socket
connection = socket.socket(fileno=3)
while piece := connection.recv(65536):
    connection.sendall(piece.upper())
"""


def ask(port, size=300_000):
    """One connection: the server's first line, then octets that come back."""
    s = connect(port)
    s.settimeout(10)
    file = s.makefile("rb")
    line = file.readline().split()
    content = octets(size)
    for at in range(0, size, 10_000):
        s.sendall(content[at:at + 10_000])
        expect(sha256(file.read(10_000)), sha256(content[at:at + 10_000]), f"what came back at {at}")
    s.shutdown(socket.SHUT_WR)
    expect(file.read(), b"", "the end")
    s.close()
    return line


def activate(listeners, server, count):
    """As systemd does it: fork, descriptors to 3 and up, exec."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for n, listener in enumerate(listeners):
            os.dup2(listener.fileno(), 100 + n)
        for n in range(len(listeners)):
            os.dup2(100 + n, 3 + n)
        environment = {**os.environ, "LISTEN_FDS": str(len(listeners)), "LISTEN_PID": str(os.getpid())}
        os.execve(sys.executable, [sys.executable, str(server), str(count)], environment)
    finally:
        os._exit(127)


def ended(pid):
    """The exit status of a child that must end."""
    _, status = until("the server ends", lambda: (found := os.waitpid(pid, os.WNOHANG))[0] and found)
    return os.waitstatus_to_exitcode(status)


def main(lab):
    lab.version("systemd-socket-activate", "--version")
    server, each = lab.write("server.py", SERVER), lab.write("each.py", EACH)
    with lab.check("systemd-socket-activate"):
        lab.spawn("activate", "systemd-socket-activate", "-l", f"127.0.0.1:{PORT}", sys.executable, server, "20")
        until_bound(PORT)
        for _ in range(20):
            expect(ask(PORT)[0], b"8800", "the listener's port")
    with lab.check("systemd-socket-activate --accept: a process for each connection"):
        lab.spawn("accept", "systemd-socket-activate", "--accept", "-l", f"127.0.0.1:{ACCEPT}", sys.executable, each)
        until_bound(ACCEPT)
        for _ in range(5):
            s = connect(ACCEPT)
            s.settimeout(10)
            s.sendall(b"some text\n" * 100)
            expect(recv_exactly(s, 1000), b"SOME TEXT\n" * 100, "what came back")
            s.shutdown(socket.SHUT_WR)
            expect(recv_to_end(s), b"", "the end")
            s.close()
    with lab.check("a parent that keeps the listener, servers that come and go"):
        with socket.create_server(("127.0.0.1", SECOND)) as listener:
            seen = set()
            for _ in range(4):
                # A client that comes before the server waits in the listener's queue.
                waiting = connect(SECOND)
                pid = activate([listener], server, 3)
                waiting.shutdown(socket.SHUT_WR)
                waiting.settimeout(10)
                expect(recv_to_end(waiting).split()[1], str(pid).encode(), "who answered")
                waiting.close()
                seen |= {ask(SECOND)[1] for _ in range(2)}
                expect(ended(pid), 0, "exit status of the server")
            expect(len(seen), 4, "servers that answered")
    with lab.check("two listeners"):
        one, two = (socket.create_server(("127.0.0.1", port)) for port in (SECOND, SECOND + 10))
        with one, two:
            pid = activate([one, two], server, 10)
            for n in range(10):
                expect(ask(SECOND + 10 * (n % 2))[0], b"8801,8811", "the listeners' ports")
            expect(ended(pid), 0, "exit status of the server")
    with lab.check("the parent closes its listener after the start"):
        listener = socket.create_server(("127.0.0.1", SECOND))
        pid = activate([listener], server, 5)
        listener.close()
        for _ in range(5):
            expect(ask(SECOND)[1], str(pid).encode(), "who answered")
        expect(ended(pid), 0, "exit status of the server")


def until_bound(port):
    """Until somebody has the port; a connection would start the server."""
    def taken():
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                return True
        return False

    until(f"port {port} is taken", taken)


script("socket activation", main)
