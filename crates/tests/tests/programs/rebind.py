"""A server binds to its port at once, without SO_REUSEADDR, after its clients have closed first and it has been killed."""

import os
import signal
import socket

ROUNDS = 60


def serve(port, ready, has_heard):
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen()
    os.write(ready, str(listener.getsockname()[1]).encode())
    served, _ = listener.accept()
    while octets := served.recv(100):
        served.send(octets)
    # The client is closed; this end stays as it is until it is killed.
    os.write(has_heard, b"x")
    signal.pause()


def talk(port, closes):
    client = socket.create_connection(("127.0.0.1", port))
    for _ in range(50):
        client.send(b"x" * 20)
        client.recv(20)
    if closes:
        client.close()


port = 0
for n in range(ROUNDS):
    (read, ready), (hears, has_heard) = os.pipe(), os.pipe()
    server = os.fork()
    if server == 0:
        try:
            serve(port, ready, has_heard)
        finally:
            os._exit(1)
    os.close(ready)
    os.close(has_heard)
    port = int(os.read(read, 10) or "0")
    assert port, f"the port was in use in round {n}"
    client = os.fork()
    if client == 0:
        talk(port, n % 2 == 0)
        os._exit(0)
    assert os.waitpid(client, 0)[1] == 0
    if n % 3 == 0:
        assert os.read(hears, 1) == b"x"
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    os.close(read)
    os.close(hears)
print("same")
