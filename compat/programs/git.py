"""git's daemon: clone, push, fetch and shallow clone of a repository with 20 MB, a hundred ls-remote, five clones
at a time; the daemon as inetd starts it"""

import os

from lib import connect, expect, octets, script

PORT = 9418
HERE = f"git://127.0.0.1:{PORT}"


def main(lab):
    lab.version("git", "--version")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": str(lab.path("gitconfig"))}
    lab.write("gitconfig", "[user]\nname = lab\nemail = lab@example.org\n[init]\ndefaultBranch = main\n"
                           "[safe]\ndirectory = *\n[gc]\nauto = 0\n")

    def git(*words, where=None, **options):
        at = ("-C", where) if where else ()
        return lab.run("git", *at, *words, env=environment, **options).decode().strip()

    base = lab.path("base")
    base.mkdir()
    work = lab.path("work")
    git("init", "-q", work)
    for n in range(200):
        lab.write(f"work/dir{n % 5}/file{n}", octets(100_000, n))
    git("add", ".", where=work)
    git("commit", "-q", "-m", "first", where=work)
    git("clone", "-q", "--bare", work, base / "one.git")
    server = lab.serve("daemon", PORT, "git", "daemon", "--reuseaddr", "--listen=127.0.0.1", f"--port={PORT}",
                       f"--base-path={base}", "--export-all", "--enable=receive-pack", env=environment)

    def same(one, other):
        expect(git("rev-parse", "HEAD", where=one), git("rev-parse", "HEAD", where=other), "HEAD")
        git("fsck", "--full", "--strict", where=one)

    first, second = lab.path("first"), lab.path("second")
    with lab.check("clone"):
        git("clone", "-q", f"{HERE}/one.git", first)
        same(first, work)
    with lab.check("push 5 MB"):
        lab.write("first/new", octets(5_000_000, 1000))
        git("add", ".", where=first)
        git("commit", "-q", "-m", "second", where=first)
        git("push", "-q", "origin", "main", where=first)
        expect(git("rev-parse", "main", where=base / "one.git"), git("rev-parse", "main", where=first), "main")
    with lab.check("fetch"):
        git("clone", "-q", "--depth=1", f"{HERE}/one.git", second)
        lab.write("first/more", octets(3_000_000, 1001))
        git("add", ".", where=first)
        git("commit", "-q", "-m", "third", where=first)
        git("push", "-q", where=first)
        git("pull", "-q", "--ff-only", where=second)
        same(second, first)
    with lab.check("ls-remote a hundred times"):
        wanted = git("rev-parse", "main", where=first)
        for _ in range(100):
            expect(git("ls-remote", f"{HERE}/one.git", "main").split()[0], wanted, "main")
    with lab.check("the daemon as inetd starts it"):
        inetd = lab.spawn("inetd", "socat", f"TCP-LISTEN:{PORT + 1},bind=127.0.0.1,reuseaddr,fork",
                          f"EXEC:git daemon --inetd --base-path={base} --export-all,nofork", env=environment)
        connect(PORT + 1, process=inetd).close()
        third = lab.path("third")
        git("clone", "-q", f"git://127.0.0.1:{PORT + 1}/one.git", third)
        same(third, first)
        lab.stop(inetd)
    with lab.check("five clones at a time"):
        clones = [lab.spawn(f"clone{n}", "git", "clone", "-q", f"{HERE}/one.git", lab.path(f"copy{n}"), env=environment)
                  for n in range(5)]
        expect([clone.wait(30) for clone in clones], [0] * 5, "exit status")
        for n in range(5):
            same(lab.path(f"copy{n}"), first)
    with lab.check("a repository that is not there"):
        git("clone", "-q", f"{HERE}/none.git", lab.path("none"), status=128)
    with lab.check("ends cleanly"):
        lab.stop(server)


script("git", main)
