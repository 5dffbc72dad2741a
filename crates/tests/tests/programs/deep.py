"""A library of deep.c's, loaded with RTLD_DEEPBIND, connects to this program. Given a descriptor of it, it can use that."""

import ctypes
import os
import socket
import sys
import threading

listener = socket.create_server(("127.0.0.1", 7304))
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_DEEPBIND)


def echo():
    server, _ = listener.accept()
    while octets := server.recv(10):
        server.sendall(octets)


server = threading.Thread(target=echo)
server.start()
if status := library.talk(7304):
    raise SystemExit(f"talk: {status}")
server.join()
print("same")
