"""a tree of 100 files mirrored over one connection, resume of a 20 MB file, POST, retries after a cut connection"""

import hashlib
import http.server
import re
import threading

from lib import expect, octets, script, sha256_file

PORT = 8210
HERE = f"http://127.0.0.1:{PORT}"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files, with ranges; the first answer for /cut/ ends in the middle of the file."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    connections = 0
    cut = False

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass

    def setup(self):
        super().setup()
        type(self).connections += 1

    def do_GET(self):
        if not self.path.startswith(("/large", "/cut")):
            super().do_GET()
            return
        content = octets(20_000_000)
        total = len(content)
        start = 0
        if found := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(found.group(1))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        if self.path == "/cut" and not start:
            type(self).cut = True
            self.wfile.write(content[:5_000_000])
            self.close_connection = True
            return
        self.wfile.write(content[start:])

    def do_POST(self):
        answer = hashlib.sha256(self.rfile.read(int(self.headers["Content-Length"]))).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main(lab):
    lab.version("wget", "--version")
    for n in range(100):
        lab.write(f"site/dir{n % 10}/file{n}", octets(1000 * n, n))
    root = lab.path("site")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), lambda *args: Handler(*args, directory=root))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    large = octets(20_000_000)
    wanted = hashlib.sha256(large).hexdigest()

    with lab.check("a tree over one connection"):
        lab.run("wget", "-q", "-m", "-nH", "-e", "robots=off", "-P", lab.path("copy"), f"{HERE}/")
        for n in range(100):
            path = lab.path(f"copy/dir{n % 10}/file{n}")
            expect(sha256_file(path), hashlib.sha256(octets(1000 * n, n)).hexdigest(), f"file {n}")
        expect(Handler.connections <= 3, True, f"few connections ({Handler.connections})")
    with lab.check("resume"):
        part = lab.write("part/large", large[:7_000_001])
        lab.run("wget", "-q", "-c", "-P", part.parent, f"{HERE}/large")
        expect(sha256_file(part), wanted, "the file after a resume")
    with lab.check("a connection that is cut: it goes on where it stopped"):
        lab.run("wget", "-q", "-t", "3", "--waitretry=0", "-O", lab.path("cut"), f"{HERE}/cut")
        expect((Handler.cut, sha256_file(lab.path("cut"))), (True, wanted), "the file")
    with lab.check("POST"):
        found = lab.run("wget", "-q", "-O", "-", f"--post-file={lab.path('cut')}", f"{HERE}/post").decode()
        expect(found, wanted, "what arrived")
    with lab.check("a refused port"):
        lab.run("wget", "-q", "-t", "1", "http://127.0.0.1:8299/", status=4)
    server.shutdown()
    server.server_close()


script("wget", main)
