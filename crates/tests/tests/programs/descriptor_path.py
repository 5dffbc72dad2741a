"""What the path of a connection's descriptor leads to, beside the descriptor itself."""

import os
import socket
import stat

LISTENER = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(LISTENER.getsockname())
other, _ = LISTENER.accept()
for what, fd in (("connects", one.fileno()), ("accepted", other.fileno()), ("listens", LISTENER.fileno())):
    for directory in ("/proc/self/fd", "/proc/thread-self/fd", "/dev/fd"):
        path = f"{directory}/{fd}"
        link, found, itself = os.readlink(path), os.stat(path), os.fstat(fd)
        print(what, directory, link.split("[")[0], link == f"socket:[{itself.st_ino}]", stat.S_ISSOCK(found.st_mode), oct(found.st_mode))
        print(" ", stat.S_ISLNK(os.lstat(path).st_mode), found.st_ino == itself.st_ino, os.path.isdir(path), os.path.exists(path))
print("others", os.readlink("/proc/self/fd/999") if os.path.exists("/proc/self/fd/999") else "none", os.path.isdir("/proc/self/fd"), os.path.isdir("/"))
with open("/dev/null") as null:
    print("a file", os.readlink(f"/proc/self/fd/{null.fileno()}"), stat.S_ISCHR(os.stat(f"/dev/fd/{null.fileno()}").st_mode))
