"""the newest Node.js, whose libuv prefers io_uring: http server and client, the cluster module, net with half close, TLS, as
with the older one"""

import nodejs
from lib import script


def main(lab):
    nodejs.main(lab, lab.program("node-newest", "scripts/compat-programs.sh fetches it from PyPI"))


script("Node.js, newest", main)
