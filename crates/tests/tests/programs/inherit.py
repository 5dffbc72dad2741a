"""What connections have of the options of their listener, set before and after it listens: prints the values."""

import errno
import socket
import struct

TCP, IP, SOCKET = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.SOL_SOCKET
OPTIONS = {
    "TCP_NODELAY": (TCP, 1, 1),
    "TCP_CORK": (TCP, 3, 1),
    "TCP_KEEPIDLE": (TCP, 4, 77),
    "TCP_KEEPINTVL": (TCP, 5, 33),
    "TCP_KEEPCNT": (TCP, 6, 4),
    "TCP_SYNCNT": (TCP, 7, 3),
    "TCP_LINGER2": (TCP, 8, 17),
    "TCP_THIN_LINEAR_TIMEOUTS": (TCP, 16, 1),
    "TCP_USER_TIMEOUT": (TCP, 18, 12345),
    "TCP_NOTSENT_LOWAT": (TCP, 25, 1000),
    "TCP_SAVE_SYN": (TCP, 27, 1),
    "TCP_INQ": (TCP, 36, 1),
    "SO_REUSEADDR": (SOCKET, 2, 1),
    "SO_DONTROUTE": (SOCKET, 5, 1),
    "SO_BROADCAST": (SOCKET, 6, 1),
    "SO_SNDBUF": (SOCKET, 7, 30000),
    "SO_RCVBUF": (SOCKET, 8, 20000),
    "SO_KEEPALIVE": (SOCKET, 9, 1),
    "SO_OOBINLINE": (SOCKET, 10, 1),
    "SO_PRIORITY": (SOCKET, 12, 3),
    "SO_RCVLOWAT": (SOCKET, 18, 7),
    "SO_MARK": (SOCKET, 36, 9),
    "IP_TOS": (IP, 1, 16),
    "IP_TTL": (IP, 2, 33),
    "IP_MTU_DISCOVER": (IP, 10, 0),
    "IP_RECVTOS": (IP, 13, 1),
    "IP_FREEBIND": (IP, 15, 1),
}


def value(one, level, option):
    return struct.unpack("i", one.getsockopt(level, option, 4))[0]


def set_all(one):
    for level, option, number in OPTIONS.values():
        one.setsockopt(level, option, number)


for before_listen in (True, False):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    if before_listen:
        set_all(listener)
    listener.listen(5)
    if not before_listen:
        set_all(listener)
    client = socket.socket()
    client.connect(listener.getsockname())
    accepted, _ = listener.accept()
    for what, (level, option, _) in OPTIONS.items():
        print(before_listen, what, value(accepted, level, option))
