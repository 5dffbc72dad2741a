"""A file from one program to another with EVIL. One side: copy.py PORT > FILE; the other: copy.py NODE PORT < FILE."""
import sys

from evil import Channel

*node, port = sys.argv[1:]
with Channel(node[0] if node else "", int(port)) as channel:
    if node:
        channel.connect()
        while part := sys.stdin.buffer.read(1 << 20):
            channel.send(part)
        channel.send(b"")  # a message of nothing: the end of the file
    else:
        channel.wait()
        while part := channel.recv():
            sys.stdout.buffer.write(part)
