# Every target works on a fresh machine with Rust, make, Python 3, git and a C compiler. The scripts install everything else
# into .tools/, and name what they cannot install in one line.

.DEFAULT_GOAL := help
.PHONY: help run test test-all check fmt unit doc schema lambda docs bench bench-peers torture mutants fuzz db package deploy tools

# If OpenSSL's development files are missing, OpenSSL is built from source. The first build then takes a minute longer.
VENDORED := $(shell pkg-config --exists openssl 2>/dev/null || echo --features vendored-openssl)
export CARGO_FLAGS := --locked $(VENDORED)

# POSTGRES=18 works with every target. It sets the major version of all Postgres servers that the target starts.
ifdef POSTGRES
export TIDEGATE_PG_MAJOR := $(POSTGRES)
endif

# Tests are skipped if the machine lacks something they need. Skips are counted; TIDEGATE_EXPECTED="tls" turns some of them into errors.
test test-all: export TIDEGATE_SKIPPED_TO := $(CURDIR)/target/skipped

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: tools ## start a local Postgres, publish sample events, drain them and show the result
	@python3 scripts/run.py

test: tools ## show that the software works: format, lints, all tests, a quick round of faults, a new project
	@python3 scripts/stages.py run test

test-all: $(if $(STAGES),tools,test) ## then run the other stages of CI; STAGES="console api" runs some alone
	@python3 scripts/stages.py run $(or $(STAGES),rest)

# The files of the verbs, which a list declares: `cargo fmt` does not find them.
LISTED := $(wildcard crates/tidegate-admin/src/verbs/*.rs)

check: tools ## check format, lints (warnings are errors), module cycles, requirements and the handbook
	cargo fmt --all --check
	@rustfmt --edition 2024 --check $(LISTED)
	@failed=; for one in check.py ceilings.py "mutants.py --texts" "docs.py check" "starter.py read"; do \
		python3 scripts/$$one || failed=1; done; test -z "$$failed"
	@cargo update --quiet --workspace --locked --manifest-path fuzz/Cargo.toml
	@cargo update --quiet --workspace --locked --manifest-path examples/existing/Cargo.toml
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

fmt: ## format the code
	cargo fmt --all
	rustfmt --edition 2024 $(LISTED)

unit: tools ## run the tests; FILTER="--test drain" runs some, POOLER=1 through pgbouncer, SCHEMA=acme in another schema
	@$(if $(SCHEMA),python3 scripts/schema.py suite,python3 scripts/tests.py $(FILTER))

doc: tools
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --workspace --no-deps
	cargo test $(CARGO_FLAGS) --workspace --doc
	@python3 scripts/check.py cost

schema: tools ## write catalog.txt, the SQL reference, the guides' programs and target/schema.sql; CHECK=1 only compares
	@python3 scripts/schema.py $(if $(CHECK),check,write)

lambda: tools ## run the function under cargo lambda watch and invoke it with every file in events/
	@python3 scripts/run.py lambda

docs: tools ## build the handbook with mdBook into target/book
	@python3 scripts/docs.py book

bench: tools ## measure the queue against its baselines; WORKLOADS="drain coldstart targets" runs some, QUICK=1 a tenth
	@QUICK=$(QUICK) python3 scripts/bench.py $(WORKLOADS)

bench-peers: tools ## compare with other queues; PEERS="pgmq" runs some, QUICK=1 a tenth, MIXED=1 MINUTES=15 RATES="800 3000" both at once
	@python3 scripts/bench_peers.py $(if $(QUICK),--quick) $(if $(MIXED),--mixed) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATES),--rates "$(RATES)") $(PEERS)

torture: tools ## inject faults and check every guarantee; DURATION=8h sets the length, SEED=7 repeats a run
	@DURATION=$(DURATION) SEED=$(SEED) python3 scripts/torture.py

mutants: tools ## remove one guard at a time from a copy and check that a test fails; MUTANTS="finalize" runs some
	@python3 scripts/mutants.py $(MUTANTS)

fuzz: tools ## fuzz the decoders; TARGET=secret fuzzes one, SECONDS=600 runs longer than 60 s each
	@TARGET=$(TARGET) SECONDS=$(SECONDS) KEEP=$(KEEP) python3 scripts/torture.py fuzz

db: tools ## run a temporary Postgres until Ctrl-C; DATA=folder keeps its data
	@python3 scripts/postgres.py serve $(if $(DATA),--data $(DATA))

package: tools ## build the functions for deployment and check their size; for arm64, or ARCH=x86_64
	@python3 scripts/package.py

deploy: tools ## deploy to AWS with parameters.toml; STACK=http, console, messages, alarms or idle; DRY_RUN=1 only shows changes
	@python3 scripts/package.py deploy

# Each missing tool that only the owner of the machine can install is named in one line.
tools:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust, https://rustup.rs" >&2; exit 1; }
	@command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.11 or newer" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 is too old: install Python 3.11 or newer" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "cc is missing: install a C compiler (apt install build-essential)" >&2; exit 1; }
	@test -z "$(VENDORED)" || command -v perl >/dev/null || { echo "perl is missing: install it, or OpenSSL's development files (apt install libssl-dev pkg-config)" >&2; exit 1; }
