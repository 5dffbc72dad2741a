# UDP between a program of the server's namespace, on an engine's link or on the kernel's, and peers of the kernel's in the client's
# namespace. Prints what it is told, which is the same on both stacks.
#
#   datagrams.py OWN PEER SCENE …         the program under test; OWN is its address, PEER that of the peer
#   datagrams.py --peer PEER PORT         the peer: does what the datagrams say that come to it
import errno, os, select, socket, struct, sys, threading

PORT = 5353


def family(addr):
    return socket.AF_INET6 if ":" in addr else socket.AF_INET


def make(addr):
    s = socket.socket(family(addr), socket.SOCK_DGRAM)
    s.settimeout(20)
    return s


def peer(addr, port):
    s = make(addr)
    s.settimeout(None)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.bind((addr, port))
    other = make(addr)
    other.bind((addr, port + 1))
    print("ready", flush=True)
    while True:
        text, sender = s.recvfrom(70000)
        word = text.split(b" ")[0]
        if word == b"end":
            return
        elif word == b"many":
            for n in range(int(text.split(b" ")[1])):
                s.sendto(b"%d" % n, sender)
        elif word == b"other":
            other.sendto(b"from another", sender[:2])
            s.sendto(b"from the same", sender)
        elif word == b"large":
            s.sendto(bytes(range(256)) * (int(text.split(b" ")[1]) // 256), sender)
        elif word == b"to":
            s.sendto(b"hello", (sender[0], int(text.split(b" ")[1])))
        elif word == b"narrow":
            narrow(addr, port, sender, int(text.split(b" ")[1]))
        elif word == b"group":
            group, to = text.split(b" ")[1].decode(), int(text.split(b" ")[2])
            speaker(addr).sendto(b"to all", (group, to))
            s.sendto(b"marker", sender)
        elif word == b"join":
            member = make(addr)
            device = socket.if_indextoname(link(addr)).encode()
            member.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            member.bind(("", port + 3))
            join(member, addr, text.split(b" ")[1].decode())
            s.sendto(b"joined", sender)
        elif word == b"heard":
            s.sendto(member.recv(100), sender)
        elif word == b"sizes":
            s.sendto(b"%d %d" % (len(text), sum(text)), sender)
        else:
            s.sendto(text, sender)


def narrow(addr, port, sender, mtu):
    """Says as a router would that its link takes no larger packets on the way from the sender."""
    ends = [socket.inet_pton(family(addr), a) for a in (sender[0], addr)]
    datagram = struct.pack("!HHHH", sender[1], port, 1400, 0) + bytes(100)
    if ":" in addr:
        quoted = struct.pack("!IHBB", 6 << 28, 1400, 17, 64) + b"".join(ends) + datagram
        message = struct.pack("!BBHI", 2, 0, 0, mtu) + quoted
        raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    else:
        quoted = struct.pack("!BBHHHBBH", 0x45, 0, 1420, 1, 0x4000, 64, 17, 0) + b"".join(ends) + datagram
        message = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + quoted
        total = sum(struct.unpack("!%dH" % (len(message) // 2), message))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.sendto(message, (sender[0], 0))


def link(addr):
    """The index of the link that the address is of, which has it perhaps by an engine alone."""
    return socket.if_nametoindex("kern0" if addr.startswith(("10.78.", "fd78:")) else "toe0")


def speaker(addr):
    """A socket that speaks to groups, and to all, by that link."""
    s = make(addr)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, socket.if_indextoname(link(addr)).encode())
    if ":" in addr:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, link(addr))
    else:
        s.bind((addr, 0))
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), link(addr)))
    return s


def join(s, addr, group, leave=False):
    name = socket.inet_pton(family(addr), group)
    if ":" in addr:
        option = socket.IPV6_LEAVE_GROUP if leave else socket.IPV6_JOIN_GROUP
        s.setsockopt(socket.IPPROTO_IPV6, option, name + struct.pack("i", link(addr)))
    else:
        option = socket.IP_DROP_MEMBERSHIP if leave else socket.IP_ADD_MEMBERSHIP
        s.setsockopt(socket.IPPROTO_IP, option, name + bytes(4) + struct.pack("i", link(addr)))


