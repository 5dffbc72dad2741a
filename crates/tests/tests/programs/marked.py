"""A listener goes over exec after the program has marked whatever else is open, also what it has not opened itself.

Ruby and others go through all numbers and set FD_CLOEXEC; close_range(2) does it in one call. A client that has connected
before, and was not accepted, is there after.
"""

import ctypes
import fcntl
import os
import socket
import subprocess
import sys

CLOSE_RANGE_CLOEXEC = 4


def same(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found!r} instead of {wanted!r}")


def one_by_one(kept):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd > 2 and fd not in kept and not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        except OSError:
            pass


def in_one_call(kept):
    same(ctypes.CDLL(None).close_range(3, 2**32 - 1, CLOSE_RANGE_CLOEXEC), 0, "close_range")
    for fd in kept:
        os.set_inheritable(fd, True)


WAYS = {"one": one_by_one, "call": in_one_call}


def before(way):
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    os.set_inheritable(listener.fileno(), True)
    # The engine hands its connections out from here on.
    with socket.create_connection(address), listener.accept()[0]:
        pass
    # Another program, so that it holds nothing of the listener.
    client = subprocess.Popen([sys.executable, __file__, str(address[1])], stdout=subprocess.PIPE)
    same(client.stdout.read(1), b"x", "what the client says once it has connected")
    WAYS[way]({listener.fileno()})
    os.execv(sys.executable, [sys.executable, __file__, way, str(listener.fileno()), str(client.pid)])


def connect(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as c:
        os.write(1, b"x")
        same(c.recv(100), b"after", "what the client hears")


def after(fd, client):
    listener = socket.socket(fileno=fd)
    listener.settimeout(20)
    c, _ = listener.accept()
    c.sendall(b"after")
    same(os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]), 0, "the client's status")
    print("same")


if len(sys.argv) > 2:
    after(int(sys.argv[2]), int(sys.argv[3]))
elif sys.argv[1] in WAYS:
    before(sys.argv[1])
else:
    connect(int(sys.argv[1]))
