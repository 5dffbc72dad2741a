"""New sockets while the engine stands still. attached: this process has a session; fresh: it has none yet."""
import socket
import sys

ECHO = ("127.0.0.1", 7400)
keep = []


def own_pair():
    """A connection by the engine, so that there is a session and a listener that the engine knows of."""
    listener = socket.create_server(("127.0.0.1", 0))
    for _ in range(3):
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        client.close()
        server.close()
    keep.append(listener)
    return listener.getsockname()


def echoes(to):
    client = socket.create_connection(to)
    client.sendall(b"hello")
    got = client.recv(5)
    assert got == b"hello", got
    keep.append(client)
    return client.fileno()


own = own_pair() if sys.argv[1] == "attached" else None
print("ready" if own else "loaded", flush=True)
sys.stdin.readline()
if own:
    # To a listener that the engine connected to before, without being asked: taken by this program's own accept, from the kernel.
    client = socket.create_connection(own)
    server, _ = keep[0].accept()
    server.sendall(b"y")
    assert client.recv(1) == b"y"
    keep += [client, server]
    print("connected", client.fileno(), flush=True)
else:
    print("connected", echoes(ECHO), flush=True)
print("again", echoes(ECHO), flush=True)
listener = socket.create_server(("127.0.0.1", 0))
keep.append(listener)
print("listens", listener.fileno(), flush=True)
sys.stdin.readline()
for each in keep:
    each.close()
