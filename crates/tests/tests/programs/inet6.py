"""Sockets of AF_INET6, of which most have addresses of IPv4: with the engine, and to the program as Linux has them."""
import os
import socket
import subprocess
import sys

MAPPED = "::ffff:127.0.0.1"


def dual(address="::"):
    made = socket.socket(socket.AF_INET6)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((address, 0))
    made.listen(20)
    return made, made.getsockname()[1]


def exchange(one, other):
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"hello")
        assert receiver.recv(5, socket.MSG_WAITALL) == b"hello"


def is_mapped(sock, peer):
    assert sock.getsockname()[:1] == (MAPPED,) and sock.getsockname()[2:] == (0, 0), sock.getsockname()
    assert sock.getpeername() == peer, (sock.getpeername(), peer)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET6
    assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0)


def clients_of_both_families():
    """Of IPv4, by either kind of socket, and of IPv6."""
    listening, port = dual()
    four = socket.create_connection(("127.0.0.1", port))
    conn, peer = listening.accept()
    assert conn.family == socket.AF_INET6 and peer == (MAPPED, four.getsockname()[1], 0, 0), peer
    is_mapped(conn, peer)
    exchange(conn, four)

    six = socket.socket(socket.AF_INET6)
    six.connect((MAPPED, port))
    conn, peer = listening.accept()
    assert peer[:2] == (MAPPED, six.getsockname()[1])
    is_mapped(six, (MAPPED, port, 0, 0))
    is_mapped(conn, peer)
    exchange(conn, six)

    real = socket.create_connection(("::1", port))
    conn, peer = listening.accept()
    assert peer[0] == "::1"
    exchange(conn, real)


def only_one_family():
    """IPV6_V6ONLY, a real IPv6 address, and what is bound to one."""
    only = socket.create_server(("::", 0), family=socket.AF_INET6)
    port = only.getsockname()[1]
    try:
        socket.create_connection(("127.0.0.1", port))
        raise AssertionError("it does not listen there")
    except ConnectionRefusedError:
        pass
    listening, port = dual("::1")
    bound = socket.socket(socket.AF_INET6)
    bound.bind(("::1", 0))
    bound.connect(("::1", port))
    exchange(listening.accept()[0], bound)
    alone = socket.socket(socket.AF_INET6)
    alone.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    assert alone.connect_ex((MAPPED, dual()[1])) != 0


def bound_before_connect():
    listening, port = dual(MAPPED)
    six = socket.socket(socket.AF_INET6)
    six.bind(("::", 0))
    own = six.getsockname()[1]
    six.connect((MAPPED, port))
    assert six.getsockname()[:2] == (MAPPED, own)
    exchange(listening.accept()[0], six)


def refused_then_again():
    """One try in vain, then another."""
    listening, port = dual()
    gone, free = dual()
    gone.close()
    six = socket.socket(socket.AF_INET6)
    assert six.connect_ex((MAPPED, free)) != 0
    six = socket.socket(socket.AF_INET6)
    six.connect((MAPPED, port))
    exchange(listening.accept()[0], six)


def elsewhere():
    """A connection after exec and one in a message have their family, and so has a listener after exec."""
    listening, port = dual()
    four = socket.create_connection(("127.0.0.1", port))
    conn, peer = listening.accept()
    script = """
import socket, sys
conn = socket.socket(fileno=int(sys.argv[1]))
print(conn.family.name, conn.getpeername()[0], flush=True)
conn.sendall(b"over exec")
"""
    command = [sys.executable, "-c", script, str(conn.fileno())]
    said = subprocess.run(command, pass_fds=[conn.fileno()], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout.split() == ["AF_INET6", MAPPED], said
    assert four.recv(9, socket.MSG_WAITALL) == b"over exec"

    four = socket.create_connection(("127.0.0.1", port))
    conn, peer = listening.accept()
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    pid = os.fork()
    if pid == 0:
        conn.close()
        _, fds, _, _ = socket.recv_fds(theirs, 10, 1)
        got = socket.socket(fileno=fds[0])
        assert got.getpeername() == peer and got.family == socket.AF_INET6
        got.sendall(b"passed")
        os._exit(0)
    socket.send_fds(ours, [b"take it"], [conn.fileno()])
    conn.close()
    assert four.recv(6, socket.MSG_WAITALL) == b"passed"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    script = """
import socket, sys
listening = socket.socket(fileno=int(sys.argv[1]))
conn, peer = listening.accept()
assert peer[0] == "::ffff:127.0.0.1", peer
conn.sendall(b"accepted")
"""
    command = [sys.executable, "-c", script, str(listening.fileno())]
    server = subprocess.Popen(command, pass_fds=[listening.fileno()])
    four = socket.create_connection(("127.0.0.1", port))
    assert four.recv(8, socket.MSG_WAITALL) == b"accepted"
    assert server.wait(20) == 0


clients_of_both_families()
only_one_family()
bound_before_connect()
refused_then_again()
elsewhere()
print("same")
