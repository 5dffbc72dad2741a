#!/usr/bin/env bash
# again.sh SUITE TIMES FILTER...: those tests of crates/tests/tests/SUITE again and again; the first failure ends it, and is shown.
set -euo pipefail

suite=$1 times=$2
shift 2
cd "$(dirname "$0")/.."
built=$(cargo test --locked -p toe-tests --test "$suite" --no-run 2>&1) || { printf '%s\n' "$built" >&2; exit 1; }
binary=$PWD/$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' <<<"$built")
cd crates/tests
listed=$("$binary" --list "$@" 2>/dev/null | sed -n 's/: test$//p')
[ -n "$listed" ] || { echo "again: no test of '$suite' is named like: $*" >&2; exit 2; }
printf 'again: %d times\n%s\n' "$times" "$listed" >&2

output=$(mktemp)
trap 'rm -f "$output"' EXIT
for ((n = 1; n <= times; n++)); do
    if ! "$binary" "$@" >"$output" 2>&1; then
        cat "$output"
        echo "again: failed in round $n" >&2
        exit 1
    fi
    ((n % 10)) || printf '\r%d of %d' "$n" "$times" >&2
done
printf '\ragain: %d rounds, no failure\n' "$times" >&2
