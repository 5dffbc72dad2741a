"""One-shot registrations of a listener: fired once, whichever stack the connection comes by, and not armed again by its end.
Prints what the waits tell."""

import ctypes
import errno
import select
import socket

LIBC = ctypes.CDLL(None, use_errno=True)
IN, OUT, HUP, ONE, EDGE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP, select.EPOLLONESHOT, select.EPOLLET


def disconnect(one):
    """connect(AF_UNSPEC)."""
    return LIBC.connect(one.fileno(), bytes(16), 16)


def told(epoll):
    """All that is told, until nothing is."""
    events = []
    while found := epoll.poll(0.2):
        events += [hex(bits) for _, bits in found]
        if len(events) > 4:
            break
    return events


def client(address, of_kernel):
    """One that is copied before it is connected stays with the kernel."""
    one = socket.socket()
    kept = one.dup() if of_kernel else None
    one.connect(address)
    return one, kept


def fails_with(call, *args):
    try:
        call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"


for end in ("disconnect", "shutdown", "none"):
    for more, of_kernel in ((0, False), (EDGE, False), (0, True)):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        listener.setblocking(False)
        epoll = select.epoll()
        epoll.register(listener, IN | ONE | more)
        clients = [client(listener.getsockname(), of_kernel)]
        print(end, bool(more), "fired", told(epoll))
        print("a second time", fails_with(epoll.register, listener, IN))
        if end == "disconnect":
            print(disconnect(listener))
        elif end == "shutdown":
            listener.shutdown(socket.SHUT_RD)
        else:
            listener.accept()
            clients.append(client(listener.getsockname(), False))
        print("disarmed", told(epoll))
        inner = select.poll()
        inner.register(epoll.fileno(), select.POLLIN)
        print("the set is ready", inner.poll(0) != [])
        if end != "none":
            # Linux: of what is registered it cannot be asked for any more.
            print("exclusive", fails_with(epoll.modify, listener, IN | select.EPOLLEXCLUSIVE))
        print("armed", fails_with(epoll.modify, listener, IN | OUT | ONE | more), told(epoll))
        if end != "none":
            print("listens", fails_with(listener.listen, 5), fails_with(epoll.modify, listener, IN | ONE))
            clients.append(client(listener.getsockname(), of_kernel))
            print("fired anew", told(epoll), told(epoll))
        print("removed", fails_with(epoll.unregister, listener), fails_with(epoll.unregister, listener))
        listener.close()
