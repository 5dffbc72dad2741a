"""QUIC by quinn (Rust), with UDP_SEGMENT, UDP_GRO, ECN and path MTU discovery: 300 MiB, 2000 requests one after the other and 16 at a
time, four clients at once"""

import json

from lib import expect, script

PORT = 8760
SOURCE = "scripts/compat-programs.sh builds it from compat/rust"


def main(lab):
    quic = lab.program("quic-load", SOURCE)
    server = lab.spawn("server", quic, "serve", f"127.0.0.1:{PORT}")
    lab.until_log("server", "ready")
    at = f"127.0.0.1:{PORT}"
    with lab.check("300 MiB"):
        expect(json.loads(lab.run(quic, "transfer", at, 300 << 20, timeout=60))["octets"], 300 << 20, "octets")
    with lab.check("2000 requests, one after the other"):
        expect(json.loads(lab.run(quic, "requests", at, 2000, 1, timeout=60))["requests"], 2000, "requests")
    with lab.check("2000 requests, 16 at a time"):
        expect(json.loads(lab.run(quic, "requests", at, 2000, 16, timeout=60))["requests"], 2000, "requests")
    with lab.check("four clients at once"):
        clients = [lab.spawn(f"client{n}", quic, "transfer", at, 20 << 20) for n in range(4)]
        expect([client.wait(60) for client in clients], [0] * 4, "exit status")
    lab.stop(server)


script("quinn", main)
