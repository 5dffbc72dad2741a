"""named and dig: 300 questions by TCP and by UDP, a kept connection with 200 of them, an answer of 25 kB, transfers of a zone of
20,000 records (also ten at once), a secondary that fetches it and hears of a change, rndc"""

import struct

from lib import connect, expect, recv_exactly, script, until

PORT, SECOND = 8670, 8671

CONF = """
options {{
    directory "{dir}";
    pid-file "{dir}/pid";
    listen-on port {port} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    recursion no;
    allow-transfer {{ any; }};
    dnssec-validation no;
    session-keyfile "{dir}/session.key";
    transfers-in 10;
}};
{more}
"""

PRIMARY = """
key control {{ algorithm hmac-sha256; secret "{key}"; }};
controls {{ inet 127.0.0.1 port 8672 allow {{ 127.0.0.1; }} keys {{ control; }}; }};
zone "big.test" {{ type primary; file "big.zone"; also-notify {{ 127.0.0.1 port 8671; }}; notify explicit; }};
"""

SECONDARY = """
controls {{ }};
zone "big.test" {{ type secondary; primaries port 8670 {{ 127.0.0.1; }}; file "copy.zone"; allow-notify {{ any; }}; }};
"""

KEY = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0MTI="
COUNT = 20_000


def zone(serial):
    lines = [f"$TTL 60\n@ IN SOA ns.big.test. root.big.test. ( {serial} 3600 600 86400 60 )\n@ IN NS ns\nns IN A 127.0.0.1"]
    lines += [f"h{n} IN A 10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(COUNT)]
    lines += [f'long IN TXT "{n:04d}{"x" * 250}"' for n in range(95)]
    return "\n".join(lines) + "\n"


def start(lab, name, port, more):
    directory = lab.path(name)
    directory.mkdir(exist_ok=True)
    conf = lab.write(f"{name}/conf", CONF.format(dir=directory, port=port, more=more.format(key=KEY)))
    return lab.serve(name, port, lab.program("named", "Debian's package bind9 has it"), "-g", "-n", "2", "-c", conf)


def dig(lab, *words, port=PORT, **options):
    return lab.run("dig", "@127.0.0.1", "-p", port, "+time=5", "+tries=2", *words, **options).decode()


def address(n):
    return f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"


def kept(count):
    """Questions sent at once over one connection (RFC 7766, 6.2.1.1); answers may come in any order."""
    s = connect(PORT)
    s.settimeout(20)
    for n in range(count):
        name = b"".join(bytes([len(label)]) + label for label in (b"h%d" % n, b"big", b"test", b""))
        question = struct.pack("!HHHHHH", n, 0, 1, 0, 0, 0) + name + struct.pack("!HH", 1, 1)
        s.sendall(struct.pack("!H", len(question)) + question)
    found = {}
    for _ in range(count):
        answer = recv_exactly(s, struct.unpack("!H", recv_exactly(s, 2))[0])
        number, _, _, answers = struct.unpack("!HHHH", answer[:8])
        # The address is what the first record of the answer section ends with, 16 octets after its compressed name.
        start_of_answers = answer.index(b"\xc0\x0c")
        expect(answers, 1, f"answers to question {number}")
        found[number] = ".".join(str(octet) for octet in answer[start_of_answers + 12:start_of_answers + 16])
    s.close()
    expect(found, {n: address(n) for n in range(count)}, "the addresses")


def main(lab):
    lab.version("named", "-V")
    lab.write("primary/big.zone", zone(1))
    primary = start(lab, "primary", PORT, PRIMARY)
    until("the zone is loaded", lambda: dig(lab, "+short", "h0.big.test").strip() == address(0))
    with lab.check("300 questions by TCP and by UDP"):
        batch = lab.write("batch", "".join(f"h{n}.big.test A\n" for n in range(300)))
        for how in ("+tcp", "+notcp"):
            found = dig(lab, how, "+short", "-f", batch).split()
            expect(found, [address(n) for n in range(300)], how)
    with lab.check("200 questions at once over one connection"):
        kept(200)
    with lab.check("an answer of 25 kB: cut off by UDP, whole by TCP"):
        found = sorted(dig(lab, "+short", "long.big.test", "TXT").split())
        expect(found, [f'"{n:04d}{"x" * 250}"' for n in range(95)], "the records")
    with lab.check("transfers of the zone, one and ten at once"):
        wanted = COUNT + 95 + 4
        expect(dig(lab, "+noall", "+answer", "big.test", "AXFR").count("\n"), wanted, "records")
        many = [lab.spawn(f"transfer{n}", "dig", "@127.0.0.1", "-p", PORT, "+noall", "+answer", "big.test", "AXFR") for n in range(10)]
        expect([one.wait(20) for one in many], [0] * 10, "status of dig")
        expect([lab.path(f"transfer{n}.log").read_bytes().count(b"\n") for n in range(10)], [wanted] * 10, "records")
    with lab.check("a secondary fetches it, and hears of a change"):
        second = start(lab, "second", SECOND, SECONDARY)
        until("it has the zone", lambda: serial(lab) == ["1"])
        lab.write("primary/big.zone", zone(2))
        until("rndc reload", lambda: rndc(lab, "reload", "big.test"))
        until("it has the new one", lambda: serial(lab) == ["2"])
        expect(dig(lab, "+short", "h19999.big.test", port=SECOND).strip(), address(19_999), "an address")
        lab.stop(second, status=0)
    with lab.check("ends by rndc"):
        rndc(lab, "stop")
        expect(primary.wait(10), 0, "exit status of named")


def serial(lab):
    return dig(lab, "+short", "big.test", "SOA", port=SECOND).split()[2:3]


def rndc(lab, *words):
    key = lab.write("rndc.key", f'key control {{ algorithm hmac-sha256; secret "{KEY}"; }};\n'
                                'options { default-server 127.0.0.1; default-key control; default-port 8672; };\n')
    lab.run("rndc", "-c", key, *words)
    return True


script("named", main)
