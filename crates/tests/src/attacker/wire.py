"""A stranger on the link: frames put together by hand, from an address and a MAC of its own. Root in a namespace of the
test's own, which is what a neighbour on the wire is."""

import random
import select
import socket
import struct
import sys
import time

from names import endpoint
from talk import say

OUR_MAC = b"\x02\x00\x00\x00\x66\x66"
ETH_IP, ETH_ARP = 0x0800, 0x0806
FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32


def checksum(octets):
    if len(octets) % 2:
        octets += b"\0"
    total = sum(struct.unpack(f">{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Wire:
    def __init__(self, interface, ours, theirs):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((interface, 0))
        self.ours, self.theirs = socket.inet_aton(ours), socket.inet_aton(theirs)
        self.mac = None
        while self.mac is None:
            self.ask()
            end = time.monotonic() + 0.2
            while self.mac is None and select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
                self.receive()

    def frame(self, kind, body, to=None):
        self.socket.send((to or self.mac) + OUR_MAC + struct.pack(">H", kind) + body)

    def ask(self):
        body = struct.pack(">HHBBH", 1, ETH_IP, 6, 4, 1) + OUR_MAC + self.ours + bytes(6) + self.theirs
        self.frame(ETH_ARP, body, b"\xff" * 6)

    def receive(self):
        """A TCP segment for us as (ports, seq, ack, flags, payload), or None."""
        octets = self.socket.recv(1 << 16)
        kind = struct.unpack_from(">H", octets, 12)[0]
        body = octets[14:]
        if kind == ETH_ARP and body[24:28] == self.ours:
            if body[7] == 1:
                reply = struct.pack(">HHBBH", 1, ETH_IP, 6, 4, 2) + OUR_MAC + self.ours + body[8:14] + body[14:18]
                self.frame(ETH_ARP, reply, body[8:14])
            elif body[14:18] == self.theirs:
                self.mac = body[8:14]
        if kind != ETH_IP or body[9] != 6 or body[16:20] != self.ours:
            return None
        length = struct.unpack_from(">H", body, 2)[0]
        segment = body[20:length]
        source, to, seq, ack, offset = struct.unpack_from(">HHIIH", segment)
        return (source, to), seq, ack, offset & 0x3F, segment[(offset >> 12) * 4 :]

    def segment(self, ports, seq, ack, flags, options=b"", payload=b"", window=65535, source=None):
        options += b"\1" * (-len(options) % 4)
        offset = (5 + len(options) // 4) << 12 | flags
        head = struct.pack(">HHIIHHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, offset, window, 0, 0)
        tcp = head + options + payload
        source = source or self.ours
        pseudo = source + self.theirs + struct.pack(">HH", 6, len(tcp))
        tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp)) + tcp[18:]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source + self.theirs
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        try:
            self.frame(ETH_IP, ip + tcp)
        except (BlockingIOError, OSError):
            pass

    def open(self, ours, theirs):
        """Shakes hands; gives our next and their next sequence number, or None."""
        options = struct.pack(">BBHBBBBBB", 2, 4, 1460, 4, 2, 1, 3, 3, 7)
        for _ in range(5):
            self.segment((ours, theirs), 1000, 0, SYN, options)
            end = time.monotonic() + 1
            while select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
                got = self.receive()
                if got and got[0] == (theirs, ours) and got[3] & (SYN | ACK) == SYN | ACK:
                    self.segment((ours, theirs), 1001, got[1] + 1, ACK, window=4096)
                    return 1001, got[1] + 1
        return None


def sack(*blocks):
    return struct.pack(">BB", 5, 2 + 8 * len(blocks)) + b"".join(struct.pack(">II", a & 0xFFFFFFFF, b & 0xFFFFFFFF) for a, b in blocks)


def ended():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def flood(wire, step):
    """Does `step` until the input ends; what comes in is looked at, so that the neighbour's questions are answered."""
    done = 0
    while not ended():
        for _ in range(64):
            step(done)
            done += 1
        while select.select([wire.socket], [], [], 0)[0]:
            wire.receive()
        if done % 4096 == 0:
            say("rounds", done)


def wire_sacks(_, interface, ours, at, connections="4"):
    """ACKs of which each says that other single octets have arrived."""
    host, port = endpoint(at)
    wire, opened = Wire(interface, ours, host), []
    for n in range(int(connections)):
        numbers = wire.open(30000 + n, port)
        if numbers:
            opened.append((30000 + n, *numbers))
    say("flooding", len(opened), "connections")
    source = random.Random(1)

    def step(n):
        local, ours_next, theirs_next = opened[n % len(opened)]
        blocks = [theirs_next + source.randrange(1, 1 << 18) for _ in range(4)]
        wire.segment((local, port), ours_next, theirs_next, ACK, sack(*((b, b + 1) for b in blocks)), window=4096)

    flood(wire, step)


def wire_bytes(_, interface, ours, at, connections="4"):
    """Octets that come one by one and out of order, with gaps that are never filled."""
    host, port = endpoint(at)
    wire, opened = Wire(interface, ours, host), []
    for n in range(int(connections)):
        numbers = wire.open(31000 + n, port)
        if numbers:
            opened.append((31000 + n, *numbers))
    say("flooding", len(opened), "connections")
    source = random.Random(2)

    def step(n):
        local, ours_next, theirs_next = opened[n % len(opened)]
        at = ours_next + 1 + 2 * source.randrange(1 << 15)
        wire.segment((local, port), at, theirs_next, ACK, payload=b"x")

    flood(wire, step)


def wire_unread(_, interface, ours, at, connections="64"):
    """As many octets as the engine lets one send to a program that reads none of them."""
    host, port = endpoint(at)
    sent = 0
    socks = []
    for _ in range(int(connections)):
        sock = socket.create_connection((host, port), 20)
        sock.setblocking(False)
        socks.append(sock)
    say("flooding", len(socks), "connections")
    block = bytes(1 << 18)
    while not ended():
        for sock in socks:
            try:
                sent += sock.send(block)
            except (BlockingIOError, OSError):
                pass
        time.sleep(0.001)
    say("sent", sent)


def wire_forged(_, interface, ours, at, seed="1"):
    """Segments of any kind from any address to any port, most of them with right checksums."""
    host, port = endpoint(at)
    wire, source = Wire(interface, ours, host), random.Random(int(seed))
    say("flooding", 1, "link")

    def step(_):
        from_addr = socket.inet_aton(source.choice(("10.77.0.1", "10.77.0.66", "10.77.0.2", "127.0.0.1", "10.77.0.255")))
        ports = (source.choice((80, 7000, 7001, source.randrange(65536))), source.choice((port, 80, source.randrange(65536))))
        options = source.choice((b"", source.randbytes(source.randrange(40)), sack((source.getrandbits(32), source.getrandbits(32)))))
        wire.segment(ports, source.getrandbits(32), source.getrandbits(32), source.getrandbits(6), options[:40],
                     source.randbytes(source.choice((0, 1, 100))), source.getrandbits(16), from_addr)
        if source.random() < 0.05:
            wire.frame(source.choice((ETH_IP, ETH_ARP, 0x86DD, source.getrandbits(16))), source.randbytes(source.randrange(1400)))

    flood(wire, step)


ATTACKS = (wire_sacks, wire_bytes, wire_unread, wire_forged)
