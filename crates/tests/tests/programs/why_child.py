"""What `toe why` says of the child of a fork. Arguments: `toe`. Prints `told`."""

import json
import os
import socket
import subprocess
import sys


def why(pid, fd):
    said = subprocess.run([sys.argv[1], "why", str(pid), str(fd), "--json"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    said = json.loads(said.stdout)
    return said["stack"], said["reason"]


def expect(pid, fd, stack, reason):
    assert why(pid, fd) == (stack, reason), (fd, why(pid, fd))


listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
go_on, done = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    number = client.fileno()
    os.read(go_on[0], 1)
    with open("/dev/null", "rb") as file:
        os.dup2(file.fileno(), number)
    os.write(done[1], b"x")
    os.read(go_on[0], 1)
    other = socket.create_server(("127.0.0.1", 0))
    os.write(done[1], bytes([other.fileno()]))
    os.read(go_on[0], 1)
    os._exit(0)


def let_it_go_on():
    os.write(go_on[1], b"x")
    return os.read(done[0], 1)[0]


# It has decided nothing, and has what its parent had.
expect(child, listener.fileno(), "engine", "listening")
expect(child, client.fileno(), "engine", "connected")
# Another file has the number.
let_it_go_on()
expect(child, client.fileno(), "none", "not-a-socket")
expect(os.getpid(), client.fileno(), "engine", "connected")
# Once it decides it has words of its own: what the parent does is not its any more.
other = let_it_go_on()
number = listener.fileno()
listener.close()
expect(child, other, "engine", "listening")
expect(child, number, "engine", "listening")
expect(child, client.fileno(), "none", "not-a-socket")
os.write(go_on[1], b"x")
os.waitpid(child, 0)
print("told")
