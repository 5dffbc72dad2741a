"""chronyd as a server and as a client: the client takes the server for its source; 50 requests by its own socket (cmdmon) and by NTP"""

import socket
import struct

from lib import expect, script, until

PORT, SECOND = 8710, 8711
SOURCE = "Debian's package chrony has it"


def start(lab, name, text):
    conf = lab.write(f"{name}.conf", f"{text}\npidfile {lab.dir}/{name}.pid\nbindcmdaddress {lab.dir}/{name}.sock\ncmdport 0\n")
    # -x: the clock of this machine stays as it is.
    return lab.spawn(name, lab.program("chronyd", SOURCE), "-d", "-x", "-u", "root", "-f", conf)


def ask(s, number):
    """An NTP request; gives the stratum that is answered, if it is the answer to this one."""
    transmit = struct.pack("!Q", number + 1)
    s.send(b"\x23" + bytes(39) + transmit)
    answer = s.recv(1000)
    expect(answer[24:32], transmit, "the origin timestamp of the answer")
    return answer[1]


def main(lab):
    lab.version(lab.program("chronyd", SOURCE), "--version")
    server = start(lab, "server", f"port {PORT}\nlocal stratum 5\nallow 127.0.0.1\nbindaddress 127.0.0.1")
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.connect(("127.0.0.1", PORT))

    def answers():
        try:
            return ask(s, 0) == 5
        except OSError:
            return False

    until("it answers", answers)
    with lab.check("50 requests"):
        s.settimeout(10)
        expect({ask(s, number) for number in range(50)}, {5}, "strata")
    with lab.check("a client takes it for its source"):
        client = start(lab, "client", f"server 127.0.0.1 port {PORT} minpoll -2 maxpoll -2 iburst\nport 0")
        lab.until_log("client", "Selected source 127.0.0.1", limit=30)
        lab.stop(client, status=0)
    with lab.check("ends cleanly"):
        lab.stop(server, status=0)


script("chrony", main)
