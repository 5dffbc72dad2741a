"""What one gets to see and to command of an engine that others use, and an engine that is none."""

import mmap
import os
import socket
import sys

from interface import CAPTURE, END_CAPTURE, REPORT, STOP, STOP_WHEN_UNUSED, Control, Refused
from talk import hold, say

# What stands before each packet (crates/abi/src/capture).
RECORD_LEN = 112


def look(path):
    """Reports, word for word."""
    for what in (0, 1):
        try:
            # A report is there as long as its connection is.
            control = Control(path)
            _, words, fds = control.ask(REPORT, [what])
            say("report", what, mmap.mmap(fds[0], words[0], prot=mmap.PROT_READ)[:].decode())
        except (Refused, OSError) as error:
            say("refused", what, error)
    say("looked")
    hold()


def command(path):
    """What is for the engine's own user alone."""
    for name, kind in (("stop-when-unused", STOP_WHEN_UNUSED), ("stop", STOP)):
        try:
            Control(path).ask(kind)
            say("obeyed", name)
        except (Refused, OSError) as error:
            say("refused", name, error)
    say("commanded")
    hold()


def overhear(path):
    """Captures until it is told to stop, and says how much came before the record that ends it."""
    control, heard = Control(path), b""
    try:
        stream = socket.socket(fileno=control.ask(CAPTURE, [256, 0, 0])[2][0])
        say("overhears")
        sys.stdin.readline()
        control.ask(END_CAPTURE)
        while octets := stream.recv(1 << 16):
            heard += octets
        say("heard", len(heard) // RECORD_LEN - 1, "records")
    except (Refused, OSError) as error:
        say("overhears nothing:", error)
    hold()


def pose(path, at):
    """Waits as an engine would, at the place where somebody else's programs may look for one."""
    os.umask(0)
    os.mkdir(os.path.dirname(at), 0o777)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(at)
    listener.listen()
    say("posing")
    while True:
        connection, _ = listener.accept()
        message = connection.recv(64)
        say("greeted", len(message))
        connection.close()


ATTACKS = (look, command, overhear, pose)
