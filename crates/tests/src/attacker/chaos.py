"""Random hostile things, the same for the same seed as far as one process is concerned: what a user could do who knows
the interface and means harm. `storm` begins such processes and kills them at any moment."""

import os
import random
import select
import signal
import socket
import subprocess
import sys

from descriptors import Linger
from interface import ARGS, CLAIM, CONNECT, LISTEN, NO_HANDLE, SHOW_TWIN, Control, Refused, Session, connect_args, listen_args
from names import make_twin
from talk import descriptors, say

# Sessions that one process has at once.
SESSIONS = 6
# Ports of the victims and some that nobody has.
PORTS = (80, 7000, 7001, 7002, 5432, 8080, 0, 20000, 40000)
HOSTS = ("127.0.0.1", "10.77.0.2", "10.77.0.1", "0.0.0.0", "10.78.0.2", "")


class Chaos:
    def __init__(self, path, seed):
        self.path, self.random = path, random.Random(seed)
        self.sessions, self.anchors, self.twins, self.handles = [], [], [], {}
        self.linger = None
        try:
            self.linger = Linger()
        except OSError:
            pass

    def session(self):
        if len(self.sessions) < SESSIONS and self.random.random() < 0.2 or not self.sessions:
            self.sessions.append(Session(self.path, queue_sets=self.random.choice((1, 1, 2, 4))))
        return self.random.choice(self.sessions)

    def descriptor(self):
        """Any kind of descriptor; the caller closes it."""
        kind = self.random.randrange(10)
        if kind == 0 and self.linger:
            return self.linger.make()
        if kind == 1:
            return os.open(self.random.choice(("/", "/tmp", "/proc/self", "/dev")), os.O_RDONLY)
        if kind == 2:
            return os.memfd_create("x", self.random.choice((0, os.MFD_ALLOW_SEALING)))
        if kind == 3:
            return os.eventfd(0)
        if kind == 4:
            return os.dup(0)
        if kind == 5:
            a, b = socket.socketpair()
            b.close()
            return a.detach()
        if kind == 6 and self.anchors:
            return os.dup(self.random.choice(self.anchors))
        if kind == 7:
            return os.open(self.random.choice(("/dev/zero", "/dev/null", "/proc/self/mem")), os.O_RDONLY)
        if kind == 8:
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
        return socket.socket().detach()

    def message(self):
        session = self.session()
        fds = [self.descriptor() for _ in range(self.random.choice((0, 1, 1, 1, 2, 4)))]
        args = [self.random.choice((0, 1, 3, 32, 1 << 16, 1 << 32, (1 << 64) - 1)) for _ in range(7)]
        try:
            session.control.socket.setblocking(False)
            session.control.say(self.random.choice((*range(1, 17), 0, 0xFFFF)), args, fds)
            session.control.drop_answers()
        except BlockingIOError:
            pass
        finally:
            session.control.socket.setblocking(True)
            for fd in fds:
                os.close(fd)

    def garbage(self):
        """Octets that are no message."""
        control = Control(self.path)
        control.socket.send(self.random.randbytes(self.random.choice((1, 63, 64, 65, 4000))))
        control.close()

    def entries(self):
        """Entries of any kind in any of the rings, more than are taken."""
        session = self.session()
        queue = self.random.choice(session.queues)
        ring = self.random.choice((queue.cmd, queue.snd, queue.rcv))
        for _ in range(self.random.choice((1, 8, 256))):
            kind = self.random.choice((*range(1, 13), 0x21, 0x31, self.random.randrange(256)))
            number = self.random.choice((0, 1, 2, 0xFFFFFFFF, self.random.getrandbits(32)))
            word = self.random.choice((0, session.send_at | 4096 << 40, self.random.getrandbits(64)))
            if ring is queue.cmd:
                at = queue.base + ARGS + 64 * ring.place()
                session.memory[at : at + 64] = self.args(session)
            ring.push(kind, number, word, self.random.getrandbits(16), self.random.getrandbits(7))
        session.ring()

    def handle(self, session):
        """One that was shown, or any other."""
        return self.random.choice((NO_HANDLE, 0, 1, *self.handles.get(session, [])[-4:]))

    def address(self):
        return self.random.choice(HOSTS), self.random.choice(PORTS)

    def args(self, session):
        anchor = self.random.choice((0, 1, NO_HANDLE, *session.free[:8]))
        twin = self.handle(session)
        if self.random.random() < 0.5:
            args = listen_args(*self.address(), self.random.choice((0, 5, 1 << 31)), anchor, twin)
        else:
            args = connect_args(self.address(), self.address(), anchor, twin)
        args = bytearray(args.ljust(64, b"\0"))
        if self.random.random() < 0.1:
            args[self.random.randrange(64)] = self.random.randrange(256)
        return bytes(args)

    def listen(self):
        session = self.session()
        queue = session.queues[0]
        args = listen_args(*self.address(), 16, session.anchor(), self.handle(session))
        if queue.cmd.room():
            queue.command(LISTEN, 1, args=args)

    def connect(self):
        session = self.session()
        queue = session.queues[0]
        for _ in range(self.random.choice((1, 1, 32))):
            if queue.cmd.room():
                args = connect_args(self.address(), self.address(), session.anchor(), self.handle(session))
                queue.command(CONNECT, 2, args=args)

    def twin(self):
        session = self.session()
        host, port = self.address()
        kind = self.random.choice(("bound", "reuseaddr", "reuseport", "connected", "disconnected", "accepted"))
        twin, held = make_twin(kind, ("127.0.0.1" if host != "0.0.0.0" else host, port), "")
        self.twins += [twin, *held]
        self.handles.setdefault(session, []).append(session.control.ask(SHOW_TWIN, [], [twin.fileno()])[1][0])
        while len(self.twins) > 32:
            self.twins.pop(0).close()

    def take(self):
        session = self.session()
        session.take_anchors()
        self.anchors.append(session.open_anchor(session.free[-1]))
        while len(self.anchors) > 64:
            os.close(self.anchors.pop(self.random.randrange(32)))

    def claim(self):
        session = self.session()
        if self.anchors:
            fd = self.random.choice(self.anchors)
            session.control.say(CLAIM, [0, 5], [fd])
            session.control.drop_answers()

    def registers(self):
        session = self.session()
        queue = self.random.choice(session.queues)
        if self.random.random() < 0.5:
            queue.register(self.random.choice((0, 64, 68, 72, 76, 128)), self.random.choice((0, 1, 2, 3, 4096, 0xFFFFFFFF)))
        else:
            session.own(self.random.randrange(8), self.random.randrange(6))

    def scribble(self):
        """Octets anywhere in what is shared."""
        session = self.session()
        end = session.send_at + (1 << 20)
        for _ in range(16):
            at = self.random.randrange(end)
            session.memory[at : at + 8] = self.random.randbytes(len(session.memory[at : at + 8]))
        session.ring()

    def read(self):
        session = self.session()
        while session.queues[0].pop() is not None:
            pass

    def end(self):
        if self.sessions:
            session = self.sessions.pop(self.random.randrange(len(self.sessions)))
            session.close()
            os.close(session.bell)
            os.close(session.anchors_dir)
            [os.close(queue.irq) for queue in session.queues]

    def turn(self):
        deed = self.random.choice((
            self.message, self.message, self.garbage, self.entries, self.listen, self.connect, self.connect, self.twin,
            self.take, self.claim, self.registers, self.scribble, self.read, self.read, self.end))
        try:
            deed()
        except Refused:
            pass
        except ConnectionError:
            # Fenced, as it should be.
            self.end()
        except (OSError, TimeoutError):
            self.end()


def chaos(path, seed):
    """Without end."""
    descriptors()
    one = Chaos(path, int(seed))
    while True:
        one.turn()


def storm(path, seed, children="2"):
    """Processes of chaos, each killed in the middle of something and followed by another, until the input ends."""
    source = random.Random(int(seed))
    own_network()
    pids, begun, killed = [], 0, 0
    say("storming")
    while not select.select([sys.stdin], [], [], source.uniform(0.05, 0.4))[0]:
        while len(pids) < int(children):
            number = source.getrandbits(32)
            pid = os.fork()
            if pid == 0:
                try:
                    chaos(path, number)
                finally:
                    os._exit(1)
            pids.append(pid)
            begun += 1
        pid = pids.pop(source.randrange(len(pids)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        killed += 1
        if killed % 16 == 0:
            say("killed", killed)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    say("ended", begun)


def own_network():
    """In a network namespace of our own the loopback interface is down at first."""
    subprocess.run(["ip", "link", "set", "lo", "up"], stderr=subprocess.DEVNULL, check=False)


ATTACKS = (chaos, storm)
