"""MSG_PEEK with MSG_WAITALL that waits in vain, by SO_RCVTIMEO: prints what it shows."""

import select
import socket

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, b"\0" * 8 + (50000).to_bytes(8, "little"))
ALL = socket.MSG_PEEK | socket.MSG_WAITALL


def wait_for(events):
    """Its time does not run before what it is to look at is there."""
    poll = select.poll()
    poll.register(server, events)
    poll.poll(5000)


def look(size):
    try:
        return server.recv(size, ALL)
    except OSError as error:
        return error


print(look(10))
client.send(b"12345")
wait_for(select.POLLIN)
print(look(5), look(10), server.recv(10))
client.send(b"678")
client.shutdown(socket.SHUT_WR)
wait_for(select.POLLRDHUP)
print(look(10), server.recv(10), look(10))
