"""iperf3 -u: at a fixed rate nothing is lost; four streams, datagrams of 64 and of 8000 bytes, in reverse, as fast as it goes"""

import json

from lib import Failed, expect, script

PORT = 5212


def measure(lab, *options):
    report = json.loads(lab.run("iperf3", "-u", "-c", "127.0.0.1", "-p", PORT, "-J", "-t", "2", *options, timeout=30))
    if "error" in report:
        raise Failed(report["error"])
    end = report["end"]["sum"]
    if not end["packets"]:
        raise Failed("no datagram was sent")
    return end


def main(lab):
    lab.version("iperf3", "--version")
    server = lab.serve("iperf3", PORT, "iperf3", "-s", "-p", PORT, "-B", "127.0.0.1")
    runs = (
        ("20 Mbit/s", ["-b", "20M"]), ("four streams of 5 Mbit/s", ["-b", "5M", "-P4"]),
        ("datagrams of 64 bytes", ["-b", "1M", "-l", "64"]), ("datagrams of 8000 bytes", ["-b", "50M", "-l", "8000"]),
        ("in reverse", ["-b", "20M", "-R"]),
    )
    for name, options in runs:
        with lab.check(name):
            end = measure(lab, *options)
            # What another program on the processor holds up is lost on either stack.
            expect(end["lost_percent"] < 5, True, f"few are lost ({end['lost_percent']:.2f} %)")
    with lab.check("as fast as it goes"):
        measure(lab, "-b", "0")
    with lab.check("ends cleanly"):
        lab.stop(server)


script("iperf3 -u", main)
