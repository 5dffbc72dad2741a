"""What was found as tables: in docs/compatibility.md between its two markers, and for the terminal."""

import explain
import runner

DOCUMENT = runner.HERE.parent / "docs/compatibility.md"
BEGIN, END = "<!-- compat: begin -->", "<!-- compat: end -->"


def write(rows):
    """Puts the tables between the markers; what is written by hand around them stays."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"compat: {DOCUMENT} has no '{BEGIN}' … '{END}'")
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text(rows)}\n{END}{after}")


def text(rows):
    programs = [row for row in rows if "tests" not in row]
    modules = [row for row in rows if "tests" in row]
    parts, letters = [], {}
    if programs:
        parts += ["## Programs", "", *program_table(programs, letters), ""]
    if modules:
        parts += ["## CPython's own tests", "", *module_table(modules, letters), ""]
    parts += explain.legend(letters) + named_differences(rows)
    return "\n".join(parts)


def program_table(rows, letters):
    lines = ["| program | version | what was used | kernel | OpenTOE | TCP connections on the engine |"
             " on the kernel's stack | UDP sockets | result |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        some = next(iter(row["stacks"].values()))
        counts = [count(row["stacks"].get(stack)) for stack in runner.STACKS]
        sockets = connections(row, letters)
        cells = [some["title"], some["version"], row["used"], *counts, *sockets, outcome(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def module_table(rows, letters):
    lines = ["| tests | ok on the kernel | of these ok on OpenTOE | other tests | TCP connections on the engine |"
             " on the kernel's stack | UDP sockets | result |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        tests = row["tests"]
        good, others = tests["kernel ok"], tests["others"]
        same = tests["same"]
        cells = [row["name"].removeprefix("cpython/"), str(good), str(same), others, *connections(row, letters), outcome(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def connections(row, letters):
    toe = row["stacks"].get("toe")
    return explain.cells(toe["sockets"], letters) if toe else ("", "", "")


def count(found):
    if found is None:
        return ""
    suite = found.get("suite", {})
    good = sum(bool(check["ok"]) for check in found["checks"]) + sum(suite.values())
    return f"{good}/{len(found['checks']) + len(suite)}"


def outcome(row):
    if row.get("missing"):
        return f"not run: {row['missing']}"
    if row["good"]:
        return "same"
    if not row["differences"]:
        return "did not run"
    return f"{len(row['differences'])} differ"


def named_differences(rows):
    """Each difference by its name and its first words, then what could not be decided."""
    lines = []
    for row in rows:
        lines += [f"- {row['name']}: {name}: {short(message)}" for name, message in row["differences"]]
    if lines:
        lines = ["## What differs", "", *lines, ""]
    flapping = [f"- {row['name']}: {name}" for row in rows for name in row.get("flapping", [])]
    if flapping:
        lines += ["## Not compared: these tests do not always pass on the kernel's stack either", "", *flapping, ""]
    return lines


def short(message):
    line = " ".join(message.split()).replace("|", "/")
    return line if len(line) <= 200 else f"{line[:200]}…"
