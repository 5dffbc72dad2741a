"""What SO_PRIORITY is once IP_TOS was set, before connect, after it, and beside a priority of the program's own: prints the values."""

import socket

PRIORITY = (socket.SOL_SOCKET, socket.SO_PRIORITY)
TOS = (socket.IPPROTO_IP, socket.IP_TOS)

listener = socket.create_server(("127.0.0.1", 0))


def connected(*options):
    client = socket.socket()
    for option, value in options:
        client.setsockopt(*option, value)
    client.connect(listener.getsockname())
    return client, listener.accept()[0]


client, server = connected()
for tos in (0, 8, 16, 24, 16, 17, 1, 30, 255):
    client.setsockopt(*TOS, tos)
    print(tos, client.getsockopt(*PRIORITY), client.getsockopt(*TOS))
client.setsockopt(*PRIORITY, 3)
client.setsockopt(*TOS, client.getsockopt(*TOS))
print("the same again", client.getsockopt(*PRIORITY))

for options in (
    [(TOS, 16)],
    [(TOS, 16), (PRIORITY, 3)],
    [(PRIORITY, 3), (TOS, 16)],
    [(PRIORITY, 3)],
    [(PRIORITY, 3), (TOS, 0)],
):
    client, server = connected(*options)
    print(options, client.getsockopt(*PRIORITY), server.getsockopt(*PRIORITY))
