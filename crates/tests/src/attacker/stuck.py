"""Descriptors that wait when they are closed or looked at, given to the engine in every way that there is."""

import os
import signal
import socket
import threading

from descriptors import Fuse, Linger, private_mounts
from interface import (CAPTURE, CLAIM, CONNECT, IRQ_ARMED, IRQ_MODE, RECOGNISE, SHOW_TWIN, Control, Refused, Session,
                       connect_args, name_of, until)
from names import bound, give_up_root
from talk import hold, say

# Requests that are no requests, before the one that counts: while the engine answers them, our own copy of the descriptor
# is closed, and the engine's is the last. If it is quicker all the same, there is another.
PREFACE = 128
ATTEMPTS = 4
KEPT = []
UNKNOWN = 0x7F

KINDS = {
    "show-twin": (SHOW_TWIN, []),
    "recognise": (RECOGNISE, []),
    "claim": (CLAIM, [0, 3]),
    "filter": (CAPTURE, [100, 0, 64]),
}


def give(path, control, how, make, keep, attempts):
    kind, args = KINDS.get(how, (SHOW_TWIN, []))
    signal.signal(signal.SIGALRM, lambda *_: None)
    for _ in range(attempts):
        fd = make()
        if how == "in-flight":
            # What is no message ends the connection.
            control = Control(path)
            KEPT.append(control)
        try:
            for _ in range(PREFACE):
                control.say(UNKNOWN, flags=socket.MSG_DONTWAIT)
            if how == "in-flight":
                control.socket.send(b"no message")
            control.say(kind, args, [fd], socket.MSG_DONTWAIT)
            say("given", how)
        except OSError as error:
            say("not given", how, name_of(error.errno))
        if not keep:
            # If ours is the last it waits, until a signal comes; one may come too early.
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.1)
            os.close(fd)
            signal.setitimer(signal.ITIMER_REAL, 0)


def attach(path, held):
    """The control connection of a new session, or one without if the engine gives none."""
    try:
        held.append(Session(path))
        return held[-1].control
    except Refused as error:
        say("hello refused", error)
        return Control(path)


def stuck(path, what, *hows):
    """Gives one descriptor in each of these ways, each over a connection of its own."""
    if what == "fuse":
        source = Fuse(os.path.join(os.environ["TOE_ATTACKER_DIR"], "silent"))
        give_up_root()
    else:
        source = Linger()
    # All attach first: once one of his descriptors is stuck, a user's other requests may stand still as well.
    controls, held = [], []
    for how in hows:
        controls.append(Control(path) if how in ("no-hello", "in-flight") else attach(path, held))
    for how, control in zip(hows, controls):
        # A file of FUSE is flushed at each close, so ours stays open.
        give(path, control, how, source.make, what == "fuse", ATTEMPTS if what == "linger" and len(hows) == 1 else 1)
    say("done", len(hows))
    hold()
    # What is ours would wait as the engine's does.
    os._exit(0)


def held_interrupts(path, count="4"):
    """Takes interrupts into memory that waits when it is written, and asks for more."""
    silent = Fuse(os.path.join(os.environ["TOE_ATTACKER_DIR"], "silent"))
    memories = [silent.memory() for _ in range(int(count))]
    give_up_root()
    sessions = [Session(path) for _ in memories]
    for session in sessions:
        session.take_anchors()
    for session, memory in zip(sessions, memories):
        queue = session.queues[0]
        os.set_blocking(queue.irq, True)
        threading.Thread(target=os.readv, args=(queue.irq, [memory]), daemon=True).start()
        for token in range(8):
            queue.register(IRQ_MODE, 0)
            queue.register(IRQ_ARMED, 1)
            # Refused at once, which is something to tell; the engine clears the register before it gives the interrupt.
            queue.command(CONNECT, token, args=connect_args(("192.0.2.1", 9), ("", 0), session.anchor()))
            until(lambda at=queue: at.irq_given(), 0.2)
    say("done", len(sessions))
    hold()
    os._exit(0)


def held_anchors(path, how):
    """Keeps the locks of directories of anchors, and has the engine remove them: what a session leaves (`session`), what
    another process shows (`claim`), or any session's, by the directory above them all, as root of a container (`above`)."""
    private_mounts()
    silent = Fuse(os.path.join(os.environ["TOE_ATTACKER_DIR"], "silent"))
    give_up_root()
    session, other = Session(path), Session(path)
    if how == "above":
        silent.list(os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=session.anchors_dir))
        session.close()
    elif how == "session":
        silent.list(session.open_anchor(session.anchor()))
        session.close()
    else:
        twin = bound(("127.0.0.1", 0))
        _, anchor = session.listen(*twin.getsockname(), session.show(twin))
        silent.list(anchor)
        other.control.say(CLAIM, [0, anchor], [anchor])
    say("done", how)
    hold()
    os._exit(0)


ATTACKS = (stuck, held_interrupts, held_anchors)
