"""What `toe run --explain-json` said: how many TCP connections and datagram sockets went to which stack, and why."""

import json

NO_CONNECTION = ("the engine serves this address", "neither bound to an engine's address")
"""How the reasons of sockets that are no connections begin."""
LANE = "datagrams from or to another program of this machine"
"""How the reason begins of a socket that has got a lane: it is counted a second time."""


def read(path):
    """{"engine": {reason: sockets}, "kernel": {…}} of the connections, and "none" of sockets that are no streams; None if
    nothing was written."""
    if not path.exists():
        return None
    found = {"engine": {}, "kernel": {}, "none": {}}
    for stack in json.loads(path.read_text())["stacks"]:
        for entry in stack["reasons"]:
            if not entry["text"].startswith(NO_CONNECTION):
                found[stack["stack"]][entry["text"]] = entry["sockets"]
    return found


def add(one, other):
    """The sum of two counts; None counts nothing."""
    total = {"engine": {}, "kernel": {}, "none": {}}
    for part in filter(None, (one, other)):
        for stack, reasons in part.items():
            for reason, sockets in reasons.items():
                total[stack][reason] = total[stack].get(reason, 0) + sockets
    return total


def cells(sockets, letters):
    """Three cells of the table: connections on the engine, and on the kernel's stack with the share of each reason, by its
    letter; sockets of UDP, which are the kernel's. A reason without a letter gets the next one."""
    if sockets is None:
        return "?", "?", "?"
    lanes = sum(count for reason, count in sockets["none"].items() if reason.startswith(LANE))
    every = sum(sockets["none"].values()) - lanes
    datagrams = f"{every}, {lanes} with a lane" if lanes else str(every)
    engine, kernel = (sum(sockets[stack].values()) for stack in ("engine", "kernel"))
    every = engine + kernel
    if not every:
        return "0", "0", datagrams
    reasons = sorted(sockets["kernel"].items(), key=lambda item: -item[1])
    why = "; ".join(f"*{letter(letters, reason)}* {percent(count, every)}" for reason, count in reasons)
    return f"{engine} ({percent(engine, every)})", f"{kernel} ({why})" if kernel else "0", datagrams


def letter(letters, reason):
    return letters.setdefault(reason, chr(ord("a") + len(letters)))


def legend(letters):
    """A table of what the letters stand for; nothing where there are none."""
    if not letters:
        return []
    lines = [f"| *{letter}* | {reason} |" for reason, letter in letters.items()]
    return ["## Why connections are on the kernel's stack", "", "| letter | reason |", "|---|---|", *lines, ""]


def percent(part, whole):
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"
