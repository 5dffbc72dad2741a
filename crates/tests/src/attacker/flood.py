"""Asking without end for what costs the engine time, from as many sessions as one gets."""

import os
import struct
import sys
import time

from hoard import fill_flows
from interface import (ANCHOR_FREE, CAPTURE, CLAIM, CLOSE_LISTENER, CONNECT, CONNECTED, HELLO, IN_USE, LISTEN, REPORT, RESULT,
                       TAKE_ANCHORS, Control, Refused, Session, connect_args, listen_args, readable, until)
from names import bound, endpoint
from talk import descriptors, say

# Requests that one connection has under way.
DEPTH = 16
# How often what has been done is told, in rounds.
TELL_EVERY = 64


def ended():
    return bool(readable(sys.stdin))


def attach(path, count):
    """As many of so many sessions as the engine gives."""
    descriptors()
    held = []
    for _ in range(int(count)):
        try:
            control = Control(path)
            [os.close(fd) for fd in control.ask(HELLO)[2]]
        except (Refused, OSError):
            break
        held.append(control)
    return held


def rounds(step):
    """Does `step` until the input ends, and tells now and then how often it was done."""
    done = told = 0
    while not ended():
        done += step() or 0
        if done >= told + TELL_EVERY:
            told = done
            say("rounds", done)


def requests(path, count, kind, args=()):
    """Keeps so many connections asking, with `DEPTH` requests under way each."""
    held = attach(path, count)
    say("flooding", len(held), "sessions")
    under_way = {control: 0 for control in held}

    def step():
        done = 0
        for control in held:
            try:
                got = control.drop_answers()
                under_way[control] -= got
                done += got
                while under_way[control] < DEPTH:
                    control.say(kind, args)
                    under_way[control] += 1
            except OSError:
                under_way[control] = -1 << 62
        if not done:
            time.sleep(0.0002)
        return done

    rounds(step)


def take_anchors(path, count="150"):
    """TakeAnchors from so many sessions; one that can have no more begins anew."""
    held = attach(path, count)
    say("flooding", len(held), "sessions")
    under_way = dict.fromkeys(held, 0)

    def fresh(control):
        control.close()
        under_way.pop(control)
        held.remove(control)
        for new in attach(path, 1):
            held.append(new)
            under_way[new] = 0

    def step():
        done = 0
        for control in list(held):
            try:
                while readable(control.socket):
                    under_way[control] -= 1
                    done += 1
                    control.hear()
                while under_way[control] < DEPTH:
                    control.say(TAKE_ANCHORS, [32])
                    under_way[control] += 1
            except (Refused, OSError):
                fresh(control)
        if not done:
            time.sleep(0.0002)
        return done

    rounds(step)


def reports(path, count="64"):
    """Reports, of which each connection asks for one after the other."""
    requests(path, count, REPORT, [1])


def captures(path, count="64"):
    requests(path, count, CAPTURE, [65535, 0, 0])


def claims(path, remote, count="64"):
    """Claims of a connection whose holder is at it for ever."""
    holder = Session(path)
    flow, anchor = holder.connect(endpoint(remote))
    entry = holder.wait_for((CONNECTED,), flow)
    if entry is None or entry[2]:
        return say("failed")
    holder.own(flow, IN_USE)
    claimers = []
    for _ in range(int(count)):
        try:
            claimers.append(Session(path))
        except (Refused, OSError):
            break
    say("flooding", len(claimers), "sessions")
    under_way = dict.fromkeys(claimers, 0)

    def step():
        done = 0
        for session in claimers:
            try:
                got = session.control.drop_answers()
                under_way[session] -= got
                done += got
                while under_way[session] < DEPTH:
                    session.control.say(CLAIM, [0, anchor], [anchor])
                    under_way[session] += 1
            except OSError:
                under_way[session] = -1 << 62
        holder.own(flow, IN_USE)
        if not done:
            time.sleep(0.0002)
        return done

    return rounds(step)


def crowd(path, host, port, count="28232"):
    """All connections to one destination that there are ports for, and then connects for which there is none."""
    session = Session(path)
    made, _ = fill_flows(session, host, [int(port)], int(count))
    say("flooding", made, "connections")
    anchors = [session.anchor() for _ in range(64)]
    queue = session.queues[0]

    def step():
        done = 0
        while queue.pop() is not None:
            pass
        for handle in anchors:
            if queue.cmd.room() == 0:
                break
            queue.command(CONNECT, 1, args=connect_args((host, int(port)), ("", 0), handle))
            done += 1
        if not done:
            time.sleep(0.0002)
        return done

    rounds(step)


