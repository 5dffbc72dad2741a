"""What a policy makes of a program's sockets. Arguments: the policy's name, and the ports of a server that each stack has."""
import errno
import os
import socket
import sys

TCP_FASTOPEN_NO_COOKIE = 34
PROFILE, HELD = sys.argv[1], int(sys.argv[2])


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def error_of(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0


def rules():
    """port 7402 is the kernel's, nobody may connect to 7403, and 7404 must not be the kernel's."""
    kept = socket.create_server(("127.0.0.1", 7402))
    made = [connect(7402), kept.accept()[0]]
    assert error_of(lambda: connect(7403)) == errno.EACCES
    assert error_of(lambda: socket.create_server(("127.0.0.1", 7405))) == errno.EACCES
    only = socket.create_server(("127.0.0.1", 7404))
    made += [connect(7404), only.accept()[0]]
    # In vain at every engine, and the kernel is not asked.
    only.close()
    assert error_of(lambda: connect(7404)) == errno.ECONNREFUSED
    # Sockets that no engine can have are no way around it: copied, or of a kind that is the kernel's.
    fast_open = (socket.IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1)
    for spoil in (lambda one: os.dup(one.fileno()), lambda one: one.setsockopt(*fast_open)):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        spoil(one)
        assert error_of(lambda: one.connect(("127.0.0.1", 7403))) == errno.EACCES
        assert error_of(lambda: one.connect(("127.0.0.1", 7404))) == errno.ENETUNREACH
        one.bind(("127.0.0.1", 7405))
        assert error_of(one.listen) == errno.EACCES
    first = socket.socket()
    copy = socket.socket(fileno=os.dup(first.fileno()))
    assert error_of(lambda: copy.connect(("127.0.0.1", 7403))) == errno.EACCES
    return [kept] + made


def balanced():
    """Both engines have a server at this port; what is opened stays open."""
    return [connect(HELD) for _ in range(20)]


held = {"rules": rules, "hash": balanced, "least": balanced}[PROFILE]()
print("ready", os.getpid(), *(one.fileno() for one in held), flush=True)
sys.stdin.readline()
