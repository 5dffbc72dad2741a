"""A sender that may have much under way, to a program that waits for something else with the connection in its set before it reads."""

import faulthandler
import select
import socket
import subprocess
import sys

SO_SNDBUFFORCE = 32
LIMIT = 16 << 20
SENT = 12 << 20


def receive():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        served, _ = listener.accept()
    for _ in range(200):
        served.send(served.recv(1))
    poll = select.poll()
    poll.register(served, 0)
    poll.register(sys.stdin, select.POLLIN)
    # It may be closed already behind the word that is waited for.
    assert [fd for fd, _ in poll.poll()] == [sys.stdin.fileno()], "the connection has ended"
    got = 0
    while octets := served.recv(1 << 20):
        got += len(octets)
    print(got)


def send():
    peer = subprocess.Popen([sys.executable, __file__, "receive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    client = socket.create_connection(("127.0.0.1", int(peer.stdout.readline())))
    for _ in range(200):
        client.send(b"x")
        client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, LIMIT)
    for _ in range(SENT >> 16):
        client.sendall(b"y" * (1 << 16))
    client.shutdown(socket.SHUT_WR)
    said, _ = peer.communicate(b"read\n")
    assert (int(said), peer.returncode) == (SENT, 0), said
    print("same")


faulthandler.dump_traceback_later(50, exit=True)
receive() if sys.argv[-1] == "receive" else send()
