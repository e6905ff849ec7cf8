# firn: build, test, demonstrate. `make help` lists the targets.
SHELL := /bin/bash
PG_CONFIG ?= $(firstword $(wildcard /usr/lib/postgresql/15/bin/pg_config) pg_config)
# The version that the extension is built for. (Those of several share a target directory: when they take turns the extension alone is built anew.)
PG_MAJOR := $(shell $(PG_CONFIG) --version 2>/dev/null | sed -E 's/^[^0-9]*([0-9]+).*/\1/')
FOR_SERVER = $(if $(PG_MAJOR),--no-default-features --features pg$(PG_MAJOR))
# A target directory outside the checkout is used when it exists, so that clones share one build.
CARGO_TARGET_DIR ?= $(if $(wildcard $(HOME)/.cache/firn/target),$(HOME)/.cache/firn/target,$(CURDIR)/target)
FIRN_VENV ?= $(CARGO_TARGET_DIR)/venv
FIRN_TOOLS ?= $(CARGO_TARGET_DIR)/tools
export PG_CONFIG CARGO_TARGET_DIR FIRN_VENV FIRN_TOOLS
export PGRX_PG_CONFIG_PATH = $(PG_CONFIG)
# `release` is quick to rebuild; `dist`, for packages and benchmarks, takes minutes and makes sessions that take turns some hundredths quicker.
PROFILE ?= release
# Of the program; tests run the one that is built so.
PROGRAM_PROFILE ?= release
DESTDIR ?=
PREFIX ?= /usr/local

.PHONY: help setup build program install install-cli demo test test-all test-assert test-settings assert-server valgrind torture bench bench-tpch bench-grid bench-json bench-indexes bench-backends bench-restore bench-restore-rows lint all deb dist test-packages
help:
	@echo "make demo     install what is missing, build, show three million flights (KEEP=1: the server stays; S3=1)"
	@echo "make test     install what is missing, build, run all tests"
	@echo "make test-all  the same, and suites on PostgreSQL 16, 17 and 18, and pg_upgrade between all of them: some four hours (VERSIONS='17 18')"
	@echo "make test-assert  the suites on a server built with assertions and clobbered memory (SUITES='sql sessions')"
	@echo "make test-settings  a part of the suites, or whole ones, under hostile settings (SETTINGS=discard,wal SUITES='sql sessions')"
	@echo "make valgrind  a part of a suite on a server under memcheck (SUITE=sql PATTERN=dml)"
	@echo "make torture  an error at every call, and everything against everything, for as long as told (HOURS=1)"
	@echo "make bench    heap, firn and DuckDB side by side on taxi trips (ROWS=1000000)"
	@echo "make bench-tpch   the same on the 22 queries of TPC-H (SCALE=1)"
	@echo "make bench-grid   is the path that the planner takes the better one (ROWS=300000)"
	@echo "make bench-json   JSON by key, many clients (ROWS=10000000)"
	@echo "make bench-indexes  building B-trees, index-only scans (ROWS=10000000)"
	@echo "make bench-backends  memory of 200 sessions, idle and after work"
	@echo "make bench-restore  firn restore and pg_restore side by side (TABLES=10000)"
	@echo "make bench-restore-rows  the same on rows: mixed tables, one big table (GIGABYTES=10)"
	@echo "make build    the extension, for the server of PG_CONFIG= (PostgreSQL 15 to 18)"
	@echo "make program  the program firn (target/release/firn)"
	@echo "make install  copy it into PostgreSQL (PG_CONFIG=, DESTDIR=; PROFILE=dist as packages have it)"
	@echo "make install-cli  copy the program, its manual and its completions to PREFIX=/usr/local (DESTDIR=)"
	@echo "make deb      Debian packages of the extension for the server of PG_CONFIG= and of the program, into $(CARGO_TARGET_DIR)/deb"
	@echo "make dist     the source of the last commit as PGXN and others want it, into $(CARGO_TARGET_DIR)/source"
	@echo "make test-packages  both, installed into a new Debian, used, and taken out again"
	@echo "make lint     formatting, clippy, layering"

setup:
	@scripts/setup.sh

# (Clients of PGXN ask for it by this name.)
all: build

build: setup
	cargo build --profile $(PROFILE) -p firn $(FOR_SERVER)

# (Cargo does as much at a time as there are cores, also where make does two things.)
program: setup
	MAKEFLAGS= cargo build --profile $(PROGRAM_PROFILE) -p firn-cli

