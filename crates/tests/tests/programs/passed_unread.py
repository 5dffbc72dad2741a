"""A connection of which much is unread goes to another process, which reads it: by exec, by fork and the parent's end, in a message."""

import faulthandler
import hashlib
import os
import select
import socket
import subprocess
import sys

SO_SNDBUFFORCE = 32
LIMIT = 16 << 20
BLOCK = 1 << 16
# The last is more than there is room for.
CASES = [(how, mib, first) for how in ("exec", "fork", "message") for mib, first in ((8, 100), (17, 100))]
CASES += [("exec", 12, 0), ("fork", 3, 100)]
# Megabytes are under way when the two programs begin to share memory.
CASES += [("exec", 24, 0), ("fork", 24, 0)] * 2


def tell(served):
    told, got = hashlib.sha256(), 0
    while octets := served.recv(1 << 20):
        told.update(octets)
        got += len(octets)
    print(got, told.hexdigest(), flush=True)


def this(role, *more):
    return [sys.executable, __file__, role, *map(str, more)]


def receive(how):
    ours, other = socket.socketpair()
    if how == "message":
        taker = subprocess.Popen(this("take"), stdin=other.fileno())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        early, _ = listener.accept()
        for _ in range(300):
            early.send(early.recv(1))
        served, _ = listener.accept()
    print("taken", flush=True)
    sys.stdin.readline()
    if how == "exec":
        served.set_inheritable(True)
        os.execv(sys.executable, this("hold", served.fileno()))
    elif how == "fork":
        if os.fork():
            os._exit(0)
        tell(served)
    else:
        socket.send_fds(ours, [b"x"], [served.fileno()])
        served.close()
        taker.wait()
    os._exit(0)


def fill(client, most, first):
    """Sends until there is no more room: how much, and what its digest is."""
    client.setblocking(False)
    sent, told = 0, hashlib.sha256()
    # A few alone, so that some are the engine's and the rest is not.
    sizes = [first] * first
    while sent < most:
        size = sizes.pop() if sizes else BLOCK
        octets = (hashlib.sha256(str(sent).encode()).digest() * (size // 32 + 1))[:size]
        try:
            count = client.send(octets)
        except BlockingIOError:
            if not select.select([], [client], [], 0.3)[1]:
                break
            continue
        told.update(octets[:count])
        sent += count
    return sent, told.hexdigest()


def pass_on(how, mib, first):
    peer = subprocess.Popen(this("receive", how), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = ("127.0.0.1", int(peer.stdout.readline()))
    with socket.create_connection(address) as early, socket.socket() as client:
        for _ in range(300):
            early.send(b"x")
            early.recv(1)
        client.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, LIMIT)
        client.connect(address)
        assert peer.stdout.readline() == "taken\n"
        sent, digest = fill(client, mib << 20, first)
        client.shutdown(socket.SHUT_WR)
        said, _ = peer.communicate("go\n")
        assert sent >= min(mib, 12) << 20, f"{how} {mib} {first}: only {sent}"
        assert said.split() == [str(sent), digest], f"{how} {mib} {first}: {sent} sent, {said or 'nothing'}"


faulthandler.dump_traceback_later(55, exit=True)
match sys.argv[1:]:
    case ["receive", how]:
        receive(how)
    case ["hold", number]:
        tell(socket.socket(fileno=int(number)))
    case ["take"]:
        _, numbers, _, _ = socket.recv_fds(socket.socket(fileno=0), 10, 1)
        tell(socket.socket(fileno=numbers[0]))
    case _:
        for case in CASES:
            pass_on(*case)
        print("same")
