"""SO_LINGER of 0 s aborts a connection however its last descriptor goes: what its peer reads then."""

import os
import signal
import socket
import struct
import sys
import threading

NOW = struct.pack("ii", 1, 0)


def serve(listener, how, rounds):
    served, _ = listener.accept()
    served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
    for _ in range(rounds):
        served.send(served.recv(1))
    if how == "taken back":
        served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    if how == "close":
        served.close()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exec":
        os.execv("/bin/true", ["true"])
    elif how == "thread":
        threading.Thread(target=os._exit, args=(0,)).start()
        signal.pause()
    elif how == "child":
        # The last of two holders, which has not said a word of it, ends a while after the first.
        go, wait = os.pipe()
        if os.fork() == 0:
            os.close(wait)
            os.read(go, 1)
        else:
            os._exit(0)
    elif how == "passed":
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"x"], [served.fileno()])
        served.close()
        # In flight to nobody.
        ours.close()
        theirs.close()
    os._exit(0)


def one(how, rounds):
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        serve(listener, how, rounds)
    client = socket.create_connection(listener.getsockname())
    listener.close()
    client.settimeout(20)
    for _ in range(rounds):
        client.send(b"R")
        client.recv(1)
    try:
        answer = repr(client.recv(1))
    except OSError as error:
        answer = os.strerror(error.errno) if error.errno else str(error)
    os.waitpid(child, 0)
    return answer


for how in ("close", "exit", "kill", "exec", "thread", "child", "passed", "taken back"):
    # After some messages two programs of one machine use memory that they share.
    print(how, one(how, 1), one(how, 64), flush=True)
