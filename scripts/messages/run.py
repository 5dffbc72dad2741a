#!/usr/bin/env python3
"""Messages between two programs of one machine, by everything that carries them here, in one run: EVIL, native VIA, libfabric over OpenTOE and
over its own providers, UCX. Prints a table of one-way latencies in us (half of the median of a request and its reply, or what a program
says itself), and of what 1 MiB costs against memcpy; --json gives the figures.

usage: run.py [--seconds S] [--json FILE]       after make build; Debian's libfabric-bin and ucx-utils
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TOE_BIN_DIR", ROOT / "target/release"))
SIZES = [8, 64, 512, 4096]
FLOODS = [64, 256, 1024, 4096, 16384, 65536]
LARGE = 1 << 20
ENGINE = f"messages-{os.getpid()}"
LIMIT = 60


def pinned(cpu, words):
    return ["taskset", "-c", str(cpu), *map(str, words)]


class Run:
    def __init__(self, seconds):
        self.seconds = seconds
        self.dir = tempfile.TemporaryDirectory()
        self.vipl = pathlib.Path(self.dir.name) / "vipl"
        cc = ["cc", "-std=gnu11", "-O2", f"-I{ROOT}/include", "-o", self.vipl, ROOT / "scripts/messages/vipl.c"]
        subprocess.run([*cc, f"-L{BIN}", "-ltoe_via", "-lpthread", "-ldl", "-lm", f"-Wl,-rpath,{BIN}"], check=True)
        fabric = pathlib.Path(self.dir.name) / "fabric"
        fabric.mkdir()
        (fabric / "libtoe-fi.so").symlink_to(BIN / "libtoe_fi.so")
        subprocess.run([BIN / "toe", "start", "--name", ENGINE], check=True, stdout=subprocess.DEVNULL)
        self.env = dict(os.environ, TOE_ENGINE=f"/run/opentoe/{ENGINE}.sock", TOE_VIA_NODE="one", FI_PROVIDER_PATH=str(fabric))

    def end(self):
        subprocess.run([BIN / "toe", "stop", "--name", ENGINE], stdout=subprocess.DEVNULL)

    def pair(self, server, client, env=None, starts=None, stays=False):
        """What the client says, beside a server on another core."""
        env = {**self.env, **(env or {})}
        serve = subprocess.Popen(pinned(0, server), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 10
            while starts and not starts():
                if time.monotonic() > until or serve.poll() is not None:
                    return None
                time.sleep(0.02)
            done = subprocess.run(pinned(1, client), env=env, capture_output=True, text=True, timeout=LIMIT)
            return done.stdout if done.returncode == 0 else None
        except subprocess.TimeoutExpired:
            return None
        finally:
            if stays or serve.poll() is None:
                serve.send_signal(signal.SIGKILL)
            serve.wait()

    def own(self, kind, mode, size, total=20_000_000):
        """EVIL and native VIA."""
        if kind == "evil":
            server = [BIN / "toe-message", "serve", "--evil", "*:9"]
            client = [BIN / "toe-message", mode, "--evil", "one:9", "--size", size, "--total", total, "--seconds", self.seconds]
        else:
            server = [self.vipl, "serve", "one", 9]
            client = [self.vipl, mode, "one", 9, size, total, self.seconds]
        said = self.pair(server, client, stays=True)
        return json.loads(said) if said else None

    def fabric(self, provider, endpoint, size):
        """One way, in us."""
        rounds = 2000 if size == LARGE else 50_000
        if "tcp" in provider:
            rounds //= 10
        words = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", rounds, "-S", size]
        said = self.pair([*words, "-B", 47593], [*words, "-P", 47593, "127.0.0.1"], starts=lambda: listens(47593))
        last = said.strip().splitlines()[-1].split() if said else []
        return float(last[-2]) if len(last) > 2 else None

    def ucx(self, transports, size, test="tag_lat"):
        """One way in us, or octets a second."""
        rounds = 2000 if size == LARGE else 100_000
        env = {"UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        words = ["ucx_perftest", "-t", test, "-s", size, "-n", rounds, "-p", 47594]
        said = self.pair(words, [*words, "127.0.0.1"], env=env, starts=lambda: listens(47594))
        final = re.search(r"^Final:\s+(.*)$", said or "", re.M)
        if not final:
            return None
        columns = [float(word) for word in final.group(1).split()]
        # iterations, typical, average, overall latency, MB/s average, overall, messages/s
        return columns[-3] * 1e6 if test == "tag_bw" else columns[2]


def listens(port):
    with open("/proc/net/tcp") as table:
        mine = any(f":{port:04X} " in line and " 0A " in line for line in table)
    with open("/proc/net/tcp6") as table:
        return mine or any(f":{port:04X} " in line and " 0A " in line for line in table)


def half(found):
    return found and found["latency_us"]["p50"] / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json")
    options = parser.parse_args()
    for program in ["fi_pingpong", "ucx_perftest"]:
        if not shutil.which(program):
            sys.exit(f"run.py: there is no {program} (Debian: libfabric-bin, ucx-utils)")
    run = Run(options.seconds)
    try:
        latencies, rates, floods = {}, {}, {}
        one = lambda kind: lambda size: half(run.own(kind, "rr", size))
        ways = {"EVIL": one("evil"), "native VIA": one("vipl")}
        for provider, endpoint in [("toe", "msg"), ("toe;ofi_rxm", "rdm"), ("shm", "rdm"), ("tcp", "msg"), ("tcp;ofi_rxm", "rdm")]:
            ways[f"libfabric {provider}"] = lambda size, of=(provider, endpoint): run.fabric(*of, size)
        for name, transports in [("shared memory", "posix,self"), ("tcp", "tcp,self")]:
            ways[f"UCX {name}"] = lambda size, of=transports: run.ucx(of, size)
        for name, way in ways.items():
            latencies[name] = [way(size) for size in [*SIZES, LARGE]]
        memcpy = subprocess.run(pinned(1, [BIN / "toe-message", "memcpy", "--size", LARGE]), capture_output=True, text=True, check=True)
        rates["memcpy"] = json.loads(memcpy.stdout)["bytes_per_second"]
        for name, kind in [("EVIL", "evil"), ("native VIA", "vipl")]:
            found = run.own(kind, "flood", LARGE, 500_000_000)
            rates[name] = found and found["bytes_per_second"]
            floods[name] = [run.own(kind, "flood", size) for size in FLOODS]
            floods[name] = [found and found["rate"] for found in floods[name]]
        rates["UCX shared memory"] = run.ucx("posix,self", LARGE, "tag_bw")
    finally:
        run.end()
    show = lambda value, form: "-" if value is None else form.format(value)
    print("| one way, us | " + " | ".join(f"{size} B" for size in SIZES) + " | 1 MiB |\n|---" + "|---" * (len(SIZES) + 1) + "|")
    for name, row in latencies.items():
        print(f"| {name} | " + " | ".join(show(value, "{:.2f}") for value in row) + " |")
    print("\n| messages a second | " + " | ".join(f"{size} B" for size in FLOODS) + " |\n|---" + "|---" * len(FLOODS) + "|")
    for name, row in floods.items():
        print(f"| {name} | " + " | ".join(show(value, "{:,.0f}") for value in row) + " |")
    print("\n| 1 MiB one way | GB/s | of memcpy |\n|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {show(rate and rate / 1e9, '{:.1f}')} | {show(rate and 100 * rate / rates['memcpy'], '{:.0f} %')} |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"latency_us": latencies, "bytes_per_second": rates, "messages": floods}))


if __name__ == "__main__":
    main()
