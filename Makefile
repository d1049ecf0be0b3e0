# Every target builds what it needs: a machine with Python 3.11 or newer, pip and make is enough.
PYTHON ?= python3
BIN := .venv/bin
LOCKED := .venv/.locked
READY := .venv/.ready
PEERS := .venv/.peers
# sdebnn-hopper pins another jax, so it has an environment of its own. On its GPUs: make hopper EXTRAS=test,cuda
PYTHON312 ?= python3.12
HOPPER := .venv-hopper
EXTRAS ?= test

.DEFAULT_GOAL := help
.PHONY: help demo test slow hopper verify check format docs bench lock clean

help: ## list these targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: $(READY) ## fit a 1-D regression in about a minute, write pictures and metrics to demo/
	@$(BIN)/sdebnn demo --out demo

# Shapes are checked against the signatures, and warnings are errors.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -W error --jaxtyping-packages=sdebnn,sdebnn_hopper,beartype.beartype

test: $(READY) ## run the test suite but for its slow tests, in under ten minutes
	@$(PYTEST) -m 'not slow'

slow: $(READY) ## run the slow tests: every theorem of verify, the checks of scikit-learn, longer trainings
	@$(PYTEST) -m slow

hopper: $(HOPPER)/.ready ## test the kernels in hopper/ with the jax they are written for (needs Python 3.12)
	@$(HOPPER)/bin/python -m pytest -W error --jaxtyping-packages=sdebnn,sdebnn_hopper,beartype.beartype hopper/tests

verify: $(READY) ## check this machine's answers against exact ones
	@$(BIN)/sdebnn verify

check: $(READY) ## lint, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@$(BIN)/shellcheck .ci/run docs/cluster/*.sh
	@$(BIN)/yamllint -s -d '{extends: default, rules: {line-length: {max: 120}}}' docs/cluster

format: $(READY) ## rewrite the code in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(READY) ## build the site in site/: runs the tutorials, in a few minutes the first time
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open site/index.html. For its search, serve it: $(BIN)/python -m http.server --directory site"

bench: $(PEERS) ## time training and prediction beside torchsde, diffrax and a bare loop: one table, and benchmarks/speed-*.json
	@$(BIN)/python benchmarks --json benchmarks/speed-$$($(BIN)/python -c 'import jax; print(jax.default_backend())').json

lock: $(READY) ## pin every dependency anew in requirements.txt
	@$(BIN)/pip install --quiet uv
	@$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --quiet --extra baselines --extra data --extra export --extra images --extra logging \
		--extra plot --extra serve --extra sklearn --extra sweep --group dev --group docs pyproject.toml -o requirements.txt

# What the benchmarks are measured beside; large, and needed for nothing else.
$(PEERS): $(READY)
	@echo "Installing torch and torchsde (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check 'torch==2.13.0' 'torchsde==0.2.6'
	@touch $@

clean: ## remove the environments and what the demo wrote
	rm -rf .venv $(HOPPER) demo site .cache

$(HOPPER)/.ready: pyproject.toml hopper/pyproject.toml
	@echo "Building $(HOPPER) (once; a few minutes)"
	@$(PYTHON312) -m venv --clear $(HOPPER)
	@$(HOPPER)/bin/pip install --quiet --disable-pip-version-check -e . -e './hopper[$(EXTRAS)]'
	@touch $@

# The project itself, installed so that edits count at once.
$(READY): $(LOCKED) pyproject.toml
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Everything it depends on, at pinned versions.
$(LOCKED): requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
		f"sdebnn needs Python 3.11 or newer, this is {v[0]}.{v[1]}: try make PYTHON=python3.12")'
	@echo "Building .venv (once; about a minute)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@touch $@
