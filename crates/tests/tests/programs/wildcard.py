"""A socket bound to a port of all addresses that then connects, beside a listener at the same port; the name at each step. And a
socket that listens anew while connections have its port. Prints what it is told."""

import ctypes
import errno
import itertools
import socket
import time

LIBC = ctypes.CDLL(None, use_errno=True)
SOCKET = socket.SOL_SOCKET


def says(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]


def made(reuse):
    one = socket.socket()
    if reuse:
        one.setsockopt(SOCKET, reuse, 1)
    return one


def name(one, port):
    """The port as it is to be shown: chosen ones differ."""
    host, own = one.getsockname()
    return host, own and (own == port or "another")


for reuse, other_reuse, at, listens_at, order in itertools.product(
    (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT),
    (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT),
    ("0.0.0.0", "127.0.0.1"),
    ("0.0.0.0", "127.0.0.1", "127.0.0.2"),
    ("connects", "listens"),
):
    if (at, listens_at, order) == ("0.0.0.0", "127.0.0.2", "connects"):
        # docs/compatibility.md: the socket has the port of all addresses as long as it is open.
        continue
    server = socket.create_server(("127.0.0.1", 0))
    one = made(reuse)
    one.bind((at, 0))
    port = one.getsockname()[1]
    print(reuse, other_reuse, at, listens_at, order, name(one, port))
    other = made(other_reuse)
    if order == "connects":
        print("connects", says(one.connect, server.getsockname()), name(one, port))
        print("the other", says(other.bind, (listens_at, port)), name(other, port), says(other.listen))
    else:
        print("the other", says(other.bind, (listens_at, port)), name(other, port), says(other.listen))
        print("connects", says(one.connect, server.getsockname()), name(one, port))
    accepted, peer = server.accept()
    print("peer", peer[0], peer[1] == port)
    if other.getsockname()[1] == port:
        client = socket.socket()
        print("there", says(client.connect, (listens_at, port)))
        client.close()
    # TIME_WAIT stays at the other end.
    accepted.close()
    print(one.recv(1), name(one, port))
    one.close(), other.close(), server.close()

def listens_in_the_end(one):
    """The last acknowledgement may take a moment."""
    end = time.monotonic() + 5
    while (said := says(one.listen)) == "EADDRINUSE" and time.monotonic() < end:
        pass
    return said


def is_named(one, number, port):
    """A port that was not bound by number is chosen anew, and may be the same by chance."""
    return one.getsockname()[1] == port if number else one.getsockname()[1] > 0


for reuse, late, number, end in itertools.product(
    (0, socket.SO_REUSEADDR), (False, True), (False, True), ("shutdown", "disconnect")
):
    listener = made(0 if late else reuse)
    if number:
        probe = made(0)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        listener.bind(("127.0.0.1", port))
    listener.listen()
    if late and reuse:
        listener.setsockopt(SOCKET, reuse, 1)
    port = listener.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = listener.accept()
    if end == "shutdown":
        listener.shutdown(socket.SHUT_RD)
    else:
        LIBC.connect(listener.fileno(), bytes(16), 16)
    print("anew", reuse, late, number, end, says(listener.listen), is_named(listener, number, port))
    # This end goes first.
    client.close()
    print(accepted.recv(1))
    accepted.close()
    print("after its end", listens_in_the_end(listener), is_named(listener, number, port))