def join_from(s, addr, group, source):
    """MCAST_JOIN_SOURCE_GROUP, which both families have."""
    def name(text):
        octets = socket.inet_pton(family(addr), text)
        head = struct.pack("=HH", family(addr), 0) + (bytes(4) if ":" in addr else b"")
        return (head + octets).ljust(128, b"\0")
    level = socket.IPPROTO_IPV6 if ":" in addr else socket.IPPROTO_IP
    s.setsockopt(level, 46, struct.pack("=II", link(addr), 0) + name(group) + name(source))


def ask(s, text, to=None):
    s.sendto(text, to) if to else s.send(text)
    return s.recv(70000)


def scene_echo(own, peer):
    s = make(own)
    s.bind(("::" if ":" in own else "0.0.0.0", 0))
    s.sendto(b"one", peer)
    text, sender = s.recvfrom(100)
    print(text, sender[:2] == peer, s.getsockname()[0])
    for size in (0, 1, 64, 1400):
        text = ask(s, b"sizes " + b"x" * size, peer)
        print(size, text)
    print(s.sendmsg([b"a", b"b", b"c"], [], 0, peer), s.recvmsg(10)[0])


def scene_unbound(own, peer):
    s = make(own)
    print(ask(s, b"first", peer), s.getsockname()[1] != 0)


def scene_connected(own, peer):
    s = make(own)
    s.connect(peer)
    print(s.getsockname()[0] == own, s.getsockname()[1] != 0, s.getpeername()[:2] == peer)
    print(ask(s, b"one"), os.write(s.fileno(), b"two"), s.recv(10))
    # Of the two answers the other one's is not for it.
    print(ask(s, b"other"))
    s.connect((peer[0], peer[1] + 1))
    print(s.getpeername()[1] == peer[1] + 1)
    s.connect(peer)
    print(ask(s, b"again"))


def scene_bound(own, peer):
    s = make(own)
    s.bind((own, PORT))
    print(s.getsockname()[:2] == (own, PORT))
    t = make(own)
    try:
        t.bind((own, PORT))
    except OSError as error:
        print(errno.errorcode[error.errno])
    t.bind((own, PORT + 1))
    print(ask(s, b"one", peer), ask(t, b"two", peer))
    s.sendto(b"to %d" % (PORT + 1), peer)
    print(t.recv(100))
    s.close()
    s = make(own)
    s.bind((own, PORT))
    print(ask(s, b"three", peer))


def scene_server(own, peer):
    # What iperf3 does: it hears anybody, then only who has spoken first.
    s = make(own)
    s.bind(("::" if ":" in own else "0.0.0.0", PORT))
    t = make(own)
    t.sendto(b"to %d" % PORT, peer)
    text, sender = s.recvfrom(100)
    print(text, sender[:2] == peer)
    s.connect(sender)
    print(s.getsockname()[:2] == (own, PORT), ask(s, b"other"))


def scene_many(own, peer):
    s = make(own)
    s.bind((own, PORT))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    for _ in range(5):
        s.sendto(b"many 50", peer)
        print([int(s.recv(100)) for _ in range(50)] == list(range(50)))


