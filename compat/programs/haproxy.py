"""proxy before two backends with keep-alive load, health checks and a backend that goes away, seamless reloads
(`-x`, `expose-fd listeners`, `-sf`), master-worker mode reloads, TLS"""

import signal

from httpload import Load
from lib import Failed, children_of, expect, is_served, octets, script, sha256, until

FRONT, FRONT_TLS = 8100, 8101
BACKENDS = {8110: "one", 8111: "two"}

CONF = """
global
    stats socket {socket} level admin expose-fd listeners
    nbthread 2
    maxconn 2000
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    retries 2
    option redispatch
    # A backend may close an idle connection just as a request goes out on it.
    retry-on conn-failure empty-response
frontend plain
    bind 127.0.0.1:8100
    default_backend both
frontend tls
    bind 127.0.0.1:8101 ssl crt {pem}
    default_backend both
backend both
    balance roundrobin
    http-reuse safe
    server one 127.0.0.1:8110 check inter 100ms
    server two 127.0.0.1:8111 check inter 100ms
"""

BACKEND = """
daemon off;
worker_processes 1;
pid {dir}/pid;
error_log {dir}/error.log;
events {{ }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp; fastcgi_temp_path {dir}/tmp;
    uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
    server {{
        listen 127.0.0.1:{port};
        root {www};
        location = /name {{ return 200 {name}; }}
    }}
}}
"""


class Site:
    """Two backends, and the proxy before them."""

    def __init__(self, lab, *options):
        self.lab, self.options = lab, options
        self.small, self.large = octets(700), octets(10_000_000, seed=2)
        lab.write("www/small", self.small)
        lab.write("www/large", self.large)
        cert, key = lab.certificate()
        pem = lab.write("both.pem", cert.read_bytes() + key.read_bytes())
        self.conf = lab.write("haproxy.cfg", CONF.format(socket=lab.path("admin"), pem=pem))

    def __enter__(self):
        self.backends = {name: self.backend(port, name) for port, name in BACKENDS.items()}
        self.proxy = self.lab.serve("haproxy", FRONT, "haproxy", "-db", *self.options, "-f", self.conf)
        until("both backends answer", lambda: {self.fetch("/name") for _ in range(2)} == {b"one", b"two"})
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.lab.kill_all()
            return
        self.proxy.send_signal(signal.SIGUSR1)
        expect(self.proxy.wait(10), 0, "haproxy's exit status after SIGUSR1")
        for backend in self.backends.values():
            self.lab.stop(backend, status=0)
        if is_served(FRONT):
            raise Failed("its port is still served")

    def backend(self, port, name):
        directory = self.lab.path(name)
        directory.mkdir(exist_ok=True)
        text = BACKEND.format(dir=directory, port=port, name=name, www=self.lab.path("www"))
        conf = self.lab.write(f"{name}/conf", text)
        return self.lab.serve(name, port, "nginx", "-c", conf, "-e", directory / "error.log")

    def fetch(self, path, base=f"http://127.0.0.1:{FRONT}"):
        return self.lab.run("curl", "-sSfk", f"{base}{path}")

    def states(self):
        """The server lines of "show servers state": after the name and the address, 2 is up and 0 is down."""
        command = ["socat", "-t5", "-", f"UNIX-CONNECT:{self.lab.path('admin')}"]
        lines = self.lab.run(*command, input=b"show servers state both\n").decode().splitlines()
        return {words[3]: words[5] for words in map(str.split, lines) if len(words) > 5 and words[1] == "both"}


def main(lab):
    lab.version("haproxy", "-v")
    with lab.check("files through the proxy"), Site(lab) as site:
        expect(sha256(site.fetch("/large")), sha256(site.large), "a large file")
        expect(sha256(site.fetch("/large", f"https://127.0.0.1:{FRONT_TLS}")), sha256(site.large), "the same by TLS")
        with Load(FRONT, "/small", site.small) as load:
            load.more(1000)
    with lab.check("a backend goes away and comes back under load"), Site(lab) as site:
        with Load(FRONT, "/small", site.small) as load:
            # Gracefully: a request in flight is answered, and haproxy sends the next one elsewhere.
            site.backends["two"].send_signal(signal.SIGQUIT)
            site.backends["two"].wait(10)
            load.more(300)
            until("the check says down", lambda: site.states()["two"] == "0")
            site.backends["two"] = site.backend(8111, "two")
            until("the check says up", lambda: site.states()["two"] == "2")
            load.more(300)
    with lab.check("five seamless reloads under keep-alive load"), Site(lab) as site:
        reloads(site, keepalive=True)
    with lab.check("five seamless reloads, a connection for each request"), Site(lab) as site:
        reloads(site, keepalive=False)
    with lab.check("master-worker mode: three reloads under load"), Site(lab, "-W") as site:
        with Load(FRONT, "/small", site.small) as load:
            for _ in range(3):
                before = children_of(site.proxy.pid)
                site.proxy.send_signal(signal.SIGUSR2)
                until("a new worker and no old one",
                      lambda: (now := children_of(site.proxy.pid)) and not set(now) & set(before), 20)
                load.more(300)


def reloads(site, keepalive):
    with Load(FRONT, "/small", site.small, keepalive=keepalive) as load:
        for _ in range(5):
            old = site.proxy
            # The new process takes the listeners from the old one by its admin socket, then asks it to finish.
            site.proxy = site.lab.spawn("haproxy", "haproxy", "-db", "-f", site.conf, "-x", site.lab.path("admin"),
                                        "-sf", old.pid)
            expect(old.wait(20), 0, "exit status of the old process")
            load.more(300)


script("haproxy", main)
