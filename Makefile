# The doors. `make help` lists them; ARGS="..." is handed to the command behind a door.
# Environments are made on the way: .venv (stack A where Python 3.11 is, else B), .venv-b, .venv-c, .venv-proto.

SHELL := /bin/bash
PYTHON ?= python3
ARGS ?=
export PYTHON

ENVIRONMENT = $(PYTHON) .ci/environment.py
PYTEST = TEST_COUNTS=$(COUNTS)
COUNTS = .venv/test-counts.jsonl

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-long test-outside ci lint fmt proto dev packages stacks-found test-stacks

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | column -t -s '|'

run:  ## from a bare checkout to `coldstart demo`
	@$(ENVIRONMENT) run
	@.venv/bin/coldstart demo $(ARGS)

test: lint stacks-found packages  ## lint, the whole suite on one stack, what depends on JAX on all that are here
	@$(PYTEST) .venv/bin/python -m pytest $(ARGS)
	@$(MAKE) --no-print-directory test-stacks

test-fast: dev packages  ## the suite without what takes long and without the other stacks
	@.venv/bin/python -m pytest -m "not long and not stacks" $(ARGS)

test-long: lint stacks-found packages  ## everything; the whole suite on stack B and with the oldest releases too
	@$(PYTEST) .venv/bin/python -m pytest -m "" $(ARGS)
	@if [ -e .venv-b/stamp-b ]; then $(PYTEST) .venv-b/bin/python -m pytest -m "" $(ARGS); fi
	@if [ -e .venv-c/stamp-c ]; then $(PYTEST) .venv-c/bin/python -m pytest -m stacks $(ARGS); fi
	@$(ENVIRONMENT) oldest || [ $$? = 3 ]
	@if [ -e .venv-oldest/stamp-oldest ]; then $(PYTEST) .venv-oldest/bin/python -m pytest $(ARGS); fi

test-outside:  ## programs that nobody here wrote: MaxText's trainer; about 3 GB, 7 min the first time
	@$(PYTHON) tests/outside/run_maxtext.py $(ARGS)

ci: test  ## what CI runs

lint: dev  ## ruff and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check --quiet . || { echo "lint: not formatted as ruff does it: make fmt"; exit 1; }
	@.venv/bin/mypy

fmt: dev  ## format, and fix what ruff can
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

proto:  ## generate coldstart/rpc from proto/
	@$(ENVIRONMENT) proto
	@.venv-proto/bin/python .ci/generate_proto.py .

# Rooms behind the doors.

dev:
	@$(ENVIRONMENT) dev

# What the tests need beside Python.
packages:
	@$(PYTHON) .ci/system_packages.py redis-server strace chromium promtool

# Every environment that this machine has an interpreter for; one that is missing is noted for the summary.
stacks-found: dev
	@rm -f $(COUNTS)
	@$(ENVIRONMENT) proto || [ $$? = 3 ]
	@for stack in b c; do \
	  $(ENVIRONMENT) $$stack; status=$$?; \
	  if [ $$status = 3 ]; then echo "{\"missing\": \"$$stack\"}" >> $(COUNTS); rm -rf .venv-$$stack; \
	  elif [ $$status != 0 ]; then exit $$status; fi; \
	done

test-stacks:
	@for stack in b c; do \
	  if [ -e .venv-$$stack/stamp-$$stack ]; then \
	    $(PYTEST) .venv-$$stack/bin/python -m pytest -m "stacks and not long" $(ARGS) || exit $$?; \
	  fi; \
	done
