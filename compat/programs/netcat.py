"""OpenBSD's nc: a file each way, -N half close, -k for one client after another, -z scans, -w limits, a chat of
lines"""

import socket
import subprocess

from lib import Failed, connect, expect, octets, recv_to_end, script, sha256, sha256_file, until

PORT = 8310


def main(lab):
    lab.version("dpkg-query", "-W", "netcat-openbsd")
    content = octets(20_000_000)
    source = lab.write("source", content)
    with lab.check("a file from client to server"):
        with open(lab.path("there"), "wb") as there:
            server = subprocess.Popen(["nc", "-l", "127.0.0.1", str(PORT)], stdout=there, stdin=subprocess.DEVNULL)
            send(lab, "nc", "-N", "127.0.0.1", PORT, stdin=open(source, "rb"))
            expect(server.wait(20), 0, "status of the server")
        expect(sha256_file(lab.path("there")), sha256(content), "what arrived")
    with lab.check("a file from server to client"):
        with open(source, "rb") as file:
            server = subprocess.Popen(["nc", "-N", "-l", "127.0.0.1", str(PORT)], stdin=file)
            found = send(lab, "nc", "-d", "127.0.0.1", PORT)
            expect(server.wait(20), 0, "status of the server")
        expect(sha256(found), sha256(content), "what arrived")
    with lab.check("one client after another, and a scan"):
        server = lab.spawn("keep", "nc", "-k", "-l", "127.0.0.1", PORT)
        for n in range(20):
            send(lab, "nc", "-N", "127.0.0.1", PORT, input=b"client %d\n" % n)
        lab.run("nc", "-z", "127.0.0.1", PORT)
        lab.run("nc", "-z", "127.0.0.1", "8399", status=1)
        wanted = b"".join(b"client %d\n" % n for n in range(20))
        until("all lines are there", lambda: lab.path("keep.log").read_bytes() == wanted)
        lab.stop(server)
    with lab.check("-w ends an idle client"):
        with socket.create_server(("127.0.0.1", PORT)) as listener:
            client = subprocess.Popen(["nc", "-d", "-w", "1", "127.0.0.1", str(PORT)], stdout=subprocess.PIPE)
            s, _ = listener.accept()
            s.sendall(b"then nothing")
            expect(client.communicate(timeout=10)[0], b"then nothing", "what it wrote")
            expect(s.recv(1), b"", "what its server reads")
            s.close()
    with lab.check("lines back and forth"):
        server = subprocess.Popen(["nc", "-l", "127.0.0.1", str(PORT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        s = connect(PORT)
        s.settimeout(10)
        for n in range(200):
            s.sendall(b"ping %d\n" % n)
            expect(server.stdout.readline(), b"ping %d\n" % n, "a line at the server")
            server.stdin.write(b"pong %d\n" % n)
            server.stdin.flush()
            expect(s.recv(100), b"pong %d\n" % n, "a line at the client")
        s.shutdown(socket.SHUT_WR)
        expect(server.stdout.read(), b"", "after our half closed")
        server.stdin.close()
        expect(recv_to_end(s), b"", "the end")
        server.wait(10)
        s.close()


def send(lab, *command, **options):
    """A client of a server that takes one connection only: no trial connection may come before it."""

    def attempt():
        try:
            return [lab.run(*command, **options)]
        except Failed as error:
            if "status 1 " in str(error):
                return None
            raise

    return until(f"{command[0]} is connected", attempt)[0]


script("netcat", main)
