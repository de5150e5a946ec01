# Every target works on a fresh machine with Rust, make, Python 3, git and a C compiler. The scripts install everything else
# into .tools/, and name what they cannot install in one line.

.DEFAULT_GOAL := help
.PHONY: help run test fmt check unit test-pooled unit-schema newest schema check-schema lambda starter api console snippets bench bench-peers bench-targets coldstart db torture mutants template package deploy deny sbom fuzz tools docs tutorial completions metrics collector targets existing

# If OpenSSL's development files are missing, OpenSSL is built from source. The first build then takes a minute longer.
VENDORED := $(shell pkg-config --exists openssl 2>/dev/null || echo --features vendored-openssl)
export CARGO_FLAGS := --locked $(VENDORED)

# POSTGRES=18 works with every target. It sets the major version of all Postgres servers that the target starts.
ifdef POSTGRES
export TIDEGATE_PG_MAJOR := $(POSTGRES)
endif

# Many tests wait for something, so twice as many of them run as there are cores.
export RUST_TEST_THREADS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 2 )))

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

run: tools ## start a local Postgres, publish sample events, drain them and show the result
	@python3 scripts/run.py

# The stages of `make test`, in order. Each is also a target of its own.
STAGES := check deny unit newest check-schema lambda starter tutorial api console snippets targets metrics collector template

# Tests are skipped if the machine lacks something they need. Skips are counted; TIDEGATE_EXPECTED="tls" turns some of them into errors.
test: export TIDEGATE_SKIPPED_TO := $(CURDIR)/target/skipped
test: tools ## run everything that CI runs, stage by stage
	@python3 scripts/stages.py run $(STAGES)

