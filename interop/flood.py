"""A SYN flood beside a running transfer: what is left of the transfer, what the engine's memory does, and whether those
who want a connection get one.

The flood comes over the same veth, from addresses that do not exist (behind the engine's gateway, which drops what is
sent to them). The listener that it hits is the one that the transfer came in at."""

import concurrent.futures
import re
import socket
import statistics
import subprocess
import sys
import time

import link

RATE = 100_000
SETTLE = 1.5
"""Seconds of the transfer before it is looked at."""
PHASE = 4
"""Seconds before the flood, and of the flood."""
CONNECTS = 40
CONNECT_LIMIT = 5
KEEPS = 0.8
"""What is to be left of the transfer's rate."""


def measure(stack):
    """A transfer alone, then with the flood: one dictionary of figures."""
    with link.FastLink() as wire:
        name = wire.engine("s") if stack == "engine" else "linux"
        address = (link.KERNEL if name == "linux" else link.ENGINE)["s"]
        wire.source("s", name)
        wire.sink("r", "linux", address, 1, SETTLE + 2 * PHASE + link.LIMIT)
        time.sleep(SETTLE)
        pid = engine_pid(wire, name)
        memory = [resident_kib(pid)]
        before = rate_over(wire, address, PHASE)
        words = [link.programs() / "toe-load", "flood", "--connect", f"{address}:{link.PORT}",
                 "--rate", RATE, "--seconds", PHASE + 2]
        flood = wire.spawn("r", *words, stderr=subprocess.PIPE)
        time.sleep(0.5)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            connects = pool.submit(try_to_connect, wire, address)
            during = rate_over(wire, address, PHASE)
            memory.append(resident_kib(pid))
            sent = wire.result(flood, PHASE + 2)
            times = connects.result()
        time.sleep(1)
        memory.append(resident_kib(pid))
        return {
            "stack": stack, "rate": sent["rate"], "before": before, "during": during, "left": during / before,
            "memory_kib": memory, "connects": CONNECTS, "connected": len(times),
            "connect_ms": [1000 * statistics.median(times), 1000 * max(times)] if times else None,
        }


def engine_pid(wire, name):
    return None if name == "linux" else wire.status(name)["pid"]


def resident_kib(pid):
    if pid is None:
        return 0
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


def received(wire, address):
    """Octets that the transfer's receiver has got so far, as its kernel counts them."""
    words = link.in_namespace(wire.namespace("r"), "ss", "-tinH", "dst", f"{address}:{link.PORT}")
    counts = re.findall(r"bytes_received:(\d+)", link.run(*words))
    return max(map(int, counts), default=0)


def rate_over(wire, address, seconds):
    """Bits a second of the transfer."""
    begin, at = received(wire, address), time.monotonic()
    time.sleep(seconds)
    return (received(wire, address) - begin) * 8 / (time.monotonic() - at)


def try_to_connect(wire, address):
    """How long each connect took that succeeded."""
    words = [sys.executable, __file__, address, link.PORT]
    child = wire.spawn("r", *words)
    out, _ = child.communicate(timeout=CONNECTS * CONNECT_LIMIT + link.LIMIT)
    return [float(line) for line in out.split()]


def connect_often(address, port):
    for _ in range(CONNECTS):
        began = time.monotonic()
        try:
            # A request and its answer: a connection that the listener does not know of is none.
            with socket.create_connection((address, port), CONNECT_LIMIT) as connection:
                header = b"TOEL" + bytes([1, 0, 0, 0]) + (8).to_bytes(4, "little") + bytes(4)
                connection.sendall(header + bytes(8))
                if len(connection.recv(8)) > 0:
                    print(time.monotonic() - began, flush=True)
        except OSError:
            pass
        time.sleep(0.05)


def is_good(found):
    bounded = found["memory_kib"][2] <= found["memory_kib"][0] + 64 * 1024
    return found["left"] >= KEEPS and bounded and found["connected"] == found["connects"]


if __name__ == "__main__":
    connect_often(sys.argv[1], int(sys.argv[2]))
