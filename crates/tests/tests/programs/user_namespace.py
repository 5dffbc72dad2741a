"""A server in a user namespace of its own gives its rights up, as nginx's workers do, and serves a client outside: prints what that got."""

import ctypes
import os
import signal
import socket
import sys

FIRST_UID = 100_000
OVERFLOW_UID = 65_534
WORKER_UID = 33
CLONE_NEWUSER = 0x10000000
PORT = 7410


def serve():
    at = socket.create_server(("127.0.0.1", PORT))
    if os.fork() == 0:
        os.setgid(WORKER_UID)
        os.setuid(WORKER_UID)
        print("listening", flush=True)
        one, _ = at.accept()
        one.send(b"served")
        os._exit(0)
    # As nginx's: it has the listener, and takes nothing.
    signal.pause()


def in_namespace():
    """A child in a user namespace, root there: it executes this script again as the server."""
    unshared, mapped = os.pipe(), os.pipe()
    said = os.pipe()
    pid = os.fork()
    if pid == 0:
        if ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
            os._exit(1)
        os.write(unshared[1], b"x")
        os.read(mapped[0], 1)
        os.setgid(0)
        os.setuid(0)
        os.dup2(said[1], 1)
        # Users outside look like this one there.
        os.environ["TOE_ENGINE_UID"] = str(OVERFLOW_UID)
        os.setpgid(0, 0)
        os.execv(sys.executable, [sys.executable, __file__, "serve"])
    os.read(unshared[0], 1)
    for ids in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{ids}", "w") as file:
            file.write(f"0 {FIRST_UID} 1000\n")
    os.write(mapped[1], b"x")
    os.close(said[1])
    os.read(said[0], 20)
    return pid


if sys.argv[1:] == ["serve"]:
    serve()
else:
    server = in_namespace()
    ours = socket.create_connection(("127.0.0.1", PORT))
    ours.settimeout(20)
    print(ours.recv(10))
    os.killpg(server, signal.SIGKILL)
