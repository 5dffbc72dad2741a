#!/usr/bin/env python3
"""What `llvm-cov export` says of the TCP folder, a line a file (called by coverage.sh).

A branch is each outcome of each condition (of && and || each side); arms of `match` are regions. What tests have of their own
does not count. Exit code 1: less of the branches is taken than the floor.
"""

import json
import sys

FOLDER = "/flow/tcp/"


def product_lines(path):
    """How many lines of a file come before its tests."""
    with open(path) as source:
        lines = source.read().split("\n")
    tests = (at for at, line in enumerate(lines[:-1]) if line == "#[cfg(test)]" and lines[at + 1] == "mod tests {")
    return next(tests, len(lines))


def collect(export):
    """Per file: places of branches and of regions, and how often each was taken."""
    last = {
        file["filename"]: product_lines(file["filename"])
        for file in export["files"]
        if FOLDER in file["filename"] and not file["filename"].endswith("/tests.rs")
    }
    branches, regions = {path: {} for path in last}, {path: {} for path in last}

    def add(places, place, taken):
        # A function may have been compiled for several types: what one of them takes is taken.
        places[place] = places.get(place, 0) + taken

    for file in export["files"]:
        path = file["filename"]
        for line, column, _, _, yes, no, *_ in file["branches"] if path in last else ():
            if line <= last[path]:
                add(branches[path], (line, column, "true"), yes)
                add(branches[path], (line, column, "false"), no)
    for function in export["functions"]:
        for *place, taken, at, _, kind in function["regions"]:
            path = function["filenames"][at]
            if path in last and kind == 0 and place[0] <= last[path]:
                add(regions[path], tuple(place), taken)
    return branches, regions


def share(places):
    taken = sum(1 for count in places if count)
    return 100 * taken / len(places) if places else 100.0


def main(export_path, floor):
    with open(export_path) as file:
        export = json.load(file)["data"][0]
    branches, regions = collect(export)
    row = "{:<52} {:>8} {:>7} {:>8} {:>7}".format
    print(row("file", "branches", "taken", "regions", "run"))

    def show(name, of_branches, of_regions):
        shares = (f"{share(places):.1f}%" for places in (of_branches, of_regions))
        print(row(name, len(of_branches), next(shares), len(of_regions), next(shares)))

    for path in sorted(branches):
        show(path.split(FOLDER, 1)[1], branches[path].values(), regions[path].values())
    every = [[count for of_file in of.values() for count in of_file.values()] for of in (branches, regions)]
    show("all", *every)
    for path in sorted(branches):
        for (line, column, outcome), taken in sorted(branches[path].items()):
            if not taken:
                print(f"never {outcome}: {path.split(FOLDER, 1)[1]}:{line}:{column}")
    if share(every[0]) < floor:
        sys.exit(f"below {floor} %: cover what is new by a packet script or a unit test")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
