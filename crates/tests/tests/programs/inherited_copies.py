"""Two numbers of one socket that came over exec: prints what each says when the other listens, is shut, and listens again."""

import array
import fcntl
import os
import select
import socket
import sys
import termios

if len(sys.argv) == 1:
    one = socket.socket()
    one.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, __file__, str(one.fileno())])

ONE = socket.socket(fileno=int(sys.argv[1]))
OTHER = ONE.dup()


def unread(one):
    count = array.array("i", [0])
    try:
        fcntl.ioctl(one, termios.FIONREAD, count)
        return count[0]
    except OSError as error:
        return error.strerror


def look(what):
    for one in (ONE, OTHER):
        poll = select.poll()
        poll.register(one, select.POLLIN)
        events = [hex(bits) for _, bits in poll.poll(0)]
        state = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        print(what, events, unread(one), state, one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


look("new")
OTHER.listen(8)
look("listening")
client = socket.create_connection(ONE.getsockname())
select.select([ONE], [], [])
look("connected")
server, _ = ONE.accept()
server.send(b"abc")
print(client.recv(9))
look("accepted")
OTHER.shutdown(socket.SHUT_RD)
look("shut")
ONE.listen(8)
look("again")
second = socket.create_connection(ONE.getsockname())
OTHER.close()
print(ONE.accept()[0].getpeername() == second.getsockname())
