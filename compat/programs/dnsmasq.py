"""dnsmasq and dig: 1000 questions by UDP one after the other, ten clients at once, an answer that is too long for UDP, a question
that is forwarded to a second one"""

from lib import expect, script, until

PORT, SECOND = 8680, 8681
SOURCE = "Debian's package dnsmasq-base has it"


def start(lab, name, port, *words):
    return lab.serve(name, port, lab.program("dnsmasq", SOURCE), "--keep-in-foreground", "--no-resolv", "--no-hosts",
                     "--conf-file=/dev/null", "--log-facility=-", f"--pid-file={lab.path(name + '.pid')}", "--user=root",
                     f"--port={port}", "--listen-address=127.0.0.1", "--bind-interfaces", *words)


def dig(lab, *words, port=PORT):
    return lab.run("dig", "@127.0.0.1", "-p", port, "+time=5", "+tries=1", *words, timeout=60).decode()


def address(n):
    return f"10.1.{n >> 8}.{n & 255}"


def main(lab):
    lab.version(lab.program("dnsmasq", SOURCE), "--version")
    hosts = lab.write("hosts", "".join(f"{address(n)} h{n}.test\n" for n in range(1000)))
    long = [f"--txt-record=long.test,{'x' * 200}{n}" for n in range(40)]
    server = start(lab, "first", PORT, f"--addn-hosts={hosts}", *long)
    until("it answers", lambda: dig(lab, "+short", "h0.test").strip() == address(0))
    batch = lab.write("batch", "".join(f"h{n}.test A\n" for n in range(1000)))
    wanted = [address(n) for n in range(1000)]
    with lab.check("1000 questions by UDP"):
        expect(dig(lab, "+notcp", "+short", "-f", batch).split(), wanted, "the addresses")
    with lab.check("ten clients at once"):
        many = [lab.spawn(f"dig{n}", "dig", "@127.0.0.1", "-p", PORT, "+tries=5", "+short", "-f", batch) for n in range(10)]
        expect([one.wait(60) for one in many], [0] * 10, "status of dig")
        # What dig says of a question that it has to ask again is no answer.
        found = [[word for word in lab.path(f"dig{n}.log").read_text().split() if word.startswith("10.1.")] for n in range(10)]
        expect(found, [wanted] * 10, "the addresses")
    with lab.check("an answer of 8 kB: cut off by UDP, whole by TCP"):
        cut = dig(lab, "+ignore", "+bufsize=512", "long.test", "TXT")
        expect((" tc " in cut, cut.count("IN\tTXT") < 10), (True, True), "it is cut off, and says so")
        expect(len(dig(lab, "+short", "long.test", "TXT").split()), 40, "records")
    with lab.check("a question that is forwarded"):
        start(lab, "second", SECOND, f"--server=127.0.0.1#{PORT}")
        expect(dig(lab, "+short", "-f", batch, port=SECOND).split(), wanted, "the addresses")
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)


script("dnsmasq", main)
