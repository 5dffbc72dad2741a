"""A child comes to its listener after the engine has gone: it sleeps until a connection comes, and takes it."""

import os
import socket
import time

listener = socket.create_server(("127.0.0.1", 0))
kept = socket.create_connection(listener.getsockname())
served, _ = listener.accept()
wait, go = os.pipe()
child = os.fork()
if child == 0:
    served.close()
    os.read(wait, 1)
    served, _ = listener.accept()
    served.send(served.recv(1))
    os._exit(0)
print("ready", flush=True)
try:
    kept.recv(1)
except ConnectionResetError:
    print("no engine", flush=True)
os.write(go, b"x")
# Until it is in ppoll without a time limit, the third argument.
while True:
    with open(f"/proc/{child}/syscall") as call:
        words = call.read().split()
    if len(words) > 4 and words[3] == "0x0":
        break
    time.sleep(0.001)
print("sleeps", flush=True)
with socket.create_connection(listener.getsockname()) as client:
    client.send(b"x")
    print("served", client.recv(1), flush=True)
os.waitpid(child, 0)
