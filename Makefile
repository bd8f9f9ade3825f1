# Everything that a fresh machine needs: `make demo`, `make test`, `make check`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check format benchmark clean

# The demo's script is broken on purpose: the audit ends with 1, findings, and anything else is a failure.
DEMO := build/demo
demo: $(READY)
	@mkdir -p $(DEMO)
	@$(BIN)/graphlint run --simulate cuda --trace $(DEMO)/trace.jsonl.gz --graphs $(DEMO)/graphs \
	  fixtures/split_gan_reuse.py || test $$? -eq 1
	@$(BIN)/graphlint check $(DEMO)/trace.jsonl.gz --format json --output $(DEMO)/report.json || test $$? -eq 1
	@echo
	@echo "Written: $(DEMO)/report.json, $(DEMO)/trace.jsonl.gz and these drawings:"
	@ls -1 $(DEMO)/graphs/*.svg

test: $(READY)
	$(BIN)/python -m pytest -n auto

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_front_door.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(READY)
	$(BIN)/python benchmarks/overhead.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
