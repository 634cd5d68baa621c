# The few commands that this repository needs. `make` builds the server, `make run` starts it, `make test` proves it.

CARGO ?= cargo
# Where Debian has servers, and only root looks.
export PATH := $(PATH):/usr/sbin
# The binary that the integration tests run. Theirs has overflow checks and debug assertions on.
TEST_BIN := $(or $(CARGO_TARGET_DIR),target)/debug/mailrace
# Needed only for the measurements, which take a release build.
SCENARIOS := accept-many accept-one maildir flat memory secure-many secure-one resumed-one passing servers-many servers-one \
  drain-one drain-many lame collapse mailing pressure sendfile directory replica guessing \
  lab-smtp-many lab-smtp-one lab-agree lab-postal lab-http lab-files lab-connections lab-verify

.PHONY: all run test lint unit integration test-peers test-fresh test-ecosystem peers soak bench fuzz mutants audit man deb try-deb

all:
	$(CARGO) build --release

# Optimised less than the release, and so built sooner (bench/first-message).
run:
	$(CARGO) run --profile try --package mailrace -- serve

# All that continuous integration runs.
test: test-peers lint unit integration

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --workspace --quiet

# The binary comes with `cargo test`: `cargo build` would build it anew, with fewer features of its dependencies.
integration:
	$(CARGO) test --workspace --quiet --no-run
	MAILRACE_BIN=$(TEST_BIN) tests/run

# The programs that the tests talk to: Postfix, Dovecot, swaks and so on. Installs what is missing, starts none of them.
test-peers:
	bench/peers/install tests

# `make test` as it is committed, in a Debian that nobody has touched: as root, then as a user with sudo. Needs root.
# USERS=root is one of them alone.
test-fresh:
	USERS="$(USERS)" tests/fresh

# What takes large peers, or long. Writes the result into tests/ecosystem/LAST_RUN.md.
test-ecosystem:
	bench/peers/install ecosystem
	$(CARGO) test --workspace --quiet --no-run
	MAILRACE_BIN=$(TEST_BIN) tests/run ecosystem

# And those that only the measurements need: Exim, postal, postmark, wrk.
peers:
	bench/peers/install

# The tests that gain by time: more crashes, against the release build.
soak: test-peers all
	MAILRACE_KILL_ROUNDS=200 tests/run test_crash

bench: peers all
	for scenario in $(SCENARIOS); do bench/run $$scenario || status=1; done; exit $${status:-0}

# A minute for each parser of outside bytes, where a nightly compiler and cargo-fuzz are installed.
fuzz:
	@if $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
	  for target in $$($(CARGO) +nightly fuzz list); do \
	    $(CARGO) +nightly fuzz run $$target -- -max_total_time=60 -rss_limit_mb=2048 || exit 1; \
	  done; \
	else echo "skipped: fuzzing needs a nightly compiler and cargo-fuzz"; fi

# Hours of it; `tests/mutants queue --shard 0/20` is a sample. Skipped where cargo-mutants is missing.
mutants:
	tests/mutants

audit:
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check; \
	else echo "skipped: cargo-deny is not installed"; fi

# The manual pages, into target/man; `man -l target/man/mailrace.1` shows one.
man: all
	$(or $(CARGO_TARGET_DIR),target)/release/mailrace man $(or $(CARGO_TARGET_DIR),target)/man

# The Debian package, into target/debian. It takes dpkg-deb, which every Debian has, and nothing else.
deb: all
	packaging/build-deb

# Installs the package in a chroot, sends a message through it, and purges it. Needs root and the network.
try-deb: deb
	packaging/try-in-chroot
