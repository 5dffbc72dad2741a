"""Jetty (Java NIO, its start.jar): keep-alive load and new connections, 10 MB, ranges, 100 requests in flight over each of four
connections, an orderly end"""

import threading

from httpload import Load
from lib import Failed, connect, expect, octets, script, sha256

PORT = 8710
HOME = "/usr/share/jetty9"


def pipelined(small):
    """Requests sent at once over one connection; the answers come in order."""
    s = connect(PORT)
    s.settimeout(20)
    request = b"GET /small HTTP/1.1\r\nHost: here\r\n\r\n"
    sender = threading.Thread(target=s.sendall, args=(request * 100,))
    sender.start()
    with s.makefile("rb") as answers:
        for _ in range(100):
            expect(answers.readline(), b"HTTP/1.1 200 OK\r\n", "status")
            length = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            expect(answers.read(length), small, "an answer")
    sender.join()
    s.close()


def main(lab):
    java = lab.program("java", "Debian's package default-jdk-headless has it")
    small, large = octets(300), octets(10_000_000, 2)
    base = lab.path("base")
    lab.write("base/webapps/ROOT/small", small)
    lab.write("base/webapps/ROOT/large", large)
    lab.write("base/start.d/here.ini",
              f"--module=http\n--module=deploy\njetty.http.host=127.0.0.1\njetty.http.port={PORT}\n")
    try:
        lab.version(java, "-jar", f"{HOME}/start.jar", f"jetty.home={HOME}", f"jetty.base={base}", "--version")
        server = lab.spawn("server", java, "-jar", f"{HOME}/start.jar", f"jetty.home={HOME}", f"jetty.base={base}")
    except FileNotFoundError as error:
        raise Failed(f"no Jetty: {error}") from None
    connect(PORT, limit=40, process=server).close()
    here = f"http://127.0.0.1:{PORT}"
    with lab.check("10 MB, whole and a range"):
        expect(sha256(lab.run("curl", "-sSf", f"{here}/large")), sha256(large), "large")
        found = lab.run("curl", "-sSf", "-r", "1000000-1999999", f"{here}/large")
        expect(sha256(found), sha256(large[1_000_000:2_000_000]), "the range")
    for keepalive in (True, False):
        with lab.check(f"load, {'keep-alive' if keepalive else 'a connection for each request'}"):
            with Load(PORT, "/small", small, keepalive=keepalive) as load:
                load.more(1000)
    with lab.check("100 requests in flight, four connections"):
        threads = [threading.Thread(target=pipelined, args=(small,), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        expect(sum(thread.is_alive() for thread in threads), 0, "hanging clients")
    with lab.check("ends by itself"):
        lab.stop(server, limit=20)


script("Jetty", main)
