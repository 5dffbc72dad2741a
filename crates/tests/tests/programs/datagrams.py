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
        elif word == b"sizes":
            s.sendto(b"%d %d" % (len(text), sum(text)), sender)
        else:
            s.sendto(text, sender)


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
