"""A listener that its maker keeps on the kernel's stack and passes to another process: blocking is what the maker wants, and it
waits for connections. Prints what it is told."""

import array
import os
import select
import socket
import subprocess
import sys

if len(sys.argv) > 1:
    # The other process: listens with it, too, and waits until it is told to end.
    way = socket.socket(fileno=int(sys.argv[1]))
    _, messages, _, _ = way.recvmsg(1, socket.CMSG_SPACE(4))
    listener = socket.socket(fileno=array.array("i", messages[0][2])[0])
    listener.listen(5)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    print("there", poll.poll(0), os.get_blocking(listener.fileno()), flush=True)
    # One for the engine's side, which is this process's.
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    way.send(b"here")
    way.recv(1)
    sys.exit()

listener = socket.socket()
copy = listener.dup()
listener.bind(("127.0.0.1", 0))
listener.listen(5)
here, there = socket.socketpair()
other = subprocess.Popen([sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()])
there.close()
here.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
print(here.recv(9))
print("blocks", os.get_blocking(listener.fileno()), os.get_blocking(copy.fileno()))
# Nobody connects: it waits, for as long as it may.
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, b"\0" * 8 + (50000).to_bytes(8, "little"))
try:
    listener.accept()
except OSError as error:
    print(error)
client = socket.socket()
kept = client.dup()
client.connect(listener.getsockname())
accepted, _ = listener.accept()
client.send(b"octets")
print(accepted.recv(9))
here.send(b".")
print(other.wait())
