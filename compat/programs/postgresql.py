"""initdb, pgbench -c 8 -j 2 (simple, extended and prepared queries, -C), queries compared, COPY of 20 MB both ways,
LISTEN and NOTIFY, cancel requests, a killed session, smart and fast shutdown, TLS"""

import glob
import hashlib
import os
import re
import shutil
import signal

from lib import Failed, expect, octets, script, sha256, until

PORT = 5440


def find(program):
    """Debian keeps the server's programs off the PATH."""
    return max(glob.glob(f"/usr/lib/postgresql/*/bin/{program}")) if not shutil.which(program) else program


class Cluster:
    """A server for 127.0.0.1 only: no Unix socket."""

    def __init__(self, lab):
        self.lab, self.data = lab, lab.path("data")
        self.data.mkdir()
        shutil.chown(self.data, "postgres", "postgres")
        self.admin(find("initdb"), "-D", self.data, "-A", "trust", "-E", "UTF8", "--no-sync")
        cert, key = lab.certificate()
        for name, source in (("server.crt", cert), ("server.key", key)):
            shutil.copy(source, self.data / name)
            shutil.chown(self.data / name, "postgres", "postgres")
            (self.data / name).chmod(0o600)

    def admin(self, *command, **options):
        return self.lab.run("runuser", "-u", "postgres", "--", *command, **options)

    def start(self):
        settings = {"port": PORT, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "ssl": "on",
                    "fsync": "off", "max_connections": 60}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.server = self.lab.serve("postgres", PORT, "runuser", "-u", "postgres", "--", find("postgres"),
                                     "-D", self.data, *words)
        until("it answers", lambda: self.ready())

    def ready(self):
        try:
            return self.sql("select 1") == "1"
        except Failed:
            return False

    def sql(self, text, status=0, **options):
        return self.lab.run("psql", *self.where(), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text, status=status,
                            **options).decode().strip()

    @staticmethod
    def where():
        return "-h", "127.0.0.1", "-p", str(PORT), "-U", "postgres", "-d", "postgres"

    def bench(self, *options):
        output = self.lab.run("pgbench", *self.where()[:-2], *options, "postgres").decode()
        failed = re.search(r"number of failed transactions: (\d+)", output)
        if "processed" not in output or (failed and failed.group(1) != "0"):
            raise Failed(f"pgbench said {output[-400:]}")

    def stop(self, how, limit=20):
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, how)
        expect(self.server.wait(limit), 0, "exit status of postgres")


def main(lab):
    lab.version("psql", "--version")
    cluster = Cluster(lab)
    with lab.check("starts and answers"):
        cluster.start()
    with lab.check("pgbench -c 8 -j 2"):
        lab.run("pgbench", *cluster.where()[:-2], "-i", "-q", "-s", "2", "postgres")
        cluster.bench("-n", "-c8", "-j2", "-t150")
        cluster.bench("-n", "-c8", "-j2", "-t150", "-M", "extended")
        cluster.bench("-n", "-c8", "-j2", "-t400", "-S", "-M", "prepared")
        expect(cluster.sql("select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts"),
               "t", "the balance")
        expect(cluster.sql("select count(*) from pgbench_history"), "2400", "transactions recorded")
    with lab.check("a connection for each transaction"):
        cluster.bench("-n", "-c8", "-j2", "-t30", "-S", "-C")
    with lab.check("a large result is compared"):
        found = cluster.sql("select string_agg(md5(n::text), '') from generate_series(1, 200000) n")
        expect(len(found), 6_400_000, "length")
        expect(found[:32], "c4ca4238a0b923820dcc509a6f75849b", "md5 of 1")
        rows = cluster.sql("select n, md5(n::text) from generate_series(1, 100000) n").splitlines()
        expect(rows, [f"{n}|{hashlib.md5(str(n).encode()).hexdigest()}" for n in range(1, 100_001)], "rows")
    with lab.check("COPY in and out"):
        copy(lab, cluster)
    with lab.check("LISTEN and NOTIFY"):
        notify(lab, cluster)
    with lab.check("a query is cancelled"):
        cancel(lab, cluster)
    with lab.check("a session is terminated, others go on"):
        terminate(lab, cluster)
    with lab.check("TLS"):
        text = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
        environment = {**os.environ, "PGSSLMODE": "require"}
        expect(cluster.sql(text, env=environment), "t", "the session is encrypted")
        expect(len(cluster.sql("select repeat('x', 5000000)", env=environment)), 5_000_000, "a long answer")
    with lab.check("fast shutdown with sessions, and start again"):
        sleepers = [session(lab, cluster, "ended", "select pg_sleep(1000) /* to stop */") for _ in range(5)]
        until("they run", lambda: len(running(cluster, "to stop").split()) == 5)
        cluster.stop(signal.SIGINT)
        expect([sleeper.wait(10) for sleeper in sleepers], [2] * 5, "status of psql whose server has gone")
        cluster.start()
        expect(cluster.sql("select count(*) from pgbench_branches"), "2", "branches")
    with lab.check("smart shutdown"):
        cluster.stop(signal.SIGTERM)


def copy(lab, cluster):
    lines = b"".join(b"%d\t%s\n" % (n, octets(90, n).hex().encode()) for n in range(100_000))
    cluster.sql("create table big (n int primary key, t text)")
    lab.run("psql", *cluster.where(), "-Xq", "-c", "copy big from stdin", input=lines)
    back = lab.run("psql", *cluster.where(), "-Xq", "-c", "copy (select * from big order by n) to stdout")
    expect(sha256(back), sha256(lines), "the table")


def session(lab, cluster, name, text):
    return lab.spawn(name, "psql", *cluster.where(), "-XAt", "-c", text)


def notify(lab, cluster):
    text = b"listen news;\nnotify news, 'hello';\nselect 1;\n"
    found = lab.run("psql", *cluster.where(), "-XAt", input=text).decode()
    if "hello" not in found:
        raise Failed(f"no notification: {found}")


def running(cluster, what):
    return cluster.sql(f"select pid from pg_stat_activity where query like '%{what}%' and pid <> pg_backend_pid()")


def cancel(lab, cluster):
    """psql sends a cancel request over a connection of its own when it is interrupted."""
    sleeper = session(lab, cluster, "cancel", "select pg_sleep(1000) /* to cancel */")
    until("the query runs", lambda: running(cluster, "to cancel"))
    sleeper.send_signal(signal.SIGINT)
    expect(sleeper.wait(10), 1, "status of psql")
    if "canceling statement due to user request" not in lab.log("cancel"):
        raise Failed(f"psql said {lab.log('cancel')}")


def terminate(lab, cluster):
    sleeper = session(lab, cluster, "terminate", "select pg_sleep(1000) /* to end */")
    other = session(lab, cluster, "other", "select pg_sleep(1.5), 'went on'")
    pid = until("the query runs", lambda: running(cluster, "to end"))
    expect(cluster.sql(f"select pg_terminate_backend({pid})"), "t", "pg_terminate_backend")
    expect(sleeper.wait(10), 2, "status of psql whose session has gone")
    expect(other.wait(10), 0, "status of the other psql")
    if "went on" not in lab.log("other"):
        raise Failed(f"the other said {lab.log('other')}")


script("PostgreSQL", main)
