"""Taking as much as one can get of what the engine has for everybody."""

import os
import socket

from interface import (ACCEPT, ACCEPT_CREDIT, ACCEPTED, ADD_QUEUE_SET, CONNECT, CONNECTED, CONNECTIONS_WAIT, HELLO, LISTEN,
                       RESULT, SENT, TAKE_CONNECTION, Control, Refused, Session, connect_args, listen_args, name_of, until)
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
    say("hoarded", len(held), "sessions", queue_sets, "queue sets;", last)
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
    say("hoarded", len(held), "connections")
    hold()


def anchors(path, count):
    """All the anchors that so many sessions can have."""
    descriptors()
    held, taken = [], 0
    for _ in range(int(count)):
        try:
            session = Session(path)
            held.append(session)
            while True:
                taken += session.take_anchors()
        except (Refused, OSError):
            continue
    say("hoarded", taken, "anchors", len(held), "sessions")
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
    say("hoarded", total, "connections", len(held), "sessions;", name_of(last))
    hold()


class Unread:
    """A session that connects to itself and leaves what it is sent where it is."""

    SIZE = 1 << 20

    def __init__(self, path, accepts):
        self.session = Session(path)
        self.accepts, self.sent, self.flows, self.kept = accepts, 0, [], []
        session = self.session
        session.memory[session.send_at : session.send_at + self.SIZE] = bytes(self.SIZE)
        self.port = None

    def listen(self):
        session = self.session
        twin = socket.socket()
        twin.bind(("127.0.0.1", 0))
        port = twin.getsockname()[1]
        twin.listen()
        self.kept.append(twin)
        anchor = session.anchor()
        session.token += 1
        args = listen_args("127.0.0.1", port, 4096, anchor, session.show(twin))
        session.queues[0].command(LISTEN, session.token, args=args)
        number, listener = session.result(session.token)
        if number:
            raise OSError(number, name_of(number))
        self.kept.append(session.open_anchor(anchor))
        if self.accepts:
            session.queues[0].command(ACCEPT_CREDIT, listener, 4096)
        self.port = port

    def open_flows(self, count):
        session, open_now = self.session, 0
        for _ in range(count):
            try:
                flow, anchor = session.connect(("127.0.0.1", self.port))
            except OSError:
                break
            self.kept.append(anchor)
            open_now += 1
        until(lambda: self.turn() is not None and len(self.flows) >= open_now, 5.0)

    def turn(self):
        """What came; each octet that was taken by the engine is counted."""
        session, before = self.session, self.sent
        while (entry := session.next()) is not None:
            if entry[0] == ACCEPTED:
                anchor = session.anchor()
                session.queues[0].command(ACCEPT, entry[4] & 0xFFFFFFFF, anchor | 9 << 32)
                self.kept.append(session.open_anchor(anchor))
            elif entry[0] == CONNECTIONS_WAIT and self.accepts:
                session.queues[0].command(TAKE_CONNECTION, entry[3])
            elif entry[0] == CONNECTED and entry[2] == 0:
                self.flows.append(entry[3])
            elif entry[0] == SENT:
                self.sent += entry[4] & 0xFFFFFFFF
        return self.sent - before


def memory(path, count, per_session="256", mode="unread"):
    """Octets in so many sessions' memory (or, `staging`, the engine's own) that nobody reads."""
    descriptors()
    total, held = 0, []
    for _ in range(int(count)):
        try:
            unread = Unread(path, mode == "unread")
            held.append(unread)
            unread.listen()
        except (Refused, OSError) as error:
            say("stopped by", error)
            break
        wanted = int(per_session) << 20
        unread.open_flows(max(1, wanted >> (22 if mode == "unread" else 18)))
        for _ in range(16):
            for flow in unread.flows:
                for _ in range(4):
                    unread.session.send_range(flow, unread.session.send_at, Unread.SIZE)
            before = unread.sent
            until(unread.turn, 0.5)
            while until(unread.turn, 0.05):
                pass
            if unread.sent == before or unread.sent >= wanted:
                break
        total += unread.sent
    say("hoarded", total >> 20, "MiB unread", len(held), "sessions")
    hold()


ATTACKS = (sessions, controls, anchors, flows, memory)
