"""What a call finds of what this process or its child has just done: prints it. Each is done several times, as it was found or
not by who was faster."""

import errno
import os
import signal
import socket
import struct
import sys

ROUNDS = 10
# Of what makes a process each time.
FEW = 3
# Of what went wrong in some of a hundred rounds.
MANY = 200
UNREAD = b"u" * 500
OF_RESET = {
    "peer": lambda end: end.getpeername(),
    "send": lambda end: end.send(b"s"),
    "end": lambda end: end.shutdown(socket.SHUT_WR),
    "error": lambda end: end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
}


def listener():
    at = socket.socket()
    at.bind(("127.0.0.1", 0))
    at.listen(16)
    return at


def pair(at, warmth):
    """A connection over which so many messages have gone: from a few on it has a channel."""
    client = socket.create_connection(at.getsockname())
    server, _ = at.accept()
    for _ in range(warmth):
        for one, other in (client, server), (server, client):
            one.sendall(b"w")
            other.recv(1)
    return client, server


def name(call, *args):
    try:
        return repr(call(*args))
    except OSError as error:
        return errno.errorcode[error.errno]


def each(what, once, rounds=ROUNDS):
    """What comes of it, without what comes again."""
    print(what, *sorted({once() for _ in range(rounds)}))


def sent_to_who_has_shut(at, warmth):
    client, server = pair(at, warmth)
    server.shutdown(socket.SHUT_RD)
    client.sendall(b"late")
    return name(server.recv, 10)


def copied_over_unread(at, warmth, by):
    """What the peer has sent just before lies unread where a copy of something else takes its number."""
    (client, server), (_, other) = pair(at, warmth), pair(at, 0)
    client.sendall(UNREAD)
    with open(os.devnull) as null:
        os.dup2(by(other, null), server.fileno())
    server.close()
    return name(client.recv, 10)


def range_closed_unread(at, warmth):
    client, server = pair(at, warmth)
    client.sendall(UNREAD)
    os.closerange(server.fileno(), server.fileno() + 1)
    server.detach()
    return name(client.recv, 10)


def other_end_is_reset(at, warmth, is_unread, call):
    """The other end's close makes a reset, which the next call on this end finds."""
    client, server = pair(at, warmth)
    if is_unread:
        # It goes at once, though Linux may not have acknowledged what came before.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(UNREAD)
    else:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    return name(call, server)


def sent_to_who_has_closed(at, warmth):
    client, server = pair(at, warmth)
    client.close()
    server.send(b"s")
    return name(server.send, b"s")


def limit_of_a_child(warmth, option, blocks):
    """Both have used it when the child sets the time that this process waits."""
    at = listener()
    client, server = pair(at, warmth)
    at.close()
    (mine, parents), (childs, told) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        server.sendall(b"c")
        os.write(parents, b"x")
        os.read(childs, 1)
        server.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 20000))
        os.write(parents, b"x")
        os.read(childs, 1)
        os._exit(0)
    os.read(mine, 1)
    server.sendall(b"p")
    os.write(told, b"x")
    os.read(mine, 1)
    outcome = name(blocks, server)
    os.write(told, b"x")
    os.waitpid(child, 0)
    for end in mine, parents, childs, told:
        os.close(end)
    client.close()
    return outcome


def fills(server):
    while True:
        server.send(b"f" * 100000)


def main():
    signal.alarm(50)
    at = listener()
    for warmth in 0, 3, 50:
        each(f"shut {warmth}", lambda: sent_to_who_has_shut(at, warmth))
        each(f"copy {warmth}", lambda: copied_over_unread(at, warmth, lambda other, _: other.fileno()))
        each(f"file {warmth}", lambda: copied_over_unread(at, warmth, lambda _, null: null.fileno()))
        each(f"range {warmth}", lambda: range_closed_unread(at, warmth))
        for is_unread in False, True:
            for what, call in OF_RESET.items():
                each(f"{what} {is_unread} {warmth}", lambda: other_end_is_reset(at, warmth, is_unread, call))
        each(f"twice {warmth}", lambda: sent_to_who_has_closed(at, warmth), MANY)
        each(f"receive {warmth}", lambda: limit_of_a_child(warmth, socket.SO_RCVTIMEO, lambda one: one.recv(1)), FEW)
        each(f"send {warmth}", lambda: limit_of_a_child(warmth, socket.SO_SNDTIMEO, fills), FEW)


main()
sys.stdout.flush()
os._exit(0)
