"""rsync's daemon: a tree of 300 files up and down, compared; a changed 30 MB file sent as differences; eight
clients at a time; a limited rate"""

import os

from lib import expect, octets, script, sha256_file

PORT = 8730

CONF = """
port = {port}
address = 127.0.0.1
use chroot = no
reverse lookup = no
[tree]
    path = {dir}/store
    read only = no
    uid = {uid}
    gid = {gid}
"""


def tree(directory):
    return {str(path.relative_to(directory)): sha256_file(path) for path in directory.rglob("*") if path.is_file()}


def main(lab):
    lab.version("rsync", "--version")
    for n in range(300):
        lab.write(f"source/dir{n % 7}/file{n}", octets(n * 50, n))
    big = lab.write("source/big", octets(30_000_000))
    store = lab.path("store")
    store.mkdir()
    conf = lab.write("rsyncd.conf", CONF.format(port=PORT, dir=lab.dir, uid=os.getuid(), gid=os.getgid()))
    server = lab.serve("rsyncd", PORT, "rsync", "--daemon", "--no-detach", f"--config={conf}", "--log-file=/dev/stderr")
    there = f"rsync://127.0.0.1:{PORT}/tree"
    source = lab.path("source")
    with lab.check("a tree up"):
        lab.run("rsync", "-a", f"{source}/", f"{there}/up/")
        expect(tree(store / "up"), tree(source), "the tree")
    with lab.check("a tree down, compressed"):
        lab.run("rsync", "-az", f"{there}/up/", f"{lab.path('down')}/")
        expect(tree(lab.path("down")), tree(source), "the tree")
    with lab.check("differences of a large file"):
        content = bytearray(big.read_bytes())
        content[10_000_000:10_000_100] = octets(100, 9)
        big.write_bytes(content + octets(5000, 8))
        report = lab.run("rsync", "-a", "--stats", "--no-whole-file", f"{source}/", f"{there}/up/").decode()
        literal = next(line for line in report.splitlines() if line.startswith("Literal data"))
        expect(int(literal.split()[2].replace(",", "")) < 100_000, True, f"only differences are sent ({literal})")
        expect(tree(store / "up"), tree(source), "the tree")
    with lab.check("--delete and --checksum"):
        for path in list(source.glob("dir3/*")):
            path.unlink()
        lab.run("rsync", "-ac", "--delete", f"{source}/", f"{there}/up/")
        expect(tree(store / "up"), tree(source), "the tree")
    with lab.check("eight clients at a time"):
        clients = [lab.spawn(f"client{n}", "rsync", "-a", f"{there}/up/", f"{lab.path(f'copy{n}')}/") for n in range(8)]
        expect([client.wait(30) for client in clients], [0] * 8, "exit status")
        for n in range(8):
            expect(tree(lab.path(f"copy{n}")), tree(source), f"the tree of client {n}")
    with lab.check("a limited rate"):
        lab.run("rsync", "-a", "--bwlimit=20m", f"{there}/up/big", lab.path("slow"))
        expect(sha256_file(lab.path("slow")), sha256_file(big), "the file")
    with lab.check("ends cleanly"):
        lab.stop(server)


script("rsync", main)
