"""servers under limits: ulimit -f of 50 kB (10 MB through an echo), 64 descriptors (more clients than
that, then served again), no locked memory"""

import sys

from lib import connect, exchange, expect, octets, recv_exactly, script, sha256

PORT = 8680

ECHO = """
import asyncio, sys

async def echo(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(echo, '127.0.0.1', int(sys.argv[1]), backlog=200)
    await server.serve_forever()

asyncio.run(main())
"""

THREADS = """
import errno, socket, sys

listener = socket.create_server(('127.0.0.1', int(sys.argv[1])), backlog=200)
kept = []
while True:
    try:
        kept.append(listener.accept()[0])
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
        break
for s in kept:
    s.sendall(b'1')
    s.close()
while True:
    s, _ = listener.accept()
    while piece := s.recv(65536):
        s.sendall(piece)
    s.close()
"""


def main(lab):
    echo, threads = lab.write("echo.py", ECHO), lab.write("threads.py", THREADS)
    large = octets(10_000_000, 2)
    limits = {"--fsize=51200": "files of 50 kB", "--nofile=64": "64 descriptors", "--memlock=0": "no locked memory"}
    for number, (limit, name) in enumerate(limits.items()):
        with lab.check(f"{name}: 10 MB through an echo"):
            # Output goes to a file, which the limit is for, too: nothing is written there.
            server = lab.serve(f"echo{number}", PORT + number, "prlimit", limit, sys.executable, echo, PORT + number)
            expect(sha256(exchange(PORT + number, large)), sha256(large), "what came back")
            for _ in range(50):
                expect(exchange(PORT + number, b"again"), b"again", "what came back")
    with lab.check("64 descriptors: 90 clients, then served again"):
        clients = [connect(PORT + 1) for _ in range(90)]
        for s in clients:
            s.close()
        expect(exchange(PORT + 1, b"after"), b"after", "what came back")
        expect(server.poll(), None, "the server's status")
    with lab.check("64 descriptors: what accept says"):
        server = lab.serve("threads", PORT + 9, "prlimit", "--nofile=64", sys.executable, threads, PORT + 9)
        clients = [connect(PORT + 9) for _ in range(70)]
        for s in clients[:40]:
            s.settimeout(20)
            expect(recv_exactly(s, 1), b"1", "from a client that was accepted")
        lab.until_log("threads", "EMFILE\n")
        for s in clients:
            s.close()
        expect(exchange(PORT + 9, b"after"), b"after", "what came back")


script("limits", main)
