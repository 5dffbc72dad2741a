"""forward proxy: keep-alive load and new connections, 10 MB missed and hit, bodies sent up, TLS by CONNECT, an origin that goes
away, reconfigured between loads"""

import os
import signal
import sys

from httpload import Load
from lib import expect, octets, script, sha256, until

PORT, ORIGIN, ORIGIN_TLS = 8630, 8631, 8632

CONF = """
http_port 127.0.0.1:8630
http_access allow all
pid_filename {dir}/squid.pid
access_log none
cache_log {dir}/cache.log
cache_mem 64 MB
maximum_object_size_in_memory 20 MB
coredump_dir {dir}
shutdown_lifetime 1 seconds
visible_hostname localhost
"""

SERVER = """
import hashlib, http.server, ssl, sys, os

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_PUT(self):
        body = hashlib.sha256(self.rfile.read(int(self.headers['Content-Length']))).hexdigest().encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass

os.chdir(sys.argv[2])
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[3:])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def main(lab):
    squid = lab.program("squid", "Debian's package squid has it")
    lab.version(squid, "-v")
    small, large = octets(300), octets(10_000_000, 2)
    lab.write("files/small", small)
    lab.write("files/large", large)
    cert, key = lab.certificate()
    server = lab.write("server.py", SERVER)
    lab.dir.chmod(0o777)
    origin = lab.serve("origin", ORIGIN, sys.executable, server, ORIGIN, lab.path("files"))
    lab.serve("tls", ORIGIN_TLS, sys.executable, server, ORIGIN_TLS, lab.path("files"), cert, key)
    conf = lab.write("squid.conf", CONF.format(dir=lab.dir))
    proxy = lab.serve("squid", PORT, squid, "-N", "-f", conf)
    here, through = f"http://127.0.0.1:{ORIGIN}", ("curl", "-sSf", "-x", f"http://127.0.0.1:{PORT}")
    with lab.check("10 MB, missed and hit; a body sent up"):
        for _ in range(2):
            expect(sha256(lab.run(*through, f"{here}/large")), sha256(large), "large")
        expect(lab.run(*through, "-T", lab.path("files/large"), f"{here}/put").decode(), sha256(large), "what arrived")
    with lab.check("TLS by CONNECT"):
        found = lab.run(*through, "--cacert", cert, f"https://127.0.0.1:{ORIGIN_TLS}/large")
        expect(sha256(found), sha256(large), "large")
    for keepalive in (True, False):
        with lab.check(f"load, {'keep-alive' if keepalive else 'a connection for each request'}"):
            with Load(PORT, f"{here}/small", small, keepalive=keepalive) as load:
                load.more(1000)
    with lab.check("reconfigured three times, and load after each"):
        for listeners in range(2, 5):
            # It closes its listener meanwhile, and opens another.
            proxy.send_signal(signal.SIGHUP)
            until("it accepts again", lambda: lab.path("cache.log").read_text().count("Accepting HTTP") >= listeners)
            with Load(PORT, f"{here}/small", small, keepalive=False) as load:
                load.more(200)
    with lab.check("an origin that goes away"):
        lab.stop(origin)
        lab.run(*through, f"{here}/missing", status=22)
        expect(os.path.exists(f"/proc/{proxy.pid}"), True, "squid runs on")
    with lab.check("ends by itself"):
        lab.stop(proxy, status=0, limit=20)


script("squid", main)
