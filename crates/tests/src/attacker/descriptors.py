"""Descriptors whose last close, or whose stat, waits for as long as the attacker likes."""

import ctypes
import errno
import mmap
import os
import socket
import platform
import struct
import threading
import time

# Seconds that a close may wait.
LINGER = 3600
# What the file system and we both know.
IS_SILENT, READ_WAITS = 0, 1
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 1 << 14, 1 << 18
GETDENTS64 = {"x86_64": 217}.get(platform.machine(), 61)
LIBC = ctypes.CDLL(None, use_errno=True)


def private_mounts():
    """What root mounts from here on is seen by nobody else, and goes with this process."""
    if os.geteuid() == 0 and (LIBC.unshare(CLONE_NEWNS) or LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)):
        raise OSError(ctypes.get_errno(), "mounts of its own")


class Linger:
    """Sockets with octets that nobody will take, and SO_LINGER: their last close waits."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.ends = []

    def make(self):
        sock = socket.create_connection(self.listener.getsockname())
        self.ends.append(self.listener.accept()[0])
        sock.setblocking(False)
        try:
            while True:
                sock.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER))
        sock.setblocking(True)
        return sock.detach()


class Fuse:
    """Files of a file system that does not answer: `getattr`, `flush` and `read` wait, the last for whoever touches memory
    that is mapped from it. Needs root and a mount namespace of its own to be made; the user whose program it becomes
    afterwards has no right at all. The file system is a process of its own: when it ends, and its files with it, whoever
    waits is let go, us included."""

    INIT, OPEN, GETATTR, READ, RELEASE, FLUSH = 26, 14, 3, 15, 18, 25

    def __init__(self, point):
        self.path, self.flag, self.kept = point, mmap.mmap(-1, mmap.PAGESIZE), []
        with open(point, "w", encoding="ascii"):
            pass
        fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={fd},rootmode=100000,user_id=0,group_id=0,allow_other".encode()
        if LIBC.mount(b"toe", point.encode(), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), "mount of a FUSE file")
        if os.fork() == 0:
            self.serve(fd)
        os.close(fd)

    def silence(self, on):
        self.flag[IS_SILENT] = on

    def memory(self):
        """A page that never comes: whoever writes to it waits, and keeps the locks that he has."""
        fd = self.make()
        self.silence(False)
        memory = mmap.mmap(fd, mmap.PAGESIZE)
        self.silence(True)
        return memory

    def list(self, directory):
        """Lists a directory into such memory, in a thread: from here on that has the directory's lock."""
        memory = self.memory()
        # Its end waits as well.
        self.kept.append(memory)
        at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        args = (GETDENTS64, directory, at, mmap.PAGESIZE)
        threading.Thread(target=LIBC.syscall, args=args, daemon=True).start()
        while not self.flag[READ_WAITS]:
            time.sleep(0.001)

    def serve(self, fd):
        while True:
            try:
                request = os.read(fd, 1 << 17)
                _, opcode, unique = struct.unpack_from("<IIQ", request)
                if self.flag[IS_SILENT] and opcode in (self.GETATTR, self.FLUSH, self.READ):
                    self.flag[READ_WAITS] |= opcode == self.READ
                    continue
                body = self.answer(opcode)
                head = struct.pack("<IiQ", 16 + len(body or b""), 0 if body is not None else -errno.ENOSYS, unique)
                os.write(fd, head + (body or b""))
            except FileNotFoundError:
                # Whoever asked waits no more.
                continue
            except OSError:
                os._exit(0)

    def answer(self, opcode):
        if opcode == self.INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 0, 0, 0)
        if opcode == self.OPEN:
            return struct.pack("<QII", 1, 0, 0)
        if opcode == self.GETATTR:
            # Good for no time at all, so that each stat asks again.
            return struct.pack("<QII6Q3I7I", 0, 0, 0, 1, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100666, 1, 0, 0, 0, 4096, 0)
        if opcode in (self.RELEASE, self.FLUSH):
            return b""
        return None

    def make(self):
        """An open file; from here on the file system keeps silent."""
        self.silence(False)
        fd = os.open(self.path, os.O_RDWR)
        self.silence(True)
        return fd
