#!/usr/bin/python3
"""Measures OpenTOE against Linux over links of many kinds, and Linux against Linux over the same ones.

    sudo interop/run.py                            every cell; see docs/interop.md for what they are
    sudo interop/run.py --only 1%-random/20ms      cells whose names hold this text; can be given several times
    sudo interop/run.py --write                    puts the tables into docs/interop.md
    sudo interop/run.py --only share/0%/20ms --seeds 1 --capture /tmp/x    keeps what was on the wire (tcpdump)

The exit status is 0 when every cell reached what is wanted of it, 1 when one did not, and 2 when it cannot run.
TOE_BIN_DIR says where the programs are, if not in target/release.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import threading
import time

import cells
import flood
import link
import measure
import table

ATTEMPTS = 2
"""A run that fails (a handshake that was lost too often) is tried again once."""


class Budget:
    """Lets jobs run at once as long as their links together carry no more than the processors can, in the order in which they ask.

    It counts in whole kbit/s: what is left of fractions would keep out a job that wants all of it. Without the order, so would one small
    job after the other."""

    def __init__(self, mbit):
        self.left = self.most = mbit * 1000
        self.waiting = collections.deque()
        self.changed = threading.Condition()

    def take(self, mbit):
        kbit, me = min(round(mbit * 1000), self.most), object()
        with self.changed:
            self.waiting.append(me)
            self.changed.wait_for(lambda: self.waiting[0] is me and self.left >= kbit)
            self.waiting.popleft()
            self.left -= kbit
            self.changed.notify_all()
        return kbit

    def give(self, kbit):
        with self.changed:
            self.left += kbit
            self.changed.notify_all()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", action="append", help="cells whose names hold this text only")
    parser.add_argument("--seeds", metavar="N", type=int, default=3,
                        help="runs of each cell, three times as many where one flow meets losses; 3 unless given")
    parser.add_argument("--mbit", metavar="N", type=int, default=100 * (os.cpu_count() or 1),
                        help="how much all links that run at once may carry")
    parser.add_argument("--jobs", metavar="N", type=int, default=12, help="how many may run at once")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write all that was found into FILE")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/interop.md")
    parser.add_argument("--capture", metavar="DIR", type=pathlib.Path, help="keep what was on the wire in DIR")
    parser.add_argument("--list", action="store_true", help="print the names of the cells and do nothing")
    args = parser.parse_args()
    every = [*cells.goodput_cells(), *cells.share_cells()]
    chosen = [cell for cell in every if is_chosen(cell.name(), args.only)]
    floods = [stack for stack in ("linux", "engine") if is_chosen(f"flood/{stack}", args.only)]
    if args.list:
        print("\n".join([*(cell.name() for cell in chosen), *(f"flood/{stack}" for stack in floods)]))
        return 0
    if problem := missing(args, chosen or floods):
        print(f"interop: {problem}", file=sys.stderr)
        return 2
    link.sweep()
    began = time.monotonic()
    rows = measure_all(chosen, args)
    floods = [one_flood(stack) for stack in floods for _ in range(args.seeds)]
    found = {"rows": rows, "floods": floods, "seeds": args.seeds, "minutes": (time.monotonic() - began) / 60,
             "machine": table.machine()}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    if args.write:
        table.write(found)
    print(table.text(found))
    own = [found for found in floods if found["stack"] == "engine"]
    return 0 if all(table.is_good(row) for row in rows) and all(map(table.flood_is_good, own)) else 1


def is_chosen(name, only):
    return not only or any(text in name for text in only)


def missing(args, chosen):
    """What a run needs and does not have, as a sentence; empty if all is there."""
    if not chosen:
        return "no cell has such a name: see --list"
    if args.write and args.only:
        return "--write wants every cell"
    if os.geteuid() != 0:
        return "root is needed (sudo interop/run.py): each run makes network namespaces"
    for program in ("toe", "toed", "toe-load", "toe-cable", "libtoe_switch.so"):
        if not (link.programs() / program).exists():
            return f"no {program} in {link.programs()}: run 'make build', or set TOE_BIN_DIR"
    if args.capture and not shutil.which("tcpdump"):
        return "--capture needs tcpdump"
    return ""


def measure_all(chosen, args):
    """The rows, each with all its runs. Runs of one cell and seed follow each other closely, on whatever stack."""
    jobs = []
    for cell in chosen:
        kinds = cells.SIDES if isinstance(cell, cells.Cell) else ("linux", "engine")
        jobs += [(cell, kind, seed) for seed in range(1, cell.runs(args.seeds) + 1) for kind in kinds]
    budget, results = Budget(args.mbit), {}
    if args.capture:
        args.capture.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(one, job, budget, args.capture): job for job in jobs}
        try:
            for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
                cell, kind, seed = futures[future]
                results[futures[future]] = found = future.result()
                print(f"{number}/{len(jobs)} {cell.name()} {kind} seed {seed}: {table.short(found)}", file=sys.stderr)
        except KeyboardInterrupt:
            # Those that run come to their end; the rest need not begin.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [row(cell, results, args.seeds) for cell in chosen]


def one(job, budget, capture):
    """One run; what failed is told in its place."""
    cell, kind, seed = job
    is_share = isinstance(cell, cells.Share)
    needs = cell.shape.expected_mbit(2 if is_share else cell.flows)
    if capture:
        capture = capture / f"{cell.name()}-{kind}-{seed}.pcap".replace("/", "-")
    for attempt in range(1, ATTEMPTS + 1):
        taken = budget.take(needs)
        try:
            if is_share:
                return measure.share(cell, seed, kind, capture)
            return measure.goodput(cell, kind, seed, capture)
        except link.Failed as failure:
            if attempt == ATTEMPTS:
                return {"failed": str(failure)}
        finally:
            budget.give(taken)


def one_flood(stack):
    try:
        found = flood.measure(stack)
    except link.Failed as failure:
        found = {"stack": stack, "failed": str(failure)}
    print(f"flood/{stack}: {found}", file=sys.stderr)
    return found


def row(cell, results, seeds):
    kinds = cells.SIDES if isinstance(cell, cells.Cell) else ("linux", "engine")
    shape = cell.shape
    return {
        "name": cell.name(), "title": cell.title(), "rate_mbit": shape.rate_mbit, "queue": shape.queue,
        "delay_ms": shape.delay_ms, "flows": getattr(cell, "flows", None), "seconds": cell.seconds,
        "runs": {kind: [results[cell, kind, seed] for seed in range(1, cell.runs(seeds) + 1)] for kind in kinds},
    }


if __name__ == "__main__":
    sys.exit(main())
