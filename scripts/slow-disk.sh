#!/usr/bin/env bash
# What requests and replies between two programs take without and beside many transfers from one slow disk, and the same on Linux's stack with
# as many sendfile() calls, turn and turn about, a line a round and stack. In network namespaces of its own, with a FUSE file system as the disk;
# needs root and the programs (`make programs`).
#
# slow-disk.sh [ROUNDS] [SECONDS] [TRANSFERS]   rounds (10) of so many seconds (3) each way on each stack, beside so many transfers (1000); to
# end them takes 2 ms for each, as each waits for the read that it has asked for
set -euo pipefail

cd "$(dirname "$0")/.."
export TOE_SLOW_ROUNDS=${1:-10} TOE_SLOW_SECONDS=${2:-3} TOE_SLOW_TRANSFERS=${3:-1000}
exec cargo test --locked -q -p toe-tests --test programs odd_files::a_slow_disk_holds_up_nobody -- --exact --nocapture