install: build
	install -d "$(DESTDIR)$$($(PG_CONFIG) --pkglibdir)" "$(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension"
	install -m 755 "$(CARGO_TARGET_DIR)/$(PROFILE)/libfirn.so" "$(DESTDIR)$$($(PG_CONFIG) --pkglibdir)/firn.so.new"
	mv "$(DESTDIR)$$($(PG_CONFIG) --pkglibdir)/firn.so.new" "$(DESTDIR)$$($(PG_CONFIG) --pkglibdir)/firn.so"
	install -m 644 crates/firn/firn.control crates/firn/sql/firn--*.sql \
		"$(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension/"

SHARE = $(DESTDIR)$(PREFIX)/share
install-cli: program
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(SHARE)/man/man1" "$(SHARE)/bash-completion/completions" \
		"$(SHARE)/zsh/site-functions" "$(SHARE)/fish/vendor_completions.d"
	install -m 755 "$(CARGO_TARGET_DIR)/$(PROGRAM_PROFILE)/firn" "$(DESTDIR)$(PREFIX)/bin/firn.new"
	mv "$(DESTDIR)$(PREFIX)/bin/firn.new" "$(DESTDIR)$(PREFIX)/bin/firn"
	"$(CARGO_TARGET_DIR)/$(PROGRAM_PROFILE)/firn" man --dir "$(SHARE)/man/man1"
	"$(CARGO_TARGET_DIR)/$(PROGRAM_PROFILE)/firn" completions bash > "$(SHARE)/bash-completion/completions/firn"
	"$(CARGO_TARGET_DIR)/$(PROGRAM_PROFILE)/firn" completions zsh > "$(SHARE)/zsh/site-functions/_firn"
	"$(CARGO_TARGET_DIR)/$(PROGRAM_PROFILE)/firn" completions fish > "$(SHARE)/fish/vendor_completions.d/firn.fish"

deb: setup
	@scripts/deb.sh

# Versions that a core of the suites runs on in `make test`.
OTHERS ?= 17 18
.PHONY: other-servers
other-servers: setup
	@for version in $(OTHERS); do \
		MAKEFLAGS= scripts/postgresql.sh $$version extensions || echo "PostgreSQL $$version cannot be had: what is about it will not run"; \
	done

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCES = $(CARGO_TARGET_DIR)/source/firn-$(VERSION)
dist:
	mkdir -p "$(dir $(SOURCES))"
	git archive --prefix=firn-$(VERSION)/ -o "$(SOURCES).tar.gz" HEAD
	git archive --prefix=firn-$(VERSION)/ -o "$(SOURCES).zip" HEAD

test-packages: setup
	@"$(FIRN_VENV)/bin/python" tests/run.py packages

demo: install
	@scripts/setup.sh demo
	@"$(FIRN_VENV)/bin/python" demo/run.py $(if $(KEEP),--keep) $(if $(S3),--s3)

# The extension for other versions as well, for tests of upgrades and a core of the suites; the tested server's library is the last that is built, so that it
# is what is left. (Where those servers have to be built, it is once, beside the program: the one has stretches for one core where the other has work for two.)
# pg_upgrade goes from the tested version to the newest; `make test-all` goes all ways.
test: setup
	@$(MAKE) --no-print-directory -j2 program other-servers
	@for version in $(OTHERS); do \
		! test -e "$(FIRN_TOOLS)/postgresql-$$version/.firn-whole" || \
		$(MAKE) --no-print-directory install PG_CONFIG="$(FIRN_TOOLS)/postgresql-$$version/bin/pg_config" || exit 1; \
	done
	@$(MAKE) --no-print-directory install
	@FIRN_ROUTES=$${FIRN_ROUTES-15-$(lastword $(OTHERS))} FIRN_OTHERS="$$(for version in $(OTHERS); do \
		! test -e "$(FIRN_TOOLS)/postgresql-$$version/.firn-whole" || echo $$version; done)" "$(FIRN_VENV)/bin/python" tests/run.py

