"""SIGIO and SIGURG of sockets that ask for them by fcntl and ioctl, before and after something comes: prints what is told."""

import fcntl
import os
import select
import signal
import socket
import struct

F_SETSIG, F_GETSIG, F_SETOWN_EX, F_GETOWN_EX = 10, 11, 15, 16
FIOASYNC, FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP = 0x5452, 0x8901, 0x8902, 0x8903, 0x8904
RT = signal.SIGRTMIN + 3
ALL = {signal.SIGIO, signal.SIGURG, RT}
LIMIT = 5
signal.pthread_sigmask(signal.SIG_BLOCK, ALL)


def is_readable(one, limit=LIMIT):
    poll = select.poll()
    poll.register(one, select.POLLIN)
    return poll.poll(limit * 1000) != []


def told(wanted):
    """Waits for a signal that is wanted, and gives what it says."""
    found = signal.sigtimedwait({wanted}, LIMIT)
    return found and (found.si_signo, found.si_band if found.si_signo == RT else None)


def drain():
    """What is pending by now, by number."""
    found = set()
    while one := signal.sigtimedwait(ALL, 0):
        found.add(one.si_signo)
    return sorted(found)


def ask(one, on=True):
    flags = fcntl.fcntl(one, fcntl.F_GETFL)
    return fcntl.fcntl(one, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)


def has(one):
    return fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ASYNC != 0


listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()

print("nobody asked", has(server), fcntl.fcntl(server, fcntl.F_GETOWN), fcntl.fcntl(server, F_GETSIG))
client.send(b"a")
print(is_readable(server), server.recv(9), drain())

print("an owner alone", fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid()))
client.send(b"b")
print(is_readable(server), server.recv(9), drain(), fcntl.fcntl(server, fcntl.F_GETOWN) == os.getpid())
client.send(b"u", socket.MSG_OOB)
print("urgent", told(signal.SIGURG), server.recv(9, socket.MSG_OOB))
client.send(b"v", socket.MSG_OOB)
print("urgent again", told(signal.SIGURG), server.recv(9, socket.MSG_OOB), drain())

print("asked", ask(server), has(server), drain())
for octets in (b"c", b"d"):
    client.send(octets)
    print("came", told(signal.SIGIO))
print(is_readable(server), server.recv(9))
drain()
dup = os.dup(server.fileno())
print("a copy", fcntl.fcntl(dup, fcntl.F_GETFL) & os.O_ASYNC != 0)
os.close(dup)

print("another signal", fcntl.fcntl(server, F_SETSIG, RT), fcntl.fcntl(server, F_GETSIG) == RT)
client.send(b"e")
print(told(RT), server.recv(9), drain())

print("no more", ask(server, False), has(server))
client.send(b"f")
print(is_readable(server), server.recv(9), drain())

print("by ioctl", fcntl.ioctl(server, FIOASYNC, struct.pack("i", 1)) is not None, has(server))
client.send(b"g")
print(told(RT), server.recv(9))
for name in (FIOSETOWN, SIOCSPGRP):
    fcntl.ioctl(server, name, struct.pack("i", -os.getpgrp()))
    owners = {struct.unpack("i", fcntl.ioctl(server, get, bytes(4)))[0] for get in (FIOGETOWN, SIOCGPGRP)}
    print("owner", owners == {-os.getpgrp()})
    fcntl.ioctl(server, name, struct.pack("i", os.getpid()))
kind, owner = struct.unpack("ii", fcntl.fcntl(server, F_GETOWN_EX, bytes(8)))
print("owner", kind, owner == os.getpid())

drain()
client.shutdown(socket.SHUT_WR)
print("the end", told(RT)[0] == RT, is_readable(server), server.recv(9))

drain()
print("who connects", fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid()), ask(client), drain())
server.send(b"h")
print(told(signal.SIGIO), client.recv(9))

print("who listens", fcntl.fcntl(listener, fcntl.F_SETOWN, os.getpid()), ask(listener), has(listener))
drain()
other = socket.create_connection(listener.getsockname())
print(told(signal.SIGIO))
taken, _ = listener.accept()
print("what it accepts", has(taken), fcntl.fcntl(taken, fcntl.F_GETOWN))

# Room: asked for by who was told that there was none.
print("who writes", fcntl.fcntl(taken, fcntl.F_SETOWN, os.getpid()), fcntl.fcntl(taken, F_SETSIG, RT), ask(taken))
taken.setblocking(False)
drain()
sent, room = 0, select.poll()
room.register(taken, select.POLLOUT)
# Nothing goes on once nothing has for so long.
while room.poll(300):
    try:
        sent += taken.send(bytes(65536))
    except BlockingIOError:
        pass
drain()
while sent:
    sent -= len(other.recv(1 << 20))
print("room", told(RT))
