"""A server that listens and leaves accepting to a child that runs without the layer: prints how a client ends that tries again."""

import os
import select
import socket
import subprocess
import sys

ANSWER_WITHIN_MS = 100
TRIES = 100


def work(fd):
    """Takes what the kernel's listener has, and answers."""
    at = socket.socket(fileno=fd)
    print("ready", flush=True)
    while select.select([at], [], []):
        one, _ = at.accept()
        one.send(b"served")


def main():
    at = socket.create_server(("127.0.0.1", 7411))
    plain = {**os.environ, "TOE_DISABLE": "1"}
    words = [sys.executable, __file__, str(at.fileno())]
    worker = subprocess.Popen(words, env=plain, pass_fds=[at.fileno()], stdout=subprocess.PIPE)
    worker.stdout.readline()
    unanswered = []
    for _ in range(TRIES):
        one = socket.create_connection(at.getsockname())
        events = select.poll()
        events.register(one, select.POLLIN)
        if events.poll(ANSWER_WITHIN_MS):
            print(one.recv(10).decode())
            break
        unanswered.append(one)
    else:
        print("never")
    # Who takes from it after all has what waited, and what comes.
    waiting = len(unanswered)
    taken = [at.accept()[0] for _ in range(waiting)]
    print("waited", len(taken) > 0 and len(taken) == waiting)
    worker.kill()


if len(sys.argv) > 1:
    work(int(sys.argv[1]))
else:
    main()
