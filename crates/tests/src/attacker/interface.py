"""The host interface as an attacker speaks it: messages, entries and registers put together by hand from
docs/host-interface.md, bound by nothing that the host library does or leaves."""

import array
import errno
import mmap
import os
import select
import socket
import struct
import time

# The version and what came with it; the tests say which one the engine has.
VERSION = int(os.environ.get("TOE_INTERFACE_VERSION", "8"))
MAGIC = 0x41454F54
NO_HANDLE = 0xFFFFFFFF
ANCHORS_AT_ONCE = 32

HELLO, ADD_QUEUE_SET, TAKE_ANCHORS, SHOW_TWIN, CLAIM, REPORT, STOP, STOP_WHEN_UNUSED = range(1, 9)
OPEN_CHANNEL, RELINQUISH, SHARE, RECOGNISE, CAPTURE, END_CAPTURE = range(9, 15)
ADMIT = 15
REFUSED = 0x1FF

LISTEN, CONNECT, ACCEPT_CREDIT, ACCEPT, SHUTDOWN_SEND = 1, 2, 3, 4, 5
CLOSE, CLOSE_LISTENER, SET_OPTION, CHANNEL_READY, TAKE_CONNECTION, FAST_OPEN = 7, 8, 9, 10, 11, 12
SEND, CREDIT = 0x21, 0x31
RESULT, ACCEPTED, CONNECTED, DATA, SENT, PEER_CLOSED, RESET = range(0x41, 0x48)
ANCHOR_FREE, CONNECTIONS_WAIT = 0x4D, 0x4E

QUEUE_SET_LEN, FIRST_QUEUE_SET = 122880, 4096
ENGINE_REGISTERS, HOST_REGISTERS, CMD, ARGS, SND, RCV, CPL = 0, 2048, 4096, 8192, 24576, 40960, 57344
CMD_HEAD, SND_HEAD, RCV_HEAD = 0, 64, 128
CPL_HEAD, IRQ_ARMED, IRQ_MODE = 0, 64, 68
OFFERED, HELD, IN_USE, WITHDRAWN = 1, 2, 3, 4
ENTRIES = {CMD: 256, SND: 1024, RCV: 1024, CPL: 4096}
HEADS = {CMD: CMD_HEAD, SND: SND_HEAD, RCV: RCV_HEAD}

# How long what must come may take: a limit for a test that fails, not a measure.
PATIENCE = 20.0


class Refused(Exception):
    """The engine's answer is no."""

    def __init__(self, number):
        super().__init__(name_of(number))
        self.errno = number


def name_of(number):
    return errno.errorcode.get(number, str(number)) if number else "ok"


def until(look, limit=PATIENCE):
    """What `look` gives once that is something; None if it gives nothing for too long."""
    end = time.monotonic() + limit
    while True:
        found = look()
        if found or time.monotonic() > end:
            return found
        time.sleep(0.0005)


def readable(*files):
    """Those of these files that can be read without waiting, whatever their numbers are."""
    poll = select.poll()
    by_number = {file.fileno(): file for file in files}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(0)]


