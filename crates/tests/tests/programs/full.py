"""A program that has all descriptors which it may have: what it calls with those works as it does with some to spare."""

import errno
import os
import resource
import select
import socket
import struct
import threading

LIMIT = 64


def same(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found!r} instead of {wanted!r}")


def fill():
    """Takes every descriptor that is left."""
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError as error:
            same(error.errno, errno.EMFILE, "what dup says at the end")
            return taken


def in_a_new_thread(call, meanwhile):
    """What the call gives in a thread that has never waited before; `meanwhile` ends its wait."""
    found = []

    def work():
        try:
            found.append(call())
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    meanwhile()
    thread.join(20)
    return found


def exchange(client, server):
    """Blocked in recv, and in poll, with no descriptor free."""
    for way in ("recv", "poll"):
        poll = select.poll()
        poll.register(server, select.POLLIN)
        call = (lambda: server.recv(5)) if way == "recv" else lambda: poll.poll(20_000) and server.recv(5)
        same(in_a_new_thread(call, lambda: client.sendall(b"hello")), [b"hello"], f"what {way} gives")


def connect_with(free, listener, address):
    """With that many descriptors free beside the one of the socket itself."""
    taken = fill()
    for _ in range(free + 1):
        os.close(taken.pop())
    client = socket.socket()
    client.connect(address)
    rest = fill()
    same(len(rest), free, "descriptors left")
    try:
        listener.accept()
        raise SystemExit("accept had a descriptor")
    except OSError as error:
        same(error.errno, errno.EMFILE, "what accept says")
    os.close(taken.pop())
    server, _ = listener.accept()
    exchange(client, server)
    for fd in taken + rest:
        os.close(fd)
    client.close()
    same(server.recv(1), b"", "the end")
    server.close()
    try:
        listener.accept()
        raise SystemExit("there was another connection")
    except BlockingIOError:
        pass


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    # The engine is known, and hands out; and this thread has slept once, for which it keeps a descriptor.
    with socket.create_connection(address), listener.accept()[0] as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        try:
            raise SystemExit(f"there is {server.recv(1)!r} to read")
        except BlockingIOError:
            pass
    listener.setblocking(False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for free in (3, 2, 1, 0):
        connect_with(free, listener, address)
    print("same")


main()
