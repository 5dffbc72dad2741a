"""What a program knows of connections that have ended, executed anew: prints what poll, SO_ERROR, send and recv say to it then.

Usage: over_exec.py [NAME FD]...
"""

import ctypes
import errno
import os
import select
import socket
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)


def name(call, *args):
    try:
        said = call(*args)
        return "ok" if said is None else repr(said)
    except OSError as error:
        return errno.errorcode.get(error.errno, "late")


def events(one):
    look = select.poll()
    look.register(one, select.POLLIN | select.POLLOUT | 0x2000)
    found = look.poll(0)
    return found[0][1] if found else 0


def error(one):
    return one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


if len(sys.argv) > 1:
    for what, fd in zip(sys.argv[1::2], sys.argv[2::2]):
        one = socket.socket(fileno=int(fd))
        print(what, events(one), error(one), events(one), name(one.recv, 1), name(one.send, b"x", socket.MSG_NOSIGNAL), flush=True)
    sys.exit()

LISTENER = socket.create_server(("127.0.0.1", 0))
kept = []


def pair():
    one = socket.create_connection(LISTENER.getsockname())
    other, _ = LISTENER.accept()
    return one, other


def keep(what, one):
    one.set_inheritable(True)
    kept.extend((what, str(one.detach())))


for asks in (False, True):
    one, other = pair()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    select.select([one], [], [], 60)
    if asks:
        print("reset", error(one))
    keep("reset" + (", asked" if asks else ""), one)

    one, other = pair()
    print("disconnect", LIBC.connect(one.fileno(), bytes(16), 16))
    if asks:
        print("disconnected", error(one))
    keep("disconnected" + (", asked" if asks else ""), one)

one, other = pair()
keep("open", one)
other.send(b"a")
sys.stdout.flush()
os.set_inheritable(other.fileno(), True)
os.execv(sys.executable, [sys.executable, __file__, *kept])
