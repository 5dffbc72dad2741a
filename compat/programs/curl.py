"""GET, PUT and POST, chunked both ways, resume, keep-alive over hundreds of requests, -Z with 32 in parallel, 100
MB compared, a limited rate, a refused port, TLS"""

import http.server
import re
import socket
import ssl
import threading

from lib import expect, octets, script, sha256, sha256_file

PORT, TLS_PORT = 8200, 8201
HERE = f"http://127.0.0.1:{PORT}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Files by name with ranges; what is sent comes back."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    files = {}

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass

    def do_GET(self):
        content = self.files.get(self.path.partition("?")[0])
        if content is None:
            self.send_error(404)
            return
        if found := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(found.group(1))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            content = content[start:]
        else:
            self.send_response(200)
        if "chunked" in self.path:
            self.chunked(content)
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def chunked(self, content):
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(content), 5000):
            piece = content[at:at + 5000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def do_PUT(self):
        content = self.body()
        self.files[self.path] = content
        answer = sha256(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT


def serve(port, context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(lab):
    lab.version("curl", "--version")
    small, medium, large = octets(300), octets(2_000_000, 2), octets(100_000_000, 3)
    Handler.files.update({"/small": small, "/chunked": medium, "/medium": medium, "/large": large})
    Handler.files.update({f"/part-{n}": octets(30_000 + n, n) for n in range(200)})
    cert, key = lab.certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    servers = [serve(PORT), serve(TLS_PORT, context)]
    curl = ("curl", "-sSf")

    with lab.check("GET, and chunked"):
        expect(lab.run(*curl, f"{HERE}/small"), small, "small")
        expect(sha256(lab.run(*curl, f"{HERE}/chunked")), sha256(medium), "chunked")
    with lab.check("100 MB"):
        lab.run(*curl, "-o", lab.path("large"), f"{HERE}/large")
        expect(sha256_file(lab.path("large")), sha256(large), "large")
    with lab.check("PUT of 100 MB, POST, chunked PUT, each after 100-continue where curl wants it"):
        source = lab.write("medium", medium)
        expect(lab.run(*curl, "-T", lab.path("large"), f"{HERE}/put").decode(), sha256(large), "PUT")
        expect(lab.run(*curl, "--data-binary", f"@{source}", f"{HERE}/post").decode(), sha256(medium), "POST")
        found = lab.run(*curl, "-T", "-", "-H", "Transfer-Encoding: chunked", f"{HERE}/put", input=medium).decode()
        expect(found, sha256(medium), "chunked PUT")
    with lab.check("resume"):
        part = lab.write("resumed", medium[:777_777])
        lab.run(*curl, "-C", "-", "-o", part, f"{HERE}/medium")
        expect(sha256_file(part), sha256(medium), "the file after a resume")
    with lab.check("500 requests over one connection"):
        lines = lab.run(*curl, "-o", "/dev/null", "-w", "%{num_connects} %{size_download}\n", f"{HERE}/small?[1-500]")
        counts = [line.split() for line in lines.splitlines()]
        expect(sum(int(connects) for connects, _ in counts), 1, "connections made")
        expect([int(size) for _, size in counts], [300] * 500, "sizes")
    with lab.check("32 in parallel"):
        directory = lab.path("parallel")
        directory.mkdir()
        lab.run(*curl, "-Z", "--parallel-max", "32", "--output-dir", directory, "-o", "#1", f"{HERE}/part-[0-199]")
        for n in range(200):
            expect((directory / str(n)).read_bytes(), octets(30_000 + n, n), f"part {n}")
    with lab.check("a limited rate"):
        expect(sha256(lab.run(*curl, "--limit-rate", "4M", f"{HERE}/medium")), sha256(medium), "medium")
    with lab.check("TLS"):
        found = lab.run(*curl, "--cacert", cert, f"https://127.0.0.1:{TLS_PORT}/medium")
        expect(sha256(found), sha256(medium), "medium")
    with lab.check("a refused port, and one that never answers"):
        lab.run("curl", "-sS", "http://127.0.0.1:8299/", status=7)
        with socket.create_server(("127.0.0.1", 8202)):
            lab.run("curl", "-sS", "-m", "1", "http://127.0.0.1:8202/", status=28)
    with lab.check("from a chosen local port"):
        expect(lab.run(*curl, "--interface", "127.0.0.1", "--local-port", "9200-9220", f"{HERE}/small"), small, "small")
    for server in servers:
        server.shutdown()
        server.server_close()


script("curl", main)
