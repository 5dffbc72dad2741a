"""Values and arguments that are seldom given: prints what calls and options say to them."""

import ctypes
import errno
import os
import select
import socket
import struct
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.recvmsg.argtypes = LIBC.sendmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
LIBC.recvfrom.argtypes = LIBC.sendto.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LIBC.syscall.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 6
# Nobody may look there.
NOWHERE = LIBC.mmap(None, ctypes.c_size_t(1 << 16), 0, 0x22, -1, 0)
SELECT, EPOLL_PWAIT, PSELECT, PPOLL, SETSOCKOPT = 23, 281, 270, 271, 54
SO_RCVBUFFORCE, SO_SNDBUFFORCE, MSG_DONTWAIT = 33, 32, 0x40


def name(call, *args):
    try:
        said = call(*args)
        return "ok" if said is None else repr(said)
    except OSError as error:
        return errno.errorcode.get(error.errno, "late")


def c(call, *args):
    said = call(*args)
    return said if said >= 0 else errno.errorcode[ctypes.get_errno()]


LISTENER = socket.create_server(("127.0.0.1", 0))


def pair():
    one = socket.create_connection(LISTENER.getsockname())
    other, its_name = LISTENER.accept()
    assert its_name == one.getsockname(), "none is left that waits to be taken"
    return one, other


def readable(one):
    select.select([one], [], [], 60)


def is_asleep(thread):
    for _ in range(30):
        try:
            with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] != "S":
                    return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.005)
    return True


def header(name=0, name_len=0, iov=0, iov_len=0):
    return ctypes.create_string_buffer(struct.pack("PIxxxxPLPLi", name, name_len & 0xFFFFFFFF, iov, iov_len & 0xFFFFFFFFFFFFFFFF, 0, 0, 0))


one, other = pair()
print("time limits")
for secs, micros in ((-1, 0), (-5, 3), (-1, -1), (0, 1_000_000), (0, 0)):
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        said = name(one.setsockopt, socket.SOL_SOCKET, option, struct.pack("ll", secs, micros))
        print(" ", secs, micros, said, struct.unpack("ll", one.getsockopt(socket.SOL_SOCKET, option, 16)))
    if secs < 0 <= micros:
        print("  it does not wait", name(one.recv, 1))
one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", -1, 0))
LISTENER.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", -1, 0))
print("  nor does accept", name(LISTENER.accept))
LISTENER.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

print("time limits that were set before there is a connection")
AT_ONCE = struct.pack("ll", -1, 0)
for first in (AT_ONCE, struct.pack("ll", 0, 0)):
    early, late = socket.socket(), socket.socket()
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        late.setsockopt(socket.SOL_SOCKET, option, first)
        late.setsockopt(socket.SOL_SOCKET, option, AT_ONCE)
    early.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, AT_ONCE)
    early.bind(("127.0.0.1", 0))
    early.listen()
    print("  accept", name(early.accept), early.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    print("  connect", name(late.connect, early.getsockname()))
    readable(early)
    taken, _ = early.accept()
    print("  recv", name(late.recv, 1), name(taken.recv, 1))
plain = socket.socket()
plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, AT_ONCE)
plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
print("  without again", name(plain.connect, LISTENER.getsockname()))
LISTENER.accept()

print("addresses that are too long")
LIBC.connect.argtypes = LIBC.bind.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)
to_listener = ctypes.create_string_buffer(struct.pack("=HH4s120x", socket.AF_INET, socket.htons(LISTENER.getsockname()[1]), bytes([127, 0, 0, 1])))
gone, _ = pair()
c(LIBC.connect, gone.fileno(), bytes(16), 16)
begun = socket.socket()
begun.setblocking(False)
name(begun.connect, LISTENER.getsockname())
for what, fd in (("a new socket", socket.socket()), ("a listener", LISTENER), ("a connection", one), ("one that has ended", gone), ("one that connects", begun)):
    for call in (LIBC.connect, LIBC.bind):
        print(" ", what, call.__name__, *(c(call, fd.fileno(), to_listener, length) for length in (129, 0xFFFFFFFF)))
LISTENER.accept()
print("  the error waits all the same", gone.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), gone.getsockname()[1] > 0)

print("linger")
for on, secs in ((0, 5), (1, 5), (0, 7), (7, 2), (0, 0), (1, 0), (0, 3)):
    said = name(other.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, secs))
    print(" ", on, secs, said, struct.unpack("ii", other.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)))

print("buffers")
for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
    sizes = {}
    for value in (-1, -70_000, 0, 1 << 30, 20_000):
        said = name(one.setsockopt, socket.SOL_SOCKET, option, value)
        sizes[value] = one.getsockopt(socket.SOL_SOCKET, option)
        print(" ", value, said, sizes[value] == 40_000)
    other_size = socket.socket()
    other_size.setsockopt(socket.SOL_SOCKET, option, -1)
    print("  as the largest of any socket", sizes[-1] == other_size.getsockopt(socket.SOL_SOCKET, option))
    print("  negative ones are as the largest", sizes[-1] == sizes[-70_000] == sizes[1 << 30] > 100_000 > sizes[0])

print("a send that waits")
for size in (2304, 20_000, 400_000):
    sender, receiver = pair()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    thread = None
    # One that has not waited found room that was made late.
    while not (thread and thread.is_alive()):
        sender.setblocking(False)
        while name(sender.send, bytes(1 << 20)) != "EAGAIN":
            pass
        sender.setblocking(True)
        said = []
        thread = threading.Thread(target=lambda: said.append(name(sender.send, b"x")), daemon=True)
        thread.start()
        while thread.is_alive() and not is_asleep(thread):
            pass
    print(" ", name(sender.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 2_000_000))
    thread.join(60)
    print("  goes on with more", said)

