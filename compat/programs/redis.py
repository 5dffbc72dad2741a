"""two io-threads settings, redis-benchmark with pipelining, values compared while BGSAVE forks under load, publish
and subscribe, large values, a replica that follows and resynchronises, restart from the saved file"""

import re
import threading

from lib import Failed, connect, expect, octets, script, sha256, until

PORT, REPLICA = 6390, 6391


class Client:
    """RESP over one connection, as much as the checks need."""

    def __init__(self, port=PORT):
        self.socket = connect(port)
        self.socket.settimeout(20)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Failed(f"redis says {rest.decode()}")
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        raise Failed(f"not an answer: {line!r}")

    def ask(self, *words):
        self.send(*words)
        return self.answer()


def start(lab, name, port, *options):
    directory = lab.path(name)
    directory.mkdir(exist_ok=True)
    return lab.serve(name, port, "redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", directory, *options)


def benchmark(lab, *options):
    """redis-benchmark has no status for wrong answers, but it stops at an error."""
    output = lab.run("redis-benchmark", "-p", PORT, "-q", *options).decode()
    rates = re.findall(r"([A-Z_]+): +([\d.]+) requests per second", output.replace("\r", "\n"))
    if not rates or any(float(rate) == 0 for _, rate in rates):
        raise Failed(f"redis-benchmark said {output[-300:]}")


def values(client, count, seed):
    """Sets values in one pipeline, then compares each."""
    wanted = [octets(200 + n, seed + n) for n in range(count)]
    for n, value in enumerate(wanted):
        client.send("SET", f"{seed}:{n}", value)
    for n in range(count):
        expect(client.answer(), b"OK", f"SET {n}")
    for n in range(count):
        client.send("GET", f"{seed}:{n}")
    for n, value in enumerate(wanted):
        expect(client.answer(), value, f"GET {seed}:{n}")


def main(lab):
    lab.version("redis-server", "--version")
    with lab.check("redis-benchmark, plain and with pipelines"):
        server = start(lab, "plain", PORT, "--save", "")
        benchmark(lab, "-n", 20000, "-c", 50, "-t", "set,get,incr,lpush")
        benchmark(lab, "-n", 100000, "-c", 20, "-P", 32, "-t", "set,get")
        benchmark(lab, "-n", 2000, "-c", 20, "-d", 100000, "-t", "set,get")
        lab.stop(server, status=0)
    with lab.check("io-threads 4: load and values"):
        server = start(lab, "threads", PORT, "--save", "", "--io-threads", 4, "--io-threads-do-reads", "yes")
        benchmark(lab, "-n", 50000, "-c", 64, "-P", 4, "-t", "set,get")
        with Client() as client:
            values(client, 2000, seed=10)
        lab.stop(server, status=0)
    with lab.check("values compared while BGSAVE forks under load"):
        server = start(lab, "saves", PORT, "--save", "1", "1")
        bgsave_under_load()
    with lab.check("restart from the saved file"):
        lab.stop(server, status=0)
        start(lab, "saves", PORT, "--save", "1", "1")
        with Client() as client:
            expect(client.ask("GET", "100:7"), octets(207, 107), "a value after the restart")
    with lab.check("a value of 30 MB"), Client() as client:
        value = octets(30_000_000, seed=3)
        expect(client.ask("SET", "large", value), b"OK", "SET")
        expect(sha256(client.ask("GET", "large")), sha256(value), "GET")
        client.ask("DEL", "large")
    with lab.check("publish and subscribe"):
        publish()
    with lab.check("a replica follows, and again after its connection is cut"):
        replication(lab)
    with lab.check("five hundred idle clients, then each is answered"):
        clients = [Client() for _ in range(500)]
        for n, client in enumerate(clients):
            client.send("ECHO", f"client {n}")
        for n, client in enumerate(clients):
            expect(client.answer(), f"client {n}".encode(), "ECHO")
            client.__exit__()
    with lab.check("SHUTDOWN closes every connection"), Client() as client, Client() as other:
        client.send("SHUTDOWN", "NOSAVE")
        expect(client.file.read(), b"", "what comes after SHUTDOWN")
        expect(other.socket.recv(1), b"", "what another client reads")


def bgsave_under_load():
    errors, ending = [], threading.Event()

    def work(seed):
        try:
            with Client() as client:
                while not ending.is_set():
                    values(client, 100, seed)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(str(error))

    threads = [threading.Thread(target=work, args=(100 * n,), daemon=True) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    with Client() as client:
        for _ in range(4):
            client.ask("BGSAVE", "SCHEDULE")
            until("BGSAVE ends", lambda: b"rdb_bgsave_in_progress:0" in client.ask("INFO", "persistence"))
            if b"rdb_last_bgsave_status:ok" not in client.ask("INFO", "persistence"):
                raise Failed("BGSAVE failed")
    ending.set()
    for thread in threads:
        thread.join(20)
    expect(errors, [], "errors of the load")
    expect([thread.is_alive() for thread in threads], [False] * 4, "hanging clients")


def publish():
    with Client() as speaker:
        listeners = [Client() for _ in range(10)]
        for listener in listeners:
            expect(listener.ask("SUBSCRIBE", "news"), [b"subscribe", b"news", 1], "SUBSCRIBE")
        for n in range(500):
            expect(speaker.ask("PUBLISH", "news", f"message {n}"), 10, "receivers of PUBLISH")
        for listener in listeners:
            for n in range(500):
                expect(listener.answer(), [b"message", b"news", f"message {n}".encode()], "a message")
            listener.__exit__()


def replication(lab):
    start(lab, "replica", REPLICA, "--save", "", "--replicaof", "127.0.0.1 6390")
    with Client() as master, Client(REPLICA) as replica:
        until("the link is up", lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), 20)
        expect(replica.ask("GET", "100:7"), octets(207, 107), "a value of the first copy")
        values(master, 500, seed=5000)
        expect(master.ask("WAIT", 1, 5000), 1, "replicas that have everything")
        expect(replica.ask("GET", "5000:499"), octets(699, 5499), "a value that followed")
        # The master closes the connection; the replica asks for what it missed.
        expect(master.ask("CLIENT", "KILL", "TYPE", "replica"), 1, "connections killed")
        values(master, 500, seed=6000)
        until("the replica has it", lambda: replica.ask("GET", "6000:499") == octets(699, 6499), 20)


script("redis", main)
