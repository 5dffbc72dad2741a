"""Connections to one place until there is no port left for another: prints what each call says."""

import errno
import socket
import struct
import time

THERE = ("127.0.0.1", 20_000)


def name(call, *args):
    try:
        call(*args)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def reset_at_close(one):
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


listener = socket.socket()
listener.bind(THERE)
listener.listen(1000)
held = []


def one_more():
    client = socket.socket()
    said = name(client.connect, THERE)
    if said == "ok":
        held.append((client, listener.accept()[0]))
    else:
        client.close()
    return said


def until_one_more():
    """A port is free once its connection has come to its end at both sides."""
    end = time.monotonic() + 30
    while (said := one_more()) != "ok" and time.monotonic() < end:
        time.sleep(0.01)
    return said


while (said := one_more()) == "ok":
    pass
ports = {client.getsockname()[1] for client, _ in held}
print(len(ports), min(ports), max(ports), said, one_more())
client = socket.socket()
client.setblocking(False)
print("does not wait", name(client.connect, THERE), name(client.connect, THERE), client.getsockname())
print("another address", name(client.connect, ("127.0.0.2", 20_000)))
client.close()
with socket.create_server(("127.0.0.1", 20_001)) as other:
    print("another port", name(socket.socket().connect, other.getsockname()))
client, accepted = held.pop(77)
port = client.getsockname()[1]
reset_at_close(client)
client.close()
accepted.close()
print("after a reset", until_one_more(), held[-1][0].getsockname()[1] == port, one_more())
for client, accepted in held:
    client.close()
    accepted.close()
held.clear()
print("after all ended", until_one_more())
