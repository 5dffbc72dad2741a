"""The other side of an interface of the engine's: sends it a frame that Linux cannot describe to it."""

import fcntl
import os
import select
import socket
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD, SIOCGIFHWADDR = 0x400454CA, 0x400454D0, 0x8927
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 2, 0x1000, 0x4000
OURS = b"\x02\0\0\0\0\1"
GSO_UDP = 3


def open_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    with socket.socket() as s:
        found = fcntl.ioctl(s, SIOCGIFHWADDR, struct.pack("16s24x", name))
    return tap, found[18:24]


def is_answered(tap, ours, theirs):
    """Asks by ARP who has the engine's address."""
    question = struct.pack("!HHBBH", 1, 0x800, 6, 4, 1) + OURS + ours + b"\0" * 6 + theirs
    os.write(tap, b"\0" * 10 + b"\xff" * 6 + OURS + b"\x08\x06" + question)
    while select.select([tap], [], [], 0.2)[0]:
        packet = os.read(tap, 70000)
        if packet[22:24] == b"\x08\x06" and packet[30:32] == b"\0\x02":
            return True
    return False


def main(addr):
    tap, mac = open_tap(b"toestuck")
    print("up", flush=True)
    sys.stdin.readline()
    theirs = socket.inet_aton(addr)
    ours = theirs[:3] + b"\xfe"
    assert is_answered(tap, ours, theirs)
    # Segments of UDP that say of themselves that they are TCP.
    text = struct.pack("!HHHH", 1000, 2000, 4008, 0) + b"x" * 4000
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(text), 1, 0, 64, 6, 0, ours, theirs)
    frame = mac + OURS + b"\x08\0" + header + text
    os.write(tap, struct.pack("<BBHHHH", 1, GSO_UDP, 42, 1480, 34, 6) + frame)
    end = time.monotonic() + 20
    while not is_answered(tap, ours, theirs):
        assert time.monotonic() < end, "the engine hears nothing any more"
    print("same")


main(sys.argv[1])
