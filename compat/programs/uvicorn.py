"""uvicorn on uvloop, alone and with two workers that listen on a socket which their parent has bound: keep-alive load, answers of
5 MB, a new connection for each request"""

import os

from httpload import Load
from lib import expect, octets, script, sha256, until

PORT = 8530

APP = """
import os

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path = scope["path"]
    large = open(os.environ["LARGE"], "rb").read() if path == "/large" else b""
    body = large or (str(os.getpid()).encode() if path == "/pid" else b"0123456789" * 30)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
"""


def main(lab):
    uvicorn = lab.program("uvicorn-newest", "scripts/compat-programs.sh fetches uvicorn and uvloop from PyPI")
    lab.version(uvicorn, "--version")
    small, large = b"0123456789" * 30, octets(5_000_000, 2)
    lab.write("app.py", APP)
    environment = {**os.environ, "LARGE": str(lab.write("large", large)), "PYTHONPATH": str(lab.dir)}
    for workers in (1, 2):
        with lab.check(f"{workers} workers"):
            server = lab.serve(f"server{workers}", PORT + workers, uvicorn, "--loop", "uvloop", "--log-level",
                               "warning", "--workers", workers, "--port", PORT + workers, "app:app", env=environment)
            here = f"http://127.0.0.1:{PORT + workers}"
            seen = set()
            until("all have answered", lambda: seen.add(lab.run("curl", "-sSf", f"{here}/pid")) or len(seen) == workers)
            expect(sha256(lab.run("curl", "-sSf", f"{here}/large")), sha256(large), "large")
            with Load(PORT + workers, "/", small) as load:
                load.more(1000)
            with Load(PORT + workers, "/", small, keepalive=False) as load:
                load.more(300)
            lab.stop(server)


script("uvicorn, uvloop", main)
