"""Ports and connections that belong to somebody else: listening at them, connecting from them."""

import ctypes
import os
import socket
import struct
import sys
import time

from interface import (ACCEPT, ACCEPTED, CONNECTED, CONNECTIONS_WAIT, DATA, NO_HANDLE, PEER_CLOSED, RESET,
                       TAKE_CONNECTION, Refused, Session, name_of, readable)
from talk import hold, say

SO_BINDTODEVICE = 25
SO_REUSEPORT = 15
# What an impostor answers, whatever it was asked.
ANSWER = b"taken"


def endpoint(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def bound(at, reuse=(), device="", listens=True):
    sock = socket.socket()
    for option in reuse:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    if device:
        sock.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, device.encode())
    sock.bind(at)
    if listens:
        sock.listen()
    return sock


def make_twin(kind, at, argument):
    """A kernel socket that is to vouch for the port of `at`; what must stay open for it comes along."""
    if kind == "bound":
        return bound(at), []
    if kind == "not-listening":
        return bound(at, listens=False), []
    if kind == "reuseaddr":
        return bound(at, [socket.SO_REUSEADDR], listens=False), []
    if kind == "reuseport":
        return bound(at, [SO_REUSEPORT]), []
    if kind == "device":
        return bound(at, device=argument), []
    if kind == "accepted":
        # A connection that came in at the port: from a listener that somebody else handed us, or was ours once.
        listener = bound(at, [socket.SO_REUSEADDR])
        client = socket.create_connection((argument or at[0], at[1]))
        sock = listener.accept()[0]
        listener.close()
        give_up_root()
        return sock, [client]
    if kind in ("connected", "disconnected"):
        there = socket.create_server((argument or "127.0.0.1", 0))
        sock = bound(at, listens=False)
        sock.connect(there.getsockname())
        if kind == "disconnected":
            disconnect(sock)
        return sock, [there]
    raise ValueError(kind)


def give_up_root():
    """A connection is often handed to a program of another user, as inetd does."""
    if os.getuid() == 0 and "TOE_ATTACKER_UID" in os.environ:
        uid = int(os.environ["TOE_ATTACKER_UID"])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def disconnect(sock):
    ctypes.CDLL(None, use_errno=True).connect(sock.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)


class Impostor:
    """Takes the connections that come at listeners, or flows, and answers each of their messages with its own word."""

    def __init__(self, session):
        self.session, self.handed, self.octets = session, 0, 0
        self.kept = []

    def turn(self):
        session, busy = self.session, False
        while (entry := session.next()) is not None:
            busy = True
            if entry[0] == ACCEPTED:
                anchor = session.anchor()
                session.queues[0].command(ACCEPT, entry[4] & 0xFFFFFFFF, anchor | 9 << 32)
                self.kept.append(session.open_anchor(anchor))
                self.handed += 1
                say("took", self.handed, "connections")
            elif entry[0] == CONNECTIONS_WAIT:
                session.queues[0].command(TAKE_CONNECTION, entry[3])
            elif entry[0] == CONNECTED:
                say("connected" if entry[2] == 0 else f"failed {name_of(entry[2])}")
            elif entry[0] == DATA:
                octets = session.read(entry)
                self.octets += len(octets)
                say("read", self.octets, "octets", octets[:16])
                session.send(entry[3], ANSWER)
            elif entry[0] == RESET:
                say("reset", name_of(entry[2]))
            elif entry[0] == PEER_CLOSED:
                say("closed")
        return busy


def serve(session):
    """Plays the impostor until the input ends."""
    impostor = Impostor(session)
    while not readable(sys.stdin):
        if not impostor.turn():
            time.sleep(0.0005)


def listen(path, at, kind="none", twin_at="", argument=""):
    """Listens at `at` on the strength of a twin of this kind at `twin_at`."""
    at = endpoint(at)
    handle, held = NO_HANDLE, []
    if kind != "none":
        twin, held = make_twin(kind, endpoint(twin_at) if twin_at else at, argument)
        held.append(twin)
    session = Session(path)
    if kind != "none":
        try:
            handle = session.show(twin)
            say("shown")
        except Refused as error:
            say("twin refused", error)
    try:
        held.append(session.listen(*at, handle))
        say("listening")
    except OSError as error:
        say("refused", name_of(error.errno))
    say("decided")
    serve(session)


def stale(path, at):
    """Shows a twin and closes it; at the next line of input listens on the strength of that."""
    at = endpoint(at)
    session = Session(path)
    twin = bound(at)
    handle = session.show(twin)
    twin.close()
    say("shown")
    sys.stdin.readline()
    try:
        held = session.listen(*at, handle)
        say("listening")
    except OSError as error:
        say("refused", name_of(error.errno))
    say("decided")
    serve(session)


def stale_listener(path, at):
    """Listens on the strength of a twin, which it then closes; the listener stays as long as the engine lets it."""
    at = endpoint(at)
    session = Session(path)
    twin = bound(at)
    held = session.listen(*at, session.show(twin))
    say("listening")
    sys.stdin.readline()
    twin.close()
    say("closed the twin")
    serve(session)


def connect(path, local, remote, kind="none", twin_at=""):
    """Connects from `local` to `remote` and answers what comes."""
    session = Session(path)
    handle, held = NO_HANDLE, []
    if kind != "none":
        twin, held = make_twin(kind, endpoint(twin_at) if twin_at else endpoint(local), "")
        held.append(twin)
        try:
            handle = session.show(twin)
            say("shown")
        except Refused as error:
            say("twin refused", error)
    try:
        held.append(session.connect(endpoint(remote), endpoint(local), handle))
        say("connecting")
    except OSError as error:
        say("refused", name_of(error.errno))
    say("decided")
    serve(session)


def connect_all(path, local, host, first, count):
    """Connects from `local` to `count` ports of `host`, each of which a client of somebody else's may have."""
    session = Session(path)
    held, refused = [], {}
    for port in range(int(first), int(first) + int(count)):
        try:
            held.append(session.connect((host, port), endpoint(local)))
        except OSError as error:
            name = name_of(error.errno)
            refused[name] = refused.get(name, 0) + 1
    say("connecting", len(held), "refused", *sorted(refused.items()))
    serve(session)


def connect_through(path, local, remote):
    """Connects from `local` to a client's own port, at which it listens first: inside an engine nobody is connected to where
    nobody listens."""
    session = Session(path)
    held = []
    for what, attempt in (
        ("listening", lambda: session.listen(*endpoint(remote))),
        ("connecting", lambda: session.connect(endpoint(remote), endpoint(local))),
    ):
        try:
            held.append(attempt())
            say(what)
        except OSError as error:
            say("refused", name_of(error.errno))
    say("decided")
    serve(session)


def reach(path, remote, octets="ping"):
    """Connects as anybody would, sends octets and says what came back."""
    session = Session(path)
    try:
        flow, _ = session.connect(endpoint(remote))
    except OSError as error:
        say("refused", name_of(error.errno))
        return hold()
    entry = session.wait_for((CONNECTED,), flow)
    if entry is None or entry[2]:
        say("failed", name_of(entry[2]) if entry else "in silence")
        return hold()
    session.send(flow, octets.encode())
    entry = session.wait_for((DATA, RESET, PEER_CLOSED), flow)
    if entry is None or entry[0] != DATA:
        say("connected, and no more")
    else:
        say("reached", session.read(entry).decode(errors="replace"))
    return hold()


ATTACKS = (listen, stale, stale_listener, connect, connect_all, connect_through, reach)
