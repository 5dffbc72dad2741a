"""libuv's own tests of TCP, UDP, polling, descriptors in messages and processes (its source package): which pass"""

import re

from lib import expect, script

NETWORK = re.compile(r"tcp|udp|ipc|^poll_|socket|shutdown|connect|getaddr|getname|multiple_listen|accept|emfile|callback_stack|"
                     r"^close_|closed_fd|handle_fileno|readable|writable|^spawn_|watcher|fork_(?!fs)|walk_handles|eintr|embed|"
                     r"async_sendfile|^pipe_|stdio|^signal|we_get")
BY_TIME = ("tcp_connect_timeout", "tcp_close_while_connecting", "udp_multicast_join", "udp_multicast_join6")
"""They reach for addresses beyond this machine."""


def main(lab):
    tests = lab.program("libuv-tests", "scripts/compat-programs.sh builds them from Debian's source package libuv1")
    # The suite is not to be run as root. Its files and Unix sockets have fixed names, so one test at a time.
    lab.dir.chmod(0o777)
    command = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", tests)
    names = [line.split()[0] for line in lab.run(*command, "--list").decode().splitlines() if line.strip()]
    names = [name for name in names if NETWORK.search(name) and name not in BY_TIME]
    lab.suite(names, lambda name: lab.passes(*command, name, cwd=lab.dir), at_once=1)
    with lab.check("most pass"):
        expect(sum(lab.result["suite"].values()) > len(names) * 0.9, True, "at least nine of ten")


script("libuv's own tests", main)
