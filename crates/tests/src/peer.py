"""The small programs that the whole-program tests talk to, in one file: `peer.py ROLE ARGS`. Each says on its standard
output what it sees, a line at a time. They are ordinary programs: which stack they use is decided from outside."""

import errno
import hashlib
import http.server
import os
import socket
import subprocess
import sys
import threading
import time


def say(*words):
    print(*words, flush=True)


def put_server(port, host="0.0.0.0"):
    """An HTTP server that answers a PUT with the SHA-256 of what it got."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self):
            digest, left = hashlib.sha256(), int(self.headers["Content-Length"])
            while left:
                data = self.rfile.read(min(left, 1 << 18))
                if not data:
                    break
                digest.update(data)
                left -= len(data)
            body = (digest.hexdigest() + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Server((host, int(port)), Handler)
    say("listening", server.fileno())
    server.serve_forever()


def reader(host, port, path):
    """Asks for `path` and reads without end; says how the stream ended."""
    got = 0
    conn = socket.create_connection((host, int(port)), 20)
    conn.settimeout(60)
    conn.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    try:
        while True:
            data = conn.recv(1 << 18)
            if not data:
                say("end FIN", got)
                return
            if got < 1 << 20 <= got + len(data):
                say("reading", conn.fileno())
            got += len(data)
    except OSError as error:
        say("end", name_of(error), got)


def sender(port):
    """Accepts one connection and sends without end; says how that ended."""
    listener = socket.create_server(("0.0.0.0", int(port)))
    say("listening")
    conn, _ = listener.accept()
    conn.settimeout(60)
    sent, block = 0, bytes(1 << 16)
    try:
        while True:
            sent += conn.send(block)
    except OSError as error:
        say("end", name_of(error), sent)


def echo_server(port):
    """Sends back what comes, one connection after the other."""
    listener = socket.create_server(("0.0.0.0", int(port)))
    say("listening", listener.fileno())
    while True:
        conn, _ = listener.accept()
        with conn:
            while data := conn.recv(1 << 16):
                conn.sendall(data)


def echo_client(host, port, length):
    """Sends `length` octets while it reads them back, and compares."""
    data = os.urandom(int(length))
    conn = socket.create_connection((host, int(port)), 20)
    conn.settimeout(20)
    back, at = bytearray(), 0
    while at < len(data):
        at += conn.send(data[at : at + 16384])
        while len(back) < at:
            piece = conn.recv(1 << 16)
            if not piece:
                say("closed early", len(back))
                sys.exit(1)
            back += piece
    say("same" if bytes(back) == data else "different", len(back))


def echo_many(port, host="0.0.0.0"):
    """Sends back what comes, any number of connections at once."""

    def serve(conn):
        with conn:
            while data := conn.recv(1 << 16):
                conn.sendall(data)

    listener = socket.create_server((host, int(port)), backlog=512)
    say("listening", listener.fileno())
    while True:
        conn, peer = listener.accept()
        say("accepted", *peer)
        threading.Thread(target=serve, args=(conn,), daemon=True).start()


def echo_alone(port):
    """Accepts one connection, gives its listener up, and sends back what comes."""
    listener = socket.create_server(("0.0.0.0", int(port)))
    say("listening")
    conn, _ = listener.accept()
    listener.close()
    say("alone")
    while data := conn.recv(1 << 16):
        conn.sendall(data)


def talk(host, port, from_port="0"):
    """Holds a connection to an echo server; on each line of input uses it and says what came."""
    conn = socket.socket()
    if int(from_port):
        conn.bind(("", int(from_port)))
    conn.settimeout(20)
    conn.connect((host, int(port)))
    conn.settimeout(60)
    say("connected", conn.getsockname()[1])
    for line in sys.stdin:
        say(line.strip(), ping(conn))


def churn(host, port, count):
    """Makes `count` connections to an echo server, one after the other, and closes each first."""
    good = 0
    for _ in range(int(count)):
        with socket.create_connection((host, int(port)), 20) as conn:
            good += ping(conn) == "ok"
    say("good", good)
    sys.stdin.read()


def two_stacks(toe_host, toe_port, kernel_host, kernel_port):
    """Holds an idle connection to each of two echo servers; on a line of input uses both and says what came."""
    toe = socket.create_connection((toe_host, int(toe_port)), 20)
    kernel = socket.create_connection((kernel_host, int(kernel_port)), 20)
    kernel.settimeout(20)
    toe.settimeout(60)
    say("connected", ping(toe), ping(kernel))
    start = time.monotonic()
    try:
        end = "FIN" if toe.recv(1) == b"" else "data"
    except OSError as error:
        end = name_of(error)
    say("toe socket ended", end, f"{time.monotonic() - start:.3f}")
    say("kernel socket", ping(kernel))
    toe.close()
    again = socket.create_connection((kernel_host, int(kernel_port)), 20)
    say("new kernel socket made", again.fileno())


def ping(conn):
    try:
        conn.sendall(b"ping")
        return "ok" if conn.recv(4) == b"ping" else "wrong"
    except OSError as error:
        return name_of(error)


def hold(count, host, port):
    """Holds `count` idle connections until its input ends."""
    held = [socket.create_connection((host, int(port)), 20) for _ in range(int(count))]
    say("holding", len(held), held[0].fileno())
    sys.stdin.read()


def listen6(port):
    """Holds an IPv6 listener until its input ends: the engine speaks IPv4, so this one is the kernel's."""
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(("::1", int(port)))
    listener.listen()
    say("listening", listener.fileno())
    sys.stdin.read()


def inetd(port, count):
    """A server that gives each connection to a program of its own as standard input and output, and lets go of it at
    once; and its clients."""
    listener = socket.create_server(("127.0.0.1", int(port)))
    upper = [sys.executable, "-c", "import os; os.write(1, os.read(0, 100).upper())"]

    def serve():
        for _ in range(int(count)):
            conn, _ = listener.accept()
            program = subprocess.Popen(upper, stdin=conn, stdout=conn)
            conn.close()
            program.wait()

    threading.Thread(target=serve, daemon=True).start()
    good = 0
    for _ in range(int(count)):
        with socket.create_connection(("127.0.0.1", int(port)), 10) as conn:
            conn.sendall(b"hello")
            answer = b""
            while data := conn.recv(100):
                answer += data
            good += answer == b"HELLO"
    say("answered", good)


def name_of(error):
    return errno.errorcode.get(error.errno, type(error).__name__)


ROLES = (put_server, reader, sender, echo_server, echo_client, echo_many, echo_alone, talk, churn, two_stacks, hold, listen6, inetd)

if __name__ == "__main__":
    {role.__name__.replace("_", "-"): role for role in ROLES}[sys.argv[1]](*sys.argv[2:])
