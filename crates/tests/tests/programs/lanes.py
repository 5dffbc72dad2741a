"""What two processes that exchange datagrams over loopback are told, whichever way the datagrams go. Each line is a fact that must be the same
on both stacks. A scene begins with so many exchanges that the sockets have lanes if they can."""

import array, errno, fcntl, os, select, signal, socket, struct, sys, termios

EXCHANGES = 400
# Linux (asm-generic); Python does not name it.
SO_TIMESTAMP = 29
LOOPBACK = "127.0.0.1"


def udp(addr=(LOOPBACK, 0), family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind(addr)
    return s


class Pair:
    """This process's socket, and one of a child's, which does what `child` says once both have exchanged enough."""

    def __init__(self, child, connected=False, family=socket.AF_INET, host=LOOPBACK):
        told, tell = os.pipe()
        heard, hear = os.pipe()
        self.pid = os.fork()
        own = udp((host, 0), family)
        os.write(tell if self.pid == 0 else hear, struct.pack("H", own.getsockname()[1]))
        port = struct.unpack("H", os.read(heard if self.pid == 0 else told, 2))[0]
        self.socket, self.peer = own, (host, port) if family == socket.AF_INET else (host, port, 0, 0)
        self.told, self.tell = (heard, tell) if self.pid == 0 else (told, hear)
        if connected:
            own.connect(self.peer)
        # Both are connected before the first datagram.
        self.say(b"ready")
        self.hear(5)
        for n in range(EXCHANGES):
            if self.pid == 0:
                data, _ = own.recvfrom(100)
                self.send(data)
            else:
                self.send(b"%d" % n)
                got = own.recvfrom(100)
                assert got == (b"%d" % n, self.peer), (n, got, self.peer)
        # The child's other sockets send nothing before that: what two sockets send comes in either order.
        self.say(b"ready")
        self.hear(5)
        if self.pid == 0:
            try:
                child(self)
                sys.stdout.flush()
                os._exit(0)
            finally:
                os._exit(1)

    def send(self, data):
        try:
            peer = self.socket.getpeername()
        except OSError:
            peer = None
        return self.socket.send(data) if peer else self.socket.sendto(data, self.peer)

    def say(self, what):
        os.write(self.tell, what)

    def hear(self, count=1):
        said = b""
        while len(said) < count:
            said += os.read(self.told, count - len(said))
        return said

    def end(self):
        assert os.waitpid(self.pid, 0)[1] == 0
        self.socket.close()
        os.close(self.told)
        os.close(self.tell)


def code(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))


def order():
    """Nothing is lost or overtakes as long as the receiver keeps up."""
    def child(p):
        for n in range(20000):
            p.send(struct.pack("I", n) + bytes(n % 1400))
            if n % 50 == 49:
                p.socket.recv(10)
    p = Pair(child)
    for n in range(20000):
        data = p.socket.recv(2000)
        assert (struct.unpack("I", data[:4])[0], len(data) - 4) == (n, n % 1400), n
        if n % 50 == 49:
            p.send(b"go on")
    p.end()
    print("order: all")


def bursts():
    """A receiver that sleeps, wakes, is late and catches up, by calls that wait and calls that do not."""
    def child(p):
        for n in range(3000):
            p.send(struct.pack("I", n))
            if n % 30 == 29:
                p.hear()
    p = Pair(child)
    p.socket.settimeout(30)
    at = 0
    while at < 3000:
        if at % 90 < 30:
            data = p.socket.recv(2000)
        elif at % 90 < 60:
            p.socket.setblocking(True)
            data = p.socket.recv(2000)
            p.socket.settimeout(30)
        else:
            select.select([p.socket], [], [])
            data = p.socket.recv(2000, socket.MSG_DONTWAIT)
        assert struct.unpack("I", data)[0] == at, at
        at += 1
        if at % 30 == 0:
            p.say(b"x")
    p.end()
    print("bursts: all")


def details():
    def child(p):
        for data in b"0123456789", b"", b"abcdef", b"twice", b"x" * 40000, b"end":
            p.send(data)
        p.say(b"x")
        p.hear()
    p = Pair(child)
    p.hear()
    s = p.socket
    n = array.array("i", [0])
    fcntl.ioctl(s, termios.FIONREAD, n)
    print("waiting", n[0])
    print("peek", s.recvfrom(4, socket.MSG_PEEK)[0], s.recv(100, socket.MSG_PEEK | socket.MSG_TRUNC))
    data, control, flags, name = s.recvmsg(4, 100)
    print("cut", data, control, flags == socket.MSG_TRUNC, name == p.peer)
    print("empty", s.recv(100), code(lambda: len(s.recv(3, socket.MSG_TRUNC))))
    parts = [bytearray(2), bytearray(0), bytearray(2)]
    print("parts", s.recvmsg_into(parts)[0], parts)
    print("large", len(s.recv(50000)), s.recv(10))
    print("nothing", code(lambda: s.recv(10, socket.MSG_DONTWAIT)))
    fcntl.ioctl(s, termios.FIONREAD, n)
    print("waiting", n[0])
    p.say(b"x")
    p.end()