# The files of the verbs, which a list declares: `cargo fmt` does not find them.
LISTED := $(wildcard crates/tidegate/src/admin/*.rs crates/tidegate-cli/src/text/*.rs)

fmt: ## format the code
	cargo fmt --all
	rustfmt --edition 2024 $(LISTED)

check: tools ## check formatting, module cycles, requirements, lints (warnings are errors), dependencies and public names, the handbook and docs
	cargo fmt --all --check
	@rustfmt --edition 2024 --check $(LISTED)
	@python3 scripts/check.py
	@python3 scripts/mutants.py --texts
	@python3 scripts/docs.py check
	@python3 scripts/starter.py read
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	cargo clippy --locked --package tidegate -- -D warnings
	cargo clippy --locked --package tidegate --features admin -- -D warnings
	cargo clippy $(CARGO_FLAGS) --lib --bins -- -D warnings
	@cargo update --quiet --workspace --locked --manifest-path fuzz/Cargo.toml
	@cargo update --quiet --workspace --locked --manifest-path examples/existing/Cargo.toml
	@python3 scripts/check.py cost
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --workspace --no-deps

unit: tools ## run the tests; they start their own Postgres
	cargo test $(CARGO_FLAGS) --workspace

test-pooled: tools ## run the integration tests through pgbouncer in transaction mode
	TIDEGATE_TEST_POOLER=1 cargo test $(CARGO_FLAGS) --test it

unit-schema: tools ## run the integration tests on a queue in another schema, SCHEMA=acme
	@python3 scripts/schema.py suite

# These tests cover what may differ between Postgres versions: statements and their plans, partitions, roles and crash recovery.
NEWEST := 18
ON_NEWEST := queue:: interleave:: plans:: cleanup:: roles:: batch:: wake::
FAULTS_ON_NEWEST := lease

newest: tools ## run some tests on the newest Postgres, if it can be installed; for all tests: `make unit torture POSTGRES=18`
	@newest=$$(TIDEGATE_PG_MAJOR=$(NEWEST) python3 scripts/postgres.py where) \
		|| { echo "nothing was tried on Postgres $(NEWEST)"; python3 scripts/stages.py note postgres-$(NEWEST) "make newest"; exit 0; }; \
	test "$$newest" != "$$(python3 scripts/postgres.py where)" \
		|| { echo "all tests ran on Postgres $(NEWEST)"; exit 0; }; \
	export TIDEGATE_PG_MAJOR=$(NEWEST); \
	cargo test $(CARGO_FLAGS) --test it -- $(ON_NEWEST) && \
	cargo test $(CARGO_FLAGS) --test torture -- $(FAULTS_ON_NEWEST)

schema: tools ## regenerate catalog.txt, docs/reference/sql.md and the programs in the guides, and dump the schema to target/schema
	@python3 scripts/schema.py write

check-schema: tools ## check that catalog.txt, the reference in docs/reference/sql.md and the programs in the guides are up to date
	@python3 scripts/schema.py check

lambda: tools ## run the function under cargo lambda watch and invoke it with every file in events/
	@python3 scripts/run.py lambda

starter: tools ## create a project with `tidegate new`; test, run and invoke it, and check its template; FIRST=1 measures the first build
	@FIRST=$(FIRST) python3 scripts/starter.py

tutorial: tools ## run the commands of docs/tutorial.md, in a folder and with a Postgres of its own
	@python3 scripts/starter.py tutorial

existing: tools ## publish through sqlx, diesel-async and SeaORM, as docs/guides/existing-program.md shows; the first build takes minutes
	@python3 scripts/starter.py existing

docs: tools ## build the handbook with mdBook into target/book
	@python3 scripts/docs.py book

completions: tools ## write the command line's completions and manual pages to target/completions
	@mkdir -p target/completions/man
	cargo build $(CARGO_FLAGS) --release --bin tidegate
	@for shell in bash zsh fish; do target/release/tidegate completions $$shell > target/completions/tidegate.$$shell || exit 1; done
	@target/release/tidegate man --dir target/completions/man

api: tools ## test the HTTP interface with requests generated from its OpenAPI document
	@python3 scripts/interop.py api

console: tools ## test the web console in a real browser; SHOTS=1 also writes the images of docs/guides/console.md
	@python3 scripts/console.py $(if $(SHOTS),--shots)

snippets: tools ## run the SQL of docs/guides/publish.md, and the programs of examples/sql and examples/pull in every language that can be had
	@python3 scripts/schema.py snippets

targets: tools ## run handlers in other languages, as Lambda functions and URLs, with the program that calls them
	@python3 tests/targets/run.py

collector: tools ## send traces to a published OpenTelemetry collector, and check what it understands
	@python3 scripts/interop.py collector

metrics: tools ## check with promtool the metrics, the alert rules and when they fire
	@python3 scripts/interop.py metrics

bench: tools ## measure the queue against its baselines; WORKLOADS="drain groups" runs some, QUICK=1 runs a tenth
	cargo bench $(CARGO_FLAGS) --bench bench -- $(if $(QUICK),--quick) $(WORKLOADS)
	$(if $(QUICK)$(WORKLOADS),,@python3 scripts/coldstart.py)
	$(if $(QUICK)$(WORKLOADS),,@python3 tests/targets/bench.py)

bench-targets: tools ## measure how fast events are passed on to functions and queues
	@python3 tests/targets/bench.py

coldstart: tools ## measure the cold start of the packaged function, stage by stage
	@python3 scripts/coldstart.py

bench-peers: tools ## compare the queue with other Postgres queues; PEERS="pgmq pg-boss" runs some, QUICK=1 runs a tenth; MIXED=1 publishes and drains at once, beside long transactions, MINUTES=15 at RATES="800 3000"
	@python3 scripts/bench_peers.py $(if $(QUICK),--quick) $(if $(MIXED),--mixed) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATES),--rates "$(RATES)") $(PEERS)

torture: tools ## inject faults and check every guarantee; DURATION=8h sets the length, SEED=7 repeats a run, POSTGRES=18 the version
	@DURATION=$(DURATION) SEED=$(SEED) python3 scripts/torture.py

mutants: tools ## remove one guard at a time from a copy and check that a test fails; MUTANTS="finalize" runs some
	@python3 scripts/mutants.py $(MUTANTS)

deny: tools ## check the licences, sources, duplicates and known vulnerabilities of the dependencies against deny.toml
	@python3 scripts/release.py deny

sbom: tools ## write a CycloneDX bill of materials of the deployed programs to target/sbom/; ARCH=arm64 for the other architecture
	@python3 scripts/release.py sbom

fuzz: tools ## fuzz the decoders; TARGET=secret fuzzes one, SECONDS=600 runs longer than 60 s each
	@TARGET=$(TARGET) SECONDS=$(SECONDS) KEEP=$(KEEP) python3 scripts/torture.py fuzz

db: tools ## run a temporary Postgres until Ctrl-C; DATA=folder keeps its data
	@python3 scripts/postgres.py serve $(if $(DATA),--data $(DATA))

template: tools ## check the AWS templates: lint and transform them, deploy them twice on paper, and let each alarm fire
	@python3 scripts/template.py

package: tools ## build the functions for deployment and check their size; ARCH=arm64 for the other architecture
	@python3 scripts/package.py

deploy: tools ## deploy to AWS with the values in parameters.toml; STACK=http, console, messages, alarms or idle deploys what stands beside; DRY_RUN=1 only shows what would change
	@python3 scripts/package.py deploy

# Each missing tool that only the owner of the machine can install is named in one line.
tools:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust, https://rustup.rs" >&2; exit 1; }
	@command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.11 or newer" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 is too old: install Python 3.11 or newer" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "cc is missing: install a C compiler (apt install build-essential)" >&2; exit 1; }
	@test -z "$(VENDORED)" || command -v perl >/dev/null || { echo "perl is missing: install it, or OpenSSL's development files (apt install libssl-dev pkg-config)" >&2; exit 1; }
