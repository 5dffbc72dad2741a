"""TCP-LISTEN with fork to an echo and to EXEC, half close both ways, 20 MB through two relays, UNIX to TCP, thirty
clients at a time"""

import threading

from lib import Failed, connect, exchange, expect, octets, recv_exactly, script, sha256

ECHO, RELAY, SECOND, EXEC, UPPER = 8300, 8301, 8302, 8303, 8304


def listen(port):
    return f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,backlog=100"


def main(lab):
    lab.version("socat", "-V")
    with lab.check("PIPE: an echo"):
        lab.serve("echo", ECHO, "socat", listen(ECHO), "PIPE")
        s = connect(ECHO)
        for n in range(200):
            content = octets(1 + 37 * n, n)
            s.sendall(content)
            expect(recv_exactly(s, len(content)), content, "an echo")
        s.close()
    with lab.check("EXEC: a program with the connection's octets as input and output"):
        # -t: how long after one half's end the other may go on.
        lab.serve("exec", EXEC, "socat", "-t10", listen(EXEC), "EXEC:sha256sum")
        content = octets(5_000_000)
        expect(exchange(EXEC, content).split()[0].decode(), sha256(content), "its answer after our half closed")
    with lab.check("EXEC with nofork: the connection itself is its input and output"):
        lab.serve("nofork", UPPER, "socat", listen(UPPER), "EXEC:/usr/bin/tr a-z A-Z,nofork")
        expect(exchange(UPPER, b"some text\n" * 5000), b"SOME TEXT\n" * 5000, "its answer")
    with lab.check("20 MB through two relays and back"):
        lab.serve("relay", RELAY, "socat", "-t10", listen(RELAY), f"TCP:127.0.0.1:{SECOND}")
        lab.serve("second", SECOND, "socat", "-t10", listen(SECOND), "EXEC:cat")
        content = octets(20_000_000, 2)
        expect(sha256(exchange(RELAY, content)), sha256(content), "what came back")
    with lab.check("standard input and output to TCP"):
        content = octets(3_000_000, 3)
        found = lab.run("socat", "-t10", "-", f"TCP:127.0.0.1:{RELAY}", input=content)
        expect(sha256(found), sha256(content), "what came back")
    with lab.check("a Unix socket relayed to TCP"):
        path = lab.path("unix")
        server = lab.spawn("unix", "socat", f"UNIX-LISTEN:{path},fork", f"TCP:127.0.0.1:{ECHO}")
        answer = lab.run("socat", "-t2", "-", f"UNIX-CONNECT:{path},retry=100,interval=0.05", input=b"over unix")
        expect(answer, b"over unix", "an echo")
        lab.stop(server, status=143)
    with lab.check("thirty clients at a time"):
        thirty()


def thirty():
    failures = []

    def client(number):
        content = octets(200_000, number)
        try:
            expect(sha256(exchange(RELAY, content)), sha256(content), f"client {number}")
        except Exception as error:  # pylint: disable=broad-except
            failures.append(str(error))

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if failures:
        raise Failed("; ".join(failures[:3]))


script("socat", main)
