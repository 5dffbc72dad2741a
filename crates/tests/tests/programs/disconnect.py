"""connect() to AF_UNSPEC: prints what every call says then, to the program and to its peer."""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
ALL = select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI


def disconnect(one):
    said = LIBC.connect(one.fileno(), bytes(16), 16)
    return "ok" if said == 0 else errno.errorcode[ctypes.get_errno()]


def name(call, *args):
    try:
        said = call(*args)
        return "ok" if said is None else repr(said)
    except TimeoutError:
        return "late"
    except OSError as error:
        return errno.errorcode[error.errno]


def events(one, timeout=0):
    poll = select.poll()
    poll.register(one, ALL)
    return [hex(bits) for _, bits in poll.poll(timeout)]


def state(one):
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def pending(one):
    return errno.errorcode.get(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "none")


def shown(one):
    """Its name, without a port that is any."""
    host, port = one.getsockname()
    return host, "none" if port == 0 else "some"


LISTENER = socket.create_server(("127.0.0.1", 0))


def pair():
    one = socket.create_connection(LISTENER.getsockname())
    other, _ = LISTENER.accept()
    other.settimeout(60)
    return one, other


def until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def is_asleep(thread):
    """It sleeps in a system call, and was found to some times."""
    def once():
        with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "S"
    for _ in range(30):
        if not once():
            return False
        time.sleep(0.005)
    return True


def after(one):
    print("  after", events(one), state(one), shown(one), name(one.getpeername))
    print("  told", name(one.recv, 5), name(one.recv, 5), name(one.send, b"x"), pending(one), events(one))


def again(one):
    """It is connected anew."""
    one.setblocking(True)
    print("  again", name(one.connect, LISTENER.getsockname()), state(one), pending(one), events(one))
    other, _ = LISTENER.accept()
    print("  both ways", name(one.send, b"abc"), name(other.recv, 3), name(other.send, b"def"), name(one.recv, 3))
    other.close()


def full(one):
    one.setblocking(False)
    quiet = 0
    while quiet < 20:
        quiet = quiet + 1 if name(one.send, bytes(1 << 16)) == "EAGAIN" else 0
        time.sleep(0.005)
    one.setblocking(True)


print("plain")
one, other = pair()
one.send(b"hello")
print(" ", disconnect(one), name(other.recv, 9), name(other.recv, 9), name(other.recv, 9))
after(one)
again(one)
print("error first asked for")
one, other = pair()
print(" ", disconnect(one), pending(one), pending(one), events(one), name(one.send, b"x"), name(one.recv, 1))
print("sent first")
one, other = pair()
print(" ", disconnect(one), name(one.send, b"x"), name(one.send, b"x"), name(one.recv, 1))
print("with octets unread")
one, other = pair()
other.send(b"unread")
until(lambda: events(one) != ["0x4"])
print(" ", disconnect(one), name(other.recv, 9))
after(one)
print("the peer has closed")
one, other = pair()
other.shutdown(socket.SHUT_WR)
until(lambda: events(one) != ["0x4"])
print(" ", disconnect(one), name(other.recv, 9))
after(one)
print("both have closed")
one, other = pair()
one.shutdown(socket.SHUT_WR)
other.shutdown(socket.SHUT_WR)
until(lambda: state(one) == 7)
print(" ", disconnect(one), name(other.recv, 9))
after(one)
again(one)
print("the other end")
one, other = pair()
one.settimeout(60)
print(" ", disconnect(other), name(one.recv, 9))
after(other)
print("a copy")
one, other = pair()
copy = one.dup()
print(" ", disconnect(copy), name(other.recv, 9), events(one), state(copy))
print("  again", name(one.connect, LISTENER.getsockname()), state(one), state(copy))
accepted, _ = LISTENER.accept()
accepted.close()
print("twice", disconnect(one), disconnect(one), disconnect(one))

