"""Options about a socket's name and packets, set before it is connected or listens: what is read of them afterwards, and of what comes in."""

import errno
import socket

OPTIONS = {"BIND_ADDRESS_NO_PORT": (24, 1), "FREEBIND": (15, 1), "TRANSPARENT": (19, 1), "LOCAL_PORT_RANGE": (51, (50000 << 16 | 40000) - (1 << 32))}


def read(one, number):
    try:
        return one.getsockopt(socket.SOL_IP, number)
    except OSError as error:
        return errno.errorcode[error.errno]


for name, (number, value) in OPTIONS.items():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_IP, number, value)
    listener.bind(("127.0.0.1", 7311))
    listener.listen()
    client = socket.socket()
    client.setsockopt(socket.SOL_IP, number, value)
    before = read(client, number)
    client.connect(listener.getsockname())
    accepted, _ = listener.accept()
    print(name, before, read(client, number), read(listener, number), read(accepted, number))
    # The client first: the port is to be free again.
    client.shutdown(socket.SHUT_RDWR)
    accepted.recv(1)
    [one.close() for one in (client, accepted, listener)]
# And one that is the engine's in any case.
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
client.send(b"abc")
print("plain", accepted.recv(3))
