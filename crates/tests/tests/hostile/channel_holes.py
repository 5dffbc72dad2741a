"""channel_holes.py ATTACKER PORT: talks to the server at PORT until the two programs share memory, and punches holes into that."""

import os
import socket
import sys

sys.path.insert(0, sys.argv[1])
import holes

# Slots, rings and the data of both sides: nothing else that is shared is so large.
CHANNEL_MIN, ROUNDS_MAX = 64 << 20, 100_000


def shares_a_channel():
    sizes = {}
    for line in open("/proc/self/maps"):
        if "memfd:toe-region" in line:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            inode = line.split()[4]
            sizes[inode] = sizes.get(inode, 0) + end - start
    # The region, its receive part, and that.
    return len(sizes) > 2 and any(size > CHANNEL_MIN for size in sizes.values())


def exchange(connection):
    connection.sendall(b"x" * 64)
    left = 64
    while left:
        left -= len(connection.recv(left))


connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for rounds in range(ROUNDS_MAX):
    exchange(connection)
    if rounds % 100 == 99 and shares_a_channel():
        break
else:
    sys.exit("no channel")
# It is in use, and so settled, a few messages later.
for _ in range(1000):
    exchange(connection)
holes.tell("mappings", holes.of_mappings())
exchange(connection)
