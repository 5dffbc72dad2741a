"""What a program sees of a connection's descriptor, and what children make of it."""

import errno
import fcntl
import os
import select
import socket
import stat
import subprocess

PORT = 7301


def expect(error, call):
    try:
        call()
    except OSError as e:
        assert e.errno == error, e
        return
    raise SystemExit(f"no {errno.errorcode[error]}")


def check(s):
    found = os.fstat(s.fileno())
    assert stat.S_ISSOCK(found.st_mode) and found.st_size == 0, found
    flags = fcntl.fcntl(s, fcntl.F_GETFL)
    assert flags & ~os.O_NONBLOCK == os.O_RDWR, oct(flags)
    expect(errno.ESPIPE, lambda: os.lseek(s.fileno(), 0, os.SEEK_CUR))
    expect(errno.ESPIPE, lambda: os.pread(s.fileno(), 1, 0))
    expect(errno.ESPIPE, lambda: os.pwrite(s.fileno(), b"x", 0))
    expect(errno.ENOTTY, lambda: os.ttyname(s.fileno()))


def same(a, b):
    a.sendall(b"ping")
    assert b.recv(9) == b"ping"
    b.sendall(b"pong")
    assert a.recv(9) == b"pong"


def main():
    listener = socket.create_server(("127.0.0.1", PORT))
    for turn in range(6):
        client = socket.socket()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.connect(("127.0.0.1", PORT))
        server, _ = listener.accept()
        check(client)
        check(server)
        same(client, server)
        # A child of vfork closes descriptors in memory that it shares with us, then executes something.
        assert subprocess.run(["/bin/true"], close_fds=True).returncode == 0
        os.posix_spawn("/bin/true", ["true"], os.environ)
        os.wait()
        assert os.system("true") == 0
        same(client, server)
        client.close()
        assert server.recv(1) == b""
        server.close()
        # What an engine did not need is as new: its connect is the kernel's, with none of the last one's options.
        if turn % 2:
            other = socket.socket()
            assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
            expect(errno.ECONNREFUSED, lambda: other.connect(("127.0.0.1", 1)))
            other.close()
    # A copy in another process keeps the connection open, however it got there.
    client = socket.create_connection(("127.0.0.1", PORT))
    server, _ = listener.accept()
    holder = subprocess.Popen(["/bin/sleep", "1000"], pass_fds=[client.fileno()])
    client.close()
    assert not select.select([server], [], [], 0.2)[0], "a copy is open"
    holder.kill()
    holder.wait()
    assert server.recv(1) == b""
    print("same")


main()
