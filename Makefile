# Everything runs in .venv, made on first use from requirements.lock.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
RUN := PATH="$(BIN):$$PATH"
TESTS ?= tests

.PHONY: train test ui lint bench vectors clean help
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

.venv/.complete: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Rollbook needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11")'
	@echo "installing the locked packages into .venv (once; some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[train,dev]'
	@touch $@

train: .venv/.complete ## train what params.yaml says, then show the evaluation by iteration
	@$(RUN) dvc repro
	@$(RUN) rollbook report

test: .venv/.complete ## run the whole test suite
	@$(RUN) python -m pytest -n 2 $(TESTS)

ui: .venv/.complete ## show the runs in MLflow
	@$(RUN) rollbook ui

lint: .venv/.complete ## format and check the code
	@$(RUN) ruff format pipeline stages tests
	@$(RUN) ruff check --fix pipeline stages tests
	@$(RUN) mypy
	@$(RUN) lint-imports

vectors: .venv/.complete ## compare with the numbers of TRL, verl and scipy
	@$(RUN) python -m tests.vectors

bench: .venv/.complete ## measure where the time goes; writes reports/benchmarks.md
	@$(RUN) python -m tests.benchmarks

clean: ## remove caches and the environment; artifacts and runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
