"""A stranger on the link who speaks the wire of docs/via-wire.md as he likes: via_hostile.py ADDRESS PORT WHAT. Ends with 0 when the other side has
ended the connection."""
import socket
import struct
import sys
import time


def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc ^= octet
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(segment):
    whole = struct.pack(">H", len(segment)) + segment
    whole += bytes(-len(whole) % 4)
    return whole + struct.pack("<I", crc32c(whole))


def untagged(control, word, queue, message, offset, last, data=b""):
    return frame(struct.pack(">BBIIII", 0x41 if last else 0x01, control, word, queue, message, offset) + data)


def tagged(tag, place, data):
    return frame(struct.pack(">BBIQ", 0xC1, 0x40, tag, place) + data)


def request(port, version=2):
    private = struct.pack(">HHQQ32s", version, 0, 1, port, b"stranger")
    return b"MPA ID Req Frame" + struct.pack(">BBH", 0x40, 1, len(private)) + private


def message(number, octets):
    return untagged(0x43, len(octets), 0, number, 0, True, octets)


CREDIT = untagged(0x4F, 0, 3, 1, 0, True)
GOOD = message(1, b"good")
# What follows a message that is right.
BAD = {
    "crc": message(2, b"bad")[:-1] + b"?",
    "length": struct.pack(">H", 0xFFFF) + bytes(70000),
    "tag": tagged(0x1234, 0, b"bad"),
    "number": message(3, b"bad"),
    "longer": untagged(0x43, 2, 0, 2, 0, True, b"bad"),
    "opcode": untagged(0x47, 3, 0, 2, 0, True, b"bad"),
    "credit": untagged(0x4F, 1, 3, 2, 0, True),
    "cut": message(2, b"bad")[:9],
    "overrun": b"".join(message(2 + number, b"x" * 16384) for number in range(80)),
    "gone": b"",
    "crowd": b"",
}


def connected(address, port):
    # Who waits there may come later.
    until = time.monotonic() + 60
    while True:
        try:
            stream = socket.create_connection((address, 28672 + port))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < until, "nobody is there"
    stream.settimeout(60)
    return stream


def ended(stream):
    """Reads until the end, whichever it is."""
    try:
        while stream.recv(65536):
            pass
    except ConnectionError:
        pass


def main(address, port, what):
    port = int(port)
    if what == "garbage":
        stream = connected(address, port)
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(600))
        return ended(stream)
    if what == "version":
        stream = connected(address, port)
        stream.sendall(request(port, 1))
        assert stream.recv(600)[16] & 0x20, "refused"
        return ended(stream)
    if what == "crowd":
        # Until the other side has been stopped. It has taken in the first one when it has answered the second: as many as may wait are to come.
        first, second = connected(address, port), connected(address, port)
        second.sendall(request(port, 1))
        assert second.recv(600)[16] & 0x20, "refused"
        print("there", flush=True)
        sys.stdin.read()
    stream = connected(address, port)
    stream.sendall(request(port))
    if what == "crowd":
        # As many as may say nothing, all of them behind the one who has said what he wants.
        crowd = [first] + [connected(address, port) for _ in range(64)]
        print("a crowd of", len(crowd), flush=True)
    reply = stream.recv(600)
    assert reply.startswith(b"MPA ID Rep Frame") and not reply[16] & 0x20, reply
    if what == "silent":
        print("silent", flush=True)
        return ended(stream)
    stream.sendall(CREDIT + GOOD)
    try:
        stream.sendall(BAD[what])
    except ConnectionError:
        pass
    if what in ("cut", "gone", "crowd"):
        stream.shutdown(socket.SHUT_WR)
    ended(stream)


main(*sys.argv[1:])