def waits():
    def child(p):
        for _ in range(6):
            p.hear()
            p.send(b"answer")
            p.say(b"x")
        p.hear()
    p = Pair(child)
    s = p.socket

    def ask():
        p.say(b"x")
        p.hear()
    poll = select.poll()
    poll.register(s, select.POLLIN)
    print("poll", poll.poll(0))
    ask()
    print("poll", [e for _, e in poll.poll(-1)], s.recv(10))
    print("poll", poll.poll(10))
    ask()
    print("select", len(select.select([s], [s], [], 10)[0]), s.recv(10), select.select([s], [], [], 0)[0])
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20000))
    print("limit", code(lambda: s.recv(10)))
    ask()
    print("limit", s.recv(10))
    s.setblocking(False)
    print("nonblocking", code(lambda: s.recv(10)))
    ask()
    print("nonblocking", s.recv(10), code(lambda: s.recv(10)))
    for mode in 0, select.EPOLLET:
        with select.epoll() as epoll:
            epoll.register(s, select.EPOLLIN | mode)
            print("epoll", epoll.poll(0))
            ask()
            print("epoll", [e for _, e in epoll.poll(10)], len(epoll.poll(0)), s.recv(10), epoll.poll(0))
    p.say(b"x")
    p.end()


def loops():
    """Programs that wait by epoll for several things, and read all that there is, or one datagram at a time."""
    def child(p):
        s = p.socket
        s.setblocking(False)
        epoll = select.epoll()
        epoll.register(s, select.EPOLLIN | select.EPOLLET)
        while True:
            for _ in epoll.poll(20):
                while True:
                    try:
                        data = s.recv(100)
                    except BlockingIOError:
                        break
                    if data == b"end":
                        return
                    p.send(data)
    for mode, at_once in (0, False), (0, True), (select.EPOLLET, True):
        p = Pair(child)
        s = p.socket
        s.setblocking(False)
        said, say = os.pipe()
        epoll = select.epoll()
        epoll.register(s, select.EPOLLIN | mode)
        epoll.register(said, select.EPOLLIN)
        came = others = 0
        for n in range(4000):
            p.send(b"%d" % n)
            if n % 7 == 0:
                os.write(say, b"x")
            while came + 10 <= n:
                for fd, events in epoll.poll(20):
                    if fd == said:
                        others += len(os.read(said, 1))
                    while fd == s.fileno():
                        try:
                            assert s.recv(100) == b"%d" % came
                            came += 1
                        except BlockingIOError:
                            break
                        if not at_once:
                            break
        p.send(b"end")
        print("loops", mode, came >= 3989, others > 300)
        p.end()


def news():
    """What is told once is told again when more has come, and not before."""
    def child(p):
        for _ in range(40):
            p.hear()
            p.send(b"x")
            p.say(b"x")
    p = Pair(child)
    s = p.socket
    s.setblocking(False)
    epoll = select.epoll()
    epoll.register(s, select.EPOLLIN | select.EPOLLET)
    told = []
    for n in range(40):
        p.say(b"x")
        p.hear()
        told.append((len(epoll.poll(0)), len(epoll.poll(0))))
        if n % 4 == 3:
            left = 0
            while code(lambda: s.recv(10)) == b"x":
                left += 1
            told.append(left)
    print("news", told)
    p.end()


def signals():
    """A handler runs, and the call that it interrupted goes on or ends as Linux has it."""
    def child(p):
        p.hear()
        # It may come just before Python makes its call, which knows nothing of it then: on Linux in one of some thousand runs.
        while True:
            os.kill(os.getppid(), signal.SIGUSR1)
            if select.select([p.told], [], [], 5)[0]:
                break
        p.hear()
        p.send(b"after")
    p = Pair(child)
    came = []

    def handler(*_):
        came.append(1)
        p.say(b"x")
    signal.signal(signal.SIGUSR1, handler)
    p.say(b"x")
    print("signal", p.socket.recv(10), came)
    p.end()


