"""What a program does on one connection and then on another is seen in that order by who holds the other ends, and what a call has
returned for is found by a look that does not wait. Prints how often it was not: order.py PORT ROUNDS [PROCESS OF THE ENGINE]."""
import errno
import fcntl
import os
import select
import signal
import socket
import sys
import termios

PORT, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
ENGINE = int(sys.argv[3]) if len(sys.argv) > 3 else None
OLD_REQUESTS = 500
"""So many requests make an old connection, of which everything that can be faster is."""


def listener(port):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen(64)
    return made


def connected(port):
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def forked(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def exchange(end):
    end.send(b"e")
    end.recv(1)


def stand_still(old, gone):
    """The engine stands still, a close is before it, and the old connection goes on: each of its requests comes after that close."""
    if ENGINE is not None:
        os.kill(ENGINE, signal.SIGSTOP)
        while open(f"/proc/{ENGINE}/stat").read().rpartition(")")[2].split()[0] != "T":
            pass
    gone.close()
    for _ in range(50):
        exchange(old)
    if ENGINE is not None:
        os.kill(ENGINE, signal.SIGCONT)


def new_before_old(port=PORT, stands_still=False):
    """A request on a new connection, then one on an old one: a server with one thread must meet the first one first."""
    at = listener(port)

    def client():
        old = connected(port)
        for _ in range(OLD_REQUESTS):
            exchange(old)
        if stands_still:
            gone = connected(port)
            exchange(gone)
            stand_still(old, gone)
        for _ in range(ROUNDS):
            new = connected(port)
            exchange(new)
            new.send(b"A")
            old.send(b"B")
            old.recv(1)
            new.close()
        old.close()

    pid = forked(client)
    waiting, known, first, reversed_ = select.epoll(), {}, 0, 0
    waiting.register(at.fileno(), select.EPOLLIN)
    met = 0
    while met < ROUNDS:
        for fd, _ in waiting.poll(20):
            if fd == at.fileno():
                one, _ = at.accept()
                known[one.fileno()] = one
                waiting.register(one.fileno(), select.EPOLLIN)
                continue
            said = known[fd].recv(1)
            if not said:
                waiting.unregister(fd)
                known.pop(fd).close()
            elif said == b"A":
                first += 1
            else:
                if said == b"B":
                    met += 1
                    reversed_ += first < met
                known[fd].send(said)
    os.waitpid(pid, 0)
    return reversed_


def new_before_old_later():
    """The same after the engine stood still for a moment, as it does on a busy machine."""
    return new_before_old(PORT + 6, stands_still=True)


def connection_before_word():
    """Active FTP: a server connects back, sends, closes, and says so on the old connection: the new one can be accepted then."""
    at = listener(PORT + 1)

    def server():
        asks, _ = at.accept()
        while port := asks.recv(2):
            data = connected(int.from_bytes(port, "big"))
            data.send(b"data")
            data.close()
            asks.send(b"done")

    pid = forked(server)
    asks, missing = connected(PORT + 1), 0
    for _ in range(ROUNDS):
        own = listener(0)
        asks.send(own.getsockname()[1].to_bytes(2, "big"))
        asks.recv(4)
        missing += not select.select([own], [], [], 0)[0]
        own.close()
    asks.close()
    os.waitpid(pid, 0)
    return missing


def at_once():
    """Sent on one end, looked for at the other by the same thread."""
    at, missing = listener(PORT + 2), 0
    for _ in range(ROUNDS // 5):
        one = connected(PORT + 2)
        other, _ = at.accept()
        other.setblocking(False)
        for _ in range(5):
            one.send(b"x" * 10)
            try:
                other.recv(10)
            except BlockingIOError:
                missing += 1
                select.select([other], [], [])
                other.recv(10)
        one.close()
        other.close()
    return missing


def counted_at_once():
    """Sent on one end, counted at the other by FIONREAD."""
    at, missing = listener(PORT + 3), 0
    for _ in range(ROUNDS):
        one = connected(PORT + 3)
        other, _ = at.accept()
        one.send(b"x" * 10)
        missing += unread(other) != 10
        one.close()
        other.close()
    return missing


def unread(end):
    return int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)


def error_at_once():
    """Closed with something unread, which the other end finds by SO_ERROR."""
    at, missing = listener(PORT + 4), 0
    for _ in range(ROUNDS):
        one = connected(PORT + 4)
        other, _ = at.accept()
        one.send(b"x")
        other.close()
        missing += one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != errno.ECONNRESET
        one.close()
    return missing


def reset_at_once():
    """Sent to who has closed, which the next send finds."""
    at, missing = listener(PORT + 5), 0
    for _ in range(ROUNDS):
        one = connected(PORT + 5)
        other, _ = at.accept()
        other.close()
        one.recv(1)
        one.send(b"x")
        try:
            one.send(b"y")
            missing += 1
        except OSError as error:
            missing += error.errno != errno.EPIPE
        one.close()
    return missing


def both_ends_at_once():
    """Sent by both ends of a connection, of which one process has both: a wait for either finds both. Often, as little time is
    between the two."""
    at, missing = listener(PORT + 6), 0
    one = connected(PORT + 6)
    other, _ = at.accept()
    ready = select.epoll()
    for end in (one, other):
        ready.register(end, select.EPOLLIN)
    for _ in range(100 * ROUNDS):
        one.send(b"x")
        other.send(b"y")
        missing += len(ready.poll(1, 4)) != 2
        one.recv(1)
        other.recv(1)
    return missing


for look in (
    new_before_old,
    new_before_old_later,
    connection_before_word,
    at_once,
    counted_at_once,
    error_at_once,
    reset_at_once,
    both_ends_at_once,
):
    print(f"{look.__name__} {look()}", flush=True)
