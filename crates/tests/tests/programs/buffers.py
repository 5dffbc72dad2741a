"""How much a connection takes whose peer reads nothing, by SO_RCVBUF and SO_SNDBUF: prints whether it is as little as they say.

The bounds are a little above what Linux takes, which depends on how large the writes are."""

import select
import socket


def taken(receive, send, size):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
    client.connect(listener.getsockname())
    accepted, _ = listener.accept()
    client.setblocking(False)
    poll, total = select.poll(), 0
    poll.register(client, select.POLLOUT)
    # Nothing goes on once nothing has for so long.
    while poll.poll(500) and total < 1 << 20:
        try:
            total += client.send(bytes(size))
        except BlockingIOError:
            pass
    # What was taken comes, all of it, in the end.
    client.setblocking(True)
    client.shutdown(socket.SHUT_WR)
    came = 0
    while octets := accepted.recv(1 << 16):
        came += len(octets)
    return total, came == total


for receive, send, most in ((4096, 4096, 100_000), (4096, 16384, 100_000), (16384, 16384, 130_000)):
    for size in (1000, 65536):
        total, all_came = taken(receive, send, size)
        print(receive, send, size, 4096 <= total <= most or total, all_came)
