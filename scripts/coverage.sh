#!/usr/bin/env bash
# Branch coverage of the TCP folder by unit tests and packet scripts (`make coverage`). Prints a line a file and fails below the floor.
#
# Branches need an option of rustc that is not stable yet; RUSTC_BOOTSTRAP lets the stable compiler take it, for this
# measurement only.
set -euo pipefail
cd "$(dirname "$0")/.."

FLOOR=${FLOOR:-95}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/coverage
tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
data=$CARGO_TARGET_DIR/profiles
rm -rf "$data"

export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-C instrument-coverage -Z coverage-options=branch"
export LLVM_PROFILE_FILE=$PWD/$data/%p-%m.profraw

run() {
    cargo test --quiet "$@" >&2
    cargo test --no-run --message-format=json "$@" 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >>"$data/binaries"
}
mkdir -p "$data"
run -p toe-engine --lib
run -p toe-script --test engine

"$tools/llvm-profdata" merge --sparse "$data"/*.profraw -o "$data/all.profdata"
mapfile -t binaries <"$data/binaries"
"$tools/llvm-cov" export --summary-only --instr-profile="$data/all.profdata" "${binaries[@]/#/--object=}" \
    >"$data/summary.json"
python3 - "$data/summary.json" "$FLOOR" <<'PY'
import json, sys

files = json.load(open(sys.argv[1]))["data"][0]["files"]
floor = float(sys.argv[2])
tcp = {f["filename"].split("crates/", 1)[1]: f["summary"] for f in files if "/flow/tcp/" in f["filename"]}
line = "{:<66} {:>8} {:>6} {:>6}".format
print(line("file", "branches", "taken", "lines"))
for name, summary in sorted(tcp.items()):
    branches, lines = summary["branches"], summary["lines"]
    print(line(name, branches["count"], f"{branches['percent']:.1f}%", f"{lines['percent']:.1f}%"))
count = sum(s["branches"]["count"] for s in tcp.values())
share = 100 * sum(s["branches"]["covered"] for s in tcp.values()) / count
print(line("all", count, f"{share:.1f}%", ""))
if share < floor:
    sys.exit(f"below {floor} %: cover what is new by a packet script or a unit test")
PY