class Control:
    """A connection to an engine's socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)

    def say(self, kind, args=(), show=(), flags=0):
        words = (list(args) + [0] * 7)[:7]
        message = struct.pack("<IHH7Q", MAGIC, VERSION, kind, *words)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", show))] if show else []
        return self.socket.sendmsg([message], beside, flags)

    def hear(self):
        """The next message: its kind, its arguments, its descriptors."""
        message, fds, _, _ = socket.recv_fds(self.socket, 65, 5)
        if len(message) != 64:
            [os.close(fd) for fd in fds]
            raise ConnectionResetError(errno.ECONNRESET, "the engine has closed the connection")
        words = struct.unpack("<IHH7Q", message)
        if words[2] == REFUSED:
            raise Refused(words[3])
        return words[2], words[3:], fds

    def ask(self, kind, args=(), show=()):
        self.say(kind, args, show)
        return self.hear()

    def drop_answers(self):
        """Takes the answers that are there; gives how many were."""
        count = 0
        while readable(self.socket):
            try:
                for fd in self.hear()[2]:
                    os.close(fd)
            except Refused:
                pass
            count += 1
        return count

    def close(self):
        self.socket.close()


class Ring:
    """The end of `cmd`, `snd` or `rcv` that a host has."""

    def __init__(self, session, base, queue):
        self.words, self.queue, self.size = session.words, (base + queue) // 8, ENTRIES[queue]
        self.registers, self.head_at = session.registers, (base + ENGINE_REGISTERS + HEADS[queue]) // 4
        self.tail = 0

    def room(self):
        return self.size - ((self.tail - self.registers[self.head_at]) & 0xFFFFFFFF)

    def place(self):
        return self.tail % self.size

    def push(self, kind, number=0, word1=0, small=0, flags=0):
        epoch = 1 if (self.tail // self.size) % 2 == 0 else 0
        word0 = kind | epoch << 8 | flags << 9 | small << 16 | (number & 0xFFFFFFFF) << 32
        at = self.queue + 2 * self.place()
        # In this order, each whole.
        self.words[at + 1] = word1
        self.words[at] = word0
        self.tail = (self.tail + 1) & 0xFFFFFFFF


class QueueSet:
    """A queue set of a session."""

    def __init__(self, session, index, irq):
        self.session, self.index, self.irq = session, index, irq
        self.base = FIRST_QUEUE_SET + index * QUEUE_SET_LEN
        self.cmd, self.snd, self.rcv = (Ring(session, self.base, queue) for queue in (CMD, SND, RCV))
        self.taken = 0

    def register(self, offset, value):
        self.session.registers[(self.base + HOST_REGISTERS + offset) // 4] = value

    def irq_given(self):
        return self.session.registers[(self.base + HOST_REGISTERS + IRQ_ARMED) // 4] == 0

    def command(self, kind, number=0, word1=0, small=0, flags=0, args=None):
        """Publishes a command, waiting for room; False when there is none for too long."""
        if not until(lambda: self.cmd.room() > 0):
            return False
        if args is not None:
            at = self.base + ARGS + 64 * self.cmd.place()
            self.session.memory[at : at + 64] = args.ljust(64, b"\0")
        self.cmd.push(kind, number, word1, small, flags)
        self.session.ring()
        return True

    def pop(self):
        """The next completion as (type, flags, small, id, word 1), or None."""
        at = (self.base + CPL) // 8 + 2 * (self.taken % ENTRIES[CPL])
        word0, word1 = self.session.words[at], self.session.words[at + 1]
        due = 1 if (self.taken // ENTRIES[CPL]) % 2 == 0 else 0
        if (word0 >> 8) & 1 != due:
            return None
        self.taken = (self.taken + 1) & 0xFFFFFFFF
        self.register(CPL_HEAD, self.taken)
        if self.taken % 1024 == 0:
            self.session.ring()
        return word0 & 0xFF, (word0 >> 9) & 0x7F, (word0 >> 16) & 0xFFFF, word0 >> 32, word1


def wire_addr(host, port):
    if not host:
        return bytes(20)
    if ":" in host:
        return struct.pack("<HH16s", 6, port, socket.inet_pton(socket.AF_INET6, host))
    return struct.pack("<HH16s", 4, port, socket.inet_aton(host))


def listen_args(host, port, backlog, anchor, twin):
    return wire_addr(host, port) + struct.pack("<IIIII", backlog, anchor, twin, 3, 0)


def connect_args(remote, local, anchor, twin=NO_HANDLE):
    args = wire_addr(*remote) + wire_addr(*local) + struct.pack("<III", anchor, 3, 0)
    if VERSION < 9:
        return args
    # From 15 on: no id that was given in advance.
    return args + struct.pack("<I", twin) + (struct.pack("<I", NO_HANDLE) if VERSION >= 15 else b"")


class Session:
    """A session of our own."""

    def __init__(self, path, queue_sets=1, room=0):
        self.control = Control(path)
        _, words, fds = self.control.ask(HELLO, [room])
        self.number, self.flows, self.receive_len, self.send_len = words[0], words[2], words[3], words[4]
        # From 24 on the receive part is a file of its own, and the engine has a page that hosts read.
        if VERSION >= 24:
            region, *received, self.bell, self.engines_page, self.anchors_dir = fds
        else:
            region, *received, self.bell, self.anchors_dir = fds
        self.memory = mmap.mmap(region, os.fstat(region).st_size)
        self.files = [region, *received]
        self.received = [mmap.mmap(file, self.receive_len, prot=mmap.PROT_READ) for file in received]
        # Words are stored whole, as processors do and `struct` does not.
        self.words, self.registers = (memoryview(self.memory).cast(width) for width in "QI")
        self.send_at = self.words[5]
        self.owner_words = (FIRST_QUEUE_SET + words[1] * QUEUE_SET_LEN + self.flows * 64) // 8
        self.queues = [self.add_queue_set() for _ in range(queue_sets)]
        self.free, self.token, self.told = [], 0, []

    def ring(self):
        try:
            os.write(self.bell, struct.pack("<Q", 1))
        except BlockingIOError:
            pass

    def own(self, flow, says):
        """What the flow's owner word says from here on."""
        self.words[self.owner_words + (flow & 0xFFFFF)] = says << 32 | flow

    def add_queue_set(self):
        _, words, fds = self.control.ask(ADD_QUEUE_SET)
        return QueueSet(self, words[0], fds[0])

    def fenced(self):
        return self.registers[15]

    def take_anchors(self, count=ANCHORS_AT_ONCE):
        _, words, _ = self.control.ask(TAKE_ANCHORS, [count])
        self.free += range(words[0], words[0] + words[1])
        return words[1]

    def anchor(self):
        if not self.free:
            self.take_anchors()
        return self.free.pop()

    def open_anchor(self, handle):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(str(handle), flags, dir_fd=self.anchors_dir)

    def show(self, sock):
        """The handle of a kernel socket that is shown as a twin."""
        return self.control.ask(SHOW_TWIN, [], [sock.fileno()])[1][0]

    def next(self, queue=0):
        return self.told.pop(0) if self.told else self.queues[queue].pop()

    def result(self, token, queue=0, limit=PATIENCE):
        """Errno and id that a command brought; what else came stays."""
        others = []

        def look():
            while (entry := self.queues[queue].pop()) is not None:
                if entry[0] == RESULT and entry[3] == token:
                    return entry
                others.append(entry)
            return None

        entry = until(look, limit)
        self.told += others
        if entry is None:
            raise TimeoutError("no result of a command")
        return entry[2], entry[4] & 0xFFFFFFFF

    def listen(self, host, port, twin=NO_HANDLE, backlog=128, queue=0):
        """A listener's id; OSError with what the engine says otherwise."""
        anchor = self.anchor()
        self.token += 1
        args = listen_args(host, port, backlog, anchor, twin)
        self.queues[queue].command(LISTEN, self.token, args=args)
        number, listener = self.result(self.token, queue)
        if number:
            self.free.append(anchor)
            raise OSError(number, name_of(number))
        self.queues[queue].command(ACCEPT_CREDIT, listener, 1024)
        return listener, self.open_anchor(anchor)

    def connect(self, remote, local=("", 0), twin=NO_HANDLE, queue=0):
        """The id of a flow that connects, and its anchor's descriptor."""
        anchor = self.anchor()
        self.token += 1
        args = connect_args(remote, local, anchor, twin)
        self.queues[queue].command(CONNECT, self.token, args=args)
        number, flow = self.result(self.token, queue)
        if number:
            self.free.append(anchor)
            raise OSError(number, name_of(number))
        return flow, self.open_anchor(anchor)

    def wait_for(self, kinds, flow, limit=PATIENCE):
        """The next completion of these types for a flow; what else came is dropped."""

        def look():
            while (entry := self.next()) is not None:
                if entry[0] in kinds and entry[3] == flow:
                    return entry
            return None

        return until(look, limit)

    def send(self, flow, octets, at=0, queue=0):
        start = self.send_at + at
        self.memory[start : start + len(octets)] = octets
        self.send_range(flow, start, len(octets), queue)

    def send_range(self, flow, start, length, queue=0):
        if until(lambda: self.queues[queue].snd.room() > 0):
            self.queues[queue].snd.push(SEND, flow, start | length << 40)
            self.ring()

    def read(self, entry):
        """The octets of a `Data` completion, with credit for them."""
        start, length = entry[4] & (1 << 40) - 1, entry[4] >> 40
        if self.received:
            start -= self.send_at - self.receive_len
        octets = bytes((self.received or [self.memory])[0][start : start + length])
        queue = self.queues[0]
        if until(lambda: queue.rcv.room() > 0):
            queue.rcv.push(CREDIT, entry[3], length)
            self.ring()
        return octets

    def close(self):
        self.control.close()
