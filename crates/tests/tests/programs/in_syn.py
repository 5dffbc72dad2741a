"""Options whose effect is in what a SYN says, or on who may send one, set before connect and listen: prints what comes of them."""

import itertools
import socket
import struct

TCP, IP, IP6 = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
TCP_MAXSEG, TCP_WINDOW_CLAMP, TCP_INFO, IP_MINTTL, IPV6_MINHOPCOUNT = 2, 10, 11, 21, 73


def window(one):
    """What its peer may send (tcpi_snd_wnd)."""
    return struct.unpack_from("I", one.getsockopt(TCP, TCP_INFO, 256), 228)[0]


def connected(family, options, of_listener, ttl=None):
    at = "127.0.0.1" if family == socket.AF_INET else "::1"
    listener, client = socket.socket(family), socket.socket(family)
    for level, option, number in options:
        (listener if of_listener else client).setsockopt(level, option, number)
    listener.bind((at, 0))
    listener.listen()
    if ttl:
        client.setsockopt(IP, socket.IP_TTL, ttl)
        # A second SYN is a second later, and there is none.
        client.setsockopt(TCP, socket.TCP_SYNCNT, 1)
        client.settimeout(0.5)
    try:
        client.connect(listener.getsockname())
    except TimeoutError:
        return None
    accepted, _ = listener.accept()
    return (client, accepted) if of_listener else (accepted, client)


# One that asks for nothing, so that the engine has some.
connected(socket.AF_INET, [], True)

for of_listener, size in itertools.product((False, True), (500, 1400)):
    peer, own = connected(socket.AF_INET, [(TCP, TCP_MAXSEG, size)], of_listener)
    print("segment", of_listener, peer.getsockopt(TCP, TCP_MAXSEG), own.getsockopt(TCP, TCP_MAXSEG))

for of_listener in (False, True):
    peer, own = connected(socket.AF_INET, [(TCP, TCP_WINDOW_CLAMP, 5000)], of_listener)
    print("window", of_listener, window(peer) <= 5000, own.getsockopt(TCP, TCP_WINDOW_CLAMP))

print("from near", connected(socket.AF_INET, [(IP, IP_MINTTL, 60)], True, 64) is not None)
print("from far", connected(socket.AF_INET, [(IP, IP_MINTTL, 60)], True, 5) is not None)
_, own = connected(socket.AF_INET, [(IP, IP_MINTTL, 60)], False)
print(own.getsockopt(IP, IP_MINTTL))
_, own = connected(socket.AF_INET6, [(IP6, IPV6_MINHOPCOUNT, 60)], True)
print(own.getsockopt(IP6, IPV6_MINHOPCOUNT))
