"""Taking as much as one can get of what the engine has for everybody."""

import os
import socket
import time

from interface import (ACCEPT, ACCEPT_CREDIT, ACCEPTED, ADD_QUEUE_SET, ARGS, CMD, CONNECT, CONNECTED, CONNECTIONS_WAIT, CPL, ENTRIES, HELLO, LISTEN,
                       RESULT, SENT, TAKE_CONNECTION, Control, Refused, Session, connect_args, listen_args, name_of, readable, until)
from talk import descriptors, hold, say

# Connections that may be under way at once in the completion ring.
BATCH = 200


def sessions(path, count):
    """So many sessions, each with all the queue sets that it can have."""
    descriptors()
    held, last = [], "ok"
    for _ in range(int(count)):
        try:
            control = Control(path)
            _, _, fds = control.ask(HELLO)
        except (Refused, OSError) as error:
            last = str(error)
            break
        [os.close(fd) for fd in fds]
        held.append(control)
    queue_sets = 0
    for control in held:
        try:
            while True:
                [os.close(fd) for fd in control.ask(ADD_QUEUE_SET)[2]]
                queue_sets += 1
        except (Refused, OSError):
            pass
    say("hoarded", len(held), "sessions with", queue_sets, "queue sets;", last)
    hold()


def completions(path, count):
    """So many sessions with all their queue sets, and completions in all places of those, which nobody takes."""
    descriptors()
    held, filled = [], 0
    for _ in range(int(count)):
        try:
            held.append(Session(path, queue_sets=0))
            while True:
                held[-1].queues.append(held[-1].add_queue_set())
        except (Refused, OSError):
            pass
    for session in held:
        try:
            anchor = session.anchor()
        except Refused:
            continue
        args = connect_args(("", 0), ("", 0), anchor)
        for queue in session.queues:
            for place in range(ENTRIES[CMD]):
                at = queue.base + ARGS + 64 * place
                session.memory[at : at + 64] = args.ljust(64, b"\0")
            left = ENTRIES[CPL]
            while left > 0 and not session.fenced():
                count = min(queue.cmd.room(), left)
                for _ in range(count):
                    queue.cmd.push(CONNECT, 1)
                session.ring()
                left -= count
                until(lambda: queue.cmd.room() == ENTRIES[CMD])
            filled += 1
    say("hoarded", len(held), "sessions with", filled, "full rings")
    hold()


def controls(path, count):
    """So many connections that never say Hello."""
    descriptors()
    held = []
    try:
        for _ in range(int(count)):
            held.append(Control(path))
    except OSError as error:
        say("stopped by", name_of(error.errno))
    # Those that the engine has closed at once are none.
    closed = readable(*(control.socket for control in held))
    say("hoarded", len(held) - len(closed), "connections without a session")
    hold()


def anchors(path, count):
    """All the anchors that so many sessions can have."""
    descriptors()
    held, taken, last = [], 0, "ok"
    for _ in range(int(count)):
        try:
            session = Session(path)
            held.append(session)
            while True:
                taken += session.take_anchors()
        except (Refused, OSError) as error:
            last = str(error)
    say("hoarded", taken, "anchors of", len(held), "sessions;", last)
    hold()


def fill_flows(session, host, ports, most):
    """Connections to ports of a host that does not answer, until the engine gives no more; how many there are."""
    made, asked, answered, last = 0, 0, 0, 0
    handles = []
    queue = session.queues[0]
    limit = most + 64
    while asked < limit or answered < asked:
        while asked < limit and asked - answered < BATCH and queue.cmd.room() > 0:
            if not session.free:
                try:
                    session.take_anchors()
                except Refused as error:
                    # Perhaps only until those under way have been answered.
                    if answered == asked:
                        last, limit = error.errno, asked
                    break
            anchor = session.free.pop()
            args = connect_args((host, ports[asked % len(ports)]), ("", 0), anchor)
            queue.command(CONNECT, asked + 1, args=args)
            handles.append(anchor)
            asked += 1

        def look():
            found = False
            nonlocal answered, made, last, limit
            while (entry := queue.pop()) is not None:
                if entry[0] == RESULT:
                    found, answered = True, answered + 1
                    made += entry[2] == 0
                    if entry[2]:
                        last, limit = entry[2], min(limit, asked)
            return found

        if answered < asked and not until(look):
            break
    return made, last


