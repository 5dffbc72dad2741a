"""What TCP_INFO tells of a connection between two processes, on whatever stack: told by the numbers of octets that went."""

import os
import socket
import struct
import sys
import time

STATE, OPTIONS = 0, 5
WORDS = {"snd_mss": 16, "rcv_mss": 20, "unacked": 24, "last_data_sent": 44, "last_data_recv": 52, "pmtu": 60, "rtt": 68,
         "snd_cwnd": 80, "segs_out": 136, "segs_in": 140, "notsent": 144, "min_rtt": 148, "data_segs_in": 152,
         "data_segs_out": 156, "delivered": 192, "snd_wnd": 228}
LONGS = {"bytes_acked": 120, "bytes_received": 128, "bytes_sent": 200, "busy_time": 168}


def info(sock):
    octets = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1000)
    assert len(octets) >= 232, len(octets)
    told = {name: struct.unpack_from("=I", octets, at)[0] for name, at in WORDS.items()}
    told.update({name: struct.unpack_from("=Q", octets, at)[0] for name, at in LONGS.items()})
    return told | {"state": octets[STATE]}


def soon(sock, holds):
    """The acknowledgement of the last octet may come a moment after its answer."""
    for _ in range(1000):
        told = info(sock)
        if holds(told):
            return told
        time.sleep(0.001)
    raise AssertionError(told)


def exactly(sock, count):
    octets = b""
    while len(octets) < count:
        more = sock.recv(count - len(octets))
        assert more
        octets += more
    return octets


def serve(listener):
    sock, _ = listener.accept()
    for size in SIZES:
        exactly(sock, size)
        sock.sendall(b"y" * (size // 2))
    told = soon(sock, lambda told: told["bytes_acked"] >= sum(SIZES) // 2)
    assert told["bytes_received"] == sum(SIZES), told
    assert told["data_segs_in"] >= len(SIZES), told
    exactly(sock, 1)


SIZES = [100] * 300 + [50_000] * 40


def main():
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    child = os.fork()
    if child == 0:
        serve(listener)
        os._exit(0)
    listener.close()
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    fresh = info(sock)
    assert fresh["state"] == 1 and fresh["bytes_received"] == 0, fresh
    assert fresh["snd_mss"] >= 536 and fresh["pmtu"] >= 576 and fresh["snd_cwnd"] >= 1, fresh
    for size in SIZES:
        sock.sendall(b"x" * size)
        exactly(sock, size // 2)
    told = soon(sock, lambda told: told["bytes_acked"] >= sum(SIZES))
    # The SYN has a number, too.
    assert told["bytes_acked"] == sum(SIZES) + 1, told
    assert (told["bytes_sent"], told["bytes_received"]) == (sum(SIZES), sum(SIZES) // 2), told
    assert told["data_segs_out"] >= len(SIZES) and told["data_segs_in"] >= len(SIZES), told
    assert told["segs_out"] >= told["data_segs_out"] and told["delivered"] >= len(SIZES), told
    assert (told["unacked"], told["notsent"]) == (0, 0), told
    assert 0 < told["rtt"] < 1_000_000 and told["min_rtt"] < 1_000_000, told
    assert told["last_data_sent"] < 1000 and told["last_data_recv"] < 1000, told
    time.sleep(0.05)
    assert info(sock)["last_data_sent"] >= 40
    sock.sendall(b"z")
    assert os.waitpid(child, 0)[1] == 0
    print("told")


main()
