"""Python's asyncio, server and clients in two processes: 200 clients at a time, 20 MB streams with back pressure,
sendfile, TLS, start_tls in the middle of a connection, half close, cancelled reads, a hundred connections that end
at once"""

import sys

from lib import Failed, expect, octets, script

PORT, TLS_PORT, UPGRADE_PORT, FILE_PORT = 8700, 8701, 8702, 8703

SERVER = """
import asyncio, signal, ssl, sys

async def echo(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except ConnectionResetError:
        pass
    writer.close()

async def upgrade(reader, writer):
    assert await reader.readline() == b"STARTTLS\\n"
    writer.write(b"go\\n")
    await writer.drain()
    await writer.start_tls(context)
    await echo(reader, writer)

async def file(reader, writer):
    start, count = map(int, (await reader.readline()).split())
    with open(sys.argv[3], "rb") as source:
        await asyncio.get_running_loop().sendfile(writer.transport, source, start, count)
    writer.close()

async def main():
    servers = [await asyncio.start_server(echo, "127.0.0.1", 8700),
               await asyncio.start_server(echo, "127.0.0.1", 8701, ssl=context),
               await asyncio.start_server(upgrade, "127.0.0.1", 8702),
               await asyncio.start_server(file, "127.0.0.1", 8703)]
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    await ending.wait()
    for server in servers:
        server.close()
        await server.wait_closed()

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
asyncio.run(main())
"""

CLIENT = """
import asyncio, random, ssl, sys

context = ssl.create_default_context(cafile=sys.argv[2])

async def exchange(reader, writer, content):
    async def send():
        writer.write(content)
        await writer.drain()
    sender = asyncio.create_task(send())
    assert await reader.readexactly(len(content)) == content
    await sender

async def one(number, port=8700, size=20_000, **options):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    for n in range(3):
        await exchange(reader, writer, random.Random(number + n).randbytes(size))
    writer.close()
    await writer.wait_closed()

async def many():
    await asyncio.gather(*(one(n) for n in range(200)))

async def large():
    await asyncio.gather(*(one(n, size=5_000_000) for n in range(2)))

async def tls():
    options = {"port": 8701, "size": 200_000, "ssl": context, "server_hostname": "localhost"}
    await asyncio.gather(*(one(n, **options) for n in range(20)))

async def upgrade():
    for n in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", 8702)
        writer.write(b"STARTTLS\\n")
        assert await reader.readline() == b"go\\n"
        await writer.start_tls(context, server_hostname="localhost")
        await exchange(reader, writer, random.Random(n).randbytes(100_000))
        writer.close()

async def half_close():
    reader, writer = await asyncio.open_connection("127.0.0.1", 8700)
    content = random.Random(1).randbytes(1_000_000)
    writer.write(content)
    writer.write_eof()
    assert await reader.read() == content
    writer.close()

async def cancel():
    reader, writer = await asyncio.open_connection("127.0.0.1", 8700)
    for n in range(50):
        try:
            await asyncio.wait_for(reader.read(1), 0.005)
            raise AssertionError("something arrived")
        except TimeoutError:
            pass
        await exchange(reader, writer, b"still here %d" % n)
    writer.close()

async def file():
    with open(sys.argv[3], "rb") as source:
        content = source.read()
    for start, count in ((0, len(content)), (12345, 4_000_000), (len(content) - 10, 10)):
        reader, writer = await asyncio.open_connection("127.0.0.1", 8703)
        writer.write(b"%d %d\\n" % (start, count))
        assert await reader.read() == content[start:start + count]
        writer.close()

async def abort():
    pairs = [await asyncio.open_connection("127.0.0.1", 8700) for _ in range(100)]
    for _, writer in pairs:
        writer.write(b"x" * 100_000)
        writer.transport.abort()
    await one(1)

asyncio.run(asyncio.wait_for(globals()[sys.argv[1]](), 25))
print("same")
"""


def main(lab):
    lab.version(sys.executable, "--version")
    cert, key = lab.certificate()
    source, client = lab.write("source", octets(10_000_000)), lab.write("client.py", CLIENT)
    server = lab.serve("server", PORT, sys.executable, lab.write("server.py", SERVER), cert, key, source)
    checks = {"many": "200 clients at a time", "large": "streams with back pressure", "tls": "TLS",
              "upgrade": "start_tls", "half_close": "half close", "cancel": "cancelled reads", "file": "sendfile",
              "abort": "a hundred connections that end at once"}
    for word, name in checks.items():
        with lab.check(name):
            expect(lab.run(sys.executable, client, word, cert, source), b"same\n", "what it said")
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)
        if "Traceback" in (lab.dir / "server.log").read_text():
            raise Failed(lab.log("server"))


script("Python asyncio", main)
