"""shutdown() of a socket that connects: prints what every call says then."""

import errno
import select
import socket
import threading
import time

SYN_SENT = 2


def name(call, *args):
    try:
        said = call(*args)
        return "ok" if said is None else repr(said)
    except OSError as error:
        return errno.errorcode[error.errno]


def events(one):
    poll = select.poll()
    poll.register(one, select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI)
    return [hex(bits) for _, bits in poll.poll(0)]


def state(one):
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def pending(one):
    return errno.errorcode.get(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "none")


def full_listener():
    """Nobody else gets in here."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    inside = socket.socket()
    inside.connect(listener.getsockname())
    return listener, inside


def connecting(addr):
    one = socket.socket()
    one.setblocking(False)
    assert name(one.connect, addr) == "EINPROGRESS" and state(one) == SYN_SENT
    return one


def shut(addr, how):
    one = connecting(addr)
    print(" ", name(one.shutdown, how), events(one), name(one.getpeername), state(one))
    return one


for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
    print("shutdown", how)
    listener, inside = full_listener()
    addr = listener.getsockname()
    print(" before", events(connecting(addr)))
    one = shut(addr, how)
    print(" received first", name(one.recv, 1), name(one.recv, 1), name(one.send, b"x"), events(one))
    one.setblocking(True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        print(" then elsewhere", name(one.connect, other.getsockname()), events(one), state(one))
        accepted, _ = other.accept()
        print(" both ways", name(one.send, b"abc"), name(accepted.recv, 3), name(accepted.send, b"def"), name(one.recv, 3))
    one = shut(addr, how)
    print(" SO_ERROR", pending(one), pending(one), events(one), name(one.recv, 1), name(one.send, b"x"))
    one = shut(addr, how)
    print(" sent first", name(one.send, b"x"), name(one.send, b"x"), events(one), name(one.recv, 1))
    one = shut(addr, how)
    print(" the same place", name(one.connect, addr), events(one), state(one))
    one, said = socket.socket(), []
    thread = threading.Thread(target=lambda: said.append(name(one.connect, addr)))
    thread.start()
    while state(one) != SYN_SENT:
        time.sleep(0.001)
    print(" another thread waits", name(one.shutdown, how))
    thread.join(60)
    print(" it is told", said, pending(one), events(one), name(one.recv, 1))
    one, epoll = connecting(addr), select.epoll()
    epoll.register(one, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
    before = epoll.poll(0)
    print(" epoll", before, name(one.shutdown, how), [hex(bits) for _, bits in epoll.poll(30)], epoll.poll(0))
# One that is not there is told to whoever comes; let in are as many as are to wait, and one.
listener, inside = full_listener()
more = connecting(listener.getsockname())
accepted, _ = listener.accept()
late, _ = listener.accept()
print("in the end", late.getpeername() == more.getsockname(), events(more))