print("names and vectors")
name_at, octets, lengths = ctypes.create_string_buffer(128), ctypes.create_string_buffer(8), (ctypes.c_int * 1)()
vector = ctypes.create_string_buffer(struct.pack("PL", ctypes.addressof(octets), 8))
for length in (-1, 16, 0, 4096):
    other.send(b"x")
    readable(one)
    lengths[0] = length
    print("  recvfrom", length, c(LIBC.recvfrom, one.fileno(), octets, 8, 0, name_at, lengths), lengths[0])
other.send(b"x")
readable(one)
print("  recvfrom nowhere", c(LIBC.recvfrom, one.fileno(), octets, 8, 0, name_at, None), c(LIBC.recvfrom, one.fileno(), octets, 8, MSG_DONTWAIT, name_at, NOWHERE))
other.send(b"xyz")
readable(one)
for name_len, count in ((-1, 1), (16, -1), (16, 1025), (4096, 1), (0, 0)):
    message = header(ctypes.addressof(name_at), name_len, ctypes.addressof(vector), count)
    print("  recvmsg", name_len, count, c(LIBC.recvmsg, one.fileno(), message, MSG_DONTWAIT | 2))
    message = header(ctypes.addressof(name_at), name_len, ctypes.addressof(vector), count)
    print("  sendmsg", name_len, count, c(LIBC.sendmsg, one.fileno(), message, MSG_DONTWAIT))
print("  without a name", c(LIBC.recvmsg, one.fileno(), header(0, -1, ctypes.addressof(vector), 1), MSG_DONTWAIT))
for at, length in ((name_at, 129), (name_at, -1), (NOWHERE, 16), (name_at, 128), (name_at, 0)):
    print("  sendto", length, c(LIBC.sendto, one.fileno(), octets, 1, 0, at, length & 0xFFFFFFFF))
print("  sendmsg to nowhere", c(LIBC.sendmsg, one.fileno(), header(NOWHERE, 16, ctypes.addressof(vector), 1), 0))

print("masks and time limits")
pipe_in, pipe_out = socket.socketpair()
events = ctypes.create_string_buffer(64)
for watched in (one, pipe_in):
    epoll = select.epoll()
    epoll.register(watched, select.EPOLLPRI)
    polled = ctypes.create_string_buffer(struct.pack("ihh", watched.fileno(), 2, 0))
    bits = ctypes.create_string_buffer(128)
    print("  epoll_pwait", c(LIBC.epoll_pwait, epoll.fileno(), events, 1, 0, ctypes.c_void_p(NOWHERE)), c(LIBC.syscall, EPOLL_PWAIT, epoll.fileno(), ctypes.addressof(events), 1, 0, NOWHERE, 8))
    now = ctypes.create_string_buffer(16)
    print("  ppoll", c(LIBC.ppoll, polled, 1, now, ctypes.c_void_p(NOWHERE)), c(LIBC.syscall, PPOLL, ctypes.addressof(polled), 1, NOWHERE, None, 8, None))
    bits[watched.fileno() // 8] = 1 << watched.fileno() % 8
    print("  pselect", c(LIBC.syscall, PSELECT, watched.fileno() + 1, None, None, None, NOWHERE, None))
    print("  select", c(LIBC.syscall, SELECT, watched.fileno() + 1, ctypes.addressof(bits), None, None, NOWHERE, None), c(LIBC.syscall, SELECT, watched.fileno() + 1, NOWHERE, None, None, ctypes.addressof(now), None))

print("forced sizes")
# Without CAP_NET_ADMIN, in the thread that asks.
thread_id, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
LIBC.syscall(125, thread_id, ctypes.addressof(data), None, None, None, None)
caps = list(struct.unpack("6I", data.raw[:24]))
caps[0] &= ~(1 << 12)
caps[1] &= ~(1 << 12)
print(" ", c(LIBC.syscall, 126, thread_id, struct.pack("6I", *caps), None, None, None, None))
for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
    print(" ", name(one.setsockopt, socket.SOL_SOCKET, option, 1 << 20), name(LISTENER.setsockopt, socket.SOL_SOCKET, option, 1 << 20))

def sent_by_nodelay():
    """Whether what a cork holds comes sooner than the cork lets it go by itself, after 200 ms."""
    sender, receiver = pair()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    for at in range(20):
        # The first may go out alone, before Nagle's rule and the cork hold it.
        sender.send(b"part")
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    before = time.monotonic()
    got = b""
    while len(got) < 80:
        got += receiver.recv(100)
    return time.monotonic() - before < 0.1


print("corked")
# A machine that is busy elsewhere is late now and then, and the cork is so each time.
print("  sent by TCP_NODELAY", any(sent_by_nodelay() for _ in range(50)))

print("splice at an urgent octet")
sender, receiver = pair()
reads, writes = os.pipe()
sender.send(bytes(100), socket.MSG_OOB)
select.select([], [], [receiver], 60)
print(" ", os.splice(receiver.fileno(), writes, 99), os.splice(receiver.fileno(), writes, 1))
sender.send(b"behind")
print(" ", os.splice(receiver.fileno(), writes, 10))
receiver.setblocking(False)
print(" ", name(os.splice, receiver.fileno(), writes, 1))
receiver.setblocking(True)
print(" ", receiver.recv(10))
