"""Connections and listeners that several processes have: nothing of a stream is lost or doubled, and nobody waits in vain."""
import array
import fcntl
import os
import random
import select
import socket
import sys
import threading

SIZE = 3_000_000
DATA = random.Random(1).randbytes(SIZE)


def listener():
    made = socket.create_server(("127.0.0.1", 0), backlog=100)
    return made, made.getsockname()


def child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            print(os.getpid(), repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a child failed"


def client(address):
    made = socket.create_connection(address)
    made.settimeout(20)
    return made


def read_all(sock, piece=8192):
    got = bytearray()
    while part := sock.recv(piece):
        got += part
    return bytes(got)


def a_process_for_each_connection(forks_again_at):
    """The child forks once more while octets arrive, and reads on."""
    serving, address = listener()

    def serve(conn):
        got, reads = bytearray(), 0
        while True:
            if reads == forks_again_at:
                ended(child(conn.close))
            part = conn.recv(8192)
            reads += 1
            if not part:
                break
            got += part
        assert got == DATA, f"{len(got)} octets"

    def server():
        for _ in range(5):
            conn, _ = serving.accept()
            pid = child(lambda: serve(conn))
            conn.close()
            ended(pid)

    pid = child(server)
    serving.close()
    for _ in range(5):
        sock = client(address)
        for at in range(0, SIZE, 8192):
            sock.sendall(DATA[at:at + 8192])
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
    ended(pid)


def one_reads_one_writes():
    serving, address = listener()

    def server():
        conn, _ = serving.accept()
        conn.sendall(b"hello")
        assert conn.recv(5) == b"world"

        def reader():
            got = bytearray()
            while len(got) < SIZE:
                got += conn.recv(65536)
            assert got == DATA

        pid = child(reader)
        conn.sendall(DATA)
        ended(pid)

    pid = child(server)
    sock = client(address)
    assert sock.recv(5) == b"hello"
    sock.sendall(b"world")
    sender = threading.Thread(target=lambda: sock.sendall(DATA))
    sender.start()
    assert read_all(sock, 65536) == DATA
    sender.join()
    ended(pid)


def a_server_goes_on_after_a_fork():
    """Its child touches nothing; the connection that was in use goes on in the parent, which waits by epoll."""
    serving, address = listener()

    def server():
        waits = select.epoll()
        conn, _ = serving.accept()
        waits.register(conn, select.EPOLLIN)
        seen = 0
        while True:
            waits.poll()
            part = conn.recv(16384)
            if not part:
                return
            conn.sendall(part)
            seen += 1
            if seen == 200:
                ended(child(lambda: None))

    pid = child(server)
    sock = client(address)
    for n in range(2000):
        sock.sendall(DATA[n:n + 100])
        got = b""
        while len(got) < 100:
            got += sock.recv(100)
        assert got == DATA[n:n + 100]
    sock.close()
    ended(pid)


def waits_for_who_accepts():
    """Of several processes with the listener only the one that holds a lock accepts."""
    serving, address = listener()
    lock = os.memfd_create("lock")

    def worker():
        for _ in range(10):
            fcntl.lockf(lock, fcntl.LOCK_EX)
            waits = select.poll()
            waits.register(serving, select.POLLIN)
            assert waits.poll(20_000), "a connection waits"
            conn, _ = serving.accept()
            fcntl.lockf(lock, fcntl.LOCK_UN)
            conn.sendall(b"served")
            conn.close()

    pids = [child(worker) for _ in range(3)]
    for _ in range(10):
        three = [client(address) for _ in range(3)]
        for sock in three:
            assert read_all(sock) == b"served"
    [ended(pid) for pid in pids]


def passed(what, use):
    """A descriptor goes to a process that has nothing to do with it yet."""
    ours, theirs = socket.socketpair()
    arrived = array.array("i", [0])

    def receiver():
        _, ancillary, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
        arrived.frombytes(ancillary[0][2])
        use(socket.socket(fileno=arrived[1]))

    pid = child(receiver)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [what.fileno()]))])
    what.close()
    return pid


