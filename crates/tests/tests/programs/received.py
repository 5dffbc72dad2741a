"""A socket that is bound and does not listen yet comes to two programs in messages; then both listen, and each can accept.

As Node's cluster does it: the first may have listened, or not, when the second gets it, and neither may take all connections
away from the other.
"""

import os
import socket
import subprocess
import sys


def same(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found!r} instead of {wanted!r}")


def work(name, channel):
    """Does what it is told; says so when it is done."""
    _, fds, _, _ = socket.recv_fds(channel, 100, 1)
    listener = socket.socket(fileno=fds[0])
    channel.sendall(b"received")
    same(channel.recv(100), b"listen", "the first order")
    listener.listen(5)
    channel.sendall(b"listens")
    listener.settimeout(20)
    while channel.recv(100) == b"accept":
        with listener.accept()[0] as c:
            c.sendall(name)
        channel.sendall(b"accepted")


def both(orders):
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    address = bound.getsockname()
    workers = {}
    for name in ("first", "second"):
        ours, theirs = socket.socketpair()
        ours.settimeout(20)
        fd = theirs.fileno()
        process = subprocess.Popen([sys.executable, __file__, name, str(fd)], pass_fds=[fd])
        theirs.close()
        workers[name] = (process, ours)
    for name, order in orders:
        channel = workers[name][1]
        if order == "gets it":
            socket.send_fds(channel, [b"this"], [bound.fileno()])
            same(channel.recv(100), b"received", "what a worker says")
        else:
            channel.sendall(b"listen")
            same(channel.recv(100), b"listens", "what a worker says")
    bound.close()
    for name in ("second", "first"):
        channel = workers[name][1]
        channel.sendall(b"accept")
        with socket.create_connection(address, timeout=20) as c:
            same(c.recv(100), name.encode(), "who answered")
        same(channel.recv(100), b"accepted", "what a worker says")
    for process, channel in workers.values():
        channel.close()
        same(process.wait(20), 0, "a worker's status")


def main():
    both([("first", "gets it"), ("first", "listens"), ("second", "gets it"), ("second", "listens")])
    both([("first", "gets it"), ("second", "gets it"), ("first", "listens"), ("second", "listens")])
    print("same")


if len(sys.argv) > 2:
    work(sys.argv[1].encode(), socket.socket(fileno=int(sys.argv[2])))
    os._exit(0)
main()
