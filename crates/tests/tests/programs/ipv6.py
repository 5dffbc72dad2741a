"""Sockets of IPv6 among programs of one host: with the engine, and to the program as Linux has them."""
import asyncio
import errno
import socket

HOST = "::1"


def exchange(one, other):
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"hello")
        assert receiver.recv(5, socket.MSG_WAITALL) == b"hello"


def connected(listening, host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    client = socket.socket(family)
    client.connect((host, port))
    conn, peer = listening.accept()
    assert conn.getpeername() == peer
    exchange(conn, client)
    return conn, client


def listener(host, port=0, v6only=None):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    if v6only is not None:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    made.bind((host, port))
    made.listen(20)
    return made, made.getsockname()[1]


def one_connection():
    listening, port = listener(HOST)
    conn, client = connected(listening, HOST, port)
    own = client.getsockname()
    assert own[0] == HOST and own[2:] == (0, 0), own
    assert client.getpeername() == (HOST, port, 0, 0), client.getpeername()
    assert conn.getsockname() == (HOST, port, 0, 0) and conn.getpeername() == own
    for end in (conn, client):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET6
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0)
        assert end.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS) == 64
    client.shutdown(socket.SHUT_WR)
    assert conn.recv(1) == b""


def both_families():
    listening, port = listener("::", v6only=0)
    conn, client = connected(listening, HOST, port)
    assert conn.getpeername()[0] == HOST
    conn, client = connected(listening, "127.0.0.1", port)
    assert conn.family == socket.AF_INET6
    assert conn.getpeername()[:2] == ("::ffff:127.0.0.1", client.getsockname()[1]), conn.getpeername()


def each_family_its_own():
    six, port = listener("::", v6only=1)
    refused = socket.socket()
    assert refused.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    four, _ = listener("0.0.0.0", port)
    connected(six, HOST, port)
    connected(four, "127.0.0.1", port)


def bound_before_connect():
    listening, port = listener(HOST)
    client = socket.socket(socket.AF_INET6)
    client.bind((HOST, 0))
    own = client.getsockname()
    client.connect((HOST, port))
    conn, peer = listening.accept()
    assert peer == own == client.getsockname(), (peer, own)
    exchange(conn, client)


def nobody_there():
    gone, port = listener(HOST)
    gone.close()
    client = socket.socket(socket.AF_INET6)
    assert client.connect_ex((HOST, port)) == errno.ECONNREFUSED
    assert client.connect_ex(("fe80::1", port)) == errno.EINVAL, "of which link?"


async def with_asyncio():
    """A server at all addresses: a socket of each family, on one port."""
    async def echo(reader, writer):
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, None, 7100)
    assert {made.family for made in server.sockets} == {socket.AF_INET, socket.AF_INET6}
    for host in (HOST, "127.0.0.1", "localhost"):
        reader, writer = await asyncio.open_connection(host, 7100)
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
    server.close()


one_connection()
both_families()
each_family_its_own()
bound_before_connect()
nobody_there()
asyncio.run(with_asyncio())
print("same")
