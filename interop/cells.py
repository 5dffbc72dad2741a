"""What is measured: the cells of the table, the links they stand for, and how long and how often each is measured."""

import dataclasses
import math

FRAME = 1514
SEGMENT = 1448
RATE_MBIT = 50
"""So that the processors are not what limits: two cores bear some four such links."""
FAST_MBIT = 1000
"""Two cores bear one such link, more or less: each frame goes through the cable's process."""
BURST = 5
"""Frames lost in a row on average on links with burst loss."""
SIDES = {
    "linux→linux": ("linux", "linux"),
    "engine→linux": ("engine", "linux"),
    "linux→engine": ("linux", "engine"),
}
LOSSES = [(0, "random"), *((percent, kind) for percent in (0.1, 1, 5) for kind in ("random", "burst"))]
DELAYS_MS = (1, 20, 100)
FLOWS = (1, 16)
SECONDS = {1: 8, 20: 12, 100: 20}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A link. The delay is that of each direction, so a round trip takes twice as long."""

    delay_ms: int
    loss: float = 0
    kind: str = "random"
    rate_mbit: int = RATE_MBIT

    @property
    def queue(self):
        """Octets: what the link holds in a round trip, and not less than some forty frames."""
        return max(64_000, self.rate_mbit * 125_000 * 2 * self.delay_ms // 1000)

    def faults(self, seed):
        """For the two ends of the cable: the same for both directions, but other frames are lost."""
        loss = f"rx_drop={self.loss}%&" if self.loss else ""
        burst = f"rx_burst={BURST}&" if self.loss and self.kind == "burst" else ""
        rest = (f"rx_delay_us={self.delay_ms * 1000}&rx_rate_kbit={self.rate_mbit * 1000}"
                f"&rx_queue_bytes={self.queue}")
        return [f"{loss}{burst}{rest}&seed={number}" for number in (seed, seed + 1_000_000)]

    def expected_mbit(self, flows):
        """About what TCP reaches (Mathis et al., for Reno), to know how many cells can run at once."""
        if not self.loss:
            return self.rate_mbit
        per_flow = 1.22 * SEGMENT * 8 / (2e-3 * self.delay_ms * math.sqrt(self.loss / 100)) / 1e6
        return min(self.rate_mbit, max(1, flows * per_flow))

    def name(self):
        rate = "" if self.rate_mbit == RATE_MBIT else f"{self.rate_mbit}mbit/"
        loss = f"{self.loss}%-{self.kind}" if self.loss else "0%"
        return f"{rate}{loss}/{self.delay_ms}ms"

    def title(self):
        loss = f"{self.loss} % {self.kind}" if self.loss else "none"
        loss += "" if self.rate_mbit == RATE_MBIT else f", {self.rate_mbit} Mbit/s"
        return f"{loss} | {self.delay_ms} ms"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One row of the table of goodputs."""

    shape: Shape
    flows: int
    congestion: str = "cubic"
    """What both stacks send by."""

    @property
    def seconds(self):
        return SECONDS[self.shape.delay_ms]

    def runs(self, seeds):
        """One flow that meets losses depends on which ones it meets, and takes little of the machine."""
        return seeds * 3 if self.shape.loss and self.flows == 1 else seeds

    def name(self):
        by = "" if self.congestion == "cubic" else f"{self.congestion}/"
        return f"{by}{self.shape.name()}/{self.flows}x"

    def title(self):
        """The first cells of its row."""
        loss, delay = self.shape.title().split(" | ")
        by = "" if self.congestion == "cubic" else f", {self.congestion}"
        return f"{loss}{by} | {delay}"


@dataclasses.dataclass(frozen=True)
class Share:
    """One row of the table of fairness: two senders at the same end of one link."""

    shape: Shape

    @property
    def skip(self):
        """Seconds that are not counted: both are in slow start, and then find their shares."""
        return {1: 5, 20: 10, 100: 30}[self.shape.delay_ms]

    @property
    def seconds(self):
        return {1: 20, 20: 40, 100: 90}[self.shape.delay_ms]

    @staticmethod
    def runs(seeds):
        return seeds

    def name(self):
        return f"share/{self.shape.name()}"

    def title(self):
        return self.shape.title()


def goodput_cells():
    shapes = [Shape(delay, loss, kind) for loss, kind in LOSSES for delay in DELAYS_MS]
    shapes += [Shape(delay, rate_mbit=FAST_MBIT) for delay in (1, 20)]
    rows = [Cell(shape, flows) for shape in shapes for flows in FLOWS]
    # A sender that does not go by losses finds out whether the receiver's ACKs and windows come as they should.
    by_model = [Shape(delay, loss) for loss in (0, 1) for delay in DELAYS_MS]
    return rows + [Cell(shape, flows, "bbr") for shape in by_model for flows in FLOWS]


def share_cells():
    return [Share(Shape(delay, loss)) for loss in (0, 0.1, 1, 5) for delay in DELAYS_MS]
