# Shared by demo.sh and acceptance.sh (sourced, not run): a lab of two namespaces, nginx, engines, and their removal.
#
#   namespace $S (server)                       namespace $C (client)
#   toe0   no kernel address; the engine's  ==  toe0  10.77.0.1/24     the engine's address is 10.77.0.2
#   kern0  10.78.0.2/24                     ==  kern0 10.78.0.1/24
#
# The sourcing script sets `prefix`, and everything that is made here is called after it.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${TOE_BIN_DIR:-$root_dir/target/release}
toe=$bin/toe
S=$prefix-s
C=$prefix-c
work=
children=()
engines=()
declare -A side_of=()

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$prefix: $*"
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# until_ok SECONDS WHAT COMMAND...: runs the command again and again until it succeeds.
until_ok() {
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$limit" ] || die "not in time: $what (logs in $work)"
        sleep 0.05
    done
}

# Command prefixes that run on one side of the lab. Without root there is no lab and both are this machine.
at_s=()
at_c=()

# spawn LOG COMMAND...: in the background, to be ended by clean_up; $spawned is its number.
spawn() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 </dev/null &
    spawned=$!
    children+=("$spawned")
}

make_lab() {
    work=$(mktemp -d "/tmp/$prefix.XXXXXX")
    chmod 755 "$work"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    is_root || return 0
    # nsenter(1) executes the program in its own place, so a child's number is the program's.
    at_s=(nsenter "--net=/run/netns/$S" --)
    at_c=(nsenter "--net=/run/netns/$C" --)
    local ns link
    for ns in "$S" "$C"; do
        ip netns add "$ns"
        ip -n "$ns" link set lo up
    done
    for link in toe0 kern0; do
        ip -n "$S" link add "$link" type veth peer name "$link" netns "$C"
    done
    ip -n "$C" addr add 10.77.0.1/24 dev toe0
    ip -n "$S" addr add 10.78.0.2/24 dev kern0
    ip -n "$C" addr add 10.78.0.1/24 dev kern0
    for ns in "$S" "$C"; do
        ip -n "$ns" link set toe0 up
        ip -n "$ns" link set kern0 up
        # A namespace starts with the host's setting; this kernel must not forward what is the engine's.
        nsenter "--net=/run/netns/$ns" -- sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'
    done
}

# start_engine s|c NAME [OPTION...]: on one side; waits until it answers.
start_engine() {
    local -n at=at_$1
    local name=$2
    side_of[$name]=$1
    shift 2
    engines+=("$name")
    "${at[@]}" "$toe" start --name "$name" "$@" >"$work/$name.log" 2>&1 </dev/null ||
        { cat "$work/$name.log" >&2; die "toe start failed"; }
    until_ok 10 "engine $name answers" ask "$name" status
}

# ask NAME SUBCOMMAND: of an engine, in its namespace: elsewhere root sees and stops nothing of it.
ask() {
    local -n there=at_${side_of[$1]}
    "${there[@]}" "$toe" "$2" --name "$1"
}

stop_engine() { ask "$1" stop >/dev/null 2>&1 || true; }

# start_nginx NAME PORT COMMAND_PREFIX...: two workers, the files in $work/www; $spawned is the master.
start_nginx() {
    local name=$1 port=$2 dir=$work/$1
    shift 2
    mkdir -p "$dir" "$work/www"
    [ -e "$work/www/small" ] || head -c 256 /dev/urandom >"$work/www/small"
    local user=
    if is_root; then user='user root;'; fi
    cat >"$dir/nginx.conf" <<CONF
$user
worker_processes 2;
daemon off;
pid $dir/nginx.pid;
error_log $dir/error.log error;
events { worker_connections 4096; }
http {
    access_log off;
    sendfile on;
    open_file_cache max=16;
    keepalive_requests 1000000000;
    client_body_temp_path $dir/tmp;
    proxy_temp_path $dir/tmp;
    fastcgi_temp_path $dir/tmp;
    uwsgi_temp_path $dir/tmp;
    scgi_temp_path $dir/tmp;
    server {
        listen 0.0.0.0:$port;
        root $work/www;
    }
}
CONF
    spawn "$dir/out.log" "${at_s[@]}" "$@" nginx -p "$dir" -c "$dir/nginx.conf" -e "$dir/error.log"
    until_ok 10 "nginx ($name) starts" test -s "$dir/nginx.pid"
}

clean_up() {
    local status=$? pid ns name
    trap - EXIT INT TERM HUP
    set +e
    for name in "$work"/*/nginx.pid; do
        [ -s "$name" ] && kill -TERM "$(cat "$name")" 2>/dev/null
    done
    for pid in "${children[@]}"; do kill -TERM "$pid" 2>/dev/null; done
    for name in "${engines[@]}"; do stop_engine "$name"; done
    for ns in "$S" "$C"; do
        is_root && [ -e "/run/netns/$ns" ] || continue
        # Only our own namespaces; whatever still runs in one was started here.
        for pid in $(ip netns pids "$ns"); do kill -KILL "$pid" 2>/dev/null; done
        ip netns del "$ns"
    done
    wait 2>/dev/null
    if [ "$status" -eq 1 ]; then
        say "$prefix: failed; logs are in $work"
    else
        rm -rf "$work"
    fi
    exit "$status"
}
