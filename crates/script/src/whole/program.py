"""The program above the whole stack: does on plain sockets what it is told, a line a call, a line an answer."""

import binascii
import fcntl
import socket
import struct
import sys

listener = None
socks = {}
inherited = []
SIOCATMARK = 0x8905


def apply(sock, name, value):
    tcp, sol = socket.IPPROTO_TCP, socket.SOL_SOCKET
    level, option = {
        "nodelay": (tcp, socket.TCP_NODELAY),
        "cork": (tcp, socket.TCP_CORK),
        "keepalive": (sol, socket.SO_KEEPALIVE),
        "keepidle": (tcp, socket.TCP_KEEPIDLE),
        "keepintvl": (tcp, socket.TCP_KEEPINTVL),
        "keepcnt": (tcp, socket.TCP_KEEPCNT),
        "user-timeout": (tcp, socket.TCP_USER_TIMEOUT),
        "rcvbuf": (sol, socket.SO_RCVBUF),
        "ttl": (socket.IPPROTO_IP, socket.IP_TTL),
        "defer-accept": (tcp, socket.TCP_DEFER_ACCEPT),
        "notsent-lowat": (tcp, socket.TCP_NOTSENT_LOWAT),
        "recverr": (socket.IPPROTO_IP, 11),  # IP_RECVERR, which the module does not name before Python 3.14
    }[name]
    sock.setsockopt(level, option, value)


def new():
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    for name, value in inherited:
        apply(sock, name, value)
    return sock


def read(conn, length):
    got = b""
    while len(got) < length:
        try:
            part = socks[conn].recv(length - len(got))
        except OSError:
            if got:
                break
            raise
        if not part:
            break
        got += part
    return "data " + binascii.hexlify(got).decode() if got else "eof"


def call(words):
    global listener
    verb, conn = words[0], words[1]
    if verb == "listen":
        listener = new()
        listener.bind(("", int(words[2])))
        # It counts where the engine is set up for it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, int(words[3]))
        listener.listen(int(words[3]))
    elif verb == "unlisten":
        listener.close()
    elif verb == "connect":
        socks[conn] = new()
        if words[4] != "0":
            socks[conn].bind(("", int(words[4])))
        try:
            if len(words) > 5:
                octets, to = binascii.unhexlify(words[5]), (words[2], int(words[3]))
                return "number %d" % socks[conn].sendto(octets, socket.MSG_FASTOPEN, to)
            socks[conn].connect((words[2], int(words[3])))
        except BlockingIOError:
            if len(words) > 5:
                return "number 0"
    elif verb == "connected":
        error = socks[conn].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return "errno %d" % error
        try:
            socks[conn].getpeername()
        except OSError:
            return "nothing"
    elif verb == "accept":
        socks[conn], _ = listener.accept()
        socks[conn].setblocking(False)
    elif verb == "send":
        known = (socket.MSG_MORE, socket.MSG_OOB, socket.MSG_EOR)
        flags = sum(flag for flag, is_set in zip(known, words[2:5]) if is_set == "1")
        octets = binascii.unhexlify(words[5])
        sent = socks[conn].send(octets, flags)
        if sent != len(octets):
            return "trouble only %d octets found room" % sent
    elif verb == "read":
        return read(conn, int(words[2]))
    elif verb == "shutdown":
        socks[conn].shutdown(socket.SHUT_RD if words[2] == "1" else socket.SHUT_WR)
    elif verb == "close":
        if words[2] == "1":
            socks[conn].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socks.pop(conn).close()
    elif verb == "set":
        if conn in socks:
            apply(socks[conn], words[2], int(words[3]))
        else:
            inherited.append((words[2], int(words[3])))
    elif verb == "mark":
        return "number %d" % struct.unpack("i", fcntl.ioctl(socks[conn], SIOCATMARK, bytes(4)))
    elif verb == "error":
        return "errno %d" % socks[conn].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return "ok"


for line in sys.stdin:
    try:
        answer = call(line.split())
    except BlockingIOError:
        answer = "nothing"
    except OSError as error:
        answer = "errno %d" % error.errno
    except Exception as error:
        answer = "trouble %r" % error
    print(answer, flush=True)
