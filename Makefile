# Each target does all of its own set-up (scripts/setup.sh says what it installs before it does) and can be run again.
# Set CARGO_TARGET_DIR to build elsewhere; the programs are then in $CARGO_TARGET_DIR/release.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
export TOE_BIN_DIR ?= $(abspath $(TARGET_DIR)/release)

# The load that both stacks are measured and tested with: C on plain sockets.
LOAD := $(TOE_BIN_DIR)/toe-load
LOAD_SOURCES := $(wildcard crates/bench/programs/*.[ch])

.PHONY: help build programs test lint demo bench acceptance compat interop sim mutants fuzz hostile storm stress again coverage smoke clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## the programs and libraries, into target/release
	@scripts/setup.sh build
	@$(MAKE) --no-print-directory programs
	@scripts/built.sh "$(TOE_BIN_DIR)"

# What `build` builds and every other target uses; after scripts/setup.sh, which says what is missing.
programs: $(LOAD)
	cargo build --locked --release --workspace --lib --bins --example pingpong
	@mkdir -p "$(TOE_BIN_DIR)/fabric" && ln -f "$(TOE_BIN_DIR)/libtoe_fi.so" "$(TOE_BIN_DIR)/fabric/libtoe-fi.so"

$(LOAD): $(LOAD_SOURCES)
	@mkdir -p "$(@D)"
	cc -std=c11 -O2 -Wall -Wextra -Werror -pthread -o $@ $(filter %.c,$^)

test: ## every test; the whole-program tests need root (they make network namespaces)
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory programs
	cargo test --locked --workspace
	RUSTFLAGS="--cfg loom" cargo test --locked --release -p toe-ring --target-dir "$(TARGET_DIR)/loom" loom

lint: ## formatting, clippy with warnings as errors, the structure of the source, docs/conformance.md, crates (deny.toml)
	@scripts/setup.sh lint
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo test --locked -p toe-tests --test structure --test conformance
	@scripts/deny.sh

# Without what it never runs: simulator, scripts, the libraries for programs that are written for OpenTOE.
demo: ## nginx under load on both stacks, one table; about a minute after the build
	@scripts/setup.sh demo
	cargo build --locked --release -p toe-cli -p toe-daemon -p toe-switch
	@scripts/demo.sh

bench: ## every workload on both stacks, as text, JSON and a page with plots (about an hour with root, which measures all links)
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory programs
	@scripts/built.sh "$(TOE_BIN_DIR)"
	"$(TOE_BIN_DIR)/toe" bench --json "$(TOE_BIN_DIR)/bench.json" --html "$(TOE_BIN_DIR)/bench.html" $(BENCH_FLAGS)

# PARTS="idle differ" runs only these.
PARTS ?=
acceptance: ## the heavy figures: a million requests, 1 GiB transfers, idle CPU, hostile input (about 15 minutes)
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory programs
	@scripts/acceptance.sh $(PARTS)

COMPAT_FLAGS ?= --write
# COMPAT_SETUP=compat-few with COMPAT_FLAGS="--only curl,netcat": installs and builds what those need, and nothing else.
COMPAT_SETUP ?= compat
compat: ## many programs and CPython's own tests on both stacks, as tables in docs/compatibility.md (root, about 20 minutes)
	@scripts/setup.sh "$(COMPAT_SETUP)"
	@[ "$(COMPAT_SETUP)" != compat ] || scripts/compat-programs.sh
	@$(MAKE) --no-print-directory programs
	@scripts/built.sh "$(TOE_BIN_DIR)"
	compat/run.py $(COMPAT_FLAGS)

coverage: ## branches of the TCP folder that unit tests and packet scripts take, a line a file
	@scripts/setup.sh coverage
	@scripts/coverage.sh

INTEROP_FLAGS ?= --write
interop: ## OpenTOE and Linux over lossy, long and slow links, as tables in docs/interop.md (root, about 40 minutes)
	@scripts/setup.sh interop
	@$(MAKE) --no-print-directory programs
	@scripts/built.sh "$(TOE_BIN_DIR)"
	interop/run.py --json "$(TOE_BIN_DIR)/interop.json" $(INTEROP_FLAGS)

# Optimized, with every assertion and overflow check.
SEEDS ?= 100000
FIRST ?= 1000000
sim: ## SEEDS=n simulated worlds from seed FIRST on (100000 from 1000000), on all processors; docs/simulator.md
	cargo run --locked --profile sim -p toe-sim --bin toe-sim -- --seeds $(SEEDS) --first $(FIRST) $(SIM_FLAGS)
	cargo run --locked --profile sim -p toe-sim --bin toe-sim -- --datagrams --seeds $(SEEDS) --first $(FIRST)

# NAMES="9293 3.8" plants only those whose names hold that.
NAMES ?=
mutants: ## takes each MUST of docs/conformance.md away, by a planted defect, and demands that one of its scripts fails
	@scripts/setup.sh test
	TOE_MUTANTS=all TOE_MUTANT_NAMES="$(NAMES)" cargo test --locked -p toe-tests --test mutants -- --nocapture

TARGET ?=
SECONDS ?= 60
fuzz: ## TARGET=frames|entries|operations|descriptors|scripts|control|lanes|channels|filters|records|wire, SECONDS=60: explores, and adds to crates/sim/corpus; docs/simulator.md
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh "$(TARGET)" "$(SECONDS)"

# ATTACKS="claims crowd" runs only these.
ATTACKS ?=
hostile: ## SECONDS=60: a neighbour's latencies under each attack of another user, as a table (root, about 25 minutes)
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory programs
	@scripts/hostile-figures.sh "$(SECONDS)" --json "$(TOE_BIN_DIR)/hostile.json" $(ATTACKS)

STORM_SECONDS ?= 1800
storm: ## STORM_SECONDS=1800 of four users who do whatever comes to their minds, beside root's programs (root)
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory programs
	TOE_STORM_SECONDS=$(STORM_SECONDS) cargo test --locked -p toe-tests --test hostile storm:: -- --nocapture

smoke: ## each target that README and CONTRIBUTING name, by its own command, cut short (root, about 10 minutes)
	@scripts/smoke.sh

stress: ## SECONDS=60 of threads that accept, connect, fork, spawn, pass descriptors, get signals and die at random (root)
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory programs
	TOE_STRESS_SECONDS=$(SECONDS) cargo test --locked -p toe-tests --test programs mixes::threads -- --nocapture --test-threads=1

SUITE ?= programs
TEST ?=
TIMES ?= 1000
again: ## TEST=name TIMES=1000 [SUITE=programs]: such tests of crates/tests again and again, until one fails (root)
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory programs
	@scripts/again.sh "$(SUITE)" "$(TIMES)" $(TEST)

clean: ## remove what was built
	cargo clean
