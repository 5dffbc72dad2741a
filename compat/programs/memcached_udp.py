"""memcached by UDP (-U): 2000 gets and sets one at a time, a value that comes in several datagrams, ten clients at once"""

import socket
import struct
import threading

from lib import connect, expect, octets, script

PORT = 11312


class Client:
    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", PORT))
        self.number = 0

    def ask(self, text):
        """A request in one datagram; its answer, which may be in several (protocol.txt)."""
        self.number = (self.number + 1) % 65536
        self.socket.send(struct.pack("!HHHH", self.number, 0, 1, 0) + text)
        pieces, total = {}, 1
        while len(pieces) < total:
            datagram = self.socket.recv(65536)
            number, at, total, _ = struct.unpack("!HHHH", datagram[:8])
            expect(number, self.number, "the number of an answer")
            pieces[at] = datagram[8:]
        return b"".join(pieces[at] for at in range(total))

    def work(self, name, count):
        for n in range(count):
            value = octets(10 + n % 500, n)
            key = b"%s-%d" % (name, n % 50)
            expect(self.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value)), b"STORED\r\n", "answer to set")
            wanted = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
            expect(self.ask(b"get %s\r\n" % key), wanted, "answer to get")


def main(lab):
    lab.version("memcached", "--version")
    server = lab.serve("memcached", PORT, "memcached", "-u", "root", "-p", PORT, "-U", PORT, "-l", "127.0.0.1")
    with lab.check("2000 requests, one at a time"):
        Client().work(b"one", 1000)
    with lab.check("a value in several datagrams"):
        large = octets(20_000)
        s = connect(PORT)
        s.sendall(b"set large 0 0 %d\r\n%s\r\n" % (len(large), large))
        expect(s.recv(100), b"STORED\r\n", "answer to set")
        expect(Client().ask(b"get large\r\n"), b"VALUE large 0 20000\r\n" + large + b"\r\nEND\r\n", "the value")
    with lab.check("ten clients at once"):
        errors = []

        def work(number):
            try:
                Client().work(b"many%d" % number, 100)
            except Exception as error:  # pylint: disable=broad-except
                errors.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        expect(errors, [], "errors")
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)


script("memcached by UDP", main)
