#!/usr/bin/env bash
# The heavy figures, in one table: a million requests, 1 GiB files both ways on good and bad links, idle CPU, hostile
# input, calls on both stacks compared. About a quarter of an hour; needs root. Ends with 1 when a figure misses its mark.
#
# acceptance.sh [requests|transfers|idle|hostile|differ|scripts|sim]...   only these parts
# ACCEPTANCE_FILE_MIB sets the size of the file (1024).
set -euo pipefail

prefix=toeaccept-$$
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

requests_wanted=1000000
file_mib=${ACCEPTANCE_FILE_MIB:-1024}
faults='?drop=1%&reorder=1%&seed=7'
python=/usr/bin/python3
peer_py=$root_dir/crates/tests/src/peer.py
failed=0

row() { # PASS|FAIL TEXT FIGURE
    printf '%-5s %-62s %s\n' "$1" "$2" "$3" | tee -a "$work/table" >&2
    [ "$1" = PASS ] || failed=1
}
verdict() { if "$@"; then echo PASS; else echo FAIL; fi; }

# Fresh engines (and programs) for each part, so that none inherits another's state.
reset_lab() {
    local pid name
    for name in "${engines[@]}"; do stop_engine "$name"; done
    engines=()
    for pid in $(ip netns pids "$S") $(ip netns pids "$C"); do kill -TERM "$pid" 2>/dev/null || true; done
    until_ok 20 "the programs of the last part end" lab_is_empty
    children=()
    rm -f "$work"/*/nginx.pid
    ip -n "$C" addr replace 10.77.0.1/24 dev toe0
}

lab_is_empty() { [ -z "$(ip netns pids "$S")$(ip netns pids "$C")" ]; }

listens() { ask "$prefix" ss | grep -q ":$1"; }

# nginx on an engine with a port and `local`.
serve() { # FAULTS
    start_engine s "$prefix" --port local --port "packet:toe0$1" --addr 10.77.0.2/24
    start_nginx toe 8080 "$toe" run --name "$prefix" --
    until_ok 10 "nginx listens on the engine" listens 8080
}

requests() {
    local label=$1 url=$2 total=0 errors=0 n e start=$SECONDS
    shift 2
    while [ "$total" -lt "$requests_wanted" ]; do
        "$@" wrk -t2 -c256 -d5s "$url" >"$work/wrk" 2>&1 </dev/null || die "wrk: $(cat "$work/wrk")"
        n=$(awk '/ requests in / { print $1 }' "$work/wrk")
        e=$(awk '{ gsub(/,/, "") } /Socket errors:/ { s += $4 + $6 + $8 + $10 } /Non-2xx/ { s += $NF } END { print s + 0 }' "$work/wrk")
        total=$((total + n)) errors=$((errors + e))
        [ $((SECONDS - start)) -lt 300 ] || break
    done
    row "$(verdict test "$errors" -eq 0 -a "$total" -ge "$requests_wanted")" "$label" "$total requests, $errors errors"
}

part_requests() {
    serve ""
    requests "256 connections, kernel client over a veth" http://10.77.0.2:8080/small "${at_c[@]}"
    requests "256 connections, client on the engine (local)" http://127.0.0.1:8080/small \
        "${at_s[@]}" "$toe" run --name "$prefix" --
    reset_lab
}

timed_row() { # LABEL WANTED GOT STARTED
    local took same=differs
    [ "$2" != "$3" ] || same=equal
    took=$(awk -v a="$4" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
    row "$(verdict test "$same" = equal)" "$1" \
        "$(awk -v m="$file_mib" -v t="$took" 'BEGIN { printf "%.1f s, %.0f MB/s", t, m * 1.048576 / t }'), SHA-256 $same"
}

transfer() { # LABEL FAULTS CLIENT_PREFIX...
    local label=$1 sum started got
    shift 2
    sum=$(sha256sum <"$work/www/large" | cut -d' ' -f1)
    started=$EPOCHREALTIME
    got=$("$@" curl -sSf -m 300 http://10.77.0.2:8080/large </dev/null | sha256sum | cut -d' ' -f1) || got=error
    timed_row "$file_mib MiB down, $label" "$sum" "$got" "$started"
    spawn "$work/put.log" "${at_s[@]}" "$toe" run --name "$prefix" -- "$python" "$peer_py" put-server 8090
    until_ok 10 "the server for uploads listens" listens 8090
    started=$EPOCHREALTIME
    got=$("$@" curl -sSf -m 300 -T "$work/www/large" http://10.77.0.2:8090/up </dev/null) || got=error
    timed_row "$file_mib MiB up, $label" "$sum" "$got" "$started"
}

part_transfers() {
    local link
    mkdir -p "$work/www"
    head -c "$((file_mib << 20))" /dev/urandom >"$work/www/large"
    for link in "" "$faults"; do
        serve "$link"
        transfer "kernel peer${link:+, 1 % dropped, 1 % reordered}" "$link" "${at_c[@]}"
        reset_lab
        serve "$link"
        ip -n "$C" addr flush dev toe0
        start_engine c "$prefix-peer" --port "packet:toe0$link" --addr 10.77.0.1/24
        transfer "engine peer${link:+, 1 % dropped, 1 % reordered}" "$link" \
            "${at_c[@]}" "$toe" run --name "$prefix-peer" --
        reset_lab
    done
    rm -f "$work/www/large"
}

ticks() { # PID...: user and system time, in ticks of 10 ms
    local pid
    for pid in "$@"; do cat "/proc/$pid/stat"; done | sed 's/.*) //' | awk '{ t += $12 + $13 } END { print t }'
}

part_idle() {
    serve ""
    spawn "$work/hold.log" "${at_s[@]}" "$toe" run --name "$prefix" -- sh -c \
        "tail -f /dev/null | $python $peer_py hold 100 127.0.0.1 8080"
    until_ok 20 "100 connections are held" grep -q 'holding 100' "$work/hold.log"
    local pids before used
    read -ra pids <<<"$(ip netns pids "$S" | tr '\n' ' ')"
    before=$(ticks "${pids[@]}")
    sleep 10 # the interval that is measured
    used=$(($(ticks "${pids[@]}") - before))
    row "$(verdict test "$used" -lt 10)" "100 idle connections, engine and programs together, 10 s" \
        "$(awk -v u="$used" 'BEGIN { printf "%.2f %% of one core (%d ticks)", u / 10, u }')"
    reset_lab
}

part_hostile() {
    local log=$work/hostile.log
    if (cd "$root_dir" && TOE_HOSTILE_ROUNDS=10000000 cargo test --locked --release -p toe-engine -p toe-daemon hostile:: -- --nocapture) >"$log" 2>&1 &&
        grep -q '^drop_' "$log" && grep -q 'hostile sessions' "$log"; then
        row PASS "10 million hostile frames, 10 million hostile entries" "$(grep -c '\.\.\. ok$' "$log") tests"
        grep -E '^drop_|hostile sessions' "$log" >&2
    else
        row FAIL "hostile session and hostile frames" "see below"
        tail -40 "$log" >&2
    fi
}

part_differ() {
    local log=$work/differ.log calls=100000
    if (cd "$root_dir" && TOE_DIFFER_CALLS=$calls cargo test --locked -p toe-tests --test differential the_kernel -- --nocapture) >"$log" 2>&1; then
        row PASS "$calls random socket calls on both stacks" "$(grep -o 'connections of the engine: .*' "$log")"
    else
        row FAIL "$calls random socket calls on both stacks" "see below"
        tail -60 "$log" >&2
    fi
}

part_scripts() {
    local log=$work/scripts.log link
    for link in tap xdp; do
        if (cd "$root_dir" && cargo run --locked -q -p toe-script -- --whole "$(dirname "$toe")" --link "$link" crates/script/scripts) >"$log" 2>&1; then
            row PASS "packet scripts against the whole, over $link" "$(grep -o '[0-9]* scripts: .*' "$log" | tail -1)"
        else
            row FAIL "packet scripts against the whole, over $link" "see below"
            tail -60 "$log" >&2
        fi
    done
}

part_sim() {
    local log=$work/sim.log seeds=300
    if (cd "$root_dir" && cargo run --locked -q --profile sim -p toe-sim --bin toe-sim -- --linux --seeds "$seeds") >"$log" 2>&1; then
        row PASS "simulated worlds with Linux at the far end" "$(grep -o "$seeds seeds in .* s" "$log"), no checker failed"
    else
        row FAIL "simulated worlds with Linux at the far end" "see below"
        tail -80 "$log" >&2
    fi
}

[ -x "$toe" ] || die "no $toe: run 'make build' first"
is_root || die "needs root (network namespaces): sudo env PATH=\$PATH make acceptance"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(requests transfers idle hostile differ scripts sim)
make_lab
for part in "${parts[@]}"; do "part_$part"; done

printf '\nacceptance, %s, %s CPUs, Linux %s\n\n' "$(date -u +%Y-%m-%d)" "$(nproc)" "$(uname -r)"
cat "$work/table"
exit "$failed"
