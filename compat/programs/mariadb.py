"""one thread a connection and the thread pool: mariadb-slap with 8 clients, rows and 6 MB answers compared, LOAD DATA LOCAL, TLS, a
killed query and session, an orderly shutdown with sessions open"""

import hashlib

from lib import Failed, expect, octets, script, sha256, until

PORT = 8640


class Server:
    """One for 127.0.0.1 only; its Unix socket is in the lab's directory and no client uses it."""

    def __init__(self, lab, handling):
        self.lab, self.data = lab, lab.path(f"data-{handling}")
        lab.run("mariadb-install-db", "--no-defaults", f"--datadir={self.data}", "--user=root",
                "--auth-root-authentication-method=normal", "--skip-test-db", timeout=60)
        cert, key = lab.certificate()
        self.process = lab.serve(
            f"server-{handling}", PORT, lab.program("mariadbd", "Debian's package mariadb-server has it"), "--no-defaults",
            "--user=root", f"--datadir={self.data}", f"--socket={lab.path('socket')}", f"--port={PORT}",
            "--bind-address=127.0.0.1", f"--ssl-cert={cert}", f"--ssl-key={key}", f"--thread-handling={handling}",
            f"--pid-file={lab.path('pid')}", "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve")

    def client(self, *options, **more):
        return self.lab.run("mariadb", *self.where(), "-N", "-B", *options, **more)

    @staticmethod
    def where():
        return "--no-defaults", "-h", "127.0.0.1", "-P", str(PORT), "-u", "root", "--protocol=tcp"

    def sql(self, text):
        return self.client("-e", text).decode().strip()


def main(lab):
    lab.version("mariadb", "--version")
    for handling in ("one-thread-per-connection", "pool-of-threads"):
        with lab.check(f"{handling}: starts and answers"):
            server = Server(lab, handling)
            expect(server.sql("select 6 * 7"), "42", "an answer")
        with lab.check(f"{handling}: 8 clients at once"):
            lab.run("mariadb-slap", *server.where(), "-c", "8", "--auto-generate-sql", "--number-of-queries=800",
                    "--auto-generate-sql-add-autoincrement", timeout=60)
            lab.run("mariadb-slap", *server.where(), "-c", "8", "--query=select 1", "--create-schema=slap",
                    "--number-of-queries=2000", "--detach=10")
        with lab.check(f"{handling}: answers compared"):
            rows = server.sql("set max_recursive_iterations = 100000; with recursive n as (select 1 as n union all "
                              "select n + 1 from n where n < 20000) select n, md5(n) from n").splitlines()
            expect(rows, [f"{n}\t{hashlib.md5(str(n).encode()).hexdigest()}" for n in range(1, 20_001)], "rows")
            found = server.client("-e", "select repeat('0123456789', 600000)", "--max-allowed-packet=16M").strip()
            expect(sha256(found), hashlib.sha256(b"0123456789" * 600_000).hexdigest(), "a long answer")
        with lab.check(f"{handling}: LOAD DATA LOCAL and back"):
            load(lab, server)
        with lab.check(f"{handling}: TLS"):
            found = server.client("--ssl", "-e", "show status like 'Ssl_cipher'").decode().split()
            expect(len(found), 2, "a cipher")
        with lab.check(f"{handling}: a query and a session are killed"):
            kill(lab, server)
        with lab.check(f"{handling}: an orderly end with a session open"):
            sleeper = lab.spawn("sleeper", "mariadb", *server.where(), "-e", "select sleep(1003)")
            until("it runs", lambda: running(server, "sleep(1003)"))
            lab.stop(server.process, status=0, limit=20)
            expect(sleeper.wait(10), 1, "status of the client whose server has gone")


def load(lab, server):
    lines = b"".join(b"%d\t%s\n" % (n, octets(90, n).hex().encode()) for n in range(20_000))
    server.sql("create database big; create table big.big (n int primary key, t text)")
    server.client("--local-infile=1", "-e", f"load data local infile '{lab.write('rows', lines)}' into table big.big")
    expect(sha256(server.client("-q", "-e", "select * from big.big order by n")), sha256(lines), "the table")


def running(server, what):
    return server.sql("select id from information_schema.processlist where info like "
                      f"'%{what}%' and id <> connection_id()")


def kill(lab, server):
    sleeper = lab.spawn("killed", "mariadb", *server.where(), "-e", "select sleep(1001)")
    number = until("it runs", lambda: running(server, "sleep(1001)"))
    server.sql(f"kill query {number}")
    sleeper.wait(10)
    sleeper = lab.spawn("killed", "mariadb", *server.where(), "-e", "select sleep(1002)")
    number = until("it runs", lambda: running(server, "sleep(1002)"))
    server.sql(f"kill {number}")
    expect(sleeper.wait(10), 1, "status of the client whose session has gone")
    if "ERROR" not in lab.log("killed"):
        raise Failed(f"the client said {lab.log('killed')}")


script("MariaDB", main)
