"""servers in Rust: on tokio (a task for each connection, answers through threads that block, a relay with half closes), and on smol,
whose reactor makes its system calls by instructions of its own (rustix) beside the C library's sockets"""

import socket
import threading

from lib import Failed, connect, exchange, expect, octets, recv_exactly, recv_to_end, script, sha256

PORT, RELAY, SMOL, SMOL_RELAY = 8660, 8661, 8662, 8663
SOURCE = "scripts/compat-programs.sh builds it from compat/rust"


def at_once(count, work):
    """Every thread works alone; the first failure is this one's."""
    errors = []

    def one(number):
        try:
            work(number)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise Failed(f"{len(errors)} of {count}: {errors[0]}")
    expect(sum(thread.is_alive() for thread in threads), 0, "hanging clients")


def ask(port, number):
    """Lines to the server on tokio, each answered before the next is sent, then one whose answer is long."""
    s = connect(port)
    s.settimeout(20)
    for turn in range(50):
        s.sendall(b"ping %d %d\n" % (number, turn))
        wanted = b"ping %d %d" % (number, turn)
        expect(recv_exactly(s, len(wanted)), wanted, "an answer")
    s.sendall(b"300000\n\n")
    s.shutdown(socket.SHUT_WR)
    expect(sha256(recv_to_end(s)), sha256(bytes(n % 251 for n in range(300_000))), "the long answer")
    s.close()


def main(lab):
    tokio, smol = lab.program("tokio-server", SOURCE), lab.program("smol-server", SOURCE)
    servers = [lab.serve("tokio", PORT, tokio, f"127.0.0.1:{PORT}")]
    servers.append(lab.serve("relay", RELAY, tokio, f"127.0.0.1:{RELAY}", f"127.0.0.1:{PORT}"))
    for port, name in ((PORT, "tokio"), (RELAY, "tokio, through a relay")):
        with lab.check(f"{name}: 30 clients at once"):
            at_once(30, lambda number, port=port: ask(port, number))
    large = octets(5_000_000, 2)
    lab.serve("smol", SMOL, smol, f"127.0.0.1:{SMOL}")
    servers.append(lab.serve("smol-relay", SMOL_RELAY, tokio, f"127.0.0.1:{SMOL_RELAY}", f"127.0.0.1:{SMOL}"))
    for port, name in ((SMOL, "smol"), (SMOL_RELAY, "smol behind tokio")):
        with lab.check(f"{name}: 5 MB there and back, 20 at once"):
            expect(sha256(exchange(port, large)), sha256(large), "what came back")
            at_once(20, lambda number, port=port: expect(
                sha256(exchange(port, octets(50_000, number))), sha256(octets(50_000, number)), "what came back"))
    with lab.check("those on tokio end by SIGTERM"):
        for server in servers:
            lab.stop(server, status=0)


script("tokio and smol", main)
