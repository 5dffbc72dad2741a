"""files of 256 B and 10 MB with sendfile on and off, keep-alive load during five reloads and a binary upgrade, a
killed worker, `reuseport`, `daemon on`, TLS, HTTP/2, and as a proxy with keep-alive to its backend"""

import os
import re
import shutil
import signal

from httpload import Load, wrk
from lib import children_of, connect, expect, is_running, is_served, octets, script, sha256, until

PORT, TLS_PORT, H2_PORT, PROXY_PORT = 8080, 8443, 8444, 8081

CONF = """
user www-data;
worker_processes 2;
daemon {daemon};
pid {dir}/nginx.pid;
error_log {dir}/error.log notice;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    sendfile {sendfile};
    keepalive_requests 1000000;
    client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp; fastcgi_temp_path {dir}/tmp;
    uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
    ssl_certificate {cert}; ssl_certificate_key {key};
    upstream self {{ server 127.0.0.1:{port}; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port}{reuseport};
        root {www};
        location = /pid {{ return 200 $pid; }}
    }}
    server {{ listen 127.0.0.1:{tls_port} ssl; root {www}; }}
    server {{ listen 127.0.0.1:{h2_port} ssl http2; root {www}; }}
    server {{
        listen 127.0.0.1:{proxy_port};
        location / {{ proxy_pass http://self; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


class Nginx:
    """One master with two workers."""

    def __init__(self, lab, name, sendfile="on", reuseport="", daemon="off"):
        self.lab, self.name, self.dir = lab, name, lab.path(name)
        self.dir.mkdir(exist_ok=True)
        self.small, self.large = octets(256), octets(10_000_000, seed=2)
        lab.write("www/small", self.small)
        lab.write("www/large", self.large)
        cert, key = lab.certificate()
        conf = lab.write(f"{name}/nginx.conf", CONF.format(
            daemon=daemon, dir=self.dir, sendfile=sendfile, reuseport=reuseport, cert=cert, key=key, port=PORT,
            tls_port=TLS_PORT, h2_port=H2_PORT, proxy_port=PROXY_PORT, www=lab.path("www")))
        # An upgrade executes the first word, which therefore is a full path.
        command = [shutil.which("nginx"), "-p", self.dir, "-c", conf, "-e", self.dir / "error.log"]
        if daemon == "on":
            lab.run(*command)
            connect(PORT).close()
        else:
            lab.serve(name, PORT, *command)
        until("a pid file", self.master)

    def __enter__(self):
        until("two workers", lambda: len(self.workers()) == 2)
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.lab.kill_all()
            return
        master = self.master()
        os.kill(master, signal.SIGQUIT)
        until("nginx ends after SIGQUIT", lambda: not is_running(master))
        until("its port is free", lambda: not is_served(PORT))

    def master(self):
        """Its number; None while there is no pid file, or an empty one."""
        try:
            return int((self.dir / "nginx.pid").read_text() or 0) or None
        except FileNotFoundError:
            return None

    def workers(self, master=None):
        return children_of(master or self.master())

    def files(self, base=f"http://127.0.0.1:{PORT}", *options):
        for name, content in (("small", self.small), ("large", self.large)):
            answer = self.lab.run("curl", "-sSfk", *options, f"{base}/{name}", timeout=30)
            expect(sha256(answer), sha256(content), f"{base}/{name}")


def main(lab):
    lab.version("nginx", "-v")
    with lab.check("files with sendfile on"), Nginx(lab, "sendfile") as nginx:
        nginx.files()
        with Load(PORT, "/large", nginx.large, threads=3) as load:
            load.more(20)
        wrk(lab, f"http://127.0.0.1:{PORT}/small", lab.path("www/small"), seconds=1)
    with lab.check("files with sendfile off"), Nginx(lab, "copying", sendfile="off") as nginx:
        nginx.files()
        with Load(PORT, "/large", nginx.large, threads=3) as load:
            load.more(20)
    with lab.check("TLS"), Nginx(lab, "tls") as nginx:
        nginx.files(f"https://127.0.0.1:{TLS_PORT}")
        with Load(TLS_PORT, "/small", nginx.small, tls=True) as load:
            load.more(300)
    with lab.check("HTTP/2"), Nginx(lab, "h2") as nginx:
        nginx.files(f"https://127.0.0.1:{H2_PORT}", "--http2")
        report = lab.run("h2load", "-n2000", "-c8", "-m16", f"https://127.0.0.1:{H2_PORT}/small").decode()
        expect(re.search(r"(\d+) succeeded", report).group(1), "2000", "requests that succeeded")
    with lab.check("proxy to itself with keep-alive"), Nginx(lab, "proxy") as nginx:
        nginx.files(f"http://127.0.0.1:{PROXY_PORT}")
        with Load(PROXY_PORT, "/small", nginx.small) as load:
            load.more(500)
    with lab.check("five reloads under keep-alive load"), Nginx(lab, "reload") as nginx:
        reload_under_load(nginx)
    with lab.check("connections of one request each during five reloads"), Nginx(lab, "reload-close") as nginx:
        reload_under_load(nginx, keepalive=False)
    with lab.check("binary upgrade under load"), Nginx(lab, "upgrade", daemon="on") as nginx:
        upgrade_under_load(nginx)
    with lab.check("a killed worker is replaced"), Nginx(lab, "killed") as nginx:
        kill_worker(nginx)
    with lab.check("reuseport: load and reloads"), Nginx(lab, "reuseport", reuseport=" reuseport") as nginx:
        nginx.files()
        wrk(lab, f"http://127.0.0.1:{PORT}/small", lab.path("www/small"), seconds=1)
        reload_and_settle(nginx)
        nginx.files()
    with lab.check("daemon on"), Nginx(lab, "daemon", daemon="on") as nginx:
        nginx.files()
        wrk(lab, f"http://127.0.0.1:{PORT}/small", lab.path("www/small"), seconds=1)


def reload_and_settle(nginx):
    before = nginx.workers()
    os.kill(nginx.master(), signal.SIGHUP)
    until("two new workers and no old one",
          lambda: len(now := nginx.workers()) == 2 and not set(now) & set(before))


def reload_under_load(nginx, keepalive=True):
    with Load(PORT, "/small", nginx.small, keepalive=keepalive) as load:
        for _ in range(5):
            reload_and_settle(nginx)
            load.more(300)


def upgrade_under_load(nginx):
    with Load(PORT, "/small", nginx.small) as load:
        old = nginx.master()
        os.kill(old, signal.SIGUSR2)
        until("a new master", lambda: nginx.master() not in (None, old))
        until("its workers", lambda: len(nginx.workers()) == 2)
        load.more(300)
        os.kill(old, signal.SIGWINCH)
        # What is left of the old master's children is the new master.
        until("old workers end", lambda: nginx.workers(old) == [nginx.master()])
        load.more(200)
        os.kill(old, signal.SIGQUIT)
        until("the old master ends", lambda: not is_running(old))
        load.more(200)
    nginx.files()


def kill_worker(nginx):
    victim = nginx.workers()[0]
    os.kill(victim, signal.SIGKILL)
    until("a new worker", lambda: len(now := nginx.workers()) == 2 and victim not in now)
    nginx.files()
    with Load(PORT, "/small", nginx.small) as load:
        load.more(300)


script("nginx", main)
