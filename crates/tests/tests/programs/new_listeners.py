"""Listeners are made while others change hands, which has the engine ask the kernel who listens: who connects to a new one is let in."""
import os
import socket
import sys

ROUNDS = 100


def others():
    """The kernel's answer is long."""
    held = [socket.create_server(("127.0.0.2", 10_000 + n)) for n in range(900)]
    print(f"{len(held)} listen", flush=True)
    sys.stdin.read()


def passes_listeners_on():
    """Each goes to a process that lets go of it."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while got := socket.recv_fds(theirs, 1, 1)[1]:
            os.close(got[0])
        os._exit(0)
    theirs.close()
    while True:
        with socket.create_server(("127.0.0.1", 0)) as made:
            socket.send_fds(ours, [b"x"], [made.fileno()])


def connects():
    for _ in range(ROUNDS):
        with socket.create_server(("127.0.0.1", 0)) as serving:
            serving.settimeout(20)
            with socket.create_connection(serving.getsockname()) as sock:
                conn, _ = serving.accept()
                with conn:
                    conn.sendall(b"served")
                assert sock.recv(10) == b"served"


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


if sys.argv[1:] == ["others"]:
    others()
else:
    passing = child(passes_listeners_on)
    connecting = [child(connects) for _ in range(3)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in connecting]
    os.kill(passing, 9)
    os.waitpid(passing, 0)
    print("same" if statuses == [0] * 3 else statuses)
