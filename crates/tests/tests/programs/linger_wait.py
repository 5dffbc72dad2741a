"""A close that lingers sleeps until its octets are acknowledged, and is not awake now and then to look whether they are."""

import select
import socket
import struct
import threading
import time

# Who looks each millisecond does so some hundreds of times meanwhile.
PAUSE_S = 0.4
SWITCHES_MAX = 60
LOOKS_MAX = 10_000


def status(thread, name):
    with open(f"/proc/self/task/{thread.native_id}/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(name))


def one(rounds):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
    for _ in range(rounds):
        client.send(b"x")
        served.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    client.setblocking(False)
    sent, quiet = 0, 0
    while quiet < 10:
        try:
            sent += client.send(b"y" * 65536)
            quiet = 0
        except BlockingIOError:
            quiet += not select.select([], [client], [], 0.02)[1]
    client.setblocking(True)
    closer = threading.Thread(target=client.close)
    closer.start()
    looks = 0
    while status(closer, "State:") != "S":
        looks += 1
        assert looks < LOOKS_MAX, "it is awake for as long as it waits"
        time.sleep(0.001)
    before = int(status(closer, "voluntary_ctxt_switches:"))
    time.sleep(PAUSE_S)
    assert closer.is_alive(), "the peer has read nothing"
    switches = int(status(closer, "voluntary_ctxt_switches:")) - before
    got = 0
    while octets := served.recv(1 << 20):
        got += len(octets)
    closer.join()
    assert got == sent, (got, sent)
    return switches


for rounds in (0, 200):
    switches = one(rounds)
    assert switches <= SWITCHES_MAX, f"woken {switches} times"
print("same")
