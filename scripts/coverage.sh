#!/usr/bin/env bash
# Branch coverage of the TCP folder by unit tests and packet scripts (`make coverage`). Prints a line a file and what
# none of them takes, and fails below the floor.
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
# Tests have threads: counts that these lose are missing where one count is the difference of others.
export RUSTFLAGS="-C instrument-coverage -Z coverage-options=branch -C llvm-args=-instrprof-atomic-counter-update-all"
export LLVM_PROFILE_FILE=$PWD/$data/%p-%m.profraw

run() {
    cargo test --quiet "$@" >&2
    cargo test --no-run --message-format=json "$@" 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >>"$data/binaries"
}
mkdir -p "$data"
run -p toe-tcp --lib
run -p toe-engine --lib
run -p toe-script --test engine

"$tools/llvm-profdata" merge --sparse "$data"/*.profraw -o "$data/all.profdata"
mapfile -t binaries <"$data/binaries"
"$tools/llvm-cov" export --instr-profile="$data/all.profdata" "${binaries[@]/#/--object=}" >"$data/all.json"
scripts/coverage.py "$data/all.json" "$FLOOR"
