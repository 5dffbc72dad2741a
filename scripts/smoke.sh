#!/usr/bin/env bash
# Runs each target that README.md and CONTRIBUTING.md name, by its own command and cut short, so that none of them stops working
# unseen; `make lint` checks that none is missing here. Figures of such runs mean nothing. A table of what took how long at the
# end; the exit status is 1 when a target failed.
#
# smoke.sh [TARGET]...   these targets only
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${TOE_BIN_DIR:-${CARGO_TARGET_DIR:-target}/release}
table=() failed=0
# What scripts/setup.sh installs for a target beyond a compiler.
declare -A setup=([demo]=demo [bench]=bench [fuzz]=fuzz [compat]=compat-few [interop]=interop [hostile]=test [storm]=test [stress]=test [again]=test [acceptance]=test)

# run TARGET COMMAND...
run() {
    local target=$1 started=$SECONDS verdict=PASS
    shift
    [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " = *" $target "* ]] || return 0
    printf '\n== make %s\n' "$target"
    # A machine whose package archive is not Debian's, or cannot be reached, says nothing about the target.
    if ! scripts/setup.sh "${setup[$target]:-build}"; then
        table+=("SKIP          make $target: what it needs cannot be installed here, see above")
        return 0
    fi
    "$@" </dev/null || { verdict=FAIL failed=1; }
    table+=("$(printf '%-5s %4s s  %s' "$verdict" $((SECONDS - started)) "make $target ${*:3}")")
}

# Whether Linux is reached in one short run says nothing: that there are figures does.
interop() {
    rm -f "$bin/interop.json"
    make interop "INTEROP_FLAGS=--only 0%/1ms/1x --seeds 1" || true
    [ -s "$bin/interop.json" ]
}

only=("$@")
run build make build
run demo make demo DEMO_SECONDS=1 DEMO_ROUNDS=1
run bench make bench "BENCH_FLAGS=--quick --seconds 1 --link local rr cps"
run sim make sim SEEDS=200
# All of them: the copy of the source takes a minute to build, and then they take a second.
run mutants make mutants
run fuzz make fuzz TARGET=frames SECONDS=2 FUZZ_KEEP=0
# Its some sixty packages and what it builds for them take longer than all that is run here.
run compat make compat COMPAT_SETUP=compat-few "COMPAT_FLAGS=--only curl,netcat"
run interop interop
run hostile make hostile SECONDS=1 ATTACKS=spin
run storm make storm STORM_SECONDS=5
run stress make stress SECONDS=5
run again make again TEST=descriptor::calls TIMES=2
run acceptance make acceptance PARTS=transfers ACCEPTANCE_FILE_MIB=16

echo
printf '%s\n' "${table[@]}"
exit "$failed"
