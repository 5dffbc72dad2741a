"""gunicorn with two workers that accept from the socket which their parent listens on: sync, gthread and gevent workers, answers of
5 MB, bodies sent up, a new connection for each request, a reload and a killed worker under load"""

import os
import signal

from httpload import Load
from lib import children_of, expect, octets, script, sha256, until

PORT = 8600

APP = """
import hashlib, os

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if environ["REQUEST_METHOD"] == "PUT":
        found = hashlib.sha256()
        while piece := environ["wsgi.input"].read(65536):
            found.update(piece)
        body = found.hexdigest().encode()
    else:
        body = {"/pid": str(os.getpid()).encode(), "/large": LARGE}.get(path, b"0123456789" * 30)
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

LARGE = open(os.environ["LARGE"], "rb").read()
"""


def main(lab):
    gunicorn = lab.program("gunicorn", "scripts/compat-programs.sh fetches it from PyPI")
    lab.version(gunicorn, "--version")
    small, large = b"0123456789" * 30, octets(5_000_000, 2)
    lab.write("app.py", APP)
    environment = {**os.environ, "LARGE": str(lab.write("large", large)), "PYTHONPATH": str(lab.dir)}
    for number, kind in enumerate(("sync", "gthread", "gevent")):
        port = PORT + number
        here = f"http://127.0.0.1:{port}"
        with lab.check(f"{kind} workers"):
            server = lab.serve(kind, port, gunicorn, "--worker-class", kind, "--threads", 1 + 3 * (kind == "gthread"),
                               "--workers", 2, "--bind", f"127.0.0.1:{port}", "app:app", env=environment)
            until("both have answered", workers_seen(lab, here))
            expect(sha256(lab.run("curl", "-sSf", f"{here}/large")), sha256(large), "large")
            found = lab.run("curl", "-sSf", "-T", lab.path("large"), f"{here}/put").decode()
            expect(found, sha256(large), "what arrived")
            for keepalive in (True, False):
                with Load(port, "/", small, keepalive=keepalive) as load:
                    load.more(300)
        with lab.check(f"{kind} workers: a reload under load"):
            with Load(port, "/", small, keepalive=False) as load:
                before = children_of(server.pid)
                server.send_signal(signal.SIGHUP)
                until("two new workers", lambda: len(set(children_of(server.pid)) - set(before)) == 2
                      and not set(children_of(server.pid)) & set(before), 30)
                load.more(200)
        with lab.check(f"{kind} workers: one is killed and replaced"):
            before = children_of(server.pid)
            os.kill(before[0], signal.SIGKILL)
            until("a new one", lambda: set(children_of(server.pid)) - set(before))
            until("both have answered", workers_seen(lab, here))
            lab.stop(server, status=0)


def workers_seen(lab, here):
    """Whether two processes have answered, one request a call."""
    seen = set()
    return lambda: seen.add(lab.run("curl", "-sSf", f"{here}/pid")) or len(seen) == 2


script("gunicorn", main)
