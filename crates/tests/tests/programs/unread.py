"""TCP_INQ: prints which values it takes, and what each message tells of the octets behind it."""

import errno
import socket
import struct

TCP_INQ = 36


def pair(ask=True):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    if ask:
        asks(accepted)
    return client, accepted


def asks(one, value=1):
    try:
        one.setsockopt(socket.IPPROTO_TCP, TCP_INQ, value)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def told(one, octets, room=100, flags=0):
    try:
        got, control, flags, _ = one.recvmsg(octets, room, flags)
        return got, [(level, kind, data.hex()) for level, kind, data in control], flags
    except OSError as error:
        return errno.errorcode[error.errno]


def here(one, count):
    """Waits until so many octets have come."""
    one.setblocking(True)
    one.recv(count, socket.MSG_PEEK | socket.MSG_WAITALL)


client, one = pair(False)
print([asks(one, value) for value in (-1, 0, 1, 2, 100)])
print(asks(one), struct.unpack("i", one.getsockopt(socket.IPPROTO_TCP, TCP_INQ, 4)))
client.send(b"0123456789")
here(one, 10)
print(told(one, 3), told(one, 3, 0), told(one, 2, socket.CMSG_SPACE(4)), told(one, 0))
print(told(one, 1, 17), told(one, 1, 100, socket.MSG_PEEK))
one.setblocking(False)
print(told(one, 10), told(one, 10))
client.send(b"abc")
here(one, 3)
print(told(one, 1, 100, socket.MSG_WAITALL), told(one, 1, 100, socket.MSG_TRUNC)[1:])
client.close()
one.setblocking(True)
one.recv(1)
print(told(one, 1), told(one, 1), told(one, 1))
client, one = pair()
client.send(b"abc")
client.send(b"d", socket.MSG_OOB)
client.send(b"ef")
one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 6)
one.recv(3, socket.MSG_PEEK)
one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
client.close()
print("urgent", told(one, 2)[0], told(one, 2)[0], told(one, 2)[0])
client, one = pair()
client.send(b"xx")
here(one, 2)
print(told(one, 1), told(one, 1), asks(one, 0))
client.send(b"y")
print(told(one, 1))
# Who is to come has it of the listener, and a client of itself before it connects.
listener, client = socket.create_server(("127.0.0.1", 0)), socket.socket()
print(asks(listener), asks(client))
client.connect(listener.getsockname())
one, _ = listener.accept()
client.send(b"hello")
here(one, 5)
print(told(one, 2), told(one, 10))
one.send(b"hey")
here(client, 3)
print(told(client, 1))
lonely = socket.socket()
print(asks(lonely), told(lonely, 1))
