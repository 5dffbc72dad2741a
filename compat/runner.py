"""Runs one command on one stack in fresh namespaces, and gives what is known of it afterwards.

unshare(1) makes the namespaces (network, processes, mounts) and `inside.py` is process 1 in them: ports are free,
the machine's network is out of reach, and with unshare's end (--kill-child) everything that was started ends too.
"""

import json
import os
import pathlib
import subprocess
import sys

import explain

HERE = pathlib.Path(__file__).resolve().parent
STACKS = ("kernel", "toe")
GRACE = 30
"""Seconds beyond a command's own limit until the namespaces are ended from outside."""


def bin_dir():
    return pathlib.Path(os.environ.get("TOE_BIN_DIR") or HERE.parent / "target/release")


def missing():
    """What a run needs and does not have, as a sentence; empty if all is there."""
    if os.geteuid() != 0:
        return "root is needed (sudo compat/run.py): each program runs in its own network, process and mount namespaces"
    if not (bin_dir() / "toe").exists():
        return f"no program toe in {bin_dir()}: run 'make build', or set TOE_BIN_DIR"
    return ""


def environment(work):
    """The same in every run, whoever starts it."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": str(work),
        "TMPDIR": str(work / "tmp"),
        "USER": "root",
        "LOGNAME": "root",
        "PYTHONPATH": str(HERE),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COMPAT_PROGRAMS": os.environ.get("COMPAT_PROGRAMS", str(HERE.parent / "target/compat/bin")),
        "COMPAT_DIR": str(work / "lab"),
        "COMPAT_RESULT": str(work / "result.json"),
    }


def run(command, stack, work, limit):
    """Runs the command; gives {"status", "in_time", "engine_runs", "sockets", "log"}. Files are kept in `work`."""
    for part in (work, work / "lab", work / "tmp"):
        part.mkdir(parents=True, exist_ok=True)
        # Servers give up root, and then need their directories.
        part.chmod(0o755)
    (work / "tmp").chmod(0o1777)
    outcome, told, log = work / "outcome.json", work / "explain.json", work / "log"
    inside = [sys.executable, HERE / "inside.py", "--limit", limit, "--outcome", outcome]
    if stack == "toe":
        inside += ["--engine", f"compat-{os.getpid()}", "--toe", bin_dir() / "toe", "--explain", told]
    outer = ["unshare", "--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "--"]
    words = [str(word) for word in [*outer, *inside, "--", *command]]
    with open(log, "wb") as output:
        try:
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(work),
                           cwd=work / "lab", timeout=limit + GRACE, check=False)
        except subprocess.TimeoutExpired:
            pass
    found = {"status": None, "in_time": False, "engine_runs": False}
    if outcome.exists():
        found = json.loads(outcome.read_text())
    found["log"] = str(log)
    found["sockets"] = explain.read(told) if stack == "toe" else None
    return found
