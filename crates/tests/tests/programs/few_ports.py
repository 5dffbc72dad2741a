"""bind() to a port of the system's choice, of which there are few, beside connections that have them: prints what each says."""

import errno
import itertools
import socket

THERE = ("127.0.0.1", 20_000)


def name(call, *args):
    try:
        call(*args)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def show(what, said):
    print(what, *(f"{len(list(same))} {one}" for one, same in itertools.groupby(said)))


def fresh(count):
    return [socket.socket() for _ in range(count)]


def bound(clients):
    return [name(client.bind, ("127.0.0.1", 0)) for client in clients]


def connected(clients):
    return [name(client.connect, THERE) for client in clients]


listener = socket.socket()
listener.bind(THERE)
listener.listen(100)
clients = fresh(25)
show("bound", bound(clients))
show("bound and connected", connected(clients[:20]))
show("bound beside them", bound(fresh(3)))
accepted = [listener.accept()[0] for _ in range(20)]
for client in clients:
    client.close()
for one in accepted:
    one.recv(1)
show("bound beside what is closed at one end", bound(fresh(3)))
for one in accepted:
    one.close()
print("end", flush=True)
