"""streams in both directions, -P 4, -R, --bidir, a fixed rate, blocks of 200 bytes, zero copy, one test after
another"""

import json

from lib import Failed, expect, script

PORT = 5301


def main(lab):
    lab.version("iperf3", "--version")
    server = lab.serve("iperf3", PORT, "iperf3", "-s", "-p", PORT, "-B", "127.0.0.1")
    runs = (
        ("one stream", []), ("four streams", ["-P4"]), ("four streams, reverse", ["-P4", "-R"]),
        ("both directions", ["--bidir"]), ("zero copy", ["-Z"]), ("blocks of 200 bytes", ["-l", "200"]),
        ("a fixed rate", ["-b", "200M"]), ("window of 64 KiB", ["-w", "64K"]),
        ("500 MB by count", ["-n", "500M"]),
    )
    for name, options in runs:
        with lab.check(name):
            measure(lab, options)
    with lab.check("a client that goes away in the middle"):
        client = lab.spawn("interrupted", "iperf3", "-c", "127.0.0.1", "-p", PORT, "-t", "30", "-P4", "--forceflush")
        lab.until_log("interrupted", "connected to")
        client.kill()
        client.wait()
        measure(lab, [])
    with lab.check("ends cleanly"):
        lab.stop(server)


def measure(lab, options):
    if "-n" not in options:
        options = [*options, "-t", "1"]
    report = json.loads(lab.run("iperf3", "-c", "127.0.0.1", "-p", PORT, "-J", *options, timeout=20))
    if "error" in report:
        raise Failed(report["error"])
    for end in [name for name in report["end"] if name.startswith("sum_")]:
        sent = report["end"][end]["bytes"]
        if not sent:
            raise Failed(f"{end}: nothing was transferred")
    if "-n" in options:
        # The receiver stops at a message on another connection, so the last bytes may not be counted.
        received = report["end"]["sum_received"]["bytes"]
        expect(0.9 * (500 << 20) < received <= sent, True, f"500 MB were sent ({sent}) and received ({received})")


script("iperf3", main)
