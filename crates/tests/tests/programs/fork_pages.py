"""A child writes to none of the sockets that it inherits: it would get a copy of each page. Prints `same`."""

import os
import resource
import socket
import statistics

FEW, MANY = 4, 400
# What differs between one child and another.
NOISE = 30


def pages_of_a_child():
    """Page faults of a child that does nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before


def typical():
    return statistics.median(pages_of_a_child() for _ in range(9))


listener = socket.create_server(("127.0.0.1", 0), backlog=64)
held = []
counts = []
for number in (FEW, MANY):
    while len(held) < 2 * number:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        held += [client, server]
    counts.append(typical())
few, many = counts
assert many - few < NOISE, f"{few} pages with {FEW} connections, {many} with {MANY}"

# And they are the child's all the same: one that the parent has used since, one that nobody has.
for at in (0, 2):
    client, server = held[at], held[at + 1]
    child = os.fork()
    if child == 0:
        client.sendall(b"from the child")
        os._exit(0)
    os.waitpid(child, 0)
    assert server.recv(64) == b"from the child"
    client.sendall(b"from the parent")
    assert server.recv(64) == b"from the parent"
print("same")
