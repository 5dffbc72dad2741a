"""Two network namespaces joined by a cable (`toe-cable`), and what runs in them: engines, senders and receivers.

    namespace S (sender)                               namespace R (receiver)
    wire  10.90.0.1/24 kernel  ==  toe-cable  ==  wire  10.90.0.2/24 kernel
          10.90.0.3    engine                           10.90.0.4    engine

Whatever the stack, its frames leave by the TAP `wire` of its namespace, one segment a frame, and meet the same faults.
Everything ends with the `with` block.
"""

import itertools
import json
import os
import pathlib
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PREFIX = "toeinterop-"
PORT = 7001
NETWORK = "10.90.0.0"
KERNEL = {"s": "10.90.0.1", "r": "10.90.0.2"}
ENGINE = {"s": "10.90.0.3", "r": "10.90.0.4"}
OTHER = {"s": "r", "r": "s"}
SETTINGS = {
    # What Linux has where nobody changed it, so that the table does not depend on the machine's configuration.
    "net/ipv4/tcp_rmem": "4096 131072 6291456",
    "net/ipv4/tcp_wmem": "4096 16384 4194304",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/ip_forward": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
}
PRIORITY, WIRE_PRIORITY = "5", "10"
"""Of a real-time scheduler (sched(7))."""
LIMIT = 30
"""Seconds that anything may take which is not the transfer itself."""


class Failed(Exception):
    """Something did not run as it should; the text says what."""


def programs():
    return pathlib.Path(os.environ.get("TOE_BIN_DIR") or HERE.parent / "target/release")


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def in_namespace(namespace, *words):
    """The words that run a command there, before what else the machine has to do: nobody's stack waits for a build."""
    return ["chrt", "--rr", PRIORITY, "nsenter", f"--net=/run/netns/{namespace}", "--", *map(str, words)]


