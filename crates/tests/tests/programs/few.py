"""Calls that the C library makes inside itself, or that programs make by their number: as on the kernel's stack."""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys

PORT = 7302
ON_ENGINE = "TOE_ENGINE" in os.environ
IO_URING_SETUP, PREADV, STATX = 425, 295, 332
IP_RECVTTL, IP_RECVTOS = 12, 13
SIOCGIFADDR = 0x8915
AT_EMPTY_PATH, STATX_BASIC = 0x1000, 0x7FF

libc = ctypes.CDLL(None, use_errno=True)
libc.fdopen.restype = libc.freopen.restype = ctypes.c_void_p
libc.fileno.argtypes = libc.fclose.argtypes = [ctypes.c_void_p]
libc.freopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]


def same(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found!r} instead of {wanted!r}")


def refused(error, call):
    try:
        call()
    except OSError as e:
        return same(e.errno, error, "errno")
    raise SystemExit(f"no {errno.errorcode[error]}")


def by_number(*args):
    result = libc.syscall(*args)
    return result, ctypes.get_errno() if result < 0 else 0


def options(server):
    """What Erlang sets on each connection that it accepts."""
    for option in (IP_RECVTOS, IP_RECVTTL):
        same(server.getsockopt(socket.IPPROTO_IP, option), 0, "before")
        server.setsockopt(socket.IPPROTO_IP, option, 5)
        same(server.getsockopt(socket.IPPROTO_IP, option), 1, "after")


def printing(client, server):
    same(libc.dprintf(client.fileno(), b"%d %s %d %d %d %d\n", 5, b"abc", 1, 2, 3, 4), 14, "dprintf")
    same(server.recv(100), b"5 abc 1 2 3 4\n", "what it wrote")
    same(libc.dprintf(client.fileno(), b"%.2f %d\n", ctypes.c_double(1.5), 7), 7, "dprintf of a double")
    same(server.recv(100), b"1.50 7\n", "what it wrote")
    same(libc.__dprintf_chk(client.fileno(), 1, b"%d%%\n", 40), 4, "__dprintf_chk")
    same(server.recv(100), b"40%\n", "what it wrote")
    with open("/dev/null", "wb") as nothing:
        same(libc.dprintf(nothing.fileno(), b"%d\n", 5), 2, "to a file")


def streams(client):
    opened = [libc.fdopen(os.dup(client.fileno()), b"w") for _ in range(100)]
    numbers = [libc.fileno(stream) for stream in opened]
    same(len({number for number in numbers if number > 2}), 100, "numbers of a hundred streams")
    # As git's daemon does with its standard error.
    same(libc.freopen(b"/dev/null", b"w", opened[99]), opened[99], "freopen")
    same(os.readlink(f"/proc/self/fd/{numbers[99]}"), "/dev/null", "what is open there")
    same(libc.freopen(b"/nonexistent/file", b"r", opened[98]), None, "freopen of nothing")
    for stream in [*opened[:98], opened[99]]:
        same(libc.fclose(stream), 0, "fclose")
    refused(errno.EBADF, lambda: os.fstat(numbers[0]))


def descriptor(client, server):
    same(libc.sockatmark(server.fileno()), 0, "sockatmark")
    same([libc.isfdtype(client.fileno(), kind) for kind in (0o140000, 0o040000)], [1, 0], "isfdtype")
    asked = struct.pack("16s24x", b"lo")
    same(fcntl.ioctl(client, SIOCGIFADDR, asked)[20:24], b"\x7f\0\0\1", "the address of lo")
    with open("/etc/passwd", "rb") as file:
        refused(errno.EINVAL, lambda: os.copy_file_range(file.fileno(), client.fileno(), 10))
        refused(errno.EINVAL, lambda: os.copy_file_range(client.fileno(), file.fileno(), 10))
    same(by_number(PREADV, client.fileno(), None, 0, 0), (-1, errno.ESPIPE), "preadv")
    found = ctypes.create_string_buffer(256)
    same(by_number(STATX, client.fileno(), b"", AT_EMPTY_PATH, STATX_BASIC, found)[0], 0, "statx")
    same(struct.unpack_from("H", found.raw, 28)[0], 0o140777, "its mode")


def ring():
    """Nobody but the kernel sees what is put into a ring of io_uring: beside an engine there is none."""
    params = ctypes.create_string_buffer(120)
    result, error = by_number(IO_URING_SETUP, 8, params)
    if ON_ENGINE:
        same((result, error), (-1, errno.ENOSYS), "io_uring_setup")
    elif result >= 0:
        os.close(result)


def main():
    listener = socket.create_server(("127.0.0.1", PORT))
    client = socket.create_connection(("127.0.0.1", PORT))
    server, _ = listener.accept()
    options(server)
    printing(client, server)
    streams(client)
    descriptor(client, server)
    ring()
    print("same")


sys.exit(main())
