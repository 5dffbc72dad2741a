"""Asks for a free port and then for that port by its number, as those do that hand it on, while connections have half of all ports."""

import collections
import socket

server = socket.create_server(("127.0.0.1", 0), backlog=16)
connections = []
for n in range(150):
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    if n % 2:
        connections += [client, accepted]
        continue
    # This end goes first, and its name is kept.
    client.close()
    accepted.recv(1), accepted.close()

outcomes = collections.Counter()
for kind in (socket.AF_INET, socket.AF_INET6):
    anywhere = "127.0.0.1" if kind == socket.AF_INET else "::"
    for _ in range(40):
        asked = socket.socket(kind)
        asked.bind((anywhere, 0))
        port = asked.getsockname()[1]
        asked.close()
        named = socket.socket(kind)
        try:
            named.bind((anywhere, port))
            named.listen()
            outcomes["good"] += named.getsockname()[1] == port
        except OSError as error:
            outcomes[error.strerror] += 1
        named.close()
print(sorted(outcomes.items()))
