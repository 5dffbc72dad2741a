"""files of 300 B and 10 MB by sendfile and by writev, keep-alive load, graceful restarts (SIGUSR1) and graceful
stop under load, TLS, CGI, two workers"""

import signal

from httpload import Load, wrk
from lib import expect, is_served, octets, script, sha256, until

PORT = 8410

CONF = """
server.document-root = "{www}"
server.port = {port}
server.bind = "127.0.0.1"
server.errorlog = "{dir}/error.log"
server.upload-dirs = ( "{dir}" )
server.network-backend = "{backend}"
server.max-worker = {workers}
server.max-keep-alive-requests = 100000
server.modules = ( "mod_cgi" )
cgi.assign = ( ".cgi" => "/bin/sh" )
"""


class Lighttpd:
    """One server in the foreground."""

    def __init__(self, lab, backend="sendfile", workers=0):
        self.lab, self.small, self.large = lab, octets(300), octets(10_000_000, 2)
        lab.write("www/small", self.small)
        lab.write("www/large", self.large)
        lab.write("www/back.cgi", "printf 'Content-Type: text/plain\\r\\n\\r\\n'; exec cat\n")
        text = CONF.format(www=lab.path("www"), port=PORT, dir=lab.dir, backend=backend, workers=workers)
        self.conf = lab.write(f"{backend}-{workers}.conf", text)

    def __enter__(self):
        self.server = self.lab.serve("lighttpd", PORT, "lighttpd", "-D", "-f", self.conf)
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.lab.kill_all()
            return
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGINT)
        expect(self.server.wait(10), 0, "exit status after SIGINT")
        until("its port is free", lambda: not is_served(PORT))

    def files(self):
        for name, content in (("small", self.small), ("large", self.large)):
            answer = self.lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/{name}")
            expect(sha256(answer), sha256(content), name)


def main(lab):
    lab.version("lighttpd", "-v")
    for backend in ("sendfile", "writev"):
        with lab.check(f"files by {backend}"), Lighttpd(lab, backend) as site:
            site.files()
            with Load(PORT, "/large", site.large, threads=3) as load:
                load.more(20)
            wrk(lab, f"http://127.0.0.1:{PORT}/small", lab.path("www/small"), seconds=1)
    with lab.check("two workers"), Lighttpd(lab, workers=2) as site:
        site.files()
        wrk(lab, f"http://127.0.0.1:{PORT}/small", lab.path("www/small"), seconds=1)
    with lab.check("CGI"), Lighttpd(lab) as site:
        content = lab.write("posted", octets(500_000, 3))
        for _ in range(10):
            answer = lab.run("curl", "-sSf", "--data-binary", f"@{content}", f"http://127.0.0.1:{PORT}/back.cgi")
            expect(sha256(answer), sha256(content.read_bytes()), "what came back")
    with lab.check("three graceful restarts under keep-alive load"), Lighttpd(lab) as site:
        with Load(PORT, "/small", site.small) as load:
            for _ in range(3):
                site.server.send_signal(signal.SIGUSR1)
                load.more(500)
    with lab.check("graceful stop: a download in progress is finished"), Lighttpd(lab) as site:
        client = lab.spawn("slow", "curl", "-sSf", "--limit-rate", "8M", "-o", lab.path("slow"),
                           f"http://127.0.0.1:{PORT}/large")
        until("the download has begun", lambda: lab.path("slow").exists() and lab.path("slow").stat().st_size)
        site.server.send_signal(signal.SIGINT)
        expect(client.wait(20), 0, "status of curl")
        expect(sha256(lab.path("slow").read_bytes()), sha256(site.large), "the download")


script("lighttpd", main)
