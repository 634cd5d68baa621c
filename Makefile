# The commands of this repository: `make` builds the server, `make run` starts it, `make test` tests it.

CARGO ?= cargo
# Debian installs servers there, which is only in the PATH of root.
export PATH := $(PATH):/usr/sbin
# The binary of the integration tests, which has overflow checks and debug assertions.
TEST_BIN := $(or $(CARGO_TARGET_DIR),target)/debug/mailrace
# The measurements, which need a release build.
SCENARIOS := accept-many accept-one maildir flat memory secure-many secure-one resumed-one passing servers-many servers-one \
  drain-one drain-many lame collapse mailing pressure sendfile directory mariadb replica guessing \
  read-pop3 read-pop3-lf read-pop3-tls read-page-10 read-page-100 read-page-1000 read-file-1 read-file-10 read-file-tls \
  proxy-logins-pop3 proxy-logins-imap proxy-bytes proxy-bytes-tls read-slow accept-while-reading open-maildrop \
  exim-loadavg samba-sendfile freebsd-tuned postfix-ldap spoilt-hosts spoilt-files spoilt-scheduler tune-defaults durability sign verify-senders \
  content-rules milter policy milter-stalled operator-api dashboards import-equivalence import-equivalence-exim cluster cluster-adopt \
  lab-smtp-many lab-smtp-one lab-agree lab-postal lab-http lab-files lab-connections lab-verify

.PHONY: all run test lint unit integration test-peers test-fresh test-ecosystem peers stand-ins old-version soak bench before-after fuzz mutants audit man deb try-deb

all:
	$(CARGO) build --release

# Less optimised than the release, so that it builds faster (bench/first-message).
run:
	$(CARGO) run --profile try --package mailrace -- serve

# Everything that continuous integration runs.
test: test-peers lint unit integration

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Many tests wait for peers, so more of them run at the same time than there are processors.
unit:
	RUST_TEST_THREADS=$$((3 * $$(nproc))) $(CARGO) test --workspace --quiet

# Uses the binary of `cargo test`: `cargo build` would rebuild it with fewer dependency features.
integration:
	$(CARGO) test --workspace --quiet --no-run
	MAILRACE_BIN=$(TEST_BIN) tests/run

# Installs the programs that the tests use (Postfix, Dovecot, swaks and so on) without starting them.
test-peers:
	bench/peers/install tests

# Runs `make test` on the last commit in a new Debian, as root and as a user with sudo. Needs root.
# USERS=root runs only one of them.
test-fresh:
	USERS="$(USERS)" tests/fresh

# Tests with large peers, or that take long. Writes the result to tests/ecosystem/LAST_RUN.md.
test-ecosystem:
	bench/peers/install ecosystem
	$(CARGO) test --workspace --quiet --no-run
	MAILRACE_BIN=$(TEST_BIN) tests/run ecosystem

# Also installs what only the measurements need: Exim, Apache, Samba, postal, postmark.
peers:
	bench/peers/install

# The nats-server that `bench/peers/install` builds beside Debian's.
NATS := $(CURDIR)/target/peers/nats/nats-server
# Rounds of kills; one after the other, the cluster is checked and removed even if one fails.
CLUSTER_ROUNDS := 200
cluster_rounds = export MAILRACE_CLUSTER_DIR=$$(mktemp -du); bench/cluster start && \
  bench/cluster kill --rounds $(CLUSTER_ROUNDS) $(1) && bench/cluster ledger; \
  status=$$?; bench/cluster stop; exit $$status

# The newest version whose clusters have other records (crates/cluster/src/record.rs); tests run it beside the build.
OLD_COMMIT := 6fafb57d4543f57f0a46b02811c8f9851752afbb
OLD_TREE := $(CURDIR)/target/old-version

old-version:
	@if git cat-file -e $(OLD_COMMIT)^{commit} 2>/dev/null; then \
	  { [ -e $(OLD_TREE) ] || git worktree add --force --detach $(OLD_TREE) $(OLD_COMMIT); } && \
	  git -C $(OLD_TREE) checkout --quiet --detach $(OLD_COMMIT) && \
	  $(CARGO) build --profile try --package mailrace --manifest-path $(OLD_TREE)/Cargo.toml --target-dir $(OLD_TREE)/target; \
	else echo "skipped: an old version of clusters, which needs the history of this repository"; fi

# Longer tests with the release build: more crashes, and faults of clusters with Debian's nats-server and a current one.
# Debian's loses records when it is killed itself (docs/cluster.md), so only nodes are killed beside it.
soak: export MAILRACE_OLD_BIN = $(OLD_TREE)/target/try/mailrace
soak: all old-version
	bench/peers/install soak
	MAILRACE_KILL_ROUNDS=200 tests/run test_crash
	tests/run soak
	$(call cluster_rounds,--nodes-only)
	@[ -x $(NATS) ] || echo "skipped: clusters with a current nats-server, which needs Go"
	[ ! -x $(NATS) ] || MAILRACE_NATS_SERVER=$(NATS) tests/run soak
	[ ! -x $(NATS) ] || { export MAILRACE_NATS_SERVER=$(NATS); $(call cluster_rounds,); }

# Programs in place of milters, policy services and NATS servers, which the measurements use.
stand-ins:
	$(CARGO) build --release --package filter --package cluster --examples

# The hours of exim-mass-mail are minutes here: with whole ones it would take days.
bench: peers all stand-ins
	for scenario in $(SCENARIOS) 'exim-mass-mail --shrink 60 --publish'; do bench/run $$scenario || status=1; done; \
	  exit $${status:-0}

# `make before-after BEFORE=BINARY` compares the build with another binary of Mailrace.
before-after: peers all
	bench/run before-after --before $(BEFORE)

# Fuzzes each parser of untrusted input for a minute, if a nightly compiler and cargo-fuzz are installed.
fuzz:
	@if $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
	  for target in $$($(CARGO) +nightly fuzz list); do \
	    $(CARGO) +nightly fuzz run $$target -- -max_total_time=60 -rss_limit_mb=2048 || exit 1; \
	  done; \
	else echo "skipped: fuzzing needs a nightly compiler and cargo-fuzz"; fi

# Takes hours; `tests/mutants queue --shard 0/20` is a sample. Skipped without cargo-mutants.
mutants:
	tests/mutants

audit:
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check; \
	else echo "skipped: cargo-deny is not installed"; fi

# Writes the manual pages to target/man; `man -l target/man/mailrace.1` shows one.
man: all
	$(or $(CARGO_TARGET_DIR),target)/release/mailrace man $(or $(CARGO_TARGET_DIR),target)/man

# Builds the Debian package in target/debian. Needs only dpkg-deb, which is part of every Debian.
deb: all
	packaging/build-deb

# Installs the package in a chroot, sends a message through it, and purges it. Needs root and the network.
try-deb: deb
	packaging/try-in-chroot