class Link:
    """A pair of namespaces with a cable between them. `faults` are for the sender's end and for the receiver's; both
    stacks send by `congestion`."""

    numbers = itertools.count(1)

    def __init__(self, faults, capture=None, congestion="cubic"):
        self.name = f"{PREFIX}{os.getpid()}-{next(Link.numbers)}"
        self.faults = faults
        self.capture = capture
        self.congestion = congestion
        self.started = []
        self.engines = {}
        self.cable = None
        self.counters = None
        self.dir = tempfile.TemporaryDirectory(prefix=self.name)

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def namespace(self, side):
        return f"{self.name}-{side}"

    def make(self):
        for side in "sr":
            run("ip", "netns", "add", self.namespace(side))
            settings = "; ".join(f"echo '{value}' > /proc/sys/{name}" for name, value in SETTINGS.items())
            run(*in_namespace(self.namespace(side), "sh", "-ec", settings))
            run("ip", "-n", self.namespace(side), "link", "set", "lo", "up")
        self.join()
        for side in "sr":
            run("ip", "-n", self.namespace(side), "addr", "add", f"{KERNEL[side]}/24", "dev", "wire")
            run("ip", "-n", self.namespace(side), "link", "set", "wire", "up")
            # By the route, as not every kernel lets a namespace choose it for all.
            run("ip", "-n", self.namespace(side), "route", "change", f"{NETWORK}/24", "dev", "wire",
                "proto", "kernel", "scope", "link", "src", KERNEL[side], "congctl", self.congestion)
        if self.capture:
            words = ["tcpdump", "-i", "wire", "-s", "128", "-U", "-w", self.capture]
            tcpdump = self.spawn("s", *words, stderr=subprocess.PIPE)
            tcpdump.stderr.readline()

    def join(self):
        """Makes `wire` in both namespaces."""
        ends = [f"tap:wire-{side}?{faults}" for side, faults in zip("sr", self.faults)]
        # Before those who use it, or the wire would be slower when they are busy.
        words = ["chrt", "--rr", WIRE_PRIORITY, programs() / "toe-cable", *ends]
        self.cable = self.spawn("s", *words, stdin=subprocess.PIPE)
        self.expect(self.cable, "ready")
        run("ip", "-n", self.namespace("s"), "link", "set", "wire-r", "netns", self.namespace("r"))
        for side in "sr":
            run("ip", "-n", self.namespace(side), "link", "set", f"wire-{side}", "name", "wire")

    def spawn(self, side, *words, **pipes):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **pipes}
        child = subprocess.Popen(in_namespace(self.namespace(side), *words), text=True, **pipes)
        self.started.append(child)
        return child

    @staticmethod
    def expect(child, word):
        line = child.stdout.readline().strip()
        if line != word:
            raise Failed(f"{' '.join(child.args)} said {line!r} instead of {word!r}")

    def engine(self, side):
        """Starts an engine on one side; gives its name."""
        name = f"{self.name}-{side}"
        log = pathlib.Path(self.dir.name) / f"{side}.log"
        words = [programs() / "toe", "start", "--name", name, "--log-file", log,
                 "--port", "packet:wire", "--addr", f"{ENGINE[side]}/24", "--gateway", KERNEL[OTHER[side]],
                 "--congestion", self.congestion]
        # Into a file: the engine keeps the descriptor, and a pipe would be waited for.
        with open(pathlib.Path(self.dir.name) / f"{side}.start", "w+", encoding="utf-8") as said:
            started = subprocess.run(in_namespace(self.namespace(side), *words), stdin=subprocess.DEVNULL,
                                     stdout=said, stderr=said, check=False)
            said.seek(0)
            if started.returncode != 0:
                raise Failed(f"toe start: {said.read().strip()}")
        self.engines[name] = side
        return name

    def on(self, side, stack, *words):
        """The words that run a program on a stack: `linux`, or an engine's name."""
        return [*words] if stack == "linux" else [programs() / "toe", "run", "--name", stack, "--", *words]

    def source(self, side, stack, port=PORT):
        """Starts a program that sends to whoever connects."""
        child = self.spawn(side, *self.on(side, stack, programs() / "toe-load", "serve", "--listen", f"0.0.0.0:{port}"))
        self.expect(child, "ready")
        return child

    def sink(self, side, stack, address, flows, seconds, skip=0, port=PORT):
        """Starts a program that receives; `result` waits for it."""
        words = [programs() / "toe-load", "stream", "--direction", "receive", "--connect", f"{address}:{port}",
                 "--flows", flows, "--seconds", seconds, "--skip", skip]
        return self.spawn(side, *self.on(side, stack, *words), stderr=subprocess.PIPE)

    @staticmethod
    def result(child, seconds):
        """What a sink measured."""
        try:
            out, err = child.communicate(timeout=seconds + LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(child.args)} does not end") from None
        if child.returncode != 0:
            raise Failed(f"toe-load: {err.strip()}")
        return json.loads(out)

    def engine_octets(self, name, counter):
        """Octets that an engine's port received (`rx_bytes`) or sent (`tx_bytes`)."""
        return sum(port[counter] for port in self.status(name)["ports"])

    def ask(self, name, what, *options):
        """The words that ask an engine, in its namespace: elsewhere root sees and stops nothing of it."""
        return in_namespace(self.namespace(self.engines[name]), programs() / "toe", what, "--name", name, *options)

    def status(self, name):
        """What `toe status` tells of an engine."""
        return json.loads(run(*self.ask(name, "status", "--json")))

    def end(self):
        for name in self.engines:
            subprocess.run(self.ask(name, "stop"), capture_output=True, check=False)
        if self.cable and self.cable.poll() is None:
            try:
                out, _ = self.cable.communicate(timeout=5)
                self.counters = json.loads(out)
            except (subprocess.TimeoutExpired, ValueError):
                pass
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.wait()
        for side in "sr":
            remove_namespace(self.namespace(side))
        self.dir.cleanup()


class FastLink(Link):
    """The same with a veth in the place of the cable: as fast as the machine."""

    def __init__(self):
        super().__init__(())

    def join(self):
        s, r = self.namespace("s"), self.namespace("r")
        run("ip", "-n", s, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", r)


def remove_namespace(namespace):
    """Ends what still runs in it (an engine that did not stop), and removes it."""
    if not pathlib.Path("/run/netns", namespace).exists():
        return
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in pids.stdout.split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            pass
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def sweep():
    """Removes what an earlier run left that was killed."""
    for path in pathlib.Path("/run/netns").glob(f"{PREFIX}*"):
        owner = path.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not pathlib.Path("/proc", owner).exists():
            remove_namespace(path.name)


def wait_until(condition, what):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {LIMIT} s")
        time.sleep(0.01)
