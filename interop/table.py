"""What was found as tables: in docs/interop.md between its two markers, and for the terminal."""

import os
import pathlib
import platform
import statistics

import cells
import flood

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs/interop.md"
BEGIN, END = "<!-- interop: begin -->", "<!-- interop: end -->"
SAME = 0.005
"""Goodputs that differ by less are called the same: a full link is as full as it can be."""
FAIR = (0.8, 1.25)


def write(found):
    """Puts the tables between the markers; what is written by hand around them stays."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"interop: {DOCUMENT} has no '{BEGIN}' … '{END}'")
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text(found)}\n{END}{after}", encoding="utf-8")


def text(found):
    goodputs = [row for row in found["rows"] if row["flows"]]
    shares = [row for row in found["rows"] if not row["flows"]]
    lines = [f"Made in {found['minutes']:.0f} minutes on {found['machine']}; {found['seeds']} runs of each cell,"
             f" {3 * found['seeds']} where one flow meets losses."]
    if goodputs:
        lines += ["", "## Goodput, Mbit/s", "", summary(goodputs), "", *goodput_table(goodputs)]
    if shares:
        lines += ["", "## Fairness, Mbit/s", "", summary(shares), "", *share_table(shares)]
    if found["floods"]:
        lines += ["", "## SYN flood", "", *flood_table(found["floods"])]
    return "\n".join([*lines, *failures(found["rows"]), ""])


def goodput_table(rows):
    lines = ["| loss | delay | flows | Linux to Linux | engine to Linux | ratio | reached |"
             " Linux to engine | ratio | reached |", "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        line = [row["title"], str(row["flows"]), with_spread(goodputs(row, "linux→linux"))]
        for kind in ("engine→linux", "linux→engine"):
            runs = goodputs(row, kind)
            line += [with_spread(runs), ratio_text(goodput_ratio(row, kind)), goodput_verdict(row, kind)]
        lines.append(f"| {' | '.join(line)} |")
    return lines


def share_table(rows):
    lines = ["| loss | delay | Linux beside Linux | ratio | engine beside Linux | ratio, each run |"
             " median | fair |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        line = [row["title"]]
        for kind in ("linux", "engine"):
            runs = ended(row, kind)
            pair = [statistics.median(run[which] for run in runs) for which in ("other", "linux")] if runs else None
            line += ["failed" if pair is None else f"{number(pair[0])} : {number(pair[1])}"]
            if kind == "linux":
                line += [ratio_text(share_ratio(row, kind))]
        line += [", ".join(f"{run['other'] / run['linux']:.2f}" for run in ended(row, "engine"))]
        line += [ratio_text(share_ratio(row, "engine")), share_verdict(row)]
        lines.append(f"| {' | '.join(line)} |")
    return lines


def flood_table(floods):
    lines = ["| listener | SYNs/s | transfer before, Gbit/s | during | left | engine's memory before, during, after, MiB |"
             " connects that succeeded | median and longest, ms | as wanted |", "|---|---|---|---|---|---|---|---|---|"]
    for found in floods:
        if "failed" in found:
            lines.append(f"| {found['stack']} | failed: {' '.join(found['failed'].split())} | | | | | | | failed |")
            continue
        memory = ", ".join(f"{kib / 1024:.0f}" for kib in found["memory_kib"]) if found["stack"] == "engine" else ""
        times = " and ".join(f"{ms:.1f}" for ms in found["connect_ms"] or [])
        line = [found["stack"], f"{found['rate']:.0f}", f"{found['before'] / 1e9:.2f}", f"{found['during'] / 1e9:.2f}",
                f"{found['left']:.0%}", memory, f"{found['connected']}/{found['connects']}", times,
                "yes" if flood_is_good(found) else "no"]
        lines.append(f"| {' | '.join(line)} |")
    return lines


def flood_is_good(found):
    return "failed" not in found and flood.is_good(found)


def ended(row, kind):
    return [run for run in row["runs"][kind] if "failed" not in run]


def goodputs(row, kind):
    return [run["mbit"] for run in ended(row, kind)]


def goodput_ratio(row, kind):
    own, linux = goodputs(row, kind), goodputs(row, "linux→linux")
    return statistics.median(own) / statistics.median(linux) if own and linux else None


def goodput_verdict(row, kind):
    """`yes`: as much as Linux at least; `about`: less, and yet as much as Linux in the worst of its own runs."""
    ratio = goodput_ratio(row, kind)
    if ratio is None or len(goodputs(row, kind)) < len(row["runs"][kind]):
        return "failed"
    if ratio >= 1 - SAME:
        return "yes"
    return "about" if statistics.median(goodputs(row, kind)) >= min(goodputs(row, "linux→linux")) else "no"


def share_ratio(row, kind):
    runs = ended(row, kind)
    return statistics.median(run["other"] / run["linux"] for run in runs) if runs else None


def share_verdict(row):
    ratio = share_ratio(row, "engine")
    if ratio is None or len(ended(row, "engine")) < len(row["runs"]["engine"]):
        return "failed"
    return "yes" if FAIR[0] <= ratio <= FAIR[1] else "no"


def verdicts(row):
    if row["flows"]:
        return [goodput_verdict(row, kind) for kind in cells.SIDES if kind != "linux→linux"]
    return [share_verdict(row)]


def is_good(row):
    return all(verdict in ("yes", "about") for verdict in verdicts(row))


def summary(rows):
    all_of_them = [verdict for row in rows for verdict in verdicts(row)]
    counts = [f"{all_of_them.count(word)} {word}" for word in ("yes", "about", "no", "failed") if word in all_of_them]
    return f"Of {len(all_of_them)}: {', '.join(counts)}."


def failures(rows):
    lines = []
    for row in rows:
        for kind, runs in row["runs"].items():
            lines += [f"- {row['name']} {kind}: {' '.join(run['failed'].split())}" for run in runs if "failed" in run]
    return ["", "## Runs that failed", "", *lines] if lines else []


def with_spread(runs):
    """The median, and the least and the most."""
    if not runs:
        return "failed"
    return f"{number(statistics.median(runs))} ({number(min(runs))}–{number(max(runs))})"


def number(mbit):
    return f"{mbit:.1f}" if mbit >= 10 else f"{mbit:.2f}"


def ratio_text(ratio):
    return "" if ratio is None else f"{ratio:.2f}"


def short(found):
    if "failed" in found:
        return f"failed: {found['failed']}"
    if "mbit" in found:
        return f"{number(found['mbit'])} Mbit/s"
    return f"{number(found['other'])} beside {number(found['linux'])} Mbit/s"


def machine():
    model = next((line.partition(":")[2].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                  if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}"