print("bound")
one = socket.socket()
# By its number: one that is bound to any port keeps that only on the engine.
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    at = probe.getsockname()
one.bind(at)
one.connect(LISTENER.getsockname())
other, _ = LISTENER.accept()
print(" ", disconnect(one), name(other.recv, 9), one.getsockname() == at, name(one.bind, ("127.0.0.1", 0)))
again(one)
print("  it has its port", one.getsockname() == at)
print("not bound: bind, listen")
one, other = pair()
print(" ", disconnect(one), name(one.bind, ("127.0.0.1", 0)), name(one.listen, 5), state(one))
client = socket.create_connection(one.getsockname())
taken, _ = one.accept()
print("  taken", taken.getpeername() == client.getsockname())

print("options")
one, other = pair()
for level, option, value in (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
    (socket.IPPROTO_IP, socket.IP_TTL, 17),
    (socket.SOL_SOCKET, socket.SO_PRIORITY, 3),
):
    one.setsockopt(level, option, value)


def options():
    names = [(6, socket.TCP_NODELAY), (1, socket.SO_KEEPALIVE), (6, socket.TCP_KEEPIDLE), (0, socket.IP_TTL), (1, socket.SO_PRIORITY)]
    return [one.getsockopt(*option) for option in names]


print(" ", disconnect(one), options())
again(one)
print("  still", options())

for call in ("recv", "send", "poll", "all"):
    print("a thread waits:", call)
    one, other = pair()
    if call == "send":
        full(one)
    calls = {
        "recv": lambda: name(one.recv, 5),
        "send": lambda: name(one.send, b"x"),
        "poll": lambda: events(one, 60_000) if one.send(b"x") else "",
        "all": lambda: name(one.recv, 5, socket.MSG_WAITALL),
    }
    if call == "poll":
        # Writable it is at once.
        full(one)
        calls["poll"] = lambda: events(one, 60_000)
    said = []
    thread = threading.Thread(target=lambda: said.append(calls[call]()), daemon=True)
    thread.start()
    until(lambda: is_asleep(thread))
    print(" ", disconnect(one))
    thread.join(60)
    print("  woken", said, pending(one), events(one))
    drained = "late"
    while True:
        drained = name(other.recv, 1 << 20)
        if not drained.startswith("b'\\x"):
            break
    print("  the peer", drained)

for more in (0, select.EPOLLET, select.EPOLLONESHOT):
    print("epoll", hex(more))
    one, other = pair()
    epoll = select.epoll()
    epoll.register(one, select.EPOLLIN | select.EPOLLRDHUP | more)
    print(" ", epoll.poll(0), disconnect(one), [hex(bits) for _, bits in epoll.poll(60)], [hex(bits) for _, bits in epoll.poll(0)])
    one.setblocking(True)
    print("  again", name(one.connect, LISTENER.getsockname()), epoll.poll(0))
    if more & select.EPOLLONESHOT:
        epoll.modify(one, select.EPOLLIN | more)
    other, _ = LISTENER.accept()
    other.send(b"abc")
    print("  readable", [hex(bits) for _, bits in epoll.poll(60)])

print("one that connects")
full_one = socket.socket()
full_one.bind(("127.0.0.1", 0))
full_one.listen(0)
inside = socket.create_connection(full_one.getsockname())
one = socket.socket()
one.setblocking(False)
print(" ", name(one.connect, full_one.getsockname()), disconnect(one))
after(one)
again(one)

print("a listener")
one = socket.create_server(("127.0.0.1", 0))
said = []
thread = threading.Thread(target=lambda: said.append(name(one.accept)), daemon=True)
thread.start()
until(lambda: is_asleep(thread))
print(" ", disconnect(one))
thread.join(60)
print("  woken", said, state(one), name(one.accept), name(one.listen, 1), state(one))

print("another process has it")
one, other = pair()
one.setblocking(False)
child = os.fork()
if child == 0:
    os._exit(0 if disconnect(one) == "ok" else 1)
print(" ", os.waitpid(child, 0)[1], name(other.recv, 9))

print("what was set on the open file")
F_SETSIG, F_GETSIG = 10, 11
one, other = pair()
print(" ", disconnect(one))
fcntl.fcntl(one, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(one, F_SETSIG, signal.SIGURG)
print("  listens", name(one.listen, 1), state(one))
flags, owner = (fcntl.fcntl(one, command) for command in (fcntl.F_GETFL, fcntl.F_GETOWN))
print(" ", oct(flags), owner == os.getpid(), fcntl.fcntl(one, F_GETSIG) == signal.SIGURG)
