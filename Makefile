# Every target sets up .venv if needed; `make setup` does only that, and nothing when nothing changed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-slow test-gpu fuzz mutate check docs format clean

setup: $(STAMP)

TAGGER := packages/l0drop-tagger
TAGGER_FILES := $(wildcard $(TAGGER)/*.* $(TAGGER)/LICENSE $(TAGGER)/l0drop_tagger/*.*)

$(STAMP): pyproject.toml constraints.txt $(TAGGER_FILES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[dev]' --editable ./$(TAGGER)
	touch $(STAMP)

demo: setup
	$(BIN)/l0drop demo

# Test processes, each with one thread.
WORKERS ?= 2
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not gpu"

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m slow

# Uses the installed Python and torch, which support the GPU; installs nothing. One process without pytest-xdist.
GPU_PYTHON ?= python3
GPU_WORKERS ?= 6
test-gpu:
	workers=; if $(GPU_PYTHON) -c 'import xdist' 2>/dev/null; then workers='-n $(GPU_WORKERS) --dist worksteal'; fi; \
		$(GPU_PYTHON) -m pytest -q -rs -p no:cacheprovider $$workers tests/gpu tests/decoding/gpu

# Random arguments, files, weights, texts and settings. TARGET and SEED repeat a finding.
SECONDS ?= 600
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
		$(addprefix --target ,$(TARGET))

# Mutants of the core, the search and its settings, in about half an hour.
mutate: setup
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children $(WORKERS)
	$(BIN)/python scripts/mutants.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Into site/; a broken link or a page that is missing from the navigation is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
