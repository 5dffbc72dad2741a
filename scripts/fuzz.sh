#!/usr/bin/env bash
# fuzz.sh TARGET SECONDS: explores a fuzz target with libFuzzer, beginning with its committed corpus, and adds to that
# what reaches something new (FUZZ_KEEP=0: does not). What fails is kept in the corpus, too: the tests replay it. Works with stable Rust: the
# coverage is LLVM's own pass; no sanitizer is needed, since the code under test has no unsafe.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

targets="frames entries operations descriptors scripts control lanes channels filters records wire"
target=${1:-} seconds=${2:-}
case " $targets " in *" $target "*) ;; *) target= ;; esac
if [ -z "$target" ] || ! [ "$seconds" -gt 0 ] 2>/dev/null; then
    echo "fuzz.sh: say what and how long: make fuzz TARGET=frames SECONDS=60 (targets: $targets)" >&2
    exit 2
fi
host=$(rustc -vV | sed -n 's/^host: //p')
build=${CARGO_TARGET_DIR:-target}/fuzz
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
flags+=" -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
# With --target, build scripts and macros are left alone.
RUSTFLAGS=$flags cargo build --locked --release --target "$host" --target-dir "$build" -p toe-sim --features libfuzzer --bin toe-fuzz

corpus=crates/sim/corpus/$target
found=$build/found-$target known=$build/known-$target
rm -rf "$found" "$known"
mkdir -p "$corpus" "$found" "$known"
cp "$corpus"/* "$known"
# The scripts themselves need not be in the corpus.
[ "$target" != scripts ] || find crates/script/scripts -type f -name '*.toe' -exec cp {} "$known" \;
before=$(find "$corpus" -type f | wc -l)
failed=0
fuzz() { TOE_FUZZ_TARGET=$target "$build/$host/release/toe-fuzz" -timeout=20 -rss_limit_mb=4096 -max_len=4096 "$@"; }
fuzz -max_total_time="$seconds" -artifact_prefix="$corpus/failed-" -print_final_stats=1 "$found" "$known" || failed=1
if [ "${FUZZ_KEEP:-1}" = 0 ]; then exit "$failed"; fi
# Into the corpus comes what reaches code that nothing in it does.
(cd "$known" && ls) >"$found.names"
fuzz -merge=1 -use_counters=0 "$known" "$found" 2>/dev/null || failed=1
(cd "$known" && ls) | comm -13 "$found.names" - | while read -r name; do cp "$known/$name" "$corpus"; done
rm -rf "$found" "$found.names" "$known"
echo "$corpus: $before files before, $(find "$corpus" -type f | wc -l) now"
if [ "$failed" = 1 ]; then
    echo "something failed: see above; what failed is $corpus/failed-…, and cargo test -p toe-sim --test corpus replays it" >&2
fi
exit "$failed"
