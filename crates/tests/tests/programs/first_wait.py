"""A listener that nobody has waited at yet, among clients that are ready: the first wait tells of it, however it is made."""
import select
import socket


def by_epoll(listener, clients):
    with select.epoll() as waits:
        waits.register(listener, select.EPOLLIN)
        for client in clients:
            waits.register(client, select.EPOLLOUT)
        return [fd for fd, _ in waits.poll(0, 100)]


def by_poll(listener, clients):
    waits = select.poll()
    waits.register(listener, select.POLLIN)
    for client in clients:
        waits.register(client, select.POLLOUT)
    return [fd for fd, _ in waits.poll(0)]


def by_select(listener, clients):
    readable, writable, _ = select.select([listener], clients, [], 0)
    return [s.fileno() for s in readable + writable]


for name, wait in [("epoll", by_epoll), ("poll", by_poll), ("select", by_select)]:
    for count in [1, 20]:
        missed = 0
        for _ in range(30):
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen(64)
            clients = [socket.create_connection(listener.getsockname()) for _ in range(count)]
            told = wait(listener, clients)
            missed += listener.fileno() not in told
            assert all(client.fileno() in told for client in clients), told
            for s in [listener, *clients]:
                s.close()
        print(name, count, "clients, the listener was not told of:", missed)
