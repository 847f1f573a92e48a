# Everything a newcomer needs: `make demo`, `make test`. Each target sets up the virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
# pip shows its download bars on a terminal, and is quiet in a log.
PIP := $(BIN)/python -m pip install $(shell [ -t 2 ] && echo --progress-bar=on || echo --quiet) --disable-pip-version-check --constraint $(CONSTRAINTS)
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
SETUP_STEPS = $(if $(filter demo,$(MAKECMDGOALS)),3,4)
BENCHES ?= agents checkpoint dashboard images monitor preparation scaling serve translate
EVENTS ?= 24
SEED ?= 1
# For one test alone: make test-slow PYTEST_ARGS=tests/lab/test_faults.py
PYTEST_ARGS ?=

.PHONY: setup constraints demo test test-packages test-slow test-long chaos mechanisms check docs bench bench-network bench-quality bench-peers clean

setup: $(READY)

# torch first, in the version of constraints.txt: what else wants torch then finds it and pulls no other.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 15) or sys.exit("Echelon needs Python 3.11 to 3.14; set PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python lacks venv; on Debian: apt-get install python3-venv"; exit 1; }
	@echo "1/$(SETUP_STEPS) creating the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2/$(SETUP_STEPS) installing PyTorch (the largest download: a few minutes)"
	@$(PIP) torch setuptools
	@echo "3/$(SETUP_STEPS) installing Echelon and what training needs"
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(READY): $(INSTALLED)
	@echo "4/4 installing what exporting, serving and the tests need (a few minutes)"
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

# constraints.txt and launch/locked.txt, written anew from a fresh environment: what is no longer needed goes, what is new
# is added. UPGRADE=1 takes the newest version of everything but torch.
constraints:
	fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	grep '$(if $(UPGRADE),^torch==,.)' constraints.txt > "$$fresh/constraints.txt" && \
	$(MAKE) setup VENV="$$fresh/env" CONSTRAINTS="$$fresh/constraints.txt" && \
	"$$fresh/env/bin/python" -m pip install --quiet --upgrade pip && \
	"$$fresh/env/bin/python" tools/pin_versions.py

demo: $(INSTALLED)
	$(BIN)/echelon demo

# Debian's packages that tests need, if root asks on a machine with apt; tests skip what is still missing.
test-packages:
	tests/debian-packages || echo "not all Debian packages could be installed: tests that need the others are skipped"

test: test-packages $(READY)
	$(BIN)/python -m pytest -m 'not slow' --numprocesses=3 --dist=loadgroup $(PYTEST_ARGS)

test-slow: test-packages $(READY)
	$(BIN)/python -m pytest -m 'slow and not long' --timeout=900 --numprocesses=2 --dist=loadgroup $(PYTEST_ARGS)

# What takes too long for CI. docs/test-long.md says when it was last run, and how it ended.
test-long: test-packages $(READY)
	$(BIN)/python -m pytest -m long --timeout=1800 --numprocesses=2 --dist=loadgroup $(PYTEST_ARGS)
	$(MAKE) chaos EVENTS=200
	$(MAKE) mechanisms

# A training run struck EVENTS times at random, and whether it ends with the bits of an undisturbed one.
chaos: $(READY)
	$(BIN)/python -m tests.integration.chaos --events $(EVENTS) --seed $(SEED)

# Each mechanism of docs/reliability.md switched off in a copy of the source: its test must notice.
mechanisms: $(READY)
	$(BIN)/python -m tests.mechanisms

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m echelon.recipe.reference > docs/recipe.md

# What one machine can measure by itself; what it lacks the data or a run for says so, and is left out.
bench: $(READY)
	failed=; \
	for name in $(BENCHES); do \
		echo "== bench_$$name"; PYTHONPATH=. $(BIN)/python -m bench.bench_$$name || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

# Two hosts against one, over lines from 10 Gbit/s to 20 Mbit/s, with every exchange: needs root, for the lab.
bench-network: $(READY)
	PYTHONPATH=. $(BIN)/python -m bench.bench_network --json bench/network.json --svg bench/network.svg

# What each exchange learns from the same samples, on Multi30k, and `--what paths` each path through the model: needs
# ECHELON_DATA, and an hour or more.
bench-quality: $(READY)
	PYTHONPATH=. $(BIN)/python -m bench.quality

# Echelon against Hugging Face, JoeyNMT, Eole, OpenNMT-py and Sockeye, in environments of their own: a table, and a chart
# in bench/peers/results.
bench-peers: $(READY)
	PYTHONPATH=. $(BIN)/python -m bench.peers.compare

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
