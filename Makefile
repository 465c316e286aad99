# make run      fetches the default model on first use and answers PROMPT (MODEL=… for another one, ARGS=… for flags)
# make serve    serves the default model to OpenAI's and Anthropic's clients, on port 8000
# make test     runs all tests             make check    formatting, lint, types, structure
# make smoke    runs the tests of tests/smoke.txt, within a minute
# make setup    only the environment       make bench    measures against other engines
# make format   rewrites the formatting    make lock     locks the dependencies (needs uv; UPGRADE=1: the newest)
# make ray      adds Ray to the environment, for `twofold serve --ray` and its tests
# make peers    installs the other engines, in .venv-peers
#               (make peers-ik: ik_llama.cpp as well, compiled from its repository, ten minutes)
#               (make peers-vllm: vLLM for CPUs as well, 3.5 GB, in .venv-vllm)
#               (make peers-aiperf: the load generator that tests of bench compare with, in .venv-aiperf)
# make langchain  installs LangChain's standard tests of its clients, in .venv-langchain; make test then runs them
# make clean    deletes the environment and what tools left behind
#
# PYTHON=… chooses the interpreter (3.11 or newer); without it the first of python3, python3.13 … that is new enough.

SUITABLE := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11, \
	$(shell command -v $(name) >/dev/null 2>&1 && $(name) -c '$(SUITABLE)' 2>/dev/null && echo $(name))) python3)
PROMPT ?= What is a prime number? Answer in one sentence.
MODEL ?= smollm2-135m
export PROMPT MODEL

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CODE := $(wildcard twofold tests benchmarks)

.PHONY: run serve test smoke check format bench peers peers-ik peers-vllm peers-aiperf langchain setup ray lock clean
.DEFAULT_GOAL := run

run: .venv/.runtime
	@exec $(BIN)/twofold run --prompt "$$PROMPT" --model "$$MODEL" $(ARGS) </dev/null

serve: .venv/.runtime
	@exec $(BIN)/twofold serve "$$MODEL" $(ARGS)

# Python keeps what it compiled: tests start hundreds of processes that import the package. Three processes run them,
# because they wait for processes of their own more than they compute.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.development
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

smoke: .venv/.development
	$(BIN)/python -m pytest --quiet -n 2 @tests/smoke.txt

check: .venv/.development
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/deno fmt --check --quiet
	$(BIN)/deno lint --quiet
	$(BIN)/deno check --quiet twofold/web/static tests
	$(BIN)/python -m pytest --quiet tests/structure
	@$(BIN)/python -m tests.structure

format: .venv/.development
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/deno fmt --quiet

bench: .venv/.development
	$(BIN)/python -m benchmarks $(ARGS)

# llama.cpp is built for this processor, but without AMX: those kernels crash on virtual machines that report AMX. The
# flag hides AMX from its sources, because GGML_AMX_INT8 has no effect together with GGML_NATIVE.
NO_AMX := -U__AMX_INT8__

# The other engines that bench compares with; without them it measures Twofold alone.
peers:
	@$(PYTHON) -m venv .venv-peers
	CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_C_FLAGS=$(NO_AMX) -DCMAKE_CXX_FLAGS=$(NO_AMX)" .venv-peers/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements.txt

IK_LLAMA ?= https://github.com/ikawrakow/ik_llama.cpp
IK_COMMIT := 8337e4cd3861406fc04e0854b1409cd1b027fbc9
peers-ik:
	rm -rf .venv-peers/ik_src && git clone --quiet $(IK_LLAMA) .venv-peers/ik_src && git -C .venv-peers/ik_src checkout --quiet $(IK_COMMIT)
	cmake -S .venv-peers/ik_src -B .venv-peers/ik_build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_SERVER=OFF
	cmake --build .venv-peers/ik_build --target llama-bench llama-batched-bench -j
	ln -sfn ik_build/bin .venv-peers/ik_llama

# Its package brings in companions of another build of torch, which keep it from loading.
peers-vllm:
	@$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements-vllm.txt
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

# `make test ARGS=tests/bench/peers` then measures the same load with both.
peers-aiperf:
	@$(PYTHON) -m venv .venv-aiperf
	.venv-aiperf/bin/python -m pip install --quiet --requirement tests/bench/peers/requirements.txt

# An environment of its own: its plugins of pytest would change the other tests.
langchain:
	@$(PYTHON) -m venv .venv-langchain
	@.venv-langchain/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement tests/server/langchain/requirements.lock

setup: .venv/.development

ray: .venv/.development
	@$(INSTALL) --require-hashes --requirement requirements-ray.lock

.venv/.python:
	@$(PYTHON) -c '$(SUITABLE)' 2>/dev/null || { \
		echo "Twofold needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) --version) …"
	@$(PYTHON) -m venv --clear .venv
	@touch $@

# A lock that is newer than its stamp makes the environment stale: what it names is then installed anew. The package is
# installed as an entry of the path: by default, setuptools adds a finder that Python asks after the path, so that in the
# folder above a clone named twofold that folder itself would be imported.
.venv/.runtime: requirements.lock pyproject.toml Makefile | .venv/.python
	@echo "Installing what Twofold needs …"
	@$(INSTALL) --require-hashes --requirement requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $@

.venv/.development: requirements-dev.lock .venv/.runtime
	@echo "Installing what its tests need …"
	@$(INSTALL) --require-hashes --requirement requirements-dev.lock
	@touch $@

# The build backend is locked too, because an editable install runs it without a sandbox of its own. Versions that are
# locked stay as they are while they satisfy pyproject.toml, unless UPGRADE=1 is given.
COMPILE := uv pip compile pyproject.toml - --universal --python-version 3.11 --generate-hashes --no-header \
	--no-annotate --quiet $(if $(UPGRADE),--upgrade)
lock:
	echo 'setuptools>=77' | $(COMPILE) --output-file requirements.lock
	echo 'setuptools>=77' | $(COMPILE) --extra dev --constraint requirements.lock --output-file requirements-dev.lock
	echo 'setuptools>=77' | $(COMPILE) --extra ray --constraint requirements-dev.lock --output-file requirements-ray.lock
	$(subst pyproject.toml -,tests/server/langchain/requirements.txt,$(COMPILE)) --output-file tests/server/langchain/requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find twofold tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
