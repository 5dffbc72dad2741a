"""Programs that give root up, and an engine that is a stranger's; each part prints what came of it."""

import os
import socket
import sys

OTHER = 65534
STRANGER = 65533
FIRST = 61001
LIMIT = 10


def become(how, uid):
    """Every way in which a program becomes another user for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    {
        "setuid": lambda: os.setuid(uid),
        "setreuid": lambda: os.setreuid(uid, uid),
        "setresuid": lambda: os.setresuid(uid, uid, uid),
        "seteuid": lambda: os.seteuid(uid),
        "syscall": lambda: by_number(uid),
    }[how]()


def by_number(uid):
    import ctypes

    set_uid = {"x86_64": 105, "aarch64": 146}[os.uname().machine]
    # syscall(2) as libraries call it, past the C library's function of that name.
    assert ctypes.CDLL(None).syscall(set_uid, uid) == 0


def worker(how, address):
    """As root's child after fork: gives root up, then serves and connects with sockets of its own."""
    become(how, OTHER)
    with socket.create_server((address, 0)) as listener:
        with socket.create_connection(listener.getsockname(), LIMIT) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"ping")
                said = server.recv(4)
                # An engine's descriptor is a directory to the kernel; by /proc/self the library says what Linux would.
                on_engine = all(os.path.isdir(f"/proc/{os.getpid()}/fd/{s.fileno()}") for s in (client, server))
                print(how, os.geteuid(), said.decode(), "engine" if on_engine else "kernel", flush=True)


def workers(address):
    # A session of the parent's own, which the children have nothing of.
    listener = socket.create_server((address, 0))
    for how in ["setuid", "setreuid", "setresuid", "seteuid", "syscall"]:
        pid = os.fork()
        if pid == 0:
            worker(how, address)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    listener.close()


def at_once(address, count=20):
    """Children that become users of their own in the same moment; prints what each one's connection is on."""
    waits, go = os.pipe()
    for uid in range(FIRST, FIRST + count):
        if os.fork() == 0:
            os.close(go)
            os.read(waits, 1)
            become("setuid", uid)
            exchange(address)
            os._exit(0)
    os.close(go)
    for _ in range(count):
        assert os.wait()[1] == 0


def exchange(address):
    """A connection to a listener of its own: on an engine, or else on the kernel's stack."""
    with socket.create_server((address, 0)) as listener:
        with socket.create_connection(listener.getsockname(), LIMIT) as client:
            server, _ = listener.accept()
            on_engine = os.path.isdir(f"/proc/{os.getpid()}/fd/{client.fileno()}")
            print("engine" if on_engine else "kernel", flush=True)
            server.close()


def stranger(path, ready):
    """An engine of somebody else's, where programs of another user look for theirs: says what it hears."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    os.chown(os.path.dirname(path), STRANGER, STRANGER)
    os.setresuid(STRANGER, STRANGER, STRANGER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen()
        print(ready, flush=True)
        while True:
            connection, _ = listener.accept()
            connection.settimeout(LIMIT)
            heard = connection.recv(100)
            print("heard", len(heard), flush=True)
            connection.close()


def knock(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(path)
        client.sendall(b"knock")


part, *args = sys.argv[1:]
{"workers": workers, "at_once": at_once, "exchange": exchange, "stranger": stranger, "knock": knock}[part](*args)
