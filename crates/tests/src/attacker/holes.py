"""Holes in memory that the engine, or a neighbour's program, has mapped too: a page fault in one waits until it is punched."""

import ctypes
import errno
import os

from interface import Session
from talk import hold, say

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.mremap.restype = ctypes.c_void_p
LIBC.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

FAILED = ctypes.c_void_p(-1).value
PAGE, READ, WRITE, SHARED, MAYMOVE = 4096, 1, 2, 1, 1
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE = 1, 2, 8, 16, 32
MADV_REMOVE = 9


def of_mappings():
    """What comes of a hole by way of each mapping of shared memory of the engine's, and of one that is made out of that."""
    for line in open("/proc/self/maps"):
        if "memfd:toe-region" in line:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            yield "remove", LIBC.madvise(start, end - start, MADV_REMOVE)
            copy = LIBC.mremap(start, 0, end - start, MAYMOVE)
            yield "remove from a copy", LIBC.madvise(copy, end - start, MADV_REMOVE) if copy != FAILED else -1


def of_file(file):
    """All that might take pages out of a file, or stop who wants one."""
    size = os.fstat(file).st_size
    for name, mode in (("punch", PUNCH_HOLE | KEEP_SIZE), ("collapse", COLLAPSE_RANGE), ("zero", ZERO_RANGE),
                       ("insert", INSERT_RANGE)):
        yield name, LIBC.fallocate(file, mode, 0, size)
    for name, act in (("shrink", lambda: os.ftruncate(file, 0)), ("grow", lambda: os.ftruncate(file, 2 * size)),
                      ("write", lambda: os.pwrite(file, b"x", size - 1)),
                      ("splice", lambda: os.splice(pipe(), file, 1, offset_dst=size - 1))):
        try:
            act()
            yield name, 0
        except OSError as error:
            ctypes.set_errno(error.errno)
            yield name, -1
    again = LIBC.mmap(None, size, READ | WRITE, SHARED, file, 0)
    yield "map", 0 if again != FAILED else -1


def pipe():
    out, into = os.pipe()
    os.write(into, b"x")
    return out


def tell(what, results):
    done = []
    for name, result in results:
        if result == 0:
            done.append(name)
        else:
            say(what, name, errno.errorcode.get(ctypes.get_errno(), "?"))
    say("holes in", what + ":", ", ".join(done) or "none")


def holes(path):
    """In a session's own region, which the engine looks at all the time."""
    session = Session(path)
    for name, file in zip(("the region", "the receive part"), session.files):
        tell(name, of_file(file))
        # A file in memory may be anybody's to open, by its name.
        try:
            tell(f"{name} opened anew", of_file(os.open(f"/proc/self/fd/{file}", os.O_RDWR)))
        except OSError as error:
            say(f"holes in {name} opened anew: none,", errno.errorcode[error.errno])
    tell("mappings", of_mappings())
    say("done")
    hold()


ATTACKS = [holes]