def third():
    """Another sender, which has no lane, and is not kept waiting."""
    def child(p):
        others = [udp() for _ in range(2)]
        for other in others:
            other.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        for n in range(6000):
            data = struct.pack("I", n)
            p.send(data)
            others[0].sendto(data, p.peer)
            if n % 3 == 0:
                others[1].sendto(data, p.peer)
            if n % 20 == 19:
                p.socket.recv(10)
    p = Pair(child)
    heard, due = {}, 0
    for turn in range(6000 // 20):
        numbers = range(turn * 20, turn * 20 + 20)
        due += 40 + sum(n % 3 == 0 for n in numbers)
        while sum(map(len, heard.values())) < due:
            data, name = p.socket.recvfrom(10)
            number = struct.unpack("I", data)[0]
            said = heard.setdefault(name, [])
            assert not said or number > said[-1]
            said.append(number)
        p.send(b"go on")
    p.end()
    print("third", sorted(map(len, heard.values())))


def copies():
    """A socket that gets another descriptor, and one that a child gets."""
    def child(p):
        for n in range(60):
            p.socket.recv(10)
            p.send(b"%d" % n)
    p = Pair(child)
    s = p.socket
    other = s.dup()
    came = []
    for n in range(20):
        other.sendto(b"?", p.peer)
        came.append((other if n % 2 else s).recv(10))
    s.close()
    p.socket = s = other
    for n in range(20):
        p.send(b"?")
        came.append(s.recv(10))
    pid = os.fork()
    if pid == 0:
        for n in range(10):
            p.send(b"?")
            came.append(s.recv(10))
        os._exit(0 if len(came) == 50 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    for n in range(10):
        p.send(b"?")
        came.append(s.recv(10))
    assert came == [b"%d" % n for n in list(range(40)) + list(range(50, 60))]
    p.end()
    print("copies", len(came))


def refused():
    """Who sends to a socket that was closed is told."""
    def child(p):
        p.socket.close()
        p.say(b"x")
    p = Pair(child, connected=True)
    p.hear()
    print("refused", code(lambda: p.send(b"one")), code(lambda: p.send(b"two")), code(lambda: p.send(b"three")))
    p.end()


def killed():
    """What a process sent before it was killed is there; who sends to one that was is told."""
    def child(p):
        for n in range(100):
            p.send(b"%d" % n)
        os.kill(os.getpid(), signal.SIGKILL)
    p = Pair(child, connected=True)
    os.waitpid(p.pid, 0)
    came = [p.socket.recv(10) for _ in range(100)]
    assert came == [b"%d" % n for n in range(100)]

    def told():
        # The engine learns of the end of a process a moment later.
        for _ in range(100000):
            p.send(b"x")
        return "never"
    print("killed", len(came), code(told))


def lates():
    """A socket gets another peer, and options."""
    def child(p):
        for n in range(200):
            p.socket.recv(10)
            p.send(b"%d" % n)
    p = Pair(child)
    s = p.socket
    for n in range(200):
        if n == 50:
            s.connect(p.peer)
        if n == 100:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000)
        if n == 150:
            s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        p.send(b"?")
        data, control, _, name = s.recvmsg(10, 100)
        assert (data, len(control), name) == (b"%d" % n, n >= 150, p.peer), (n, data, control, name)
    p.end()
    print("lates: all")


def control():
    """What QUIC asks for: several datagrams in one call, joined ones, where they came to, and their class."""
    udp_segment, udp_gro, ip_pktinfo = 103, 104, 8

    def together(p, text, each, kind):
        control = [(socket.IPPROTO_UDP, udp_segment, struct.pack("H", each)), (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", kind))]
        return p.socket.sendmsg([text], control, 0, p.peer)

    def child(p):
        for n in range(200):
            p.socket.recv(10)
            assert together(p, bytes([n]) * 250, 100, n % 4) == 250
    p = Pair(child)
    s = p.socket
    for option, value in ((ip_pktinfo, 1), (socket.IP_RECVTOS, 1)):
        s.setsockopt(socket.IPPROTO_IP, option, value)
    seen = set()
    for n in range(200):
        joins = n >= 100
        if n == 100:
            s.setsockopt(socket.IPPROTO_UDP, udp_gro, 1)
        p.send(b"?")
        for length in [250] if joins else [100, 100, 50]:
            data, told, flags, name = s.recvmsg(1000, 40 if n % 10 == 9 else 200)
            assert (data, name) == (bytes([n]) * length, p.peer), (n, len(data), name)
            told = [(level, kind, value.hex()) for level, kind, value in told]
            seen.add((joins, n % 4, n % 10 == 9, flags & socket.MSG_CTRUNC != 0, str(told)))
    for line in sorted(seen):
        print("control:", *line)
    # One that no lane carries, and one after it.
    p.end()
    print("control: all")


def six():
    def child(p):
        for n in range(500):
            p.send(p.socket.recv(10))
    p = Pair(child, family=socket.AF_INET6, host="::1")
    for n in range(500):
        p.send(b"%d" % n)
        assert p.socket.recvfrom(10) == (b"%d" % n, p.peer)
    p.end()
    print("six: all")


signal.alarm(100)
for scene in sys.argv[1:]:
    globals()[scene]()
    sys.stdout.flush()
