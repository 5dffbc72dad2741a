"""Connections that end before they are accepted: prints what accept and all calls after it say."""

import errno
import select
import socket
import struct
import time

RESET = struct.pack("ii", 1, 0)


def name(call, *args):
    try:
        said = call(*args)
        return "ok" if said is None else repr(said)
    except OSError as error:
        return errno.errorcode.get(error.errno, "late")


def events(one):
    poll = select.poll()
    poll.register(one, select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI)
    return [hex(bits) for _, bits in poll.poll(0)]


def state(one):
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def client(listener, octets, resets):
    """A connection that was there and is gone."""
    one = socket.create_connection(listener.getsockname())
    if octets:
        one.send(octets)
    if resets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.close()


def taken(listener):
    listener.settimeout(60)
    one, peer = listener.accept()
    one.settimeout(60)
    until(lambda: events(one) != ["0x4"])
    named = name(one.getpeername)
    print("  accepted", peer[0], named if named.isupper() else "named", one.getsockname() == listener.getsockname(), events(one), state(one))
    print("  set", name(one.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
    print("  received", name(one.recv, 10), name(one.recv, 10), name(one.recv, 10), name(one.send, b"x") if state(one) == 7 else "")
    one.close()


for when in ("before anybody asks", "after one was taken"):
    for octets, resets in ((b"hello", True), (b"hello", False), (b"", True), (b"", False)):
        print(when, octets, "reset" if resets else "closed")
        listener = socket.create_server(("127.0.0.1", 0))
        if when != "before anybody asks":
            first = socket.create_connection(listener.getsockname())
            listener.accept()[0].close()
        client(listener, octets, resets)
        until(lambda: events(listener) == ["0x1"])
        taken(listener)
        listener.setblocking(False)
        print("  no more", name(listener.accept), events(listener))
        listener.close()

print("in their order")
listener = socket.create_server(("127.0.0.1", 0))
for at in range(6):
    client(listener, b"%d" % at, at % 2 == 0)
listener.settimeout(60)
for at in range(6):
    one, _ = listener.accept()
    one.settimeout(60)
    print(" ", name(one.recv, 10), name(one.recv, 10))
    one.close()

print("as many as have room")
listener = socket.create_server(("127.0.0.1", 0), backlog=3)
for at in range(4):
    client(listener, b"", True)
late = socket.socket()
late.settimeout(0.3)
print(" ", name(late.connect, listener.getsockname()))

print("many times")
told = []
for at in range(100):
    listener = socket.create_server(("127.0.0.1", 0))
    client(listener, b"", True)
    listener.settimeout(60)
    one, _ = listener.accept()
    told.append(name(one.recv, 1))
    one.close()
    listener.close()
print(" ", set(told), len(told))

print("the listener ends")
listener = socket.create_server(("127.0.0.1", 0))
client(listener, b"x", True)
address = listener.getsockname()
listener.close()
print(" ", name(socket.create_connection, address))
