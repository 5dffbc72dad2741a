"""in front of a Python server: misses and hits, 10 MB, keep-alive load; its manager opens the socket and a child of it listens"""

import sys

from httpload import Load
from lib import expect, octets, script, sha256

PORT, BACKEND = 8580, 8581

VCL = """
vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "8581"; }
sub vcl_backend_response { set beresp.ttl = 60s; }
"""


def main(lab):
    varnish = lab.program("varnishd", "Debian's package varnish has it")
    lab.version(varnish, "-V")
    small, large = octets(300), octets(10_000_000, 2)
    lab.write("files/small", small)
    lab.write("files/large", large)
    lab.serve("backend", BACKEND, sys.executable, "-m", "http.server", BACKEND, "--bind", "127.0.0.1", "--directory",
              lab.path("files"))
    server = lab.serve("server", PORT, varnish, "-F", "-n", lab.path("state"), "-j", "none", "-a", f"127.0.0.1:{PORT}",
                       "-f", lab.write("default.vcl", VCL), "-s", "malloc,64m")
    with lab.check("10 MB, missed and hit"):
        for _ in range(2):
            expect(sha256(lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/large")), sha256(large), "large")
    with lab.check("keep-alive load"), Load(PORT, "/small", small) as load:
        load.more(2000)
    with lab.check("ends by itself"):
        lab.stop(server, status=0)


script("Varnish", main)
