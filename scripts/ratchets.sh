#!/usr/bin/env bash
# The numbers of the source that only go down (ratchet.toml).
#   scripts/ratchets.sh              all of them, as they are now
#   scripts/ratchets.sh WORD         those with WORD in their section or row, and what each is made of: host, Engine, anchor, dup
#   scripts/ratchets.sh lines        lines of the product, crate by crate, without tests
#   scripts/ratchets.sh write [all]  records what has fallen; with `all` also what has risen, as after a merge
set -euo pipefail
cd "$(dirname "$0")/.."

run() { cargo test --quiet --locked -p toe-tests --test structure ratchets::numbers -- "$@"; }
case ${1-} in
    write) TOE_WRITE=${2:-1} run && git diff --stat -- ratchet.toml ;;
    *) TOE_SHOW=${1-} run --nocapture | grep -v '^$\|^running \|^test result\|^\.$' ;;
esac
