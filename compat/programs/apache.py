"""httpd with the prefork and the event module: files of 300 B and 10 MB, keep-alive load during graceful restarts,
TLS, HTTP/2, a CGI program, a killed worker, graceful-stop"""

import os
import signal

from httpload import Load, wrk
from lib import children_of, expect, is_running, octets, script, sha256, until

PORT, TLS_PORT = 8400, 8443
MODULES = "/usr/lib/apache2/modules"

CONF = """
ServerRoot {dir}
DefaultRuntimeDir {dir}
PidFile {dir}/pid
ErrorLog {dir}/error.log
ServerName localhost
Listen 127.0.0.1:{port}
Listen 127.0.0.1:{tls_port}
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule ssl_module {modules}/mod_ssl.so
LoadModule socache_shmcb_module {modules}/mod_socache_shmcb.so
LoadModule alias_module {modules}/mod_alias.so
LoadModule cgi_module {modules}/mod_cgi.so
LoadModule http2_module {modules}/mod_http2.so
User www-data
Group www-data
StartServers 2
KeepAlive On
MaxKeepAliveRequests 0
EnableSendfile {sendfile}
DocumentRoot {www}
ScriptAlias /cgi/ {cgi}/
<Directory {www}>
    Require all granted
</Directory>
<Directory {cgi}>
    Require all granted
</Directory>
<VirtualHost 127.0.0.1:{tls_port}>
    SSLEngine on
    SSLCertificateFile {cert}
    SSLCertificateKeyFile {key}
    Protocols h2 http/1.1
</VirtualHost>
"""


class Apache:
    """One httpd in the foreground."""

    def __init__(self, lab, mpm, sendfile="On"):
        self.lab, self.dir = lab, lab.path(f"{mpm}-{sendfile}")
        self.dir.mkdir(exist_ok=True)
        self.small, self.large = octets(300), octets(10_000_000, 2)
        lab.write("www/small", self.small)
        lab.write("www/large", self.large)
        lab.write("cgi/program", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nsha256sum\n").chmod(0o755)
        cert, key = lab.certificate()
        self.conf = lab.write(f"{self.dir.name}/conf", CONF.format(
            dir=self.dir, port=PORT, tls_port=TLS_PORT, mpm=mpm, modules=MODULES, sendfile=sendfile,
            www=lab.path("www"), cgi=lab.path("cgi"), cert=cert, key=key))

    def __enter__(self):
        self.server = self.lab.serve(self.dir.name, PORT, "apache2", "-DFOREGROUND", "-f", self.conf)
        until("its pid file", (self.dir / "pid").exists)
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.lab.kill_all()
            return
        self.server.send_signal(signal.SIGWINCH)
        expect(self.server.wait(20), 0, "exit status after graceful-stop")

    def files(self, base=f"http://127.0.0.1:{PORT}", *options):
        for name, content in (("small", self.small), ("large", self.large)):
            answer = self.lab.run("curl", "-sSfk", *options, f"{base}/{name}")
            expect(sha256(answer), sha256(content), f"{base}/{name}")

    def restart_gracefully(self):
        before = children_of(self.server.pid)
        self.server.send_signal(signal.SIGUSR1)
        until("new children and no old one",
              lambda: (now := children_of(self.server.pid)) and not set(now) & set(before), 20)


def main(lab):
    lab.version("apache2", "-v")
    for mpm in ("prefork", "event"):
        with lab.check(f"{mpm}: files with sendfile"), Apache(lab, mpm) as apache:
            apache.files()
            with Load(PORT, "/large", apache.large, threads=3) as load:
                load.more(20)
        with lab.check(f"{mpm}: files without sendfile"), Apache(lab, mpm, sendfile="Off") as apache:
            apache.files()
            wrk(lab, f"http://127.0.0.1:{PORT}/small", lab.path("www/small"), seconds=1, connections=20)
        with lab.check(f"{mpm}: TLS"), Apache(lab, mpm) as apache:
            apache.files(f"https://127.0.0.1:{TLS_PORT}")
        with lab.check(f"{mpm}: CGI"), Apache(lab, mpm) as apache:
            cgi(lab)
        with lab.check(f"{mpm}: three graceful restarts under keep-alive load"), Apache(lab, mpm) as apache:
            with Load(PORT, "/small", apache.small) as load:
                for _ in range(3):
                    apache.restart_gracefully()
                    load.more(100)
        with lab.check(f"{mpm}: a killed child is replaced"), Apache(lab, mpm) as apache:
            victim = until("a child", lambda: children_of(apache.server.pid))[0]
            os.kill(victim, signal.SIGKILL)
            until("it is gone", lambda: not is_running(victim))
            apache.files()
    with lab.check("event: HTTP/2"), Apache(lab, "event") as apache:
        apache.files(f"https://127.0.0.1:{TLS_PORT}", "--http2")


def cgi(lab):
    """A program of its own for each request; it says the sum of what was posted."""
    content = lab.write("posted", octets(500_000, 3))
    for _ in range(10):
        answer = lab.run("curl", "-sSf", "--data-binary", f"@{content}", f"http://127.0.0.1:{PORT}/cgi/program")
        expect(answer.split()[0].decode(), sha256(content.read_bytes()), "the sum of what was posted")


script("Apache httpd", main)
