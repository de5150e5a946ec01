# Every target works on a fresh machine with Rust, make, Python 3, git and a C compiler; what else is
# needed lands in .tools/, and what cannot be got is named in one line.

.DEFAULT_GOAL := help
.PHONY: help run test check unit test-pooled newest schema check-schema lambda starter api console bench bench-peers coldstart cost simulate db torture mutants template package deploy deny sbom fuzz tools

# Without OpenSSL's development files OpenSSL is built in, which takes a minute, once.
VENDORED := $(shell pkg-config --exists openssl 2>/dev/null || echo --features vendored-openssl)
export CARGO_FLAGS := --locked $(VENDORED)

# POSTGRES=18, with any target: the major version of every server that is started.
ifdef POSTGRES
export TIDEGATE_PG_MAJOR := $(POSTGRES)
endif

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

run: tools ## start a local Postgres, publish sample events, drain them, show the result
	@python3 scripts/run.py

# What `make test` runs, in this order. Each can be run alone.
STAGES := check deny unit newest check-schema lambda starter api console template

# What is left out for want of something that the machine lacks is counted; TIDEGATE_EXPECTED="tls" makes some of it an error.
test: export TIDEGATE_SKIPPED_TO := $(CURDIR)/target/skipped
test: tools ## everything CI runs, stage by stage
	@python3 scripts/skips.py forget
	@python3 scripts/stages.py $(STAGES)

check: tools ## format, circles of modules, names of tests and guards, lints with warnings denied, what the library costs, docs
	cargo fmt --all --check
	@python3 scripts/circles.py
	@python3 scripts/requirements.py check
	@python3 scripts/mutants.py --texts
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	cargo clippy --locked --package tidegate -- -D warnings
	cargo clippy $(CARGO_FLAGS) --lib --bins -- -D warnings
	@python3 scripts/cost.py
	RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --workspace --no-deps

unit: tools ## the tests, on a Postgres of their own
	cargo test $(CARGO_FLAGS) --workspace

test-pooled: tools ## the integration tests with pgbouncer, in transaction mode, between programs and database
	TIDEGATE_TEST_POOLER=1 cargo test $(CARGO_FLAGS) --test it

# What the versions of Postgres could differ in: the statements and their plans, partitions, roles, a crash.
NEWEST := 18
ON_NEWEST := queue:: interleave:: plans:: cleanup:: roles:: batch:: fan_in:: wake::
FAULTS_ON_NEWEST := lease

newest: tools ## some of the tests on the newest Postgres, where it can be had; all: `make unit torture POSTGRES=18`
	@newest=$$(TIDEGATE_PG_MAJOR=$(NEWEST) python3 scripts/postgres.py where) \
		|| { echo "nothing was tried on Postgres $(NEWEST)"; python3 scripts/skips.py note postgres-$(NEWEST) "make newest"; exit 0; }; \
	test "$$newest" != "$$(python3 scripts/postgres.py where)" \
		|| { echo "all tests ran on Postgres $(NEWEST)"; exit 0; }; \
	export TIDEGATE_PG_MAJOR=$(NEWEST); \
	cargo test $(CARGO_FLAGS) --test it -- $(ON_NEWEST) && \
	cargo test $(CARGO_FLAGS) --test torture -- $(FAULTS_ON_NEWEST)

schema: tools ## regenerate the schema.sql files and catalog.txt, what the migrations make
	@python3 scripts/schema.py write

check-schema: tools ## compare the schema files and catalog.txt with what the migrations make
	@python3 scripts/schema.py check

lambda: tools ## run the function under cargo lambda watch and invoke it with every file in events/
	@python3 scripts/invoke.py

starter: tools ## make a project with `tidegate new`, and test, run and invoke it, and check its template
	@python3 scripts/starter.py

api: tools ## try the HTTP interface with requests made up from its OpenAPI document
	@python3 scripts/api.py

console: tools ## use the web console in a real browser: every page, every action, accessibility; SHOTS=1 writes the pictures
	@python3 scripts/console.py $(if $(SHOTS),--shots)

bench: tools ## measure the queue against its baselines; WORKLOADS="drain groups" for some, QUICK=1 for a tenth
	cargo bench $(CARGO_FLAGS) --bench bench -- $(if $(QUICK),--quick) $(WORKLOADS)
	$(if $(QUICK)$(WORKLOADS),,@python3 scripts/coldstart.py)

coldstart: tools ## measure the packaged function's cold start, stage by stage
	@python3 scripts/coldstart.py

bench-peers: tools ## measure the queue beside other Postgres queues; PEERS="pgmq pg-boss" for some, QUICK=1 for a tenth
	@python3 scripts/bench_peers.py $(if $(QUICK),--quick) $(PEERS)

cost: tools ## what a million events cost, and the same with SQS and Lambda and with a worker that is always on
	@python3 scripts/cost_model.py

simulate: tools ## a day of a thousand databases with failures: waits, backlog, cost; DATABASES=50 for fewer, SEED=7 for another day
	@python3 scripts/simulate.py $(if $(DATABASES),--databases $(DATABASES)) $(if $(SEED),--seed $(SEED))

torture: tools ## break everything again and again and check every promise; DURATION=8h for how long, SEED=7 to repeat, POSTGRES=18
	@DURATION=$(DURATION) SEED=$(SEED) python3 scripts/torture.py

mutants: tools ## remove one guard at a time from a copy and see that a test notices; MUTANTS="finalize" for some
	@python3 scripts/mutants.py $(MUTANTS)

deny: tools ## check the dependencies' licences, sources, duplicates and known faults against deny.toml
	@python3 scripts/supply.py deny

sbom: tools ## write down what is deployed, as CycloneDX, to target/sbom/; ARCH=arm64 for the other architecture
	@python3 scripts/supply.py sbom

fuzz: tools ## look for inputs that break a decoder; TARGET=secret for one, SECONDS=600 for longer than 60 each
	@TARGET=$(TARGET) SECONDS=$(SECONDS) KEEP=$(KEEP) python3 scripts/fuzz.py

db: tools ## serve a throwaway Postgres until Ctrl-C; DATA=folder keeps it
	@python3 scripts/postgres.py serve $(if $(DATA),--data $(DATA))

template: tools ## check the deployment to AWS: the template, its transform, a trial on a stand-in for AWS
	@python3 scripts/template.py

package: tools ## build and weigh the functions as they are deployed; ARCH=arm64 for the other architecture
	@python3 scripts/package.py

deploy: tools ## deploy to AWS with the settings of samconfig.toml; DRY_RUN=1 shows what it would do
	@python3 scripts/deploy.py

# Called by `sam build`, one for each function of the template.
build-JobsHttpFunction: tools
	@python3 scripts/package.py into tidegate-http "$(ARTIFACTS_DIR)"

build-%Function: tools
	@python3 scripts/package.py into tidegate-function "$(ARTIFACTS_DIR)"

# One line for each thing that only the machine's owner can install.
tools:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust, https://rustup.rs" >&2; exit 1; }
	@command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.11 or newer" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 is too old: install Python 3.11 or newer" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "cc is missing: install a C compiler (apt install build-essential)" >&2; exit 1; }
	@test -z "$(VENDORED)" || command -v perl >/dev/null || { echo "perl is missing: install it, or OpenSSL's development files (apt install libssl-dev pkg-config)" >&2; exit 1; }
