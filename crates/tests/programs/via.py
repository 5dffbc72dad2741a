"""Scenes of programs that send each other messages by EVIL. Each ends with 0 and says what it saw."""
import os
import select
import sys

import evil
from evil import Channel, ViaError


def connected(channel):
    print("connected")
    return channel


def watch():
    """Has the victim at one port and another at a second one."""
    victim, other = Channel("victim", 1), Channel("other", 2)
    victim.wait()
    other.wait()
    print("both are there")
    word = victim.recv().decode()
    try:
        victim.recv()
    except ViaError as error:
        print(f"{word}, then: {error}")
    for number in range(100):
        other.send(b"%d" % number)
        assert other.recv() == b"%d" % number
    print("the other still answers")


def sit(peer, port):
    channel = Channel(peer, int(port))
    channel.connect()
    connected(channel).send(b"the victim's last word")
    print("sent")
    listen(channel)


def wait(port):
    channel = Channel("", int(port))
    channel.wait()
    listen(connected(channel))


def doors(port):
    """Two come. The first of them, of another host, says nothing after it was let in: only who sends to it waits for it."""
    channels = [Channel("", int(port)) for _ in range(2)]
    for channel in channels:
        channel.wait()
        print("let in")
    assert channels[1].recv() == b"the victim's last word"
    channels[0].settimeout(0.01)
    refuses(lambda: channels[0].send(b"are you there?"), "the time that via_timeout set is over")
    print("the first is silent")
    channels[0].close()
    listen(channels[1])


def crowd(port, count):
    """As many channels at once, each from another one of the same program, and one more than there may be."""
    import resource
    import threading
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    count = int(count)
    here, there = ([Channel("", int(port)) for _ in range(count)] for _ in range(2))
    waits = threading.Thread(target=lambda: [channel.wait() for channel in here])
    waits.start()
    for channel in there:
        channel.connect()
    waits.join()
    assert evil.poll(here, 0) == []
    for number, channel in enumerate(reversed(there)):
        channel.send(b"%d" % number)
    ready = evil.poll(here)
    assert len(ready) == count, len(ready)
    for channel, _ in ready:
        channel.send(channel.recv())
    for number, channel in enumerate(reversed(there)):
        assert channel.recv() == b"%d" % number
    print("all were heard")
    threading.Thread(target=Channel("", int(port)).connect, daemon=True).start()
    try:
        Channel("", int(port)).wait()
    except ViaError as error:
        print(f"then: {error}", flush=True)
    os._exit(0)


def serve(port, count):
    """Threads that wait at one port, each for its own channel, until all have one; each says then which it is."""
    import threading
    channels = [Channel("", int(port)) for _ in range(int(count))]
    threads = [threading.Thread(target=channel.wait) for channel in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, channel in enumerate(channels):
        channel.send(b"%d" % number)
    for channel in channels:
        refuses(channel.recv, "the other side has closed")
    print("all were found")


def served(peer, port, count):
    """What serve() sees from the other side, by as many threads at once."""
    import threading
    channels = [Channel(peer, int(port)) for _ in range(int(count))]
    threads = [threading.Thread(target=channel.connect) for channel in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(channel.recv()) for channel in channels) == list(range(int(count)))
    print("all were let in")


def lost(address):
    refuses(Channel(address, 1).connect, "no way leads to that address")
    print("as it should be")


def hold(port):
    """Takes nothing until the channel has ended, and looks at it all the time."""
    channel = Channel("", int(port))
    channel.wait()
    connected(channel)
    while not any(events & evil.HUP for _, events in evil.poll([channel], 0)):
        pass
    listen(channel)


def listen(channel):
    try:
        while True:
            channel.recv()
    except ViaError as error:
        print(f"ended: {error}")


def echo(peer, port):
    channel = Channel(peer, int(port))
    channel.connect()
    try:
        while True:
            channel.send(channel.recv())
    except ViaError as error:
        print(f"ended: {error}")


def many(peer, count):
    """Connects several channels, says a word in each when it is told to, and leaves."""
    channels = [Channel(peer, 10 + number) for number in range(int(count))]
    for channel in channels:
        channel.connect()
    for _ in channels:
        number = int(channels[0].recv())
        channels[number].send(b"word %d" % number)
    channels[0].recv()


def forks():
    """A child has its parent's channel in its memory, and must not be taken for its parent."""
    ends = {}
    for name in ("parent", "child"):
        ends[name] = os.fork()
        if not ends[name]:
            break
    if 0 in ends.values():
        channel = Channel("", 1 if name == "parent" else 2)
        channel.wait()
        for number in range(20):
            assert channel.recv() == b"%d" % number
            channel.send(b"%d" % number)
        refuses(channel.recv, "the other side has closed")
        os._exit(0)
    node = os.environ["TOE_VIA_NODE"]
    channel = Channel(node, 1)
    channel.connect()
    for number in range(20):
        child = 0 if number % 5 == 2 else os.fork() if number % 5 == 1 else None
        if child == 0 and number % 5 == 1:
            for call in (lambda: channel.send(b"not mine"), channel.recv, channel.wait, channel.connect):
                refuses(call, "in this process and not in its parent")
            channel.close()
            own = Channel(node, 2) if number == 1 else None
            if own:
                own.connect()
                for word in range(20):
                    own.send(b"%d" % word)
                    assert own.recv() == b"%d" % word
            os._exit(0)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        channel.send(b"%d" % number)
        assert channel.recv() == b"%d" % number
    channel.close()
    for pid in ends.values():
        assert os.waitpid(pid, 0)[1] == 0
    print("each its own")


def refuses(call, text):
    try:
        call()
    except ViaError as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"nothing was refused: {text}")


def calls():
    """What many() sees from the other side, and what is refused."""
    refuses(lambda: Channel("x", 0), "ports are 1 to 255")
    refuses(lambda: Channel("x", 256), "ports are 1 to 255")
    refuses(lambda: Channel("x" * 33, 1), "an argument cannot be")
    lonely = Channel("nobody", 1)
    refuses(lambda: lonely.send(b"x"), "not connected")
    lonely.settimeout(0.01)
    refuses(lonely.connect, "the time that via_timeout set is over")
    refuses(lonely.wait, "the time that via_timeout set is over")
    lonely.close()
    refuses(lonely.wait, "no such channel")

    channels = [Channel("", 10 + number) for number in range(5)]
    for channel in channels:
        channel.wait()
    refuses(channels[0].wait, "connected already")
    assert evil.poll(channels, 0) == []
    assert len(evil.poll(channels, 0, evil.OUT)) == 5
    for number in (3, 1, 4, 2, 0):
        assert evil.poll(channels, 0) == []
        channels[0].send(b"%d" % number)
        if number % 2:
            ready, _, _ = select.select([channels[0]], [], [])
            assert ready
        found = evil.poll(channels)
        assert found == [(channels[number], evil.IN)], found
        assert channels[number].recv() == b"word %d" % number
    channels[0].send(b"end")
    for channel in channels:
        refuses(channel.recv, "the other side has closed")
    assert [events & evil.HUP for _, events in evil.poll(channels)] == [evil.HUP] * 5
    print("all as it should be")


globals()[sys.argv[1]](*sys.argv[2:])