def flows(path, count, host):
    """So many sessions with all the connections that each can have, to a host that does not answer."""
    descriptors()
    held, total, last = [], 0, 0
    for number in range(int(count)):
        try:
            session = Session(path)
        except Refused as error:
            last = error.errno
            break
        held.append(session)
        ports = [10000 + 16 * number + n for n in range(16)]
        made, last = fill_flows(session, host, ports, 32768)
        total += made
    say("hoarded", total, "connections of", len(held), "sessions;", name_of(last))
    hold()


class Unread:
    """A session that connects to itself and leaves what it is sent where it is."""

    # More than any window that opens to a program that reads nothing.
    SIZE = 1 << 20
    # What such a window takes.
    WINDOW = 1 << 18

    def __init__(self, path, accepts):
        self.session, self.accepts = Session(path), accepts
        self.sent, self.asked, self.answered, self.kept = 0, 0, 0, []

    def listen(self):
        session = self.session
        twin = socket.socket()
        twin.bind(("127.0.0.1", 0))
        twin.listen()
        self.kept.append(twin)
        anchor = session.anchor()
        args = listen_args("127.0.0.1", twin.getsockname()[1], 4096, anchor, session.show(twin))
        session.queues[0].command(LISTEN, 0, args=args)
        number, listener = session.result(0)
        if number:
            raise OSError(number, name_of(number))
        self.kept.append(session.open_anchor(anchor))
        if self.accepts:
            session.queues[0].command(ACCEPT_CREDIT, listener, 4096)
        return twin.getsockname()

    def fill(self, wanted):
        """Opens connections until so much has been sent, or no more is taken."""
        session, to = self.session, self.listen()
        most = wanted // self.WINDOW + 1
        last = time.monotonic()
        while self.sent < wanted and time.monotonic() - last < 1.0:
            if self.asked < most and self.asked - self.answered < BATCH and session.queues[0].cmd.room() > 8:
                self.asked += 1
                args = connect_args(to, ("", 0), session.anchor())
                session.queues[0].command(CONNECT, self.asked, args=args)
            elif not until(self.turn, 0.02):
                continue
            last = time.monotonic() if self.turn() else last

    def turn(self):
        """What came; how much was taken of what was sent, or 1 for anything else."""
        session, count = self.session, 0
        while (entry := session.next()) is not None:
            count += 1
            if entry[0] == ACCEPTED and self.accepts:
                anchor = session.anchor()
                session.queues[0].command(ACCEPT, entry[4] & 0xFFFFFFFF, anchor | 9 << 32)
                self.kept.append(session.open_anchor(anchor))
            elif entry[0] == CONNECTIONS_WAIT and self.accepts:
                session.queues[0].command(TAKE_CONNECTION, entry[3])
            elif entry[0] == RESULT:
                self.answered += 1
            elif entry[0] == CONNECTED and entry[2] == 0:
                session.send_range(entry[3], session.send_at, self.SIZE)
            elif entry[0] == SENT:
                self.sent += entry[4] & 0xFFFFFFFF
        return count


def memory(path, count, per_session="250", mode="unread"):
    """Octets in so many sessions' memory (or, `staging`, the engine's own) that nobody reads."""
    descriptors()
    total, held, last = 0, [], "ok"
    for _ in range(int(count)):
        try:
            unread = Unread(path, mode == "unread")
            held.append(unread)
            unread.fill(int(per_session) << 20)
        except (Refused, OSError) as error:
            last = str(error)
        total = sum(unread.sent for unread in held)
    connections = sum(unread.answered for unread in held)
    say("hoarded", total >> 20, "MiB unread in", connections, "connections of", len(held), "sessions;", last)
    hold()


ATTACKS = (sessions, completions, controls, anchors, flows, memory)
