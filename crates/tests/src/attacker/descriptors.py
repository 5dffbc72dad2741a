"""Descriptors whose last close, or whose stat, waits for as long as the attacker likes."""

import ctypes
import os
import socket
import struct
import threading

# Seconds that a close may wait.
LINGER = 3600
LIBC = ctypes.CDLL(None, use_errno=True)


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
    """Files of a file system that does not answer: `getattr` and `flush` wait. Needs root and a mount namespace of its own
    to be made; the user whose program it becomes afterwards has no right at all."""

    INIT, OPEN, GETATTR, STATFS, RELEASE, FLUSH, OPENDIR = 26, 14, 3, 17, 18, 25, 27

    def __init__(self, point):
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        self.path, self.silent = point, False
        with open(point, "w", encoding="ascii"):
            pass
        options = f"fd={self.fd},rootmode=100000,user_id=0,group_id=0,allow_other".encode()
        if LIBC.mount(b"toe", point.encode(), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), "mount of a FUSE file")
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 17)
            except OSError:
                return
            _, opcode, unique = struct.unpack_from("<IIQ", request)
            if self.silent and opcode in (self.GETATTR, self.FLUSH):
                continue
            body = self.answer(opcode)
            error = 0 if body is not None else -38
            body = body or b""
            try:
                os.write(self.fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
            except OSError:
                pass

    def answer(self, opcode):
        if opcode == self.INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 0, 0, 0)
        if opcode == self.OPEN:
            return struct.pack("<QII", 1, 0, 0)
        if opcode == self.GETATTR:
            # Good for no time at all, so that each stat asks again.
            return struct.pack("<QII6Q3I7I", 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o100666, 1, 0, 0, 0, 4096, 0)
        if opcode in (self.RELEASE, self.FLUSH):
            return b""
        return None

    def make(self):
        """An open file; from here on the file system keeps silent."""
        self.silent = False
        fd = os.open(self.path, os.O_RDWR)
        self.silent = True
        return fd