def passing():
    serving, address = listener()
    sock = client(address)
    conn, _ = serving.accept()
    sock.sendall(b"before")
    pid = passed(conn, lambda got: got.sendall(got.recv(100)))
    assert read_all(sock) == b"before"
    ended(pid)
    # A new process, so that nothing of it is a copy of the listener but what it is sent.
    second, address = listener()

    def accept(got):
        conn, _ = got.accept()
        conn.sendall(b"served")

    pid = passed(second, accept)
    assert read_all(client(address)) == b"served"
    ended(pid)


def by_fork_and_in_a_message():
    """A child that has a connection by fork is sent it as well: it is the same one under both numbers."""
    serving, address = listener()
    sock = client(address)
    ours, theirs = socket.socketpair(socket.AF_UNIX)

    def twice():
        conn, _ = serving.accept()
        sock.setblocking(False)
        try:
            sock.recv(1)
        except BlockingIOError:
            pass
        sock.setblocking(True)
        theirs.sendall(b"send it")
        conn.sendall(DATA[:212])
        got = socket.socket(fileno=socket.recv_fds(theirs, 10, 1)[1][0])
        for one in (got, sock, got, sock):
            assert one.recv(500, socket.MSG_PEEK) == DATA[:212]
        assert got.recv(100) + sock.recv(100) + got.recv(100) == DATA[:212]

    pid = child(twice)
    assert ours.recv(10) == b"send it"
    socket.send_fds(ours, [b"here"], [sock.fileno()])
    ended(pid)


def one_that_stands_still():
    """The only process that takes connections stops doing so while some wait for it; another one begins."""
    serving, address = listener()
    (first, of_first), (second, of_second) = socket.socketpair(), socket.socketpair()

    def takes_one():
        conn, _ = serving.accept()
        conn.sendall(b"first")
        assert of_first.recv(9) == b"go on"
        serving.setblocking(False)
        try:
            serving.accept()
            raise AssertionError("what it had left was taken")
        except BlockingIOError:
            pass

    def takes_the_rest():
        assert of_second.recv(9) == b"begin"
        for _ in range(5):
            serving.accept()[0].sendall(b"second")

    children = [child(takes_one), child(takes_the_rest)]
    serving.close()
    held = client(address)
    assert held.recv(9) == b"first"
    rest = [client(address) for _ in range(5)]
    second.sendall(b"begin")
    assert [read_all(sock) for sock in rest] == [b"second"] * 5
    first.sendall(b"go on")
    for pid in children:
        ended(pid)


def over_exec():
    """A program is executed with the listener while a connection waits there."""
    serving, address = listener()
    os.set_inheritable(serving.fileno(), True)
    code = f"import socket; c, _ = socket.socket(fileno={serving.fileno()}).accept(); c.sendall(c.recv(9))"

    def server():
        waits = select.poll()
        waits.register(serving, select.POLLIN)
        assert waits.poll(20_000)
        # Without the variables that put it under the switch layer: they are added when a socket goes along.
        os.execve(sys.executable, [sys.executable, "-c", code], {"PATH": os.environ["PATH"]})

    pid = child(server)
    serving.close()
    sock = client(address)
    sock.sendall(b"hello")
    assert sock.recv(9) == b"hello"
    ended(pid)


def standard_streams():
    """inetd's way: the connection is standard input and output of a program that uses C's stdio."""
    serving, address = listener()

    def server():
        conn, _ = serving.accept()
        os.dup2(conn.fileno(), 0)
        os.dup2(conn.fileno(), 1)
        os.execvp("sort", ["sort"])

    pid = child(server)
    serving.close()
    sock = client(address)
    sock.sendall(b"b\nc\na\n")
    sock.shutdown(socket.SHUT_WR)
    assert read_all(sock) == b"a\nb\nc\n"
    ended(pid)


for again_at in (0, 5, -1):
    a_process_for_each_connection(again_at)
one_reads_one_writes()
a_server_goes_on_after_a_fork()
waits_for_who_accepts()
passing()
one_that_stands_still()
by_fork_and_in_a_message()
over_exec()
standard_streams()
print("same")
