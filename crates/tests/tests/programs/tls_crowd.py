# TLS records of a socket's own, with fixed keys at both ends: several threads that send on one socket, and records without an octet. Prints
# "same" when each octet came.
import socket, struct, threading

ULP, SOL_TLS, TX, RX = 31, 282, 1, 2
KEY = struct.pack("<HH", 0x304, 51) + bytes([1]) * 28 + bytes(8)
TIMES, STEP, MOST = 300, 37, 5000
# Seventeen empty records, and one with "data": more of them than one read opens of others.
EMPTY = bytes.fromhex(
    "1703030011a0ab512b3f278876fa9bea35236143a6c91703030011760bd94bb192f559ccaad763d6233976e91703030011ff6884e6f3bc1cf043689c"
    "92d81de2ed7217030300112da931ab4eb33bb6c23c02ab96d13753cd1703030011d0f2536b41046845944808bb78941d2fc917030300119d0f03a912"
    "c04c0a1e20a0cdfb58d0bb1217030300111e7fe61456f5d41018b5c7385a3813114b17030300110af7f88ff8c190a29f1bd32be8242bb5b717030300"
    "111945be447bbc432378fb4825a2fc171b3317030300111eecb1f2f6effc7edd9adf586ca7e76e5417030300111fa88560ce1f60d4278fe96097c7f9"
    "6f131703030011c5efb26f4273dedf280452c6f6669ff48f170303001189dc3965759f9c9cdbcbe3df54b48d9d551703030011d65ab4618aa4d17035"
    "d2fd48f28d99e16f1703030011e04f938249b882a2edb223bee92167a5ad1703030011c01b2909e7016a069f439972bf5ecc5a7017030300111692b0"
    "7ee36756145a02bd4cbaec5a9b8417030300155ddd7108dc8715490734d9557b806574e256eb3eda"
)


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    return one, listener.accept()[0]


def keyed(s, *ways):
    s.setsockopt(socket.IPPROTO_TCP, ULP, b"tls")
    for way in ways:
        s.setsockopt(SOL_TLS, way, KEY)


def send(s, letter):
    for n in range(TIMES):
        s.sendall(letter * (1 + n * STEP % MOST))


def crowd():
    one, other = pair()
    keyed(one, TX, RX)
    keyed(other, TX, RX)
    senders = [threading.Thread(target=send, args=who) for who in
               ((one, b"w"), (one, b"x"), (other, b"y"), (other, b"z"))]
    heard = {}

    def receive(s):
        counts = heard[s] = [0] * 256
        while text := s.recv(777):
            for letter in b"wxyz":
                counts[letter] += text.count(letter)

    readers = [threading.Thread(target=receive, args=(s,)) for s in (one, other)]
    for thread in senders + readers:
        thread.start()
    for thread in senders:
        thread.join()
    one.shutdown(socket.SHUT_WR)
    other.shutdown(socket.SHUT_WR)
    for thread in readers:
        thread.join()
    whole = sum(1 + n * STEP % MOST for n in range(TIMES))
    assert [heard[other][letter] for letter in b"wx"] == [whole] * 2, heard
    assert [heard[one][letter] for letter in b"yz"] == [whole] * 2, heard


def empty():
    one, other = pair()
    keyed(other, RX)
    one.sendall(EMPTY)
    assert other.recv(100) == b"data"
    one.close()
    assert other.recv(100) == b""


crowd()
empty()
print("same")
