# Needs Python 3.11 or later, pip and make; everything else is made in .venv. Run `make` for the list of targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first one that starts and is new enough (a pyenv shim may exist and still not start).
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
JOBS ?= auto
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest

.PHONY: help demo jaeger test check format-check lint types imports architecture format soak coverage bench lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/.run-stamp ## Run an example offline and watch the history being pruned
	@$(BIN)/python examples/demo.py

jaeger: .venv/.run-stamp ## Get a real Jaeger and run it on loopback until Ctrl-C (examples/jaeger.py exports to it; ARGS=--free-ports)
	@$(BIN)/python scripts/jaeger.py start $(ARGS)

# A test that hangs fails, with the stacks of all threads; the slowest takes half a minute.
test: .venv/.dev-stamp ## Run the tests, without the soak ones (ARGS='-k name' selects)
	@$(PYTEST) -n $(JOBS) -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true $(ARGS)

check: format-check lint types imports architecture ## Format, lint, types, import contracts, architecture

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

format: .venv/.dev-stamp ## Format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

soak: .venv/.dev-stamp ## Run the soak tests, and the property tests with 100,000 examples each (CREW_SOAK_EXAMPLES=n)
	@CREW_SOAK=1 $(PYTEST) -n $(JOBS) -m 'soak or hypothesis' $(ARGS)

coverage: .venv/.dev-stamp ## Measure branch coverage; history/ and exchanges.py must be at 100 %
	@$(PYTEST) -n $(JOBS) --cov --cov-report=term $(ARGS)
	@$(BIN)/coverage report --include='crew/history/*,crew/message_rules/*' --fail-under=100

bench: .venv/.dev-stamp ## Run every benchmark in benchmarks/
	@for benchmark in benchmarks/[a-z]*.py; do echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done

# Plain pins for every supported Python, with no registry address in them.
lock: .venv/.dev-stamp ## Make constraints.txt again, with the newest versions that pyproject.toml allows
	@$(PIP) install uv
	@$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --upgrade \
		--no-header --no-annotate --no-emit-index-url --quiet --output-file constraints.txt

clean: ## Remove everything that the targets made
	@rm -rf .venv .cache .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache \
		build dist htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Some distributions ship Python without the ensurepip that venv asks for; pip can then reach in from outside.
.venv/bin/python:
	@test -n "$(PYTHON)" || { echo 'No Python 3.11 or later found: install one, or run make PYTHON=/path/to/python' >&2; exit 1; }
	@echo 'Making .venv, once ...'
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip .venv && \
		$(PYTHON) -m pip --disable-pip-version-check --quiet --python .venv/bin/python install pip; }

# Two stages: running an example needs none of the tools, but what exports to Jaeger. Not compiled: the SDKs are large
# and most of them is never imported, what is imported gets compiled then.
.venv/.run-stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo 'Installing crew ...'
	@$(PIP) install --no-compile --editable '.[otlp]' --constraint constraints.txt
	@touch $@

# Dependency groups need pip 25.1, newer than the one that Python 3.11 brings along.
.venv/.dev-stamp: .venv/.run-stamp
	@echo 'Installing the tools ...'
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --group dev --constraint constraints.txt
	@touch $@
