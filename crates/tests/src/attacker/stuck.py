"""Descriptors that wait when they are closed or looked at, given to the engine in every way that there is."""

import mmap
import os
import threading

from descriptors import Fuse, Linger
from interface import (CLAIM, CONNECT, IRQ_ARMED, IRQ_MODE, RECOGNISE, RELINQUISH, SHOW_TWIN, Control, Refused, Session,
                       connect_args, name_of, until)
from names import give_up_root
from talk import hold, say

# Requests that are no requests, before the one that counts: until the engine has answered them all, our own copy of the
# descriptor is closed, and the engine's is the last.
PREFACE = 64
UNKNOWN = 0x7F

KINDS = {
    "show-twin": (SHOW_TWIN, []),
    "recognise": (RECOGNISE, []),
    "claim": (CLAIM, [0, 3]),
    "relinquish": (RELINQUISH, [0, 4096]),
}


def give(control, how, make, keep):
    kind, args = KINDS.get(how, (SHOW_TWIN, []))
    fd = make()
    for _ in range(PREFACE):
        control.say(UNKNOWN)
    if how == "in-flight":
        control.socket.send(b"no message")
    try:
        control.say(kind, args, [fd])
        say("given", how)
    except OSError as error:
        # Nobody took it, and our own close would wait.
        return say("not given", how, name_of(error.errno))
    if not keep:
        # If the engine was quicker, it is ours that waits.
        closing = threading.Thread(target=os.close, args=(fd,), daemon=True)
        closing.start()
        closing.join(1.0)
    return None


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
        give(control, how, source.make, keep=what == "fuse")
    say("done", len(hows))
    hold()
    # What is ours would wait as the engine's does.
    os._exit(0)


def held_interrupts(path, count="4"):
    """Takes interrupts into memory that waits when it is written, and asks for more."""
    silent = Fuse(os.path.join(os.environ["TOE_ATTACKER_DIR"], "silent"))
    fd = silent.make()
    silent.silence(False)
    memories = [mmap.mmap(fd, 4096) for _ in range(int(count))]
    silent.silence(True)
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


ATTACKS = (stuck, held_interrupts)
