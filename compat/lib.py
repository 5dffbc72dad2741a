"""What the scripts in `programs/` share: a Lab that starts servers, runs clients, keeps logs and named checks.

A script is started by `inside.py` in namespaces of its own, so fixed ports are free and nothing survives it. No script
knows which stack it runs on: it works and compares octets. What it found goes to the file that COMPAT_RESULT names,
after every step, so that a script that hangs still says how far it came.
"""

import concurrent.futures
import contextlib
import ctypes
import faulthandler
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

POLL = 0.02
"""Seconds between two looks at a condition; every wait has a deadline."""


class Failed(Exception):
    """A check that did not hold; its text is what the table says."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def sha256_file(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def octets(size, seed=1):
    """The same octets for the same size and seed, in every run."""
    return random.Random(seed).randbytes(size)


def expect(found, wanted, what):
    if found != wanted:
        raise Failed(f"{what}: {shorten(found)} instead of {shorten(wanted)}")


def shorten(value):
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:80]}… ({len(value)} long)"


def tail(data, lines=6):
    """The last lines of an output, for a message."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    return " | ".join(text.strip().splitlines()[-lines:])


def until(what, condition, limit=10):
    """Waits until condition() is true, and returns what it gave."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {limit} s: {what}")
        time.sleep(POLL)
    return found


def connect(port, host="127.0.0.1", limit=10, process=None):
    """A connection to a server that may still be starting; an end of `process` ends the wait."""

    def attempt():
        if process is not None and process.poll() is not None:
            raise Failed(f"server of port {port} ended with status {process.returncode}")
        try:
            return socket.create_connection((host, port), timeout=limit)
        except ConnectionRefusedError:
            return None

    return until(f"port {port} accepts connections", attempt, limit)


def is_served(port, host="127.0.0.1"):
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def recv_exactly(s, size):
    data = bytearray()
    while len(data) < size:
        piece = s.recv(min(65536, size - len(data)))
        if not piece:
            raise Failed(f"end of stream after {len(data)} of {size} octets")
        data += piece
    return bytes(data)


def recv_to_end(s):
    data = bytearray()
    while piece := s.recv(65536):
        data += piece
    return bytes(data)


def exchange(port, content):
    """Sends all, closes its half, and reads to the end, at the same time."""
    s = connect(port)
    s.settimeout(30)

    def send():
        s.sendall(content)
        s.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    found = recv_to_end(s)
    sender.join(30)
    s.close()
    return found


def children_of(pid):
    """Numbers of a process's children."""
    try:
        tasks = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        lists = [pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for text in lists for child in text.split()]


def descendants_of(pid):
    found = children_of(pid)
    for child in list(found):
        found += descendants_of(child)
    return found


