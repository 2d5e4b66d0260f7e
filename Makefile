# make demo | make test | make test-all | make check | make docs | make bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PATE_DATA ?= data
# Tests start thousands of processes, which would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check lint types docs bench clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (once; a few minutes where torch has to be downloaded)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/pate run digits
	@$(BIN)/pate report runs/digits
	@test -e runs/digits-release || $(BIN)/pate release runs/digits runs/digits-release
	@$(BIN)/pate verify runs/digits-release
	@$(BIN)/pate compare compare-digits --epsilon 0.3,1,4 --seeds 1
	@$(BIN)/pate report runs/compare-digits

# One worker more than cores, as tests also wait: for processes that are killed, time out or race.
WORKERS = $$($(BIN)/python -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup

# About five minutes on two cores: everything but the campaigns.
test: $(READY)
	$(PYTEST) -m "not campaign"

# With the campaigns: clusters, hundreds of kills, a thousand malformed recipes, statistical power.
test-all: $(READY)
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

# The site, into site/. Tutorials are executed where they, or the packages, have changed.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

bench: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accounting.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/pipeline.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/encoders.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/teachers.py
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/dpsgd_step.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build site
