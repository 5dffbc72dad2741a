"""Options that only the kernel does, set at each step of a socket's life: prints what they do, not only what setting them says."""

import ctypes
import errno
import select
import socket
import struct
import time

CBPF, SO_TIMESTAMP, SO_PEEK_OFF = 51, 29, 42
# return 2: the third listener.
CODE = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 2))
THIRD = struct.pack("HxxxxxxP", 1, ctypes.addressof(CODE))


def name(call, *args):
    try:
        said = call(*args)
        return "ok" if said is None else repr(said)
    except OSError as error:
        return errno.errorcode.get(error.errno, "late")


def bound(address):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(address)
    return one


def taken(listeners, count):
    """How many of so many connections come to each."""
    clients = [socket.create_connection(listeners[0].getsockname()) for _ in range(count)]
    got = [0] * len(listeners)
    while sum(got) < count:
        readable, _, _ = select.select(listeners, [], [], 60)
        if not readable:
            break
        for one in readable:
            one.accept()[0].close()
            got[listeners.index(one)] += 1
    [one.close() for one in clients]
    return got


for order in ("after all listen", "before one listens", "by the last", "before another is bound"):
    first = bound(("127.0.0.1", 0))
    others = [bound(first.getsockname()) for _ in range(2)]
    group = [first] + others
    attach = lambda one: name(one.setsockopt, socket.SOL_SOCKET, CBPF, THIRD)
    if order == "after all listen":
        [one.listen(64) for one in group]
        print(order, attach(group[0]))
    elif order == "before one listens":
        [one.listen(64) for one in group[:2]]
        print(order, attach(group[1]))
        group[2].listen(64)
    elif order == "by the last":
        [one.listen(64) for one in group]
        print(order, attach(group[2]))
    else:
        group.pop().close()
        [one.listen(64) for one in group]
        print(order, attach(group[0]))
        group.append(bound(first.getsockname()))
        group[2].listen(64)
    print(" ", taken(group, 30))
    [one.close() for one in group]

print("a listener's segments")
listener = socket.create_server(("127.0.0.1", 0))
print(" ", name(listener.setsockopt, socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1100))
client = socket.create_connection(listener.getsockname())
one, _ = listener.accept()
print(" ", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1100, one.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1100)

print("where a peek begins")
listener = socket.create_server(("127.0.0.1", 0))
client = socket.socket()
print(" ", name(client.setsockopt, socket.SOL_SOCKET, SO_PEEK_OFF, 2))
client.connect(listener.getsockname())
one, _ = listener.accept()
one.send(b"abcdef")
client.settimeout(60)
select.select([client], [], [], 60)
print(" ", client.recv(2, socket.MSG_PEEK), client.recv(2, socket.MSG_PEEK), client.recv(6))

def stamped(sender, receiver):
    """The kernel begins to note times a moment after somebody asks for them."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        sender.send(b"abc")
        got, control, _, _ = receiver.recvmsg(3, 100)
        if control:
            return got, [(level, kind, len(octets)) for level, kind, octets in control]
    return "never"


print("when octets came")
client = socket.socket()
print(" ", name(client.setsockopt, socket.SOL_SOCKET, SO_TIMESTAMP, 1))
client.connect(listener.getsockname())
one, _ = listener.accept()
print(" ", stamped(one, client))
listener = socket.create_server(("127.0.0.1", 0))
print("  at a listener", name(listener.setsockopt, socket.SOL_SOCKET, SO_TIMESTAMP, 1))
client = socket.create_connection(listener.getsockname())
one, _ = listener.accept()
print(" ", stamped(client, one))
# One that is the engine's among all those.
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
one, _ = listener.accept()
client.send(b"abc")
print("plain", one.recv(3))
