"""Chromium, headless, without its sandbox (root has none): a page whose script fetches 60 files at once and one of 5 MB, sums them up
and sends 1 MB back; by a server in Python, in threads, with kept connections"""

import hashlib
import os
import sys

from lib import Failed, expect, octets, script

PORT = 8730

SERVER = """
import hashlib, http.server, os, sys

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
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""

PAGE = """<!doctype html><title>page</title><p id="found">nothing</p><script>
(async () => {
    const hex = async data => Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', data)),
                                         octet => octet.toString(16).padStart(2, '0')).join('');
    const get = async path => hex(await (await fetch(path)).arrayBuffer());
    const small = await Promise.all(Array.from({length: 60}, (_, n) => get('/small?' + n)));
    const sent = await (await fetch('/put', {method: 'PUT', body: new Uint8Array(1000000).fill(7)})).text();
    document.getElementById('found').textContent = [new Set(small).size, small[0], await get('/large'), sent].join(' ');
})().catch(error => { document.getElementById('found').textContent = 'failed: ' + error; });
</script>
"""


def main(lab):
    chromium = lab.program("chromium", "Debian's package chromium has it")
    lab.version(chromium, "--version")
    small, large = octets(300), octets(5_000_000, 2)
    for name, content in (("small", small), ("large", large), ("page.html", PAGE)):
        lab.write(f"files/{name}", content)
    lab.serve("server", PORT, sys.executable, lab.write("server.py", SERVER), PORT, lab.path("files"))
    wanted = ["1", *(hashlib.sha256(data).hexdigest() for data in (small, large, b"\7" * 1_000_000))]
    for turn in ("one", "another"):
        with lab.check(f"{turn} page"):
            said = lab.run(chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                           "--disable-background-networking", f"--user-data-dir={lab.path(turn)}", "--virtual-time-budget=20000",
                           "--dump-dom", f"http://127.0.0.1:{PORT}/page.html", timeout=60,
                           env={**os.environ, "XDG_RUNTIME_DIR": str(lab.dir)}).decode()
            _, begin, rest = said.partition('id="found">')
            if not begin:
                raise Failed(f"no page: {said[:200]}")
            expect(rest.partition("<")[0].split(), wanted, "what the page has found")


script("Chromium", main)
