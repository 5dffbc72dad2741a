"""Both ends of a connection past the engine, one of which starts programs: `spawn.py serve|client WHAT`. `closed`: none of them is given it.
`given`: one is, in the place of its standard input and output. `inherited`: one is, by its number."""

import os
import socket
import subprocess
import sys

PORT = 7302


def recv_exactly(s, n):
    out = b""
    while len(out) < n:
        piece = s.recv(n - len(out))
        assert piece, f"end after {len(out)} of {n}"
        out += piece
    return out


def serve(what):
    listener = socket.create_server(("127.0.0.1", PORT))
    print("ready", flush=True)
    conn, _ = listener.accept()
    for _ in range(20):
        conn.sendall(recv_exactly(conn, 100))
    if what == "closed":
        for _ in range(5):
            subprocess.run(["true"], check=True)
            assert os.system("true") == 0
            with os.popen("echo said") as said:
                assert said.read() == "said\n"
        for _ in range(20):
            conn.sendall(recv_exactly(conn, 100))
        return
    # What it has read ahead nobody else can have: the client waits for each answer.
    if what == "given":
        child = subprocess.Popen(["cat"], stdin=conn, stdout=conn)
    else:
        number = conn.fileno()
        program = f"import os\nwhile got := os.read({number}, 100): os.write({number}, got)"
        child = subprocess.Popen([sys.executable, "-c", program], pass_fds=[number])
    # It makes no call on the connection meanwhile, and has it open.
    assert child.wait() == 0
    conn.close()


def client():
    conn = socket.create_connection(("127.0.0.1", PORT))
    for number in range(40):
        message = bytes([number]) * 100
        conn.sendall(message)
        assert recv_exactly(conn, 100) == message
    conn.shutdown(socket.SHUT_WR)
    assert conn.recv(1) == b""
    print("same")


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    client()
