"""Who has had connections before hands a listener and a connection on, to a child and by a message: prints what comes of it."""

import os
import signal
import socket

LIMIT_S = 20


def listener():
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(16)
    return made


def connected(name):
    made = socket.create_connection(name)
    made.settimeout(LIMIT_S)
    return made


def have_had_connections():
    at = listener()
    for _ in range(20):
        ours = connected(at.getsockname())
        theirs, _ = at.accept()
        ours.close()
        theirs.close()
    at.close()


def forked(child):
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def ended(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def said(connection):
    try:
        return connection.recv(8)
    except TimeoutError:
        return "nothing"


def serve(at):
    theirs, _ = at.accept()
    theirs.send(b"served")


def to_a_child():
    have_had_connections()
    at = listener()
    name = at.getsockname()
    child = forked(lambda: serve(at))
    at.close()
    print("a child serves:", said(connected(name)))
    ended(child)


def serve_what_comes(by):
    _, fds, _, _ = socket.recv_fds(by, 1, 2)
    serve(socket.socket(fileno=fds[0]))
    socket.socket(fileno=fds[1]).send(b"told")


def by_a_message(to, of):
    have_had_connections()
    at = listener()
    ours = connected(at.getsockname())
    theirs, _ = at.accept()
    name = at.getsockname()
    socket.send_fds(to, [b"x"], [at.fileno(), theirs.fileno()])
    at.close()
    theirs.close()
    print("who was sent it serves:", said(connected(name)))
    print("and writes on the connection:", said(ours))
    ended(of)


near, far = socket.socketpair()
by_a_message(near, forked(lambda: serve_what_comes(far)))
for _ in range(2):
    # The second time it has made a child since its last connections.
    to_a_child()
    near, far = socket.socketpair()
    by_a_message(near, forked(lambda: serve_what_comes(far)))
