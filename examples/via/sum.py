"""The sum of 1 to N over several nodes with EVIL. The workers: sum.py work PORT; then: sum.py N NODE:PORT ..."""
import struct
import sys

from evil import Channel

if sys.argv[1] == "work":
    with Channel("", int(sys.argv[2])) as channel:
        channel.wait()
        channel.send(struct.pack("l", sum(range(*struct.unpack("ll", channel.recv())))))
else:
    last, nodes = int(sys.argv[1]), [node.split(":") for node in sys.argv[2:]]
    channels = [Channel(name, int(port)) for name, port in nodes]
    for at, channel in enumerate(channels):
        channel.connect()
        channel.send(struct.pack("ll", 1 + last * at // len(nodes), 1 + last * (at + 1) // len(nodes)))
    print(sum(struct.unpack("l", channel.recv())[0] for channel in channels))
