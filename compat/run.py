#!/usr/bin/python3
"""Runs programs and CPython's own tests on the kernel's stack and on OpenTOE, and compares.

    sudo compat/run.py                                everything, on both stacks
    sudo compat/run.py --only nginx,cpython           some programs; `cpython` is all of CPython's test modules
    sudo compat/run.py --only cpython/test_socket     one of them
    sudo compat/run.py --write                        puts the tables into docs/compatibility.md

The exit status is 0 when everything that holds on the kernel's stack holds on OpenTOE, 1 when something differs, and 2
when it cannot run. TOE_BIN_DIR says where `toe` is, if not in target/release.
"""

import argparse
import ast
import json
import pathlib
import shutil
import sys
import tempfile

import cpython
import runner
import table

PROGRAMS = runner.HERE / "programs"
LIMIT = 180
"""Seconds for one script on one stack."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,…", help="these programs only")
    parser.add_argument("--stack", choices=[*runner.STACKS, "both"], default="both")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write all that was found into FILE")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/compatibility.md")
    args = parser.parse_args()
    if args.write and (args.only or args.stack != "both"):
        parser.error("--write wants every program on both stacks")
    if problem := runner.missing():
        print(f"compat: {problem}", file=sys.stderr)
        return 2
    names = args.only.split(",") if args.only else ["all"]
    if unknown := [name for name in names if not chosen([name])]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known())}")
    stacks = runner.STACKS if args.stack == "both" else (args.stack,)
    root = pathlib.Path(tempfile.mkdtemp(prefix="compat-", dir="/tmp"))
    root.chmod(0o755)
    rows = [one(name, stacks, root) for name in chosen(names)]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    if args.write:
        table.write(rows)
    else:
        print(table.text(rows))
    if all(row["good"] for row in rows):
        shutil.rmtree(root)
        return 0
    print(f"compat: logs are in {root}", file=sys.stderr)
    return 1


def known():
    return [*sorted(path.stem for path in PROGRAMS.glob("*.py")), "cpython", *cpython.rows()]


def chosen(names):
    """The names of the rows that are meant, in the table's order."""
    def meant(row):
        return any(name in ("all", row) or row.startswith(f"{name}/") for name in names)

    return [row for row in known() if row != "cpython" and meant(row)]


def one(name, stacks, root):
    """One row: the program on each stack."""
    print(f"{name:<37}", end="", flush=True)
    work = root / name.replace("/", "-")
    if name.startswith("cpython/"):
        row = cpython.run(name, stacks, work)
    else:
        row = program(name, stacks, work)
    print(table.outcome(row), flush=True)
    return row


def program(name, stacks, work):
    path = PROGRAMS / f"{name}.py"
    row = {"name": name, "used": " ".join(ast.get_docstring(ast.parse(path.read_text())).split()), "stacks": {}}
    for stack in stacks:
        there = work / stack
        found = runner.run([sys.executable, path], stack, there, LIMIT)
        result = there / "result.json"
        found.update({"title": name, "version": "", "checks": []})
        if result.exists():
            found.update(json.loads(result.read_text()))
        if not found["engine_runs"]:
            found["checks"].append({"name": "the engine runs on", "ok": False, "message": "the engine has ended"})
        row["stacks"][stack] = found
        print(f"{stack} {table.count(found)}  ", end="", flush=True)
    row["missing"] = next((found["missing"] for found in row["stacks"].values() if "missing" in found), "")
    row["differences"] = differences(row["stacks"])
    row["good"] = not row["differences"] and all(passed(found) for found in row["stacks"].values())
    return row


def passed(found):
    return sum(bool(check["ok"]) for check in found["checks"])


def differences(stacks):
    """What fails: [name, message] of each check; also one that was made on the kernel's stack and not on OpenTOE."""
    found = []
    for stack, result in stacks.items():
        where = "" if stack == "toe" else f"on the {stack}'s stack: "
        found += [[check["name"], where + check["message"]] for check in result["checks"] if not check["ok"]]
    if set(stacks) == set(runner.STACKS):
        reached = {check["name"] for check in stacks["toe"]["checks"]}
        found += [[check["name"], "never reached"] for check in stacks["kernel"]["checks"]
                  if check["name"] not in reached]
        passing = stacks["toe"].get("suite", {})
        found += [[test, "passes on the kernel's stack"] for test, ok in stacks["kernel"].get("suite", {}).items()
                  if ok and not passing.get(test)]
    return found


if __name__ == "__main__":
    sys.exit(main())
