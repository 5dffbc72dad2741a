"""New sockets while the engine stands still. attached: this process has a session; fresh: it has none yet. unwaiting: it
has one, and does not wait for connect. forks: children of it."""
import os
import select
import socket
import sys
import time

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


def connects_without_waiting():
    """A non-blocking connection to its own listener, after longer than an engine that is not heard is trusted to go on."""
    time.sleep(1)
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(keep[0].getsockname())
    keep.append(client)
    select.select([], [client], [])
    return client.fileno()


def forks():
    """A child that was made before the engine stood still, and one that is made now."""
    first, second = socket.create_connection(keep[0].getsockname()), keep[0].accept()[0]
    second.sendall(b"x")
    assert first.recv(1) == b"x"
    gate, open_gate = os.pipe()
    early = os.fork()
    if early == 0:
        os.read(gate, 1)
        first.sendall(b"early")
        os._exit(0)
    print("forked", flush=True)
    sys.stdin.readline()
    os.write(open_gate, b"x")
    late = os.fork()
    if late == 0:
        os._exit(0)
    assert os.waitpid(late, 0)[1] == 0
    print("again", flush=True)
    sys.stdin.readline()
    got = b""
    while len(got) < 5:
        got += second.recv(5)
    assert got == b"early", got
    assert os.waitpid(early, 0)[1] == 0
    second.sendall(b"back")
    assert first.recv(4) == b"back"
    print("whole", flush=True)
    sys.stdin.readline()
    sys.exit()


own = own_pair() if sys.argv[1] != "fresh" else None
if sys.argv[1] == "forks":
    forks()
print("ready" if own else "loaded", flush=True)
sys.stdin.readline()
if sys.argv[1] == "unwaiting":
    print("connected", connects_without_waiting(), flush=True)
    sys.stdin.readline()
    sys.exit()
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
