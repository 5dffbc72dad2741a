"""libuv's own tests of TCP, UDP, polling and what they share with processes (its source package): those that pass on the kernel's stack"""

import re
import subprocess

from lib import script

NETWORK = re.compile(r"tcp|udp|ipc|poll_|socket|shutdown|connect|getaddr|getname|listen|accept|error_message|emfile|callback_stack|"
                     r"close_(fd|order)|closed_fd|handle_fileno|readable_on_eof|writable|spawn_inherit|spawn_std|watcher|"
                     r"fork_|walk_handles|eintr|embed|fs_async_send|fs_poll_(?!x)never")


def main(lab):
    tests = lab.program("libuv-tests", "scripts/compat-programs.sh builds them from Debian's source package libuv1")
    names = lab.run("runuser", "-u", "nobody", "--", tests, "--list").decode().splitlines()
    names = [name.split()[0] for name in names if name.strip()]
    lab.dir.chmod(0o777)
    for name in names:
        if NETWORK.search(name):
            lab.one_of_suite(name, "runuser", "-u", "nobody", "--", tests, name)


script("libuv", main)
