"""MSG_EOR as programs say it: `records.py receive LINK PORT` tells what segments came over a link, and `records.py send ADDR
PORT` writes to it by each call that has flags."""

import ctypes
import socket
import struct
import sys

ETHERNET, IP, TCP, ALL_PROTOCOLS = 14, 0x0800, 6, 3


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.POINTER(Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("length", ctypes.c_uint)]


def send_messages(sock, texts, flags):
    """sendmmsg(2), which Python does not have."""
    messages = (Message * len(texts))()
    for message, text in zip(messages, texts):
        message.header.vectors = ctypes.pointer(Vector(text, len(text)))
        message.header.vector_count = 1
    sent = ctypes.CDLL(None, use_errno=True).sendmmsg(sock.fileno(), messages, len(texts), flags)
    assert sent == len(texts), (sent, ctypes.get_errno())


def send(addr, port):
    conn = socket.create_connection((addr, port))
    # What no record ends behind would wait, and go with what comes next.
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    conn.send(b"a" * 100, socket.MSG_EOR)
    conn.sendmsg([b"b" * 50, b"b" * 150], [], socket.MSG_EOR)
    send_messages(conn, [b"c" * 300, b"d" * 400], socket.MSG_EOR)
    conn.sendto(b"e" * 500, socket.MSG_EOR, (addr, port))
    conn.send(b"f" * 60)
    conn.send(b"f" * 70)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    conn.shutdown(socket.SHUT_WR)
    assert conn.recv(1) == b""


def payload(frame, port):
    """Number and length of what a frame brings to the port."""
    if len(frame) < ETHERNET + 40 or struct.unpack_from("!H", frame, 12)[0] != IP or frame[ETHERNET + 9] != TCP:
        return None
    tcp = ETHERNET + 4 * (frame[ETHERNET] & 15)
    to, seq = struct.unpack_from("!2xHI", frame, tcp)
    length = ETHERNET + struct.unpack_from("!H", frame, ETHERNET + 2)[0] - tcp - 4 * (frame[tcp + 12] >> 4)
    return (seq, length) if to == port and length else None


def receive(link, port):
    watching = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    watching.bind((link, ALL_PROTOCOLS))
    listener = socket.create_server(("", port))
    print("listening", flush=True)
    conn, _ = listener.accept()
    octets = b"".join(iter(lambda: conn.recv(65536), b""))
    conn.close()
    assert octets == b"a" * 100 + b"b" * 200 + b"c" * 300 + b"d" * 400 + b"e" * 500 + b"f" * 130
    # All of it has come by, as it was read. What came again came as before.
    watching.setblocking(False)
    segments = {}
    try:
        while True:
            found = payload(watching.recv(65536), port)
            if found:
                segments.setdefault(*found)
    except BlockingIOError:
        pass
    first = next(iter(segments))
    in_order = sorted(segments, key=lambda seq: (seq - first) & 0xFFFFFFFF)
    print("segments", *(segments[seq] for seq in in_order))


if sys.argv[1] == "send":
    send(sys.argv[2], int(sys.argv[3]))
else:
    receive(sys.argv[2], int(sys.argv[3]))
