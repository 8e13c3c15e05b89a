# `make demo` and `make test` need nothing but Python >= 3.10 and make: each sets up .venv
# first, again only when pyproject.toml, constraints.txt or a C source has changed.

VENV ?= .venv
CONSTRAINTS ?= constraints.txt
OLDEST := .venv-oldest
DEMO_ARGS ?=
PEERS_ARGS ?=

# The first that really runs: a name on the PATH may stand for a version that is not installed.
# 3.11 comes first because torch's CPU wheel may be at hand for it alone.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.10 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 \
	&& { echo $$python; break; }; done)

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOGETHER := --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
CLUSTER_FILES = $(shell grep -rlE --include='test_*.py' 'ray_cluster\b|mark\.cluster' tests)
TRANSFORMERS_FILES := tests/end_to_end/test_frameworks.py tests/pipeline/tasks/media/test_tokenize_text.py \
	tests/dataset/transforms/test_media_methods.py
NIGHT := night-laws night-orders night-sources night-datasets night-pipeline night-runs night-programs \
	night-clusters night-simulation night-chaos night-links oldest
LIBRARIES := $(wildcard windrow/core/*.h windrow/io/parquet/*.[ch] windrow/shuffle/kernels/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help venv demo test check lint types imports doctests docs tests on-ray on-clusters on-ray-and-clusters without-ray wheel smoke nightly $(NIGHT) night-tools peers format clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

venv: $(STAMP) ## make or renew the virtual environment

$(STAMP): pyproject.toml setup.py $(CONSTRAINTS) $(LIBRARIES)
	@test -n "$(PYTHON)" || { \
		echo "windrow needs Python 3.10 or newer with its venv module; none was found on the PATH." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "windrow needs Python 3.10 or newer; PYTHON=$(PYTHON) is older or does not run." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) setuptools
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[dev]'
	# as installing a wheel does; without bytecode files, each of Ray's processes would compile the modules again
	$(BIN)/python -m compileall -q windrow bench
	@touch $@

demo: $(STAMP) ## the benchmark on about 300 MB with two trainers (DEMO_ARGS=--small: less)
	$(BIN)/python -m bench demo $(DEMO_ARGS)

# Tests on Ray wait much, so all others run beside them. Two goals run at a time, in this order: what the gate finds in a
# minute comes before the other tests, and the rest of it runs where the first of the two has ended.
test: $(STAMP) ## every check: the gate and all tests
	@$(MAKE) --no-print-directory --jobs 2 on-ray-and-clusters types lint imports without-ray doctests docs

on-ray-and-clusters: $(STAMP)
	@$(MAKE) --no-print-directory on-ray
	@$(MAKE) --no-print-directory on-clusters

# each of them uses one core, so two go at once
check: $(STAMP) ## the gate alone: style, types, import contract, doctests, documentation
	@$(MAKE) --no-print-directory --jobs 2 doctests types docs lint imports

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell --dictionary - --dictionary tests/retired_words.txt windrow bench tests docs *.md Makefile

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports --no-logo --no-cache

doctests: $(STAMP)
	$(BIN)/python -m pytest --quiet --doctest-modules windrow

docs: $(STAMP) ## build the documentation into build/docs
	$(BIN)/python -m sphinx --quiet --fresh-env --jobs auto -W --keep-going -b html docs build/docs

# Tests on Ray take one process beside two for the others: three Rays on two cores starve each other.
# Several raylets and the shared local Ray do not live in one process, so clusters have a pass of their own.
# Collecting all tests takes a minute of each process; a file's tests share fixtures.
# A process that dies ends its pass: with another in its place pytest-xdist can wait forever for the dead one's tests.
tests: $(STAMP) ## the tests alone
	@$(MAKE) --no-print-directory --jobs 2 without-ray on-ray-and-clusters

on-ray: $(STAMP)
	$(BIN)/python -m pytest --quiet -m "ray and not cluster and not nightly"

on-clusters: $(STAMP)
	$(BIN)/python -m pytest --quiet -m "cluster and not nightly" $(CLUSTER_FILES)

without-ray: $(STAMP)
	$(BIN)/python -m pytest --quiet -m "not ray and not cluster and not nightly" --numprocesses 2 $(TOGETHER)

# On x86-64 the index has torch for CUDA alone, 3 GB with what it needs; it runs on a CPU.
# The first line also restores the newest versions where it renews the environment, so the second is always run.
oldest: ## long: the tests with the oldest supported versions, in .venv-oldest (Python 3.10 to 3.12)
	$(MAKE) --no-print-directory venv VENV=$(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --requirement constraints-oldest.txt
	$(OLDEST)/bin/python -m pip check
	$(MAKE) --no-print-directory tests VENV=$(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --requirement constraints-oldest-transformers.txt
	$(OLDEST)/bin/python -m pip check
	$(OLDEST)/bin/python -m pytest --quiet -m "not cluster" $(TRANSFORMERS_FILES)

wheel: $(STAMP) ## build the sdist and a manylinux wheel into dist/
	rm -rf build/wheel dist
	$(BIN)/python -m build --no-isolation --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist/

# `make nightly` runs these too.
smoke: $(STAMP) ## build the wheel, and use it with each of Python 3.10 to 3.14 that is on the PATH
	$(BIN)/python -m pytest -m nightly tests/test_wheel.py

# What neither draws examples nor is marked nightly is the same as in `make test`. Each part can run by itself, and the
# others run where one fails. `night-programs` has the tests that no other part names.
NIGHT_TESTS = $(BIN)/python -m pytest --timeout 3600 --hypothesis-profile nightly --numprocesses 2 $(TOGETHER) \
	-m "not cluster and (nightly or hypothesis)"
PARTS_OF_TESTS := tests/laws tests/shuffle tests/core tests/sanitized tests/io tests/dataset tests/pipeline tests/end_to_end

nightly: ## long: the laws on many more examples, and what is marked nightly, in parts
	@$(MAKE) --no-print-directory --keep-going $(NIGHT)

night-tools: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[nightly]'

night-laws: night-tools
	$(NIGHT_TESTS) tests/laws

night-orders: night-tools
	$(NIGHT_TESTS) tests/shuffle tests/core tests/sanitized

night-sources: night-tools
	$(NIGHT_TESTS) tests/io

night-datasets: night-tools
	$(NIGHT_TESTS) tests/dataset

night-pipeline: night-tools
	$(NIGHT_TESTS) tests/pipeline

night-runs: night-tools
	$(NIGHT_TESTS) tests/end_to_end

night-programs: night-tools
	$(NIGHT_TESTS) tests $(addprefix --ignore ,$(PARTS_OF_TESTS))

night-clusters: night-tools
	$(BIN)/python -m pytest --timeout 3600 --hypothesis-profile nightly -m "cluster and (nightly or hypothesis)" $(CLUSTER_FILES)

night-simulation: $(STAMP)
	$(BIN)/python -m bench simulate --seeds 100000

night-chaos: $(STAMP)
	$(BIN)/python -m bench chaos --minutes 10
	$(BIN)/python -m bench chaos --minutes 10 --mixed --prepared
	$(BIN)/python -m bench chaos --minutes 10 --replicas 2

night-links: $(STAMP)
	$(BIN)/python -m bench netns

peers: $(STAMP) ## long: every rival in an environment of its own (PEERS_ARGS="--size 300MB": less)
	$(BIN)/python -m bench peers $(PEERS_ARGS)

format: $(STAMP) ## let ruff lay out the code and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what building and checking leave behind, not the environment
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
