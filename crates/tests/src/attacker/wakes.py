"""Descriptors that the engine wakes, or closes, and on which very many wait, or one who holds the lock that it takes."""

import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import threading
import time

from descriptors import LIBC, Fuse, private_mounts
from interface import CONNECT, IRQ_ARMED, SHARE, Refused, Session, connect_args
from names import give_up_root
from talk import descriptors, hold, say

# Copies of a descriptor, each of which an epoll can watch once.
COPIES = 2000
# A process that waits for nothing else.
CROWD = 400


def watch(fd, count):
    """So many entries of epolls wait for something that never comes of it: who wakes it goes through all of them."""
    most = descriptors()
    copies = [os.dup(fd) for _ in range(min(COPIES, count, most // 2))]
    sets, done = [], 0
    while done < count:
        sets.append(select.epoll())
        for copy in copies:
            sets[-1].register(copy, select.EPOLLPRI)
            done += 1
    return sets, copies


def crowd(fd, count):
    """So many processes are one group, each of which the kernel signals when something comes."""
    kept, _ = os.pipe()
    for n in range(count):
        if os.fork() == 0:
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            os.read(kept, 1)
            os._exit(0)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def pollers(fd, count):
    """So many threads sleep in poll(2)."""
    threading.stack_size(1 << 16)
    for _ in range(count):
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        threading.Thread(target=poll.poll, daemon=True).start()


def make_it_wake(session, which):
    """The engine does once what wakes those who wait for `which`."""
    if which == "control":
        try:
            session.control.ask(SHARE)
        except Refused:
            pass
        return
    queue = session.queues[0]
    if which == "irq":
        queue.register(IRQ_ARMED, 1)
    session.token += 1
    # Something to do each time, so that it is no ring in vain.
    queue.command(CONNECT, session.token, args=connect_args(("", 0), ("", 0), session.anchor_kept))
    session.result(session.token)
    try:
        os.read(queue.irq, 8)
    except BlockingIOError:
        pass


def wakes(path, which, how, count):
    """Has the engine wake without end what very many wait for."""
    session = Session(path)
    session.anchor_kept = session.anchor()
    fd = {"control": session.control.socket.fileno(), "bell": session.bell, "irq": session.queues[0].irq}[which]
    os.set_blocking(session.queues[0].irq, False)
    kept = {"watch": watch, "crowd": crowd, "pollers": pollers}[how](fd, int(count))
    say("waited for by", count)
    done = 0
    while True:
        make_it_wake(session, which)
        done += 1
        if done & (done - 1) == 0:
            say("woken", done)
        if session.fenced():
            say("fenced", session.fenced(), kept)


def last_close(path, which):
    """The engine has the last copy of a descriptor that an epoll of ours watches, whose lock we keep: who closes it waits for that."""
    private_mounts()
    fuse = Fuse(os.path.join(os.environ["TOE_ATTACKER_DIR"], "silent"))
    give_up_root()
    memory = fuse.memory()
    at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    session = Session(path)
    fd = {"control": session.control.socket.fileno(), "bell": session.bell}[which]
    epoll = LIBC.epoll_create1(0)
    event = ctypes.create_string_buffer((select.EPOLLOUT).to_bytes(4, "little") + bytes(8), 12)
    if LIBC.epoll_ctl(epoll, 1, fd, event) != 0:
        raise OSError(ctypes.get_errno(), "epoll_ctl")
    threading.Thread(target=LIBC.epoll_wait, args=(epoll, at, 1, -1), daemon=True).start()
    while not fuse.flag[1]:
        time.sleep(0.001)
    if which == "bell":
        os.close(session.bell)
    # The session ends, and the engine lets go of all that it has of it.
    session.control.socket.shutdown(socket.SHUT_RDWR)
    say("let go")
    hold()


def rings(path, count):
    """Rings the bells of sessions that are over."""
    over = []
    for _ in range(int(count)):
        session = Session(path)
        session.control.socket.shutdown(socket.SHUT_RDWR)
        over.append(session)
    say("over", len(over))
    while True:
        for session in over:
            session.ring()


CHILD = """
import array, socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", int(sys.argv[2])))
to = socket.socket(fileno=int(sys.argv[1]))
to.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [udp.fileno()]))])
sys.stdin.read()
"""


def udp(path, toe, port, count):
    """A UDP socket of a program's on the engine that very many wait for, with a program that is on none."""
    ours, theirs = socket.socketpair()
    name = os.path.basename(path).removesuffix(".sock")
    words = [toe, "run", "--name", name, "--", "/usr/bin/python3", "-c", CHILD, str(theirs.fileno()), port]
    subprocess.Popen(words, pass_fds=[theirs.fileno()])
    sock = socket.socket(fileno=socket.recv_fds(ours, 10, 1)[1][0])
    kept = watch(sock.fileno(), int(count))
    say("waited for by", count, "at", sock.getsockname())
    came = 0
    while kept:
        sock.recv(100)
        came += 1
        if came & (came - 1) == 0:
            say("woken", came)


ATTACKS = (wakes, last_close, rings, udp)
