"""a parent accepts, and a program gets the connection as its standard input and output (dup2, exec): cat, C stdio,
shell, Python; a program that only writes; forty at a time"""

import os
import socket
import sys
import threading

from lib import Failed, connect, exchange, expect, octets, recv_to_end, script, sha256

PORT = 8900


class Inetd:
    """Accepts in a thread; each connection becomes the standard input and output of a new process."""

    def __init__(self, *command):
        self.command = [str(word) for word in command]
        self.children = []

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", PORT), backlog=100)
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        return self

    def work(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                if connection.getpeername()[1] == self.last_port:
                    return
                pid = os.posix_spawnp(self.command[0], self.command, os.environ, file_actions=[
                    (os.POSIX_SPAWN_DUP2, connection.fileno(), 0), (os.POSIX_SPAWN_DUP2, connection.fileno(), 1)])
                self.children.append(pid)

    last_port = None

    def __exit__(self, *_):
        with socket.socket() as last:
            last.bind(("127.0.0.1", 0))
            self.last_port = last.getsockname()[1]
            last.connect(("127.0.0.1", PORT))
            self.thread.join(10)
        self.listener.close()
        for pid in self.children:
            os.waitpid(pid, 0)


SHELL = 'while read -r word rest; do echo "$rest $word"; done'
PYTHON = "import sys; [print(line.strip()[::-1], flush=True) for line in sys.stdin]"


def main(lab):
    lab.version(sys.executable, "--version")
    content = octets(3_000_000)
    lines = b"".join(b"line %d\n" % n for n in range(20_000))
    with lab.check("cat: read and write"), Inetd("cat"):
        for _ in range(5):
            expect(sha256(exchange(PORT, content)), sha256(content), "what came back")
    with lab.check("tr: C stdio"), Inetd("tr", "a-z", "A-Z"):
        for _ in range(5):
            expect(sha256(exchange(PORT, lines)), sha256(lines.upper()), "what came back")
    with lab.check("sort: all is read, then all is written"), Inetd("sort", "-r"):
        wanted = b"".join(sorted(lines.splitlines(keepends=True), reverse=True))
        expect(sha256(exchange(PORT, lines)), sha256(wanted), "what came back")
    with lab.check("a shell that reads lines"), Inetd("sh", "-c", SHELL):
        expect(exchange(PORT, b"one two\n" * 500), b"two one\n" * 500, "what came back")
    with lab.check("a shell that starts programs on the connection"), Inetd("sh", "-c", "head -n 1; cat; echo end"):
        expect(exchange(PORT, b"only line\n"), b"only line\nend\n", "what came back")
    with lab.check("Python's own input and output"), Inetd(sys.executable, "-c", PYTHON):
        expect(exchange(PORT, b"abc\n" * 500), b"cba\n" * 500, "what came back")
    with lab.check("a program that writes only, and ends"), Inetd("seq", "200000"):
        s = connect(PORT)
        found = recv_to_end(s)
        s.close()
        expect(sha256(found), sha256(b"".join(b"%d\n" % n for n in range(1, 200_001))), "what it wrote")
    with lab.check("forty at a time"), Inetd("cat"):
        forty()


def forty():
    failures = []

    def client(number):
        content = octets(100_000, number)
        try:
            expect(sha256(exchange(PORT, content)), sha256(content), f"client {number}")
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    if failures:
        raise Failed(f"{len(failures)} clients: {failures[0]}")


script("inetd style", main)
