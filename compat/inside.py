"""Process 1 of a run's namespaces: brings up `lo`, starts the engine if one is wanted, runs one command, reaps orphans.

Started by `runner.py` under unshare(1). A server that goes into the background becomes a child of process 1, so
somebody must wait for it here, or it stays a zombie that looks as if it ran on.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess

AFTER_TERM = 10
"""Seconds from SIGTERM to SIGKILL for a command that has passed its time limit."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", help="name of the engine to start and use; without it the kernel's stack is used")
    parser.add_argument("--toe", help="the program `toe`")
    parser.add_argument("--explain", help="file for what went to which stack")
    parser.add_argument("--limit", type=int, required=True, help="seconds")
    parser.add_argument("--outcome", required=True, help="file for how the command ended")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    prepare()
    command = args.command
    if args.engine:
        subprocess.run([args.toe, "start", "--name", args.engine, "--port", "local"], check=True)
        command = [args.toe, "run", "--name", args.engine, "--explain-json", args.explain, "--", *command]
    outcome = {"status": None, "in_time": True, "engine_runs": True}
    outcome["status"], outcome["in_time"] = run(command, args.limit)
    if args.engine:
        status = subprocess.run([args.toe, "status", "--name", args.engine], stdout=subprocess.DEVNULL, check=False)
        outcome["engine_runs"] = status.returncode == 0
    pathlib.Path(args.outcome).write_text(json.dumps(outcome))


def prepare():
    """What a fresh namespace lacks. An own /run keeps the pid files and sockets of the machine's services apart."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "compat", "/run"], check=True)


def run(command, limit):
    """The command's exit status, and whether it ended in time."""
    # A group of its own: SIGTERM reaches the program and its clients, and process 1 stays.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    in_time = True

    def too_late(_signal, _frame):
        nonlocal in_time
        os.killpg(child.pid, signal.SIGTERM if in_time else signal.SIGKILL)
        in_time = False
        signal.alarm(AFTER_TERM)

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(limit)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            signal.alarm(0)
            return os.waitstatus_to_exitcode(status), in_time


main()
