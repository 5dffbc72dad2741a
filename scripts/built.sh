#!/usr/bin/env bash
# built.sh DIR: lists what a build left in DIR, and fails if a piece is missing.
set -euo pipefail
dir=$1
missing=0
for piece in toe toed toe-profile toe-cable libtoe.so libtoe.a libtoe_via.so libtoe_switch.so toe-load; do
    if [ -e "$dir/$piece" ]; then
        printf '  %-18s %s\n' "$piece" "$dir/$piece"
    else
        printf '  %-18s MISSING from %s\n' "$piece" "$dir" >&2
        missing=1
    fi
done
exit "$missing"
