"""EVIL for Python: messages between two programs of one OpenTOE engine (include/evil.h).

    from evil import Channel
    with Channel("node-2", 7) as channel:
        channel.connect()
        channel.send(b"hello")
        print(channel.recv())

The library is libtoe_via.so: in the directory that the environment variable TOE_LIB_DIR names, or where the system looks.
Calls let other Python threads run while they wait.
"""

import ctypes
import os

__all__ = ["Channel", "ViaError", "poll", "IN", "OUT", "HUP"]

IN, OUT, HUP = 1, 4, 16
_TOO_LONG = -7
_FIRST_ROOM = 16384


class _Record(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 36),
        ("viHand", ctypes.c_int),
        ("nicHand", ctypes.c_int),
        ("ptag", ctypes.c_int),
        ("port", ctypes.c_int),
        ("localAddr", ctypes.c_char * 36),
        ("remoteAddr", ctypes.c_char * 36),
        ("buffers", ctypes.c_int),
        ("bufferSize", ctypes.c_int),
    ]


class _Poll(ctypes.Structure):
    _fields_ = [("chann", ctypes.POINTER(_Record)), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def _load():
    directory = os.environ.get("TOE_LIB_DIR")
    try:
        library = ctypes.CDLL(os.path.join(directory, "libtoe_via.so") if directory else "libtoe_via.so")
    except OSError as error:
        raise ImportError(
            f"libtoe_via.so cannot be loaded ({error}): set TOE_LIB_DIR to the directory that has it, such as target/release of "
            "OpenTOE after 'make build', or install it where the system looks"
        ) from error
    library.via_open.argtypes = [ctypes.POINTER(_Record), ctypes.c_char_p, ctypes.c_int]
    for name in ("via_wait", "via_connect", "via_close", "via_size", "via_fd"):
        getattr(library, name).argtypes = [_Record]
    library.via_timeout.argtypes = [_Record, ctypes.c_int]
    for name in ("via_send", "via_recv"):
        getattr(library, name).argtypes = [_Record, ctypes.c_void_p, ctypes.c_int]
    library.via_poll.argtypes = [ctypes.POINTER(_Poll), ctypes.c_int, ctypes.c_int]
    library.via_strerror.restype = ctypes.c_char_p
    return library


_library = _load()


class ViaError(OSError):
    """What via_strerror says; `code` is the library's number."""

    def __init__(self, code):
        super().__init__(_library.via_strerror(code).decode())
        self.code = code


def _check(result):
    if result < 0:
        raise ViaError(result)
    return result


class Channel:
    """A channel to `peer`, a node's name, at a port from 1 to 255. An empty peer is anybody for wait()."""

    def __init__(self, peer="", port=1):
        self._record = _Record()
        _check(_library.via_open(ctypes.byref(self._record), peer.encode(), port))
        self._room = ctypes.create_string_buffer(_FIRST_ROOM)

    def wait(self):
        _check(_library.via_wait(self._record))

    def connect(self):
        """The peer may come later: within half a minute, unless settimeout() has said otherwise."""
        _check(_library.via_connect(self._record))

    def send(self, octets):
        """Sends bytes as one message."""
        octets = bytes(octets)
        _check(_library.via_send(self._record, octets, len(octets)))

    def recv(self):
        """The next message, of whatever length."""
        while True:
            got = _library.via_recv(self._record, self._room, len(self._room))
            if got != _TOO_LONG:
                return ctypes.string_at(self._room, _check(got))
            self._room = ctypes.create_string_buffer(_check(_library.via_size(self._record)))

    def settimeout(self, seconds):
        """How long each call may take; None: as long as it takes."""
        _check(_library.via_timeout(self._record, -1 if seconds is None else int(seconds * 1000)))

    def fileno(self):
        """For select and asyncio: see via_fd in evil.h."""
        return _check(_library.via_fd(self._record))

    def close(self):
        if self._record.viHand:
            _library.via_close(self._record)
            self._record.viHand = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def poll(channels, seconds=None, events=IN):
    """The channels of those given that have events, each with what it has."""
    channels = list(channels)
    entries = (_Poll * len(channels))(*((ctypes.pointer(c._record), events, 0) for c in channels))
    limit = -1 if seconds is None else int(seconds * 1000)
    _check(_library.via_poll(entries, len(channels), limit))
    return [(channel, entry.revents) for channel, entry in zip(channels, entries) if entry.revents]
