#!/usr/bin/env bash
# setup.sh TARGET: installs what `make TARGET` needs beyond git, make, a C compiler and Rust.
# setup.sh TARGET packages: only the Debian packages (for root, on behalf of a user who has Rust).
#
# Says what it will install before it does, installs nothing that is present, can be run again, and leaves no service
# started. Without root it changes nothing and prints the command to run.
set -euo pipefail

# Where a plain user's PATH does not look.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'setup: %s\n' "$*"; }

# "command:package" pairs for each target. A path instead of a command is for packages that bring no command.
case ${1:-} in
    build | lint | sim) wanted=() ;;
    fuzz) wanted=(c++:g++) ;;
    coverage) wanted=(/usr/bin/python3:python3) ;;
    demo) wanted=(nginx:nginx wrk:wrk ip:iproute2 nsenter:util-linux) ;;
    test)
        wanted=(nginx:nginx redis-server:redis-server redis-benchmark:redis-tools wrk:wrk curl:curl ip:iproute2
            python3:python3 ps:procps nsenter:util-linux sha256sum:coreutils strace:strace
            ethtool:ethtool ping:iputils-ping fi_pingpong:libfabric-bin /usr/include/rdma/fabric.h:libfabric-dev
            mpirun:openmpi-bin mpicc:libopenmpi-dev)
        ;;
    bench)
        wanted=(nginx:nginx redis-server:redis-server redis-benchmark:redis-tools memcached:memcached
            memcaslap:libmemcached-tools wrk:wrk apache2:apache2 puma:puma /usr/share/doc/php-fpm:php-fpm
            ip:iproute2 nsenter:util-linux taskset:util-linux)
        ;;
    compat)
        wanted=(/usr/bin/python3:python3 /usr/lib/python3.11/test/test_socket.py:libpython3.11-testsuite
            ip:iproute2 unshare:util-linux runuser:util-linux mount:mount openssl:openssl wrk:wrk ps:procps
            nginx:nginx haproxy:haproxy redis-server:redis-server redis-benchmark:redis-tools memcached:memcached
            /usr/share/doc/postgresql:postgresql psql:postgresql-client sshd:openssh-server ssh:openssh-client
            curl:curl wget:wget socat:socat nc:netcat-openbsd iperf3:iperf3 rsync:rsync git:git
            apache2:apache2 lighttpd:lighttpd vsftpd:vsftpd lftp:lftp h2load:nghttp2-client
            node:nodejs java:default-jdk-headless systemd-socket-activate:systemd
            npm:npm erl:erlang-base dovecot:dovecot-imapd varnishd:varnish php:php-cli
            /usr/share/doc/php-curl:php-curl ruby:ruby /usr/share/doc/ruby-webrick:ruby-webrick
            /usr/share/doc/php-fpm:php-fpm puma:puma squid:squid mariadbd:mariadb-server mosquitto:mosquitto
            mosquitto_pub:mosquitto-clients named:bind9 dig:bind9-dnsutils /usr/share/jetty9/start.jar:jetty9
            /usr/share/doc/libjemalloc2:libjemalloc2 /usr/share/doc/libtcmalloc-minimal4:libtcmalloc-minimal4 cmake:cmake
            /usr/lib/rabbitmq/bin/rabbitmq-server:rabbitmq-server chromium:chromium
            dnsmasq:dnsmasq-base unbound:unbound chronyd:chrony rsyslogd:rsyslog ffmpeg:ffmpeg)
        ;;
    compat-few)
        wanted=(/usr/bin/python3:python3 ip:iproute2 unshare:util-linux runuser:util-linux mount:mount curl:curl
            nc:netcat-openbsd)
        ;;
    interop)
        wanted=(/usr/bin/python3:python3 ip:iproute2 ss:iproute2 nsenter:util-linux chrt:util-linux)
        ;;
    *)
        echo "usage: setup.sh build|test|lint|demo|bench|compat|compat-few|interop|sim|fuzz|coverage [packages]" >&2
        exit 2
        ;;
esac
target=$1
# The steering program of xdp ports is compiled for the kernel's virtual machine; the kernel's headers came with cc.
wanted+=(clang:clang)

need_rust() {
    if ! command -v cargo >/dev/null; then
        say "no cargo found: install Rust first (https://rustup.rs), then run 'make $target' again" >&2
        exit 1
    fi
    if ! command -v cc >/dev/null; then
        say "no C compiler found: install one first (Debian: apt-get install gcc libc6-dev), then run 'make $target' again" >&2
        exit 1
    fi
}

# Components that a target needs; rustup may have been installed with the minimal profile.
need_components() {
    local component missing=()
    for component in "$@"; do
        case $component in
            llvm-tools) [ -x "$(rustc --print target-libdir)/../bin/llvm-cov" ] || missing+=(llvm-tools) ;;
            rustfmt) cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt) ;;
            clippy) cargo clippy --version >/dev/null 2>&1 || missing+=(clippy) ;;
        esac
    done
    [ ${#missing[@]} -eq 0 ] && return
    if ! command -v rustup >/dev/null; then
        say "missing: ${missing[*]}, and there is no rustup to add them: install them beside your Rust, then run 'make $target' again" >&2
        exit 1
    fi
    say "adding Rust components: ${missing[*]}"
    rustup component add "${missing[@]}"
}

# Programs that cargo builds, at these versions; into cargo's own directory.
need_cargo_programs() {
    local program
    for program in "$@"; do
        "${program%@*}" --version 2>/dev/null | grep -qF " ${program#*@}" && continue
        say "building $program with cargo (once, some minutes)"
        cargo install --quiet --locked --no-default-features "$program"
    done
}

is_there() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

need_packages() {
    local pair missing=()
    for pair in "${wanted[@]}"; do
        is_there "${pair%%:*}" || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if ! command -v apt-get >/dev/null; then
        say "missing: ${missing[*]} (Debian's package names), and there is no apt-get: install them, then run 'make $target' again" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        say "missing Debian packages: ${missing[*]}; run this, then 'make $target' again:" >&2
        printf '  sudo scripts/setup.sh %s packages\n' "$target" >&2
        exit 1
    fi
    say "installing Debian packages: ${missing[*]} (no service will be started)"
    install_packages "${missing[@]}"
    say "installed"
}

# Debian starts a service as soon as its package is unpacked, unless a policy says no (invoke-rc.d(8)): 101 = never.
install_packages() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" </dev/null
}

if [ "${2:-}" != packages ]; then
    need_rust
    if [ "$target" = lint ]; then
        need_components rustfmt clippy
        need_cargo_programs cargo-deny@0.20.2
    fi
    if [ "$target" = coverage ]; then need_components llvm-tools; fi
fi
need_packages
