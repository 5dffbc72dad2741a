"""Processes that put something in the way of whoever looks at them."""
import ctypes
import mmap
import os
import socket
import struct
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)


def fifo():
    """A pipe whose path in this process's root is the name of the table."""
    root = tempfile.mkdtemp()
    assert libc.mount(b"none", root.encode(), b"tmpfs", 0, None) == 0
    os.chroot(root)
    os.chdir("/")
    os.mkfifo("/memfd:toe-why")
    both = os.open("/memfd:toe-why", os.O_RDWR)
    os.open("/memfd:toe-why", os.O_RDONLY)
    os.close(both)
    return socket.socket()


def sparse():
    """A socket with calls past the C library, by a table of this process's own, and a file without blocks to look for them in."""
    table = os.memfd_create("toe-why")
    os.ftruncate(table, 65536 * 4)
    made = socket.socket()
    os.pwrite(table, struct.pack("<I", 2 | 36 << 8), made.fileno() * 4)
    file = tempfile.TemporaryFile()
    os.ftruncate(file.fileno(), 3 << 30)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    text = libc.mmap(None, 3 << 30, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file.fileno(), 0)
    assert text not in (None, ctypes.c_void_p(-1).value)
    return made, table, file


def named():
    libc.prctl(15, b"a\x1b[31m\nLISTEN", 0, 0, 0)
    made = socket.create_server(("127.0.0.1", 0))
    return made


keep = {"fifo": fifo, "sparse": sparse, "named": named}[sys.argv[1]]()
print("ready", flush=True)
sys.stdin.readline()
