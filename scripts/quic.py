#!/usr/bin/env python3
"""QUIC by quinn on Linux's stack and on OpenTOE, turn and turn about.

Rate, and CPU time of server, client and engine together, of one transfer and of requests, one after the other and 16 at a time. 'local':
both programs on one stack. 'veth': the server on the engine, or on the kernel's stack, of one network namespace, the client on
the kernel's of another. Where there are two processors server and client have one each. Needs root, and what scripts/compat-programs.sh
builds of compat/rust.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
SERVER, CLIENT = "10.83.0.1", "10.83.0.2"
PORT = "4433"
TICKS = os.sysconf("SC_CLK_TCK")
NAME = f"quic-{os.getpid()}"
INSIDE = {end: ["nsenter", f"--net=/run/netns/{NAME}-{end}", "--"] for end in ("server", "client")}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"quic: {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def cpu_s(pid):
    """User and system time of all threads of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def namespaces(undo, link, stack):
    for inside in INSIDE:
        run("ip", "netns", "add", f"{NAME}-{inside}")
        undo.callback(run, "ip", "netns", "del", f"{NAME}-{inside}")
        run("ip", "-n", f"{NAME}-{inside}", "link", "set", "lo", "up")
    server, client = f"{NAME}-server", f"{NAME}-client"
    run("ip", "-n", server, "link", "add", "q0", "type", "veth", "peer", "name", "q0", "netns", client)
    run("ip", "-n", client, "addr", "add", f"{CLIENT}/24", "dev", "q0")
    # The engine has the address alone.
    if (link, stack) == ("veth", "linux"):
        run("ip", "-n", server, "addr", "add", f"{SERVER}/24", "dev", "q0")
    for namespace in (server, client):
        run("ip", "-n", namespace, "link", "set", "q0", "up")


def start_engine(undo, toe, link):
    """Its process."""
    of_link = ["--port", "packet:q0", "--addr", f"{SERVER}/24"] if link == "veth" else []
    run(*INSIDE["server"], toe, "start", "--name", NAME, *of_link)
    undo.callback(run, *INSIDE["server"], toe, "stop", "--name", NAME)
    return json.loads(run(*INSIDE["server"], toe, "status", "--name", NAME, "--json"))["pid"]


def on_core(core):
    return ["taskset", "-c", str(core)] if os.cpu_count() > 1 else []


def start_server(undo, words, at):
    server = subprocess.Popen([*words, "serve", f"{at}:{PORT}"], stdout=subprocess.PIPE, text=True)
    undo.callback(server.wait)
    undo.callback(server.kill)
    if server.stdout.readline().strip() != "ready":
        sys.exit("quic: the server does not start")
    return server.pid


def measure(words, pids, operations):
    """Operations a second, and CPU ms of each, of a client and the processes beside it."""
    before = sum(map(cpu_s, pids))
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    said = client.stdout.read()
    _, status, usage = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    if client.returncode != 0:
        sys.exit(f"quic: the client failed: {said}")
    # What the engine and the server still do for it.
    time.sleep(0.05)
    spent = sum(map(cpu_s, pids)) - before + usage.ru_utime + usage.ru_stime
    return operations / json.loads(said)["seconds"], 1e3 * spent / operations


def measure_all(options, link, stack):
    """Rate and CPU of each row, on one stack."""
    with contextlib.ExitStack() as undo:
        namespaces(undo, link, stack)
        toe = os.path.join(options.bin, "toe")
        pids, on_engine = [], []
        if stack == "toe":
            pids.append(start_engine(undo, toe, link))
            on_engine = [toe, "run", "--name", NAME, "--"]
        at = SERVER if link == "veth" else "127.0.0.1"
        pids.append(start_server(undo, [*INSIDE["server"], *on_core(0), *on_engine, options.program], at))
        own = link == "local"
        there = [*INSIDE["server" if own else "client"], *on_core(1), *(on_engine if own else []), options.program]
        to, rows = f"{at}:{PORT}", {}
        mib, requests = options.mib, options.requests
        # A connection before, so that nothing is done for the first time.
        measure([*there, "requests", to, "100", "1"], pids, 100)
        rows["MiB"] = measure([*there, "transfer", to, str(mib << 20)], pids, mib)
        rows["request"] = measure([*there, "requests", to, str(requests), "1"], pids, requests)
        rows["request of 16 at a time"] = measure([*there, "requests", to, str(requests), "16"], pids, requests)
        return rows


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--link", action="append", choices=["local", "veth"], help="both unless given")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--mib", type=int, default=1024, help="of a transfer")
    words.add_argument("--requests", type=int, default=10_000)
    words.add_argument("--json", metavar="FILE", help="'-': the standard output, and no text")
    words.add_argument("--bin", default=os.environ.get("TOE_BIN_DIR", f"{ROOT}/target/release"), help="where toe is")
    words.add_argument("--program", default=f"{ROOT}/target/compat/bin/quic-load")
    options = words.parse_args()
    if os.geteuid() != 0 or not os.access(options.program, os.X_OK):
        sys.exit("quic: needs root, and quic-load (scripts/compat-programs.sh)")
    report = []
    for link in options.link or ["local", "veth"]:
        rounds = [{stack: measure_all(options, link, stack) for stack in ("linux", "toe")} for _ in range(options.rounds)]
        for row in rounds[0]["linux"]:
            measured = {stack: [one[stack][row] for one in rounds] for stack in ("linux", "toe")}
            (rate, cpu), (toe_rate, toe_cpu) = (
                [statistics.median(column) for column in zip(*measured[stack])] for stack in ("linux", "toe")
            )
            report.append({"link": link, "operation": row, **measured, "rate": toe_rate / rate, "cpu": toe_cpu / cpu})
            if options.json != "-":
                print(
                    f"{link:5} {row:24} Linux {rate:8.0f}/s {cpu:6.3f} ms  OpenTOE {toe_rate:8.0f}/s {toe_cpu:6.3f} ms"
                    f"  rate {toe_rate / rate:.2f} x  CPU {toe_cpu / cpu:.2f} x",
                    flush=True,
                )
    if options.json:
        with contextlib.nullcontext(sys.stdout) if options.json == "-" else open(options.json, "w") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
