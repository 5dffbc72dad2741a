"""unbound and dig: 1000 questions of its own data by UDP, from two threads of the server; ten clients at once; questions that it
forwards to another unbound"""

from lib import expect, script, until

PORT, SECOND = 8690, 8691
SOURCE = "Debian's package unbound has it"

CONF = """
server:
    interface: 127.0.0.1
    port: {port}
    num-threads: 2
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{dir}"
    pidfile: "{dir}/{name}.pid"
    do-not-query-localhost: no
    module-config: "iterator"
    local-zone: "test." {zone}
{data}
{more}
"""


def start(lab, name, port, zone, data="", more=""):
    text = CONF.format(port=port, dir=lab.dir, name=name, zone=zone, data=data, more=more)
    conf = lab.write(f"{name}.conf", text)
    return lab.serve(name, port, lab.program("unbound", SOURCE), "-d", "-c", conf)


def dig(lab, *words, port=PORT):
    return lab.run("dig", "@127.0.0.1", "-p", port, "+time=5", "+tries=1", *words, timeout=60).decode()


def address(n):
    return f"10.2.{n >> 8}.{n & 255}"


def main(lab):
    lab.version(lab.program("unbound", SOURCE), "-V")
    data = "\n".join(f'    local-data: "h{n}.test. A {address(n)}"' for n in range(1000))
    server = start(lab, "first", PORT, "static", data)
    until("it answers", lambda: dig(lab, "+short", "h0.test").strip() == address(0))
    batch = lab.write("batch", "".join(f"h{n}.test A\n" for n in range(1000)))
    wanted = [address(n) for n in range(1000)]
    with lab.check("1000 questions by UDP"):
        expect(dig(lab, "+notcp", "+short", "-f", batch).split(), wanted, "the addresses")
    with lab.check("ten clients at once"):
        many = [lab.spawn(f"dig{n}", "dig", "@127.0.0.1", "-p", PORT, "+tries=5", "+short", "-f", batch) for n in range(10)]
        expect([one.wait(60) for one in many], [0] * 10, "status of dig")
        # What dig says of a question that it has to ask again is no answer.
        found = [[word for word in lab.path(f"dig{n}.log").read_text().split() if word.startswith("10.2.")] for n in range(10)]
        expect(found, [wanted] * 10, "the addresses")
    with lab.check("questions that it forwards"):
        start(lab, "second", SECOND, "transparent", more=f'forward-zone:\n    name: "."\n    forward-addr: 127.0.0.1@{PORT}\n')
        expect(dig(lab, "+short", "-f", batch, port=SECOND).split(), wanted, "the addresses")
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)


script("unbound", main)
