#!/usr/bin/env python3
"""How long the examples of examples/via are in EVIL and in VIPL: lines of code, without comments and empty ones. Ends with 1 if one in EVIL is longer than a
third of the same in VIPL."""
import pathlib
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "via"


def lines(path):
    stripped = (line.strip() for line in path.read_text().splitlines())
    return sum(1 for line in stripped if line and not line.startswith(("/*", "* ")))


def main():
    is_long = False
    print(f"{'example':10} {'EVIL':>5} {'VIPL':>5}  share")
    for name in ("pingpong", "copy", "sum"):
        evil, vipl = lines(EXAMPLES / f"{name}.c"), lines(EXAMPLES / "vipl" / f"{name}.c")
        is_long |= 3 * evil > vipl
        print(f"{name:10} {evil:5} {vipl:5}  {evil / vipl:.2f}")
    return is_long


sys.exit(main())