def more_anchors(session):
    """Takes anchors, or takes back those that are free again."""
    try:
        while len(session.free) < 64:
            session.take_anchors()
    except Refused:
        while (entry := session.queues[0].pop()) is not None:
            if entry[0] == ANCHOR_FREE:
                session.free.append(entry[3])
    return len(session.free) >= 64


def close_listeners(path, host, count="30000"):
    """Listeners that come and go, many at a time, beside as many connections as two sessions have."""
    descriptors()
    crowded = [Session(path) for _ in range(2)]
    ports = [9000 + n for n in range(8)]
    made = sum(fill_flows(session, host, ports, int(count))[0] for session in crowded)
    session = Session(path)
    twins = [bound(("127.0.0.1", 0)) for _ in range(64)]
    say("flooding", made, "connections")
    queue = session.queues[0]

    def step():
        anchors = {}
        # Those in hand are few: what was closed comes back a little later.
        if len(session.free) < len(twins) and not more_anchors(session):
            return 0
        for token, twin in enumerate(twins):
            anchors[token] = session.anchor()
            # A handle is for one command.
            args = listen_args(*twin.getsockname(), 4, anchors[token], session.show(twin))
            queue.command(LISTEN, token, args=args)
        results = []

        def look():
            while (entry := queue.pop()) is not None:
                if entry[0] == RESULT:
                    results.append(entry)
                elif entry[0] == ANCHOR_FREE:
                    session.free.append(entry[3])
            return len(results) == len(twins)

        until(look)
        for entry in results:
            if entry[2] == 0:
                os.close(session.open_anchor(anchors[entry[3]]))
                queue.command(CLOSE_LISTENER, entry[4] & 0xFFFFFFFF, flags=1)
            else:
                session.free.append(anchors[entry[3]])
        return len(results)

    rounds(step)


def full_rings(path, count="150", results="6000"):
    """Sessions that do not take their completions."""
    descriptors()
    held = []
    for _ in range(int(count)):
        try:
            session = Session(path)
        except (Refused, OSError):
            break
        held.append(session)
        args = connect_args(("", 0), ("", 0), session.anchor())
        for token in range(int(results)):
            if session.fenced() or not session.queues[0].command(CONNECT, token, args=args):
                break
    say("flooding", len(held), "sessions")

    def step():
        for session in held:
            session.ring()
        return 1

    rounds(step)


def opens(path, count="4"):
    """Anchors that are opened and closed, so that the kernel has more to report than it keeps."""
    pids = []
    session = Session(path)
    session.take_anchors()
    for _ in range(int(count)):
        pid = os.fork()
        if pid == 0:
            names = [str(handle) for handle in session.free]
            while os.getppid() != 1:
                for name in names:
                    os.close(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=session.anchors_dir))
            os._exit(0)
        pids.append(pid)
    say("flooding", len(pids), "processes")
    rounds(lambda: time.sleep(0.001) or 1)
    for pid in pids:
        os.kill(pid, 9)


def doorbells(path, count="8"):
    """Doorbells that ring without end."""
    held = [Session(path) for _ in range(int(count))]
    say("flooding", len(held), "sessions")

    def step():
        for session in held:
            for _ in range(64):
                session.ring()
        return 64

    rounds(step)


def full_bells(path, count="8"):
    """Doorbells that are full, and wait when they are read or written."""
    held = [Session(path) for _ in range(int(count))]
    for session in held:
        os.write(session.bell, struct.pack("<Q", (1 << 64) - 2))
        os.set_blocking(session.bell, True)
    say("flooding", len(held), "sessions")

    def step():
        for session in held:
            os.set_blocking(session.bell, False)
            try:
                os.write(session.bell, struct.pack("<Q", (1 << 64) - 2))
            except BlockingIOError:
                pass
            os.set_blocking(session.bell, True)
        return 1

    rounds(step)


def hellos(path, count="32"):
    """Sessions that come and go."""
    say("flooding", count, "sessions")

    def step():
        for control in attach(path, count):
            control.close()
        return int(count)

    rounds(step)


def spin(_, count="1"):
    """Asks the engine for nothing and leaves no core alone: what any program of this machine may do, to compare with."""
    pids = []
    for _ in range(int(count) - 1):
        pid = os.fork()
        if pid == 0:
            while os.getppid() != 1:
                sum(1 for _ in range(1000))
            os._exit(0)
        pids.append(pid)
    say("flooding", count, "processes")
    rounds(lambda: sum(1 for _ in range(1000)))
    for pid in pids:
        os.kill(pid, 9)


ATTACKS = (spin, take_anchors, reports, captures, claims, crowd, close_listeners, full_rings, opens, doorbells, full_bells,
           hellos)
