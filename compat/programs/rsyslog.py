"""rsyslogd hears by UDP: 2000 messages of one sender in their order, of four at once; one that forwards to it by UDP"""

import socket

from lib import expect, script, until

PORT, SECOND = 8720, 8721
SOURCE = "Debian's package rsyslog has it"


def start(lab, name, text):
    conf = lab.write(f"{name}.conf", f'global(workDirectory="{lab.dir}")\n{text}\n')
    return lab.spawn(name, lab.program("rsyslogd", SOURCE), "-n", "-i", lab.path(f"{name}.pid"), "-f", conf)


def hears(port, ruleset):
    return f'module(load="imudp")\ninput(type="imudp" address="127.0.0.1" port="{port}" ruleset="{ruleset}")\n'


def send(port, name, count):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for n in range(count):
        s.sendto(b"<13>Jan  1 00:00:00 host %s: message %d" % (name, n), ("127.0.0.1", port))
        if n % 20 == 19:
            yield
    s.close()


def main(lab):
    lab.version(lab.program("rsyslogd", SOURCE), "-v")
    out, second = lab.path("out"), lab.path("second")
    write = '''template(name="text" type="string" string="%programname% %msg%\\n")
ruleset(name="write") {{ action(type="omfile" file="{}" template="text") }}'''
    server = start(lab, "first", write.format(out) + "\n" + hears(PORT, "write"))

    def lines(path, name):
        return [line.split()[-1] for line in path.read_text().splitlines() if line.startswith(name)] if path.exists() else []

    def is_heard():
        list(send(PORT, b"first", 20))
        return lines(out, "first")

    until("it hears", is_heard)

    def deliver(names, port, path, count):
        """As no sender of UDP is slowed down, each waits now and then until what it has sent is written."""
        for turn, _ in enumerate(zip(*(send(port, name.encode(), count) for name in names)), 1):
            until("what was sent is written", lambda turn=turn: all(len(lines(path, name)) >= 20 * turn for name in names))
        for name in names:
            expect(lines(path, name), [str(n) for n in range(count)], f"messages of {name}")

    with lab.check("2000 messages in their order"):
        deliver(["one"], PORT, out, 2000)
    with lab.check("four senders"):
        deliver([f"many{n}" for n in range(4)], PORT, out, 200)
    with lab.check("one that forwards"):
        forward = f'ruleset(name="on") {{ action(type="omfwd" target="127.0.0.1" port="{PORT}" protocol="udp") }}\n'
        start(lab, "second", forward + hears(SECOND, "on"))

        def is_forwarded():
            list(send(SECOND, b"second", 20))
            return lines(out, "second")

        until("it forwards", is_forwarded)
        deliver(["forwarded"], SECOND, out, 200)
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)


script("rsyslog by UDP", main)
