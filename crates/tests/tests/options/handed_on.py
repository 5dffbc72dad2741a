"""Options of a connection as whoever else comes to have it reads them: a child, the program after exec, a process that is
passed the descriptor, and its first holder after one of these has set some.

Usage: handed_on.py FILE, with "LEVEL NUMBER COMPARED" on each line. Says what differs, by holder, level and number.
"""

import json
import os
import socket
import struct
import sys

RECVTIMEO, SNDTIMEO, LINGER, CONGESTION, PACING = (1, 20), (1, 21), (1, 13), (6, 13), (1, 47)
SPECIAL = {
    RECVTIMEO: struct.pack("ll", 7, 250_000),
    SNDTIMEO: struct.pack("ll", 9, 500_000),
    LINGER: struct.pack("ii", 1, 0),
    CONGESTION: b"reno",
    PACING: struct.pack("Q", 123_456_789),
}
# Reading them takes something away, or they are of the moment; what is of IPv6 beside them is asked, too.
MOMENT = {(1, 4), (6, 11), (6, 26), (6, 35), (6, 28)}


def read(sock, key):
    try:
        return sock.getsockopt(*key, 64).hex()
    except OSError as error:
        return os.strerror(error.errno)


def set_some(sock, keys, add):
    for key in keys:
        before = read(sock, key)
        values = [SPECIAL[key]] if key in SPECIAL else [struct.pack("i", value + add) for value in (1, 3, 16, 2000)]
        for value in values:
            try:
                sock.setsockopt(*key, value)
            except OSError:
                continue
            if read(sock, key) != before:
                break


def compare(who, sock, keys, expected):
    for key in keys:
        now = read(sock, key)
        if now != expected[str(key)]:
            print(f"{who} {key[0]} {key[1]}: {now} for {expected[str(key)]}", flush=True)


def all_of(sock, keys):
    return {str(key): read(sock, key) for key in keys}


def holder(keys, who, expected, sock):
    """A program that was executed, with the connection, sets them anew."""
    compare(who, sock, keys, expected)
    set_some(sock, keys, 1)
    sys.stdout.flush()
    return all_of(sock, keys)


def main():
    with open(sys.argv[1]) as asked:
        lines = [line.split() for line in asked]
    keys = [(int(level), int(number)) for level, number, *rest in lines if level != "ioctl" and rest == ["1"]]
    keys = [key for key in keys if key not in MOMENT and key[0] != 41]
    if len(sys.argv) > 2:
        who, control = sys.argv[2], socket.socket(fileno=int(sys.argv[3]))
        expected = json.loads(control.recv(1 << 16))
        if who == "passed":
            _, fds, _, _ = socket.recv_fds(control, 1, 1)
        else:
            fds = [int(sys.argv[4])]
        sock = socket.socket(fileno=fds[0])
        control.send(json.dumps(holder(keys, who, expected, sock)).encode())
        return
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    set_some(served, keys, 0)
    expected = all_of(served, keys)
    for who in ("forked", "executed", "passed"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (ours, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
        os.set_inheritable(theirs.fileno(), True)
        os.set_inheritable(served.fileno(), who == "executed")
        child = os.fork()
        if child == 0:
            if who == "forked":
                json.loads(theirs.recv(1 << 16))
                theirs.send(json.dumps(holder(keys, who, expected, served)).encode())
                os._exit(0)
            os.execv(sys.executable, [sys.executable, *sys.argv, who, str(theirs.fileno()), str(served.fileno())])
        ours.send(json.dumps(expected).encode())
        if who == "passed":
            socket.send_fds(ours, [b"x"], [served.fileno()])
        expected = json.loads(ours.recv(1 << 16))
        os.waitpid(child, 0)
        compare(f"first holder after {who}", served, keys, expected)
        set_some(served, keys, 2)
        expected = all_of(served, keys)
    client.send(b"over")
    print("end")


main()