def adopt_orphans():
    """Makes servers that went into the background children of this process, where they are found again."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Missing(Exception):
    """The program is not on this machine; its text says where to get it."""


class Lab:
    """One script's directory, servers and checks."""

    def __init__(self, title):
        self.dir = pathlib.Path(os.environ.get("COMPAT_DIR") or tempfile.mkdtemp(prefix="compat-"))
        self.result = {"title": title, "version": "", "checks": []}
        self.result_file = os.environ.get("COMPAT_RESULT")
        self.servers = []
        self.save()

    def save(self):
        if self.result_file:
            pathlib.Path(self.result_file).write_text(json.dumps(self.result))

    def program(self, name, source):
        """The path of a program: of one that `scripts/compat-programs.sh` fetches, or else of the system's. Without it the
        script ends here, as one that was not run."""
        fetched = pathlib.Path(os.environ.get("COMPAT_PROGRAMS", "/nonexistent")) / name
        found = str(fetched) if fetched.exists() else shutil.which(name)
        if not found:
            raise Missing(f"no {name} here: {source}")
        return found

    def version(self, *command):
        """The first thing in the command's output that looks like a version."""
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False)
        found = re.search(r"\d+(\.\d+)+(p\d+)?", done.stdout.decode(errors="replace"))
        self.result["version"] = found.group() if found else "?"
        self.save()

    @contextlib.contextmanager
    def check(self, name):
        """What happens in it is one check: an exception makes it fail with its message, and the script goes on."""
        entry = {"name": name, "ok": None, "message": "not ended in time"}
        self.result["checks"].append(entry)
        self.save()
        start = time.monotonic()
        try:
            yield
            entry.update(ok=True, message="")
        except Exception as error:  # pylint: disable=broad-except
            entry.update(ok=False, message=f"{type(error).__name__}: {error}"[:600])
            traceback.print_exc()
        entry["seconds"] = round(time.monotonic() - start, 2)
        self.save()
        print(f"{'ok' if entry['ok'] else 'FAIL'}  {entry['seconds']:6.2f} s  {name}  {entry['message']}", flush=True)

    def suite(self, tests, run, at_once=4):
        """An independent suite's tests: run(test) says whether one passes. Which do is noted, and compared between the stacks;
        one that fails is run again, alone, because such suites count on times."""
        found = self.result["suite"] = {}
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            found.update(zip(tests, pool.map(run, tests)))
        self.save()
        for test in [test for test, ok in found.items() if not ok]:
            found[test] = run(test)
        self.save()
        failed = [test for test, ok in found.items() if not ok]
        print(f"{len(found) - len(failed)} of {len(found)} tests pass; not these: {' '.join(failed)}", flush=True)

    def path(self, *parts):
        """A path in the lab's directory; its parents exist."""
        path = self.dir.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name, content):
        path = self.path(name)
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        return path

    def spawn(self, name, *command, **options):
        """A server in the background; its output is kept in NAME.log."""
        options.setdefault("stdin", subprocess.DEVNULL)
        # Some servers send signals to their process group, which must not be ours.
        options.setdefault("process_group", 0)
        with open(self.path(f"{name}.log"), "ab") as log:
            server = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, **options)
        self.servers.append(server)
        return server

    def serve(self, name, port, *command, **options):
        """A server in the background that accepts connections on the port when this returns."""
        server = self.spawn(name, *command, **options)
        try:
            connect(port, process=server).close()
        except Failed as error:
            raise Failed(f"{name}: {error}: {self.log(name)}") from None
        return server

    def log(self, name):
        return tail(self.path(f"{name}.log").read_bytes())

    def until_log(self, name, text, limit=10):
        """Waits until the text is in the server's output."""
        until(f"'{text}' in the output of {name}",
              lambda: text.encode() in self.path(f"{name}.log").read_bytes(), limit)

    def passes(self, *command, timeout=30, **options):
        """Whether a command ends with status 0, and in time; what it started ends with it."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        process = subprocess.Popen([str(word) for word in command], process_group=0, **options)
        try:
            return process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, *command, status=0, timeout=30, **options):
        """A client; gives its standard output. Another exit status than the expected one is a failure."""
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        command = [str(word) for word in command]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, **options)
        except subprocess.TimeoutExpired as error:
            said = tail((error.stderr or b"") + b"\n" + (error.stdout or b""))
            raise Failed(f"{command[0]} did not end within {timeout} s: {said}") from None
        if done.returncode != status:
            said = tail(done.stderr + b"\n" + done.stdout)
            raise Failed(f"{command[0]} ended with status {done.returncode} instead of {status}: {said}")
        return done.stdout

    def stop(self, server, limit=10, status=None):
        """SIGTERM; a server that does not end is a failure, and one with another status than expected too."""
        if server.poll() is None:
            server.terminate()
        try:
            found = server.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{server.args[0]} does not end within {limit} s of SIGTERM") from None
        if status is not None:
            expect(found, status, f"exit status of {server.args[0]}")

    def certificate(self):
        """A self-signed certificate for 127.0.0.1 and localhost: (certificate, key)."""
        cert, key = self.path("tls", "cert.pem"), self.path("tls", "key.pem")
        if not cert.exists():
            self.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                     "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert)
            key.chmod(0o644)
        return cert, key

    def kill_all(self):
        """Ends every process that this script started: those of a failed check would hold ports that others need."""
        for pid in descendants_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for server in self.servers:
            server.wait()

    def clean_up(self):
        for server in self.servers:
            if server.poll() is None:
                server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for server in self.servers:
                server.wait(5)
        self.kill_all()


def script(title, main):
    """Runs main(lab) as the script `title`; the exit status says whether every check held."""
    # At the time limit: where each thread is stuck, into the log, before SIGTERM does its work.
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    adopt_orphans()
    lab = Lab(title)
    try:
        main(lab)
    except Missing as missing:
        lab.result["missing"] = str(missing)
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        lab.result["checks"].append({"name": "the script itself", "ok": False, "message": str(error)[:600]})
    finally:
        lab.clean_up()
        lab.save()
    sys.exit(0 if all(check["ok"] for check in lab.result["checks"]) else 1)
