"""Measures one cell once: the goodput that a receiver saw, or the shares of two senders."""

import cells
import link


def goodput(cell, sides, seed, capture=None):
    """Bits a second at the receiver, from the moment that its connections are open, and what the cable counted."""
    sender, receiver = cells.SIDES[sides]
    with link.Link(cell.shape.faults(seed), capture, cell.congestion) as wire:
        sends = wire.engine("s") if sender == "engine" else "linux"
        receives = wire.engine("r") if receiver == "engine" else "linux"
        wire.source("s", sends)
        address = link.KERNEL["s"] if sends == "linux" else link.ENGINE["s"]
        sink = wire.sink("r", receives, address, cell.flows, cell.seconds)
        found = wire.result(sink, cell.seconds)
        for name, counter in ((sends, "tx_bytes"), (receives, "rx_bytes")):
            if name != "linux" and wire.engine_octets(name, counter) < found["bytes"]:
                raise link.Failed("the engine did not carry what was measured")
    return {"mbit": found["bytes"] * 8 / found["seconds"] / 1e6, "cable": wire.counters}


def share(cell, seed, stack, capture=None):
    """Two flows to one Linux receiver, one of Linux and one of `stack`: the goodput of each."""
    with link.Link(cell.shape.faults(seed), capture) as wire:
        other = wire.engine("s") if stack == "engine" else "linux"
        wire.source("s", "linux", link.PORT)
        wire.source("s", other, link.PORT + 1)
        address = link.KERNEL["s"] if other == "linux" else link.ENGINE["s"]
        pairs = [(link.KERNEL["s"], link.PORT), (address, link.PORT + 1)]
        # Who is first alternates with the seed.
        order = pairs if seed % 2 else pairs[::-1]
        sinks = {port: wire.sink("r", "linux", at, 1, cell.seconds, cell.skip, port) for at, port in order}
        found = [wire.result(sinks[port], cell.seconds + cell.skip) for _, port in pairs]
        if other != "linux" and wire.engine_octets(other, "tx_bytes") < found[1]["bytes"]:
            raise link.Failed("the engine did not carry what was measured")
    mbit = [one["bytes"] * 8 / one["seconds"] / 1e6 for one in found]
    return {"linux": mbit[0], "other": mbit[1], "cable": wire.counters}