# The others: on 17 and 18 all suites that are about the extension and need no server with assertions, on 16, whose server has no extensions of
# PostgreSQL's, those that do without; and the ways from each version to each later one.
VERSIONS ?= 16 17 18
ON_ALL = sql,sessions,cold,crash,rewrites,differential,nesting,pairs,pieces,walk
ON_MOST = $(ON_ALL),analyze,contention,documents,frames,growth,isolation,logical,matrix,reading,rebuild,regress,replica,torture,transactions,trouble,vacuum
test-all: test
	@bad=0; for version in $(VERSIONS); do \
		scripts/postgresql.sh $$version extensions && \
		$(MAKE) --no-print-directory install PG_CONFIG="$(FIRN_TOOLS)/postgresql-$$version/bin/pg_config" || { bad=1; continue; }; \
		echo "PostgreSQL $$version"; suites=$(ON_MOST); [ $$version != 16 ] || suites=$(ON_ALL); \
		scripts/suites-on.sh $$version $$suites || bad=1; \
	done; \
	$(MAKE) --no-print-directory install; "$(FIRN_VENV)/bin/python" tests/run.py upgrade || bad=1; exit $$bad

ASSERT = $(FIRN_TOOLS)/postgresql-15-assert
# The library is the same: assertions change no structure that it sees.
assert-server: build
	@scripts/postgresql-15-assert.sh
	@install -m 755 "$(CARGO_TARGET_DIR)/release/libfirn.so" "$$($(ASSERT)/bin/pg_config --pkglibdir)/firn.so"
	@install -m 644 crates/firn/firn.control crates/firn/sql/firn--*.sql "$$($(ASSERT)/bin/pg_config --sharedir)/extension/"
	@chmod -R a+rX "$(ASSERT)"

SUITES ?= sql walk sessions nesting reading rewrites vacuum frames contention pairs differential transactions crash cold trouble analyze matrix replica isolation logical regress docs
test-assert: install program assert-server
	@bad=0; for suite in $(SUITES); do \
		PG_CONFIG="$(ASSERT)/bin/pg_config" "$(FIRN_VENV)/bin/python" tests/run.py $$suite || bad=1; done; exit $$bad

# Suites under hostile settings (tests/settings.py): all settings without SETTINGS; of each its part without SUITES, with
# them whole suites, which take many hours.
SETTINGS ?=
test-settings: install program assert-server
	@FIRN_ASSERT="$(ASSERT)/bin/pg_config" FIRN_SETTINGS="$(SETTINGS)" FIRN_SUITES="$(if $(filter file,$(origin SUITES)),,$(SUITES))" \
		"$(FIRN_VENV)/bin/python" tests/run.py settings

SUITE ?= sql
PATTERN ?= dml
valgrind: build
	@scripts/valgrind.sh $(SUITE) $(PATTERN)

HOURS ?= 1
torture: install
	@FIRN_TORTURE=$$(($(HOURS) * 1800)) "$(FIRN_VENV)/bin/python" tests/run.py torture
	@FIRN_MATRIX_WORLDS=3 FIRN_MATRIX_STEPS=$$(($(HOURS) * 500000)) FIRN_KILLS=$$(($(HOURS) * 1000)) "$(FIRN_VENV)/bin/python" tests/run.py matrix

# (Of these that install the extension.)
bench bench-tpch bench-grid bench-json bench-indexes bench-backends: PROFILE = dist

ROWS ?= 1000000
bench: install
	@"$(FIRN_VENV)/bin/python" benches/taxi.py --rows $(ROWS)

SCALE ?= 1
bench-tpch: install
	@"$(FIRN_VENV)/bin/python" benches/tpch.py --scale $(SCALE)

bench-grid: install
	@"$(FIRN_VENV)/bin/python" benches/grid.py $(if $(filter command line,$(origin ROWS)),--rows $(ROWS))

bench-json: install
	@"$(FIRN_VENV)/bin/python" benches/json_by_key.py $(if $(filter command line,$(origin ROWS)),--rows $(ROWS))

bench-indexes: install
	@"$(FIRN_VENV)/bin/python" benches/indexes.py $(if $(filter command line,$(origin ROWS)),--rows $(ROWS))

bench-backends: install
	@"$(FIRN_VENV)/bin/python" benches/backends.py

TABLES ?= 10000
bench-restore: program
	@"$(FIRN_VENV)/bin/python" benches/restore/run.py --tables $(TABLES)

GIGABYTES ?= 10
bench-restore-rows: program
	@"$(FIRN_VENV)/bin/python" benches/restore/rows.py --gigabytes $(GIGABYTES) --case mixed
	@"$(FIRN_VENV)/bin/python" benches/restore/rows.py --gigabytes $(GIGABYTES) --case big

lint: setup
	@scripts/lint.sh
