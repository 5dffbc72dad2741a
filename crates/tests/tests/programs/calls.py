"""Calls on connections that few programs make: urgent data, splice, sets in sets, calls by number, handlers of signals."""
import ctypes
import os
import select
import signal
import socket
import struct
import tempfile
import threading

LISTENER = socket.create_server(("127.0.0.1", 0))


def pair():
    client = socket.create_connection(LISTENER.getsockname())
    client.settimeout(10)
    server, _ = LISTENER.accept()
    server.settimeout(10)
    return client, server


def readable(what, milliseconds=10_000):
    waits = select.poll()
    waits.register(what, select.POLLIN)
    return bool(waits.poll(milliseconds))


def urgent(warm):
    """The octet is left out of the stream, and reads stop at it."""
    a, b = pair()
    for _ in range(warm):
        a.sendall(b"x" * 1000)
        left = 1000
        while left:
            left -= len(b.recv(left))
    a.sendall(b"abc")
    a.send(b"!", socket.MSG_OOB)
    a.sendall(b"def")
    waits = select.poll()
    waits.register(b, select.POLLPRI)
    assert waits.poll(10_000), "urgent data shows"
    got = b""
    while len(got) < 3:
        got += b.recv(10)
    assert got == b"abc", got
    assert b.recv(10, socket.MSG_OOB) == b"!"
    try:
        b.recv(10, socket.MSG_OOB)
        raise AssertionError("it was read twice")
    except OSError as error:
        assert error.errno == 22, error
    got = b""
    while len(got) < 3:
        got += b.recv(10)
    assert got == b"def", got
    b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    a.send(b"XY", socket.MSG_OOB)
    got = b""
    while len(got) < 2:
        got += b.recv(10)
    assert got == b"XY", got


def urgent_and_no_more(is_reset):
    """A look that leaves the urgent octet out sees the end behind it."""
    a, b = pair()
    a.send(b"x", socket.MSG_OOB)
    if is_reset:
        a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    a.close()
    waits = select.poll()
    waits.register(b, select.POLLRDHUP)
    assert waits.poll(10_000), "the end shows"
    try:
        assert b.recv(10, socket.MSG_PEEK) == b"" and not is_reset
    except ConnectionResetError:
        assert is_reset


def urgent_taken_once():
    """It is not in the stream of another process that looks, nor of this one when it gets the connection back."""
    a, b = pair()
    b.settimeout(None)
    waits = select.poll()
    waits.register(b, select.POLLPRI)
    a.send(b"12X", socket.MSG_OOB)
    assert waits.poll(10_000), "urgent data shows"
    assert b.recv(10) == b"12" and b.recv(1, socket.MSG_OOB) == b"X"
    child = os.fork()
    if not child:
        try:
            b.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "nothing to look at"
    a.send(b"abcY", socket.MSG_OOB)
    assert waits.poll(10_000), "urgent data shows again"
    assert b.recv(1, socket.MSG_OOB) == b"Y" and b.recv(10) == b"abc"
    a.send(b"de")
    assert b.recv(10) == b"de"


def spliced():
    a, b = pair()
    a.settimeout(None)
    b.settimeout(None)
    r, w = os.pipe()
    data = os.urandom(200_000)

    def feed():
        os.set_blocking(w, True)
        for at in range(0, len(data), 10_000):
            os.write(w, data[at:at + 10_000])
        os.close(w)

    def move():
        while os.splice(r, a.fileno(), 1 << 20):
            pass
        a.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=feed), threading.Thread(target=move)]
    [thread.start() for thread in threads]
    r2, w2 = os.pipe()
    got = b""
    while moved := os.splice(b.fileno(), w2, 1 << 16):
        while moved:
            part = os.read(r2, moved)
            got += part
            moved -= len(part)
    [thread.join() for thread in threads]
    assert got == data


def nested():
    a, b = pair()
    inner, outer = select.epoll(), select.epoll()
    inner.register(b, select.EPOLLIN)
    outer.register(inner, select.EPOLLIN)
    assert outer.poll(0) == []
    sender = threading.Thread(target=lambda: a.sendall(b"x"))
    sender.start()
    assert len(outer.poll(10)) == 1 and readable(outer)
    sender.join()
    assert b.recv(1) == b"x" and outer.poll(0) == []


def by_number():
    """A number that was closed so and given out again is not the connection any more."""
    libc = ctypes.CDLL(None)
    a, b = pair()
    number = b.detach()
    assert libc.syscall(ctypes.c_long(3), ctypes.c_long(number)) == 0
    assert a.recv(1) == b"", "the peer hears of it"
    with tempfile.TemporaryFile() as file:
        file.write(b"text")
        file.seek(0)
        assert file.fileno() == number, "the lowest free number"
        assert file.read() == b"text"


def in_handler():
    """A handler uses a connection while its thread waits for another."""
    a, b = pair()
    c, d = pair()
    answers = []

    def handler(*_):
        d.sendall(b"?")
        answers.append(c.recv(1))
        a.sendall(b"!")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    assert b.recv(1) == b"!" and answers == [b"?"]


urgent(0)
urgent(50)
urgent_and_no_more(False)
urgent_and_no_more(True)
urgent_taken_once()
spliced()
nested()
by_number()
in_handler()
print("same")
