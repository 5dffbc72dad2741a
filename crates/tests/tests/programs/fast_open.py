"""Fast Open as programs ask for it. `server PORT COUNT` answers connections; `client HOST PORT` opens them in each way, and says of
each whether its SYN brought octets."""
import errno
import select
import socket
import sys

TCP_FASTOPEN_CONNECT = 30
TCPI_OPT_SYN_DATA = 32
QUESTION, ANSWER = b"question" * 10, b"answer" * 10


def syn_had_data(sock):
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5] & TCPI_OPT_SYN_DATA)


def server(port, count):
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    listening.bind(("", port))
    listening.listen(16)
    assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN) == 16
    print("listening", flush=True)
    for _ in range(count):
        conn, _ = listening.accept()
        assert conn.recv(len(QUESTION), socket.MSG_WAITALL) == QUESTION
        conn.sendall(ANSWER)
        assert conn.recv(1) == b""
        print("served", syn_had_data(conn), flush=True)
        conn.close()


def by_message(to):
    sock = socket.socket()
    assert sock.sendto(QUESTION, socket.MSG_FASTOPEN, to) == len(QUESTION)
    try:
        sock.sendto(b"x", socket.MSG_FASTOPEN, to)
    except OSError as error:
        assert error.errno == errno.EISCONN, error
    return sock


def by_sendmsg(to):
    sock = socket.socket()
    parts = [QUESTION[:7], QUESTION[7:]]
    assert sock.sendmsg(parts, [], socket.MSG_FASTOPEN, to) == len(QUESTION)
    return sock


def by_option(to):
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    sock.connect(to)
    sock.sendall(QUESTION)
    assert sock.getsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT) == 1
    return sock


def without_waiting(to):
    sock = socket.socket()
    sock.setblocking(False)
    sent = 0
    try:
        sent = sock.sendto(QUESTION, socket.MSG_FASTOPEN, to)
    except BlockingIOError as error:
        assert error.errno == errno.EINPROGRESS, error
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    assert poll.poll(20_000) == [(sock.fileno(), select.POLLOUT)]
    sock.setblocking(True)
    sock.sendall(QUESTION[sent:])
    return sock


def client(host, port):
    for way in (without_waiting, by_message, by_sendmsg, by_option, without_waiting):
        sock = way((host, port))
        assert sock.recv(len(ANSWER), socket.MSG_WAITALL) == ANSWER
        print(way.__name__, syn_had_data(sock), flush=True)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
        sock.close()


if sys.argv[1] == "server":
    server(int(sys.argv[2]), int(sys.argv[3]))
else:
    client(sys.argv[2], int(sys.argv[3]))
