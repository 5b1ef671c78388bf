# Every target sets up what it needs in .venv; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $(p))))
BIN := .venv/bin
READY := .venv/.ready
SEEDS ?= 10000
ROUNDS ?= 5
PROCESSES ?= $(shell nproc 2>/dev/null || echo 2)
SERVE ?=
SEED ?= 1
# Most tests wait: for processes to start, for timeouts to pass. Files are shared out among so many at a time.
WORKERS ?= 4

# The tests start thousands of processes: compiled modules stay on disk, or each process compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test spark check lint compiled fasttests alltests demo jdk serve sim mutants interop bench docs lock dist interpreters clean tools fuzz soak steady

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(READY): pyproject.toml src/twofold/version.py
	@test -n "$(PYTHON)" || { echo "Twofold needs Python 3.11 or newer: install python3.11 (and python3.11-venv), or set PYTHON=/path/to/python3"; exit 1; }
	@echo "setting up .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv || { echo "cannot make a virtual environment: install the venv module of $(PYTHON) (Debian: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,spark,demo]' || { echo "pip could not install the dependencies of pyproject.toml: see its message above"; exit 1; }
	@touch $@

setup: $(READY)  ## install the package and its tools into .venv

tools: $(READY)
	@bash tools/install-test-tools.sh

lint: $(READY)  ## ruff and mypy (the package, the kits and the simulator strictly; tests, tools and benchmarks too)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Pytest rewrites the asserts of a test module when it imports it. Once, beside mypy, instead of once per worker.
compiled: $(READY)
	@$(BIN)/python -m pytest --collect-only >/dev/null 2>&1 || true

fasttests: compiled
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not interop and not oracle and not spark"

alltests: compiled
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# mypy keeps one core for a minute, and the tests keep the others.
check: $(READY)  ## lint and the fast tests (under 3 minutes)
	@$(MAKE) --no-print-directory -j2 lint fasttests

test: tools  ## everything that CI runs: lint, unit, simulated power cuts, real clients, Spark, Apache Kafka as the oracle
	@$(MAKE) --no-print-directory -j2 lint alltests

spark: tools  ## the tests of the Spark source and sink alone
	@$(BIN)/python -m pytest --timeout=600 tests/spark tests/sink

demo: jdk $(READY)  ## orders through an exactly-once Spark pipeline whose task, broker and driver are killed; then the verdict (SECURE=1: over TLS, each part with the least rights)
	@$(BIN)/python examples/demo/run.py $(if $(SECURE),--secure)

# First, so that a missing JDK is named before the packages are installed.
jdk:
	@test -n "$$JAVA_HOME" || command -v java >/dev/null || bash tools/install-test-tools.sh java
	@test -n "$$JAVA_HOME" || command -v java >/dev/null || { echo "the demo runs Spark, which needs a JDK 17 or 21: install one (Debian: apt-get install default-jdk-headless), or set JAVA_HOME"; exit 1; }

serve: $(READY)  ## run a broker on 127.0.0.1:9092 (SERVE="..." adds options)
	@$(BIN)/twofold serve $(SERVE)

sim: $(READY)  ## the simulator: 10,000 seeds over all worlds, on all cores (SEEDS=, PROCESSES=, LEDGER= for slices), random search, then the planted bugs
	@$(BIN)/python tools/run_seeds.py --seeds $(SEEDS) --processes $(PROCESSES) $(if $(LEDGER),--ledger $(LEDGER))
	@TWOFOLD_SEEDS=2000 $(BIN)/python -m pytest --timeout=3600 tests/log -k "seed or power"
	@TWOFOLD_LONG=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --timeout=3600 tests/sim -k "any_change or any_write or any_step or quorum_moves"
	@for round in $$(seq $(ROUNDS)); do TWOFOLD_RANDOM=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --timeout=3600 -m hypothesis || exit 1; done
	@$(MAKE) --no-print-directory mutants

mutants: $(READY)  ## bugs planted in a copy of the sources: the simulator finds each of them
	@$(BIN)/python tools/run_mutants.py --processes $(PROCESSES)

# What talks to real servers on several connections, groups, and what searches: tests of these kinds once failed by chance.
STEADY ?= $(wildcard tests/interop/test_*.py tests/broker/coordinators/groups/test_*.py tests/broker/fetch/test_*.py tests/coordinator/group/test_*.py tests/*/test_*model*.py tests/*/*/test_*model*.py)

steady: tools  ## the tests that are prone to fail by chance, twenty times each beside a load on every core (TIMES=, STEADY=files, LEDGER= for slices)
	@$(BIN)/python tools/run_again.py --times $(or $(TIMES),20) $(if $(LEDGER),--ledger $(LEDGER)) $(sort $(STEADY))

soak: $(READY)  ## mixed load with kill -9 every 20 s, then the reckoning (MINUTES=30 SEED=1)
	@PYTHONPATH=tests $(BIN)/python -m soak --minutes $(or $(MINUTES),30) --seed $(SEED)

interop: tools  ## the long runs with real clients and kill -9
	@command -v go >/dev/null || echo "not installed: Go 1.26 or newer (go.dev/dl); the runs with franz-go will skip"
	@TWOFOLD_LONG=1 $(BIN)/python -m pytest --timeout=3600 tests/interop tests/soak tests/spark tests/dualwrite

fuzz: $(READY)  ## coverage-guided fuzzing of everything that reads foreign bytes (MINUTES=5)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]' || { echo "atheris does not install here: see its message above (it has wheels for Linux)"; exit 1; }
	@PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(or $(MINUTES),5)

bench: tools  ## speed beside a reference client and Apache Kafka, and how cost grows
	@$(BIN)/python -m bench

docs: $(READY)  ## write the generated pages again, and build the site into build/site
	@$(BIN)/python tools/generate_settings.py
	@$(BIN)/python tools/generate_client_options.py
	@$(BIN)/python tools/generate_metrics.py
	@$(BIN)/python tools/generate_states.py
	@$(BIN)/mkdocs build --strict --quiet --site-dir build/site

# The remote "origin" is where the README's pictures and links lead on an index page; another with TWOFOLD_REPOSITORY=.
dist: export TWOFOLD_REPOSITORY ?= $(shell git remote get-url origin 2>/dev/null | grep '^https:')
dist: $(READY)  ## build the wheel and the sdist into dist, and try both in empty environments
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null || { echo "the build failed: run $(BIN)/python -m build to see why"; exit 1; }
	@$(BIN)/python tools/try_dist.py dist/*

interpreters: $(READY)  ## the core of the tests on every Python that is here, and wheels for the others, into docs/guide/install.md
	@$(BIN)/python tools/check_interpreters.py --write

# Versions and hashes, and no address: the lock is the same whatever index it was made with.
lock: $(READY)  ## renew requirements-dev.lock: the versions and hashes of everything that development needs
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --extra dev --extra spark --extra demo --output-file requirements-dev.lock pyproject.toml

clean:  ## remove .venv and every cache
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
