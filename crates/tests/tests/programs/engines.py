"""One program on two engines and the kernel's stack at once. TOE_ENGINE has the two engines; both have the local port."""
import os
import select
import signal
import socket
import subprocess
import sys

FIRST, SECOND = os.environ["TOE_ENGINE"].split(":")
CLIENT = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
peer.sendall(sys.argv[2].encode())
print(peer.makefile().read(), end="")
"""


def environment(engines):
    """That of a client on these engines; none of them: on the kernel's stack."""
    made = {name: value for name, value in os.environ.items() if name not in ("TOE_ENGINE", "LD_PRELOAD", "TOE_POLICY")}
    if engines:
        made.update(TOE_ENGINE=":".join(engines), LD_PRELOAD=os.environ["LD_PRELOAD"])
    else:
        # An environment that is merely cleaned gets the layer back.
        made.update(TOE_DISABLE="1")
    return made


STACKS = {"first": [FIRST], "second": [SECOND], "kernel": []}


def client(port, stack):
    command = [sys.executable, "-c", CLIENT, str(port), stack]
    return subprocess.Popen(command, env=environment(STACKS[stack]), stdout=subprocess.PIPE, text=True)


def listener():
    made = socket.create_server(("0.0.0.0", 0), backlog=50)
    return made, made.getsockname()[1]


def serve(conn):
    """What a client says comes back, and so does the end of it."""
    conn.settimeout(20)
    word = conn.recv(100)
    conn.sendall(b"hello " + word)
    conn.close()
    return word.decode()


def finished(clients):
    for name, process in clients:
        said, _ = process.communicate(timeout=30)
        assert said == f"hello {name}", (name, said)


ALL = ["first", "second", "kernel"]


def blocking_accepts():
    listening, port = listener()
    for name in ALL + ALL[::-1] + ALL:
        process = client(port, name)
        assert serve(listening.accept()[0]) == name
        finished([(name, process)])
    # Many at once, of which none starves.
    clients = [(name, client(port, name)) for name in ALL * 3]
    assert sorted(serve(listening.accept()[0]) for _ in clients) == sorted(ALL * 3)
    finished(clients)
    listening.settimeout(0)
    try:
        listening.accept()
        raise AssertionError("there is no other connection")
    except BlockingIOError:
        pass


def waited_for(ready):
    """A connection of each stack makes the listener ready, and it is so until it is taken."""
    listening, port = listener()
    listening.setblocking(False)
    for name in ALL * 2:
        assert not ready(listening, 0)
        process = client(port, name)
        assert ready(listening, 20), name
        assert serve(listening.accept()[0]) == name
        finished([(name, process)])


def by_poll():
    def ready(listening, seconds):
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        return poll.poll(seconds * 1000)
    waited_for(ready)


def by_select():
    waited_for(lambda listening, seconds: select.select([listening], [], [], seconds)[0])


def by_epoll(flags):
    with select.epoll() as epoll:
        watched = []

        def ready(listening, seconds):
            if listening not in watched:
                watched.append(listening)
                epoll.register(listening, select.EPOLLIN | flags)
            elif flags & select.EPOLLONESHOT:
                epoll.modify(listening, select.EPOLLIN | flags)
            return epoll.poll(seconds)
        waited_for(ready)


def children_accept():
    """A listener from before a fork is the child's, too, on each stack."""
    listening, port = listener()
    pid = os.fork()
    if pid == 0:
        for _ in ALL * 2:
            serve(listening.accept()[0])
        os._exit(0)
    for name in ALL * 2:
        finished([(name, client(port, name))])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    process = client(port, "second")
    assert serve(listening.accept()[0]) == "second"
    finished([("second", process)])


def next_program_accepts():
    """So it is the next program's after exec."""
    listening, port = listener()
    os.set_inheritable(listening.fileno(), True)
    script = f"""
import socket
listening = socket.socket(fileno={listening.fileno()})
for _ in range({2 * len(ALL)}):
    conn = listening.accept()[0]
    conn.sendall(b"hello " + conn.recv(100))
    conn.close()
"""
    server = subprocess.Popen([sys.executable, "-c", script], close_fds=False)
    listening.close()
    for name in ALL * 2:
        finished([(name, client(port, name))])
    assert server.wait(30) == 0


def the_second_is_asked_when_nobody_listens_at_the_first():
    """connect tries the engines in their order, then the kernel."""
    script = """
import socket
made = socket.create_server(("127.0.0.1", 0))
print(made.getsockname()[1], flush=True)
conn = made.accept()[0]
conn.sendall(b"hello")
conn.close()
"""
    for name in ALL:
        command = [sys.executable, "-c", script]
        server = subprocess.Popen(command, env=environment(STACKS[name]), stdout=subprocess.PIPE, text=True)
        peer = socket.create_connection(("127.0.0.1", int(server.stdout.readline())), timeout=20)
        assert peer.recv(100) == b"hello"
        assert peer.recv(100) == b""
        assert server.wait(30) == 0


def one_engine_ends():
    """Killed while a program listens: the other stacks' connections go on, and so does the listener."""
    gone, pid = sys.argv[1], int(sys.argv[2])
    left = sorted(name for name in ALL if name != gone)
    listening, port = listener()
    held = [client(port, name) for name in left]
    conns = [listening.accept()[0] for _ in held]
    os.kill(pid, signal.SIGKILL)
    assert sorted(map(serve, conns)) == left
    finished(zip(left, held))
    for name in left * 2:
        process = client(port, name)
        assert serve(listening.accept()[0]) == name
        finished([(name, process)])


def passed_listener_lives():
    """A process that closes a listener which it has passed on does not end it, at no engine."""
    listening, port = listener()
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    socket.send_fds(ours, [b"take it"], [listening.fileno()])
    listening.close()
    again = socket.socket(fileno=socket.recv_fds(theirs, 10, 1)[1][0])
    for name in ALL * 2:
        process = client(port, name)
        assert serve(again.accept()[0]) == name
        finished([(name, process)])


if sys.argv[1] == "second":
    blocking_accepts()
    by_poll()
    by_select()
    for flags in (0, select.EPOLLET, select.EPOLLONESHOT):
        by_epoll(flags)
    children_accept()
    next_program_accepts()
    passed_listener_lives()
    the_second_is_asked_when_nobody_listens_at_the_first()
one_engine_ends()
print("same")