def scene_large(own, peer):
    s = make(own)
    s.connect(peer)
    for size in (1472, 4096, 20480, 61440):
        text = ask(s, b"large %d" % size)
        print(size, text == bytes(range(256)) * (size // 256))
        print(ask(s, b"sizes " + b"y" * size))
    try:
        s.send(b"z" * 65600)
    except OSError as error:
        print(errno.errorcode[error.errno])


def scene_waits(own, peer):
    s = make(own)
    s.bind((own, PORT))
    s.setblocking(False)
    try:
        s.recv(10)
    except BlockingIOError:
        print("EAGAIN")
    s.sendto(b"one", peer)
    print(select.select([s], [], [], 20)[0] == [s], s.recv(10))
    s.sendto(b"two", peer)
    p = select.poll()
    p.register(s, select.POLLIN)
    print([e[1] for e in p.poll(20000)] == [select.POLLIN], s.recv(10))
    e = select.epoll()
    e.register(s, select.EPOLLIN | select.EPOLLET)
    s.sendto(b"three", peer)
    print(e.poll(20) == [(s.fileno(), select.EPOLLIN)], s.recv(10), e.poll(0))
    s.settimeout(0.05)
    try:
        s.recv(10)
    except TimeoutError:
        print("timeout")
    s.settimeout(20)
    got = []
    thread = threading.Thread(target=lambda: got.append(s.recv(10)))
    thread.start()
    s.sendto(b"four", peer)
    thread.join()
    print(got)


def scene_details(own, peer):
    s = make(own)
    s.bind((own, PORT))
    v6 = ":" in own
    s.sendto(b"12345", peer)
    print(s.recvmsg(3)[2] & socket.MSG_TRUNC != 0)
    s.sendto(b"67890", peer)
    print(s.recv(3, socket.MSG_PEEK), s.recv_into(bytearray(3), 0, socket.MSG_PEEK | socket.MSG_TRUNC), s.recv(100))
    if v6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
    else:
        s.setsockopt(socket.IPPROTO_IP, 8, 1)
        s.setsockopt(socket.IPPROTO_IP, 12, 1)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    s.sendto(b"told", peer)
    text, told, _, _ = s.recvmsg(100, 200)
    for level, kind, data in told:
        at = data[:16] if v6 and kind == socket.IPV6_PKTINFO else data[8:12] if kind == 8 and not v6 else data
        print(level, kind, at == socket.inet_pton(family(own), own) or at)


def scene_mmsg(own, peer):
    # Several messages in one call, by the C library.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    class Iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    class Msghdr(ctypes.Structure):
        _fields_ = [
            ("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Iovec)),
            ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
            ("flags", ctypes.c_int),
        ]

    class Mmsghdr(ctypes.Structure):
        _fields_ = [("hdr", Msghdr), ("len", ctypes.c_uint)]

    s = make(own)
    s.connect(peer)
    s.setblocking(True)
    texts = [ctypes.create_string_buffer(b"m%d" % n, 8) for n in range(8)]
    vectors = [Iovec(ctypes.addressof(text), 2) for text in texts]
    messages = (Mmsghdr * 8)()
    for n in range(8):
        messages[n].hdr.iov = ctypes.pointer(vectors[n])
        messages[n].hdr.iovlen = 1
    print(libc.sendmmsg(s.fileno(), messages, 8, 0), [m.len for m in messages])
    got = 0
    while got < 8:
        more = libc.recvmmsg(s.fileno(), ctypes.byref(messages, got * ctypes.sizeof(Mmsghdr)), 8 - got, 0x10000, None)
        got += more
    print(sorted(text.raw[:2] for text in texts))


def scene_wrong(own, peer):
    # What cannot be sent: control data that is not there or says to be longer than it is, parts that no packet takes, too many of them.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    s = make(own)
    s.bind((own, 0))
    s.connect(peer)
    print(ask(s, b"before"))
    text = ctypes.create_string_buffer(b"nobody hears this")
    iov = struct.pack("PN", ctypes.addressof(text), 4)
    vector = ctypes.create_string_buffer(iov)
    short = ctypes.create_string_buffer(struct.pack("Nii", 100, 0, 8))
    for place, room in ((8, 64), (ctypes.addressof(short), 16)):
        fields = (0, 0, 0, ctypes.addressof(vector), 1, place, room, 0, 0)
        message = ctypes.create_string_buffer(struct.pack("PIIPNPNiI", *fields))
        print(libc.sendmsg(s.fileno(), message, 0), errno.errorcode.get(ctypes.get_errno()))
    # Where a socket cannot be connected to leaves it as it is.
    port = struct.pack("!H", peer[1]) + bytes(26)
    for name in (struct.pack("H", 12) + port, struct.pack("H", s.family) + port[:4]):
        print(libc.connect(s.fileno(), name, len(name)), errno.errorcode.get(ctypes.get_errno()))
    print(ask(s, b"still connected"))
    for size in (300, 1473, 9000, 60001, 1000):
        try:
            print(size, s.sendmsg([bytes(60000)], [(socket.IPPROTO_UDP, 103, struct.pack("H", size))]))
        except OSError as error:
            print(size, errno.errorcode[error.errno])


def scene_control(own, peer):
    """What the program says beside a datagram, well and badly: each that is sent comes back."""
    connected, other = make(own), make(own)
    connected.connect(peer)
    other.bind((own, 0))
    print(ask(connected, b"before"), ask(other, b"before", peer))
    one = lambda number: struct.pack("i", number)
    own_octets = socket.inet_pton(family(own), own)
    if ":" in own:
        address = (41, 50, own_octets + bytes(4))
        good = [(41, 52, one(7)), (41, 67, one(2)), address]
        bad = [(41, 52, one(300)), (41, 67, b"x"), (41, 50, b"short"), (41, 99, b"1234")]
    else:
        address = (0, 8, bytes(4) + own_octets + bytes(4))
        good = [(0, 2, one(7)), (0, 1, one(2)), (0, 1, b"\1"), address]
        bad = [(0, 2, one(0)), (0, 2, one(300)), (0, 2, b"x"), (0, 1, b"xy"), (0, 8, b"short"), (0, 99, b"1234")]
    stamp = (1, 37, one(2))
    good += [stamp, (1, 37, one(0)), (1, 36, one(5)), (1, 2, bytes(12)), (99, 1, b"1234"), (6, 1, b"")]
    bad += [(1, 37, one(16)), (1, 37, b"x"), (1, 36, b"x"), (1, 61, bytes(8)), (1, 9999, one(1)), (17, 103, b"x"), (17, 99, b"xy")]
    cases = [[part] for part in good + bad] + [[stamp, address], [good[0], stamp, good[1]], [good[0], (1, 9999, one(1))]]
    for parts in cases:
        for s, to in ((connected, ()), (other, (peer,))):
            try:
                s.sendmsg([b"with %d" % len(parts)], parts, 0, *to)
                print([part[:2] + (len(part[2]),) for part in parts], s.recv(100))
            except OSError as error:
                print([part[:2] + (len(part[2]),) for part in parts], errno.errorcode[error.errno])
    print(ask(connected, b"after"), ask(other, b"after", peer))


def scene_refused(own, peer):
    # Nobody is at the peer's next port but one.
    nobody = (peer[0], peer[1] + 2)
    s = make(own)
    s.connect(nobody)
    s.send(b"x")
    for _ in range(2):
        s.settimeout(20)
        p = select.poll()
        p.register(s, select.POLLIN)
        print([e[1] & select.POLLERR != 0 for e in p.poll(20000)])
        try:
            s.recv(10)
        except OSError as error:
            print(errno.errorcode[error.errno])
        print(p.poll(0))
        s.send(b"y")
    t = make(own)
    t.setsockopt(socket.IPPROTO_IPV6 if ":" in own else socket.IPPROTO_IP, 25 if ":" in own else 11, 1)
    t.sendto(b"lost", nobody)
    p = select.poll()
    p.register(t, 0)
    p.poll(20000)
    text, told, flags, to = t.recvmsg(100, 200, socket.MSG_ERRQUEUE)
    print(text, to[:2] == nobody, struct.unpack("=IBBB", told[0][2][:7]))


def scene_mtu(own, peer):
    level, discover, mtu = (socket.IPPROTO_IPV6, 23, 24) if ":" in own else (socket.IPPROTO_IP, 10, 14)
    headers = 48 if ":" in own else 28
    s = make(own)
    s.connect(peer)
    print(s.getsockopt(level, mtu))
    for how in range(6):
        s.setsockopt(level, discover, how)
        for size in (100, 1500 - headers, 1501 - headers, 3000):
            try:
                print(how, size, ask(s, (b"sizes " + b"x" * size)[:size]))
            except OSError as error:
                print(how, size, errno.errorcode[error.errno])
    # Not connected, and with the option since before it had a name.
    t = make(own)
    t.setsockopt(level, discover, 2)
    for size in (1500 - headers, 1501 - headers):
        try:
            print(size, ask(t, (b"sizes " + b"x" * size)[:size], peer))
        except OSError as error:
            print(size, errno.errorcode[error.errno])


def scene_narrow(own, peer):
    level, discover, mtu = (socket.IPPROTO_IPV6, 23, 24) if ":" in own else (socket.IPPROTO_IP, 10, 14)
    headers = 48 if ":" in own else 28
    s = make(own)
    s.connect(peer)
    s.send(b"narrow 1300")
    p = select.poll()
    p.register(s, 0)
    print([e[1] & select.POLLERR != 0 for e in p.poll(20000)])
    try:
        s.recv(10)
    except OSError as error:
        print(errno.errorcode[error.errno])
    print(s.getsockopt(level, mtu))
    for how in (1, 2, 3):
        s.setsockopt(level, discover, how)
        for size in (1300 - headers, 1301 - headers):
            try:
                print(how, size, ask(s, (b"sizes " + b"x" * size)[:size]))
            except OSError as error:
                print(how, size, errno.errorcode[error.errno])


def heard(s, peer, command, expected):
    """What comes of what the peer sends to a group, or to all, and then to the socket itself; and that no more comes."""
    s.sendto(command, peer)
    texts = [s.recv(100) for _ in range(expected)]
    s.sendto(b"over", peer)
    while True:
        text = s.recv(100)
        if text == b"over":
            return sorted(texts)
        texts.append(text)


def scene_groups(own, peer):
    group, other, nobody = ("ff15::7:7", "ff15::7:8", "fd00::99") if ":" in own else ("239.7.7.7", "239.7.7.8", "10.9.9.9")
    s = make(own)
    s.bind(("", 0))
    command = b"group %s %d" % (group.encode(), s.getsockname()[1])
    print("no member", heard(s, peer, command, 1))
    join(s, own, group)
    print("member", heard(s, peer, command, 2), heard(s, peer, command, 2))
    level, multicast_if, hops = (socket.IPPROTO_IPV6, 17, 18) if ":" in own else (socket.IPPROTO_IP, 32, 33)
    loop = 19 if ":" in own else 34
    if ":" in own:
        s.setsockopt(level, multicast_if, link(own))
    else:
        s.setsockopt(level, multicast_if, struct.pack("4s4si", bytes(4), bytes(4), link(own)))
    s.setsockopt(level, hops, 3)
    print(s.getsockopt(level, hops), s.getsockopt(level, loop))
    print(ask(s, b"join " + other.encode(), peer))
    s.sendto(b"to the others", (other, peer[1] + 3))
    print(ask(s, b"heard", peer))
    # What it says to its own group it hears, unless it wants not to.
    s.sendto(b"to us", (group, s.getsockname()[1]))
    print(s.recv(100))
    s.setsockopt(level, loop, 0)
    s.sendto(b"not to me", (group, s.getsockname()[1]))
    print(ask(s, b"echo", peer))
    join(s, own, group, leave=True)
    print("left", heard(s, peer, command, 1))
    join_from(s, own, group, nobody)
    print("from another", heard(s, peer, command, 1))
    t = make(own)
    t.bind(("", 0))
    join_from(t, own, group, peer[0])
    command = b"group %s %d" % (group.encode(), t.getsockname()[1])
    print("from the peer", heard(t, peer, command, 2))
    if ":" not in own:
        command = b"group 255.255.255.255 %d" % s.getsockname()[1]
        print("to all", heard(s, peer, command, 2))


def scene_shut(own, peer):
    def said(call, *args):
        try:
            return call(*args)
        except OSError as error:
            return errno.errorcode[error.errno]

    def state(s):
        many = [(socket.IPPROTO_UDP, 103, struct.pack("H", 100))]
        print(said(s.send, b"x"), said(s.sendto, b"x", peer), said(s.sendmsg, [b"x"]), said(s.send, bytes(66000)))
        print(said(s.sendmsg, [bytes(1000)], many), said(s.sendmsg, [bytes(60000)], many))

    def heard(s):
        p = select.poll()
        p.register(s, select.POLLIN | select.POLLOUT)
        print(p.poll(0)[0][1], said(s.recv, 100), said(s.recv, 100, socket.MSG_DONTWAIT))

    for is_connected in (True, False):
        for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR, 7):
            s = make(own)
            # Who waits for nothing at all must not be told to try again.
            s.settimeout(None)
            s.bind((own, 0))
            if is_connected:
                s.connect(peer)
            print("--", is_connected, how, ask(s, b"one", peer))
            s.sendto(b"two", peer)
            select.select([s], [], [])
            print(said(s.shutdown, how), s.recv(100))
            if how in (socket.SHUT_RD, socket.SHUT_RDWR):
                heard(s)
            if how in (socket.SHUT_WR, socket.SHUT_RDWR):
                state(s)
                print(said(s.connect, (peer[0], peer[1] + 1)), said(s.send, b"x"))
    # Who waits is woken.
    s = make(own)
    s.connect(peer)
    s.settimeout(None)
    ask(s, b"one")
    got = []
    waits = threading.Thread(target=lambda: got.append(s.recv(100)))
    waits.start()
    print(said(s.shutdown, socket.SHUT_RD))
    waits.join()
    print(got)


def scene_forked(own, peer):
    s = make(own)
    s.bind((own, PORT))
    print(ask(s, b"before", peer))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print(ask(s, b"in the child", peer))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print(ask(s, b"after", peer))


def main():
    if sys.argv[1] == "--peer":
        peer(sys.argv[2], int(sys.argv[3]))
        return
    own, other = sys.argv[1], (sys.argv[2], 7777)
    for name in sys.argv[3:]:
        print("--", name)
        globals()["scene_" + name](own, other)
        sys.stdout.flush()


main()
