"""What a listener says of the connections that wait: prints it as they come and are taken."""

import socket
import struct
import time


def queue(listener):
    """Those that wait, and how many may."""
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return struct.unpack_from("II", info, 24), info[0]


def settled(listener, count):
    """The last of them may be on its way."""
    end = time.monotonic() + 60
    while queue(listener)[0][0] != count and time.monotonic() < end:
        time.sleep(0.001)
    return queue(listener)


for asked in (False, True):
    listener = socket.create_server(("127.0.0.1", 0), backlog=17)
    clients = []
    if asked:
        # One was taken before.
        clients.append(socket.create_connection(listener.getsockname()))
        listener.accept()
    print("nobody waits", queue(listener))
    for at in range(5):
        clients.append(socket.create_connection(listener.getsockname()))
        print("one more", settled(listener, at + 1))
    copy = listener.dup()
    print("by a copy", queue(copy))
    for at in range(5):
        listener.accept()
        print("one is taken", settled(listener, 4 - at))
    print("short", len(listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 26)))
    listener.close()
    copy.close()
