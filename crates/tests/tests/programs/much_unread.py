"""How much a connection takes whose peer does not read: at once, and until it takes no more; and two programs that both write first."""

import faulthandler
import select
import socket
import threading

# Linux takes at least so many: 64 KiB in the send buffer at once; of local peers 0.75 MB to 4.25 MB all in all.
AT_ONCE_MIN = 64 << 10
ALL_MIN = 500 << 10


def pair(rounds=0):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        select.select([], [client], [])
        served, _ = listener.accept()
    for _ in range(rounds):
        client.send(b"x")
        served.recv(1)
    return client, served


def at_once(client, size):
    sent = 0
    try:
        while sent < AT_ONCE_MIN:
            sent += client.send(b"y" * size)
    except BlockingIOError:
        pass
    return sent


def until_full(client, size):
    """However late the engine comes to it on a busy machine: the least that there must be has no limit but that of the whole."""
    sent, quiet = 0, 0
    while sent < ALL_MIN or quiet < 10:
        try:
            sent += client.send(b"y" * size)
            quiet = 0
        except BlockingIOError:
            quiet += not select.select([], [client], [], 0.02)[1]
    return sent


def drained(client, served):
    client.setblocking(True)
    client.shutdown(socket.SHUT_WR)
    got = 0
    while octets := served.recv(1 << 20):
        got += len(octets)
    return got


faulthandler.dump_traceback_later(50, exit=True)
for n in range(40):
    client, served = pair()
    sent = at_once(client, (1024, 100, 3000)[n % 3])
    assert sent >= AT_ONCE_MIN, f"{sent} at once, n {n}"
    assert drained(client, served) == sent
for rounds in (0, 200):
    for size in (100, 1000, 1024, 10_000, 65_536, 1_000_000):
        client, served = pair(rounds)
        sent = until_full(client, size)
        assert drained(client, served) == sent

client, served = pair(100)
client.setblocking(True)


def write_then_read(one):
    one.sendall(b"z" * 300_000)
    got = 0
    while got < 300_000:
        got += len(one.recv(65_536))


threads = [threading.Thread(target=write_then_read, args=(one,), daemon=True) for one in (client, served)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30)
    assert not thread.is_alive(), "each waits for the other"
print("same")
