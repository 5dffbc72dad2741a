"""Connections to where nobody listens, and then somebody does, in this process and in another: prints what each call says."""

import errno
import os
import socket

ROUNDS = 30
REFUSED = 10
PORT = 7430


def name(call, *args):
    try:
        call(*args)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def connects(port):
    with socket.socket() as one:
        return name(one.connect, ("127.0.0.1", port))


def listening(port):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


asks, answers = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(asks[1])
    while os.read(asks[0], 1):
        with listening(PORT) as there:
            os.write(answers[1], b"l")
            there.accept()[0].close()
            os.read(asks[0], 1)
        os.write(answers[1], b"c")
    os._exit(0)
for n in range(ROUNDS):
    said = {connects(PORT) for _ in range(REFUSED)}
    if n % 2:
        with listening(PORT) as here:
            said.add(connects(PORT) + " here")
            here.accept()[0].close()
    else:
        os.write(asks[1], b"l")
        os.read(answers[0], 1)
        said.add(connects(PORT) + " there")
        os.write(asks[1], b"c")
        os.read(answers[0], 1)
    print(*sorted(said))
