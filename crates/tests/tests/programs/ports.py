"""bind() to the ports of connections in every state, beside sockets of every kind, and connect() from them: prints what each says."""

import errno
import socket
import struct
import time

ANY, ONE, OTHER = "0.0.0.0", "127.0.0.1", "127.0.0.2"


def name(call, *args):
    try:
        call(*args)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def reset_at_close(one):
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def stream(reuse=0, share=0, family=socket.AF_INET):
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)
    return one


def binds(port, addr, reuse=0, share=0):
    with stream(reuse, share) as one:
        return name(one.bind, (addr, port))


def binds6(port, only):
    with stream(family=socket.AF_INET6) as one:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        return name(one.bind, ("::", port))


def show(what, port):
    kinds = ((0, 0), (0, 1), (1, 0), (1, 1))
    for addr in (ONE, OTHER, ANY):
        print(what, addr, *(binds(port, addr, *kind) for kind in kinds))
    print(what, "::", binds6(port, 0), binds6(port, 1), flush=True)


def until_free(port):
    """The other end takes its moment to hear of a close."""
    end = time.monotonic() + 30
    while binds(port, ONE) != "ok":
        assert time.monotonic() < end, "the port is not free"
        time.sleep(0.001)


def connected(reuse_listener=0, reuse_client=0, share=0, at=None):
    listener = stream(reuse_listener, share)
    listener.bind((ONE, 0))
    listener.listen(5)
    client = stream(reuse_client)
    if at:
        client.bind(at)
    client.connect(listener.getsockname())
    accepted, _ = listener.accept()
    return listener, client, accepted


def port_of(one):
    return one.getsockname()[1]


def closed_by_client(reuse_listener, reuse_client):
    what = f"listener {reuse_listener} client {reuse_client}:"
    listener, client, accepted = connected(reuse_listener, reuse_client)
    there, here = port_of(listener), port_of(client)
    show(f"{what} client's", here)
    show(f"{what} listener's", there)
    listener.close()
    show(f"{what} accepted's", there)
    client.shutdown(socket.SHUT_WR)
    accepted.recv(1)
    show(f"{what} client's in FIN_WAIT2", here)
    show(f"{what} accepted's in CLOSE_WAIT", there)
    client.close()
    show(f"{what} client's in FIN_WAIT2 without its program", here)
    accepted.close()
    until_free(there)
    show(f"{what} client's in TIME_WAIT", here)
    # An engine is done with such a connection soon, but not with its name.
    print(what, "stays so", all(binds(here, ONE) == binds(here, ANY) for _ in range(1000)), binds(here, ONE))
    show(f"{what} accepted's after its end", there)


def closed_by_server(reuse, share):
    what = f"listener {reuse} {share}:"
    listener, client, accepted = connected(reuse, 0, share)
    there, here = port_of(listener), port_of(client)
    listener.close()
    accepted.close()
    client.recv(1)
    client.close()
    until_free(here)
    show(f"{what} accepted's in TIME_WAIT", there)
    # Longer than an engine's own.
    print(what, "stays so", len({tuple(binds(there, ANY, 0, share) for share in (0, 1)) for _ in range(2000)}))


def reset():
    listener, client, accepted = connected()
    there, here = port_of(listener), port_of(client)
    reset_at_close(accepted)
    accepted.close()
    print("reset:", name(client.recv, 1))
    listener.close()
    until_free(there)
    show("reset: client's", here)


def listener_is_shut():
    """Often: of a connection's port, too, it was said now and then that it is free."""
    said = set()
    for _ in range(100):
        with stream() as listener:
            listener.bind((ONE, 20_002))
            listener.listen(5)
            listener.shutdown(socket.SHUT_RDWR)
            said.add(binds(20_002, ONE))
    print("a shut listener's", said)


def set_later():
    listener, client, accepted = connected()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    show("set later:", port_of(client))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    show("and unset:", port_of(client))


def named_by_program(addr, port):
    what = f"bound to {addr}:"
    listener, client, accepted = connected(1, 1, at=(addr, port))
    show(f"{what} open", port)
    with stream(1) as second:
        print(what, "bound again", name(second.bind, (addr, port)))
        print(what, "to the same place", name(second.connect, listener.getsockname()))
    client.close()
    accepted.recv(1)
    show(f"{what} FIN_WAIT2", port)
    there = port_of(accepted)
    accepted.close()
    listener.close()
    until_free(there)
    show(f"{what} TIME_WAIT", port)
    listener = stream(1)
    listener.bind((ONE, there))
    listener.listen(5)
    with stream(1) as third:
        print(what, "bound in TIME_WAIT", name(third.bind, (addr, port)))
        print(what, "to the same place", name(third.connect, (ONE, there)))
    listener.close()


def errors_that_come_first():
    listener, client, accepted = connected()
    here = port_of(client)
    bound = stream()
    bound.bind((ONE, 0))
    print("bound already", name(bound.bind, (ONE, here)))
    print("no address of ours", binds(here, "192.0.2.1"))
    print("no address", name(stream().bind, ("255.255.255.255", here)))


for listeners in (0, 1):
    for clients in (0, 1):
        closed_by_client(listeners, clients)
    for shares in (0, 1):
        closed_by_server(listeners, shares)
reset()
listener_is_shut()
set_later()
named_by_program(ONE, 20_001)
errors_that_come_first()
