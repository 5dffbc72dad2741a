#!/usr/bin/env bash
# nginx under wrk on both stacks, measured turn and turn about; ends by itself with one table.
#
#   a: wrk on the kernel in another namespace, over a veth (needs root: namespaces)
#   b: wrk on the same stack as nginx, on the same machine
#
# DEMO_SECONDS and DEMO_ROUNDS change how long and how often each cell is measured.
set -euo pipefail

prefix=toedemo-$$
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

seconds=${DEMO_SECONDS:-5}
rounds=${DEMO_ROUNDS:-2}
kernel_port=18080
toe_port=18081

# What to run in each cell, and where from.
declare -A url=(
    [a.kernel]=http://10.78.0.2:$kernel_port/small
    [a.OpenTOE]=http://10.77.0.2:$toe_port/small
    [b.kernel]=http://127.0.0.1:$kernel_port/small
    [b.OpenTOE]=http://127.0.0.1:$toe_port/small
)
declare -A what=(
    [a]="wrk on the kernel, over a veth"
    [b]="wrk on the same stack, same host"
)

measure() { # CELL ROUND
    local cell=$1 out=$work/$1.$2
    local wrk=(wrk -t2 -c64 "-d${seconds}s" --latency "${url[$cell]}")
    local at=("${at_s[@]}")
    case $cell in
        a.*) at=("${at_c[@]}") ;;
        b.OpenTOE) wrk=("$toe" run --name "$prefix" -- "${wrk[@]}") ;;
    esac
    "${at[@]}" "${wrk[@]}" >"$out" 2>&1 </dev/null || die "wrk failed: $(cat "$out")"
    grep -q '^Requests/sec:' "$out" || die "wrk gave no figures: $(cat "$out")"
    say "  round $2: ${cell#*.}, ${what[${cell%%.*}]}: $(awk '/^Requests\/sec:/ {print int($2)}' "$out") requests/s"
}

row() { # CELL: its row of the table, over all rounds
    awk -v what="${what[${1%%.*}]}" -v stack="${1#*.}" '
        function us(text) {
            if (text ~ /us$/) return text + 0
            if (text ~ /ms$/) return text * 1000
            return text * 1000000
        }
        FNR == 1 { rounds++ }
        /^ *50%/ { p50 += us($2) }
        /^ *99%/ { p99 += us($2) }
        /^Requests\/sec:/ { rate += $2 }
        /Socket errors:/ { gsub(/,/, ""); errors += $4 + $6 + $8 + $10 }
        /Non-2xx or 3xx responses:/ { errors += $NF }
        END {
            printf "%-34s %-8s %11.0f %7d %9.0f %9.0f\n", what, stack, rate / rounds, errors, p50 / rounds, p99 / rounds
        }' "$work/$1".[0-9]*
}

[ -x "$toe" ] || die "no $toe: run 'make build' first"
make_lab
cells=(b.kernel b.OpenTOE)
engine=(--port local)
if is_root; then
    cells=(a.kernel a.OpenTOE "${cells[@]}")
    engine+=(--port packet:toe0 --addr 10.77.0.2/24)
else
    say "not root: no network namespaces, so the rows over a veth are left out (sudo env PATH=\$PATH make demo has them)"
fi

say "starting an engine and two nginx, one on each stack (2 workers, a 256-byte file)"
start_engine s "$prefix" "${engine[@]}"
start_nginx kernel "$kernel_port"
start_nginx toe "$toe_port" "$toe" run --name "$prefix" --
listening() { ask "$prefix" ss | grep -q ":$toe_port"; }
until_ok 10 "nginx listens on the engine" listening

say "measuring: wrk -t2 -c64 -d${seconds}s, $rounds rounds of ${#cells[@]} cells, about $((rounds * ${#cells[@]} * seconds)) s"
for round in $(seq "$rounds"); do
    for cell in "${cells[@]}"; do measure "$cell" "$round"; done
done

printf '\nnginx, 2 workers, 256-byte file, keep-alive; wrk -t2 -c64, mean of %s rounds of %s s, %s CPUs\n\n' \
    "$rounds" "$seconds" "$(nproc)"
printf '%-34s %-8s %11s %7s %9s %9s\n' "" stack requests/s errors "p50 us" "p99 us"
for cell in "${cells[@]}"; do row "$cell"; done
echo
