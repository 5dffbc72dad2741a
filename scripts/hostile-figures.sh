#!/usr/bin/env bash
# A neighbour's latencies undisturbed and under each attack of another user at full force, as a table; `make hostile`
# builds what it needs. In network namespaces of its own; needs root.
#
# hostile-figures.sh [SECONDS] [--json FILE] [ATTACK...]   SECONDS of each attack (60), all attacks unless some are named
set -euo pipefail

cd "$(dirname "$0")/.."
seconds=60 only=()
while [ $# -gt 0 ]; do
    case $1 in
        --json)
            [ $# -gt 1 ] || { echo "hostile-figures.sh: --json lacks its file" >&2; exit 2; }
            TOE_HOSTILE_JSON=$(realpath -m "$2")
            export TOE_HOSTILE_JSON
            shift
            ;;
        [0-9]*) seconds=$1 ;;
        *) only+=("$1") ;;
    esac
    shift
done
TOE_HOSTILE_ONLY=$(IFS=,; echo "${only[*]-}")
export TOE_HOSTILE_ONLY TOE_HOSTILE_SECONDS=$seconds
exec cargo test --locked -q -p toe-tests --test hostile figures::figures -- --exact --nocapture
