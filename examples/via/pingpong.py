"""Ping-pong with EVIL. One side: pingpong.py wait PORT; the other: pingpong.py NODE PORT [ROUNDS]."""
import sys

from evil import Channel, ViaError

peer, port, rounds = sys.argv[1], int(sys.argv[2]), int((sys.argv + ["10"])[3])
with Channel("" if peer == "wait" else peer, port) as channel:
    if peer == "wait":
        channel.wait()
        try:
            while True:
                channel.send(channel.recv())
        except ViaError:
            print("served")
    else:
        channel.connect()
        for number in range(rounds):
            channel.send(b"ball %d" % number)
            ball = channel.recv()
        print(ball.decode())
