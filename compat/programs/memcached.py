"""four threads, values compared over 300 connections in parallel, pipelined multi-gets, values near 1 MB, the
binary protocol's gets, connections beyond its limit, all of its memory locked (-k)"""

import re
import struct
import threading

from lib import Failed, connect, expect, octets, recv_exactly, script, sha256, until

PORT = 11311


class Client:
    """The text protocol over one connection."""

    def __init__(self):
        self.socket = connect(PORT)
        self.socket.settimeout(20)
        self.file = self.socket.makefile("rb")

    def close(self):
        self.file.close()
        self.socket.close()

    def set(self, key, value):
        self.socket.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        expect(self.file.readline(), b"STORED\r\n", "answer to set")

    def get(self, *keys):
        self.socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while (line := self.file.readline()) != b"END\r\n":
            word, key, _, length = line.split()
            expect(word, b"VALUE", "answer to get")
            found[key] = self.file.read(int(length) + 2)[:-2]
        return found


def many(connections, rounds):
    """Every connection has a thread and keys of its own."""
    errors = []

    def work(number):
        try:
            client = Client()
            for n in range(rounds):
                keys = [b"%d-%d-%d" % (number, n, k) for k in range(4)]
                values = [octets(10 + 300 * k, number + n + k) for k in range(4)]
                for key, value in zip(keys, values):
                    client.set(key, value)
                expect(client.get(*keys), dict(zip(keys, values)), "values")
            client.close()
        except Exception as error:  # pylint: disable=broad-except
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise Failed(f"{len(errors)} of {connections} clients: {errors[0]}")
    expect(sum(thread.is_alive() for thread in threads), 0, "hanging clients")


def main(lab):
    lab.version("memcached", "-V")
    server = lab.serve("memcached", PORT, "memcached", "-t", 4, "-p", PORT, "-l", "127.0.0.1", "-U", 0, "-u", "nobody",
                       "-m", 256, "-c", 700, "-o", "no_maxconns_fast")
    with lab.check("300 connections in parallel, every value compared"):
        many(300, 10)
    with lab.check("a pipeline of 5000 gets"):
        pipeline()
    with lab.check("values near 1 MB"):
        client = Client()
        for n in range(20):
            value = octets(1_000_000 + n, n)
            client.set(b"large", value)
            expect(sha256(client.get(b"large")[b"large"]), sha256(value), "a large value")
        client.close()
    with lab.check("the binary protocol"):
        binary()
    with lab.check("beyond the limit of connections, then below it again"):
        beyond_the_limit()
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)
    with lab.check("all memory locked, now and later"):
        server = lab.serve("locked", PORT, "memcached", "-k", "-t", 4, "-p", PORT, "-l", "127.0.0.1", "-U", 0, "-u", "root",
                           "-m", 64)
        many(50, 5)
        locked = int(re.search(r"VmLck:\s+(\d+) kB", open(f"/proc/{server.pid}/status", encoding="ascii").read()).group(1))
        expect(0 < locked < 2_000_000, True, f"{locked} kB are locked")
        lab.stop(server, status=0)


def pipeline():
    client = Client()
    client.set(b"one", b"value")
    sender = threading.Thread(target=client.socket.sendall, args=(b"get one\r\n" * 5000,))
    sender.start()
    for _ in range(5000):
        expect(client.file.read(27), b"VALUE one 0 5\r\nvalue\r\nEND\r\n", "an answer")
    sender.join()
    client.close()


def binary():
    """A get of a key that is there, as frames of the binary protocol."""
    writer = Client()
    writer.set(b"binary", b"0123456789")
    writer.close()
    s = connect(PORT)
    for n in range(200):
        s.sendall(struct.pack("!BBHBBHIIQ", 0x80, 0, 6, 0, 0, 0, 6, n, 0) + b"binary")
        magic, _, _, extra, _, status, length, opaque, _ = struct.unpack("!BBHBBHIIQ", recv_exactly(s, 24))
        expect((magic, status, opaque), (0x81, 0, n), "header of the answer")
        expect(recv_exactly(s, length)[extra:], b"0123456789", "the value")
    s.close()


def beyond_the_limit():
    """memcached stops accepting at its limit; who waits in the queue is served when others leave."""
    clients = [connect(PORT) for _ in range(800)]
    for client in clients[:600]:
        client.sendall(b"version\r\n")
        if not client.recv(100).startswith(b"VERSION"):
            raise Failed("no answer below the limit")
    for client in clients[:600]:
        client.close()
    for client in clients[600:]:
        client.settimeout(20)
        client.sendall(b"version\r\n")
        if not client.recv(100).startswith(b"VERSION"):
            raise Failed("no answer after others have left")
        client.close()
    until("a new client is served", lambda: Client().get(b"nothing") == {})


script("memcached", main)
