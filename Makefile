# `make demo` runs the main job, `make test` the tests. Each does its own set-up in .venv/.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup demo test test-slow test-serve test-page fuzz bench bench-pretrain gpu lint kernels docs package constraints clean

help:
	@echo "make demo        bytelm train on Python's standard library: a GPT, a BERT and a report (in bytelm-demo/)"
	@echo "make test        the tests and the linter"
	@echo "make test-slow   the tests that take minutes"
	@echo "make test-serve  bytelm serve with lm-evaluation-harness and the openai package, in minutes"
	@echo "make test-page   the page of bytelm serve in an installed Chromium, in minutes"
	@echo "make fuzz RUNS=N coverage-guided fuzzing of all file readers with N inputs (default 12,000: minutes)"
	@echo "make bench       the tokenizer beside its peers, in most of an hour (results in benchmarks/results/)"
	@echo "make bench-pretrain TEXT=FILE"
	@echo "                 pretraining beside transformers and litgpt, in an hour or two"
	@echo "make gpu         checks and speeds on a GPU in five stages of nine minutes, without a virtual environment"
	@echo "make docs        these pages as a site in build/docs/site/, in a minute; after make demo with its report"
	@echo "make package     a wheel and an sdist in dist/, each installed and tried in an empty environment, in minutes"
	@echo "make setup       only the virtual environment in .venv/ with the bytelm command"

setup: .venv/.ready

demo: .venv/.ready
	$(BIN)/bytelm demo

# Compiles the kernels once, while the linter runs. Otherwise every process of the tests would compile them.
kernels: .venv/.ready-test
	@$(BIN)/python -c "from tokenizer.compilation import compile_kernels; compile_kernels()"

# Each process runs whole files, whose tests share fixtures, in the order of tests/conftest.py.
test: .venv/.ready-test
	@$(MAKE) --no-print-directory -j2 lint kernels
	@echo "== tests"
	$(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile --no-loadscope-reorder --durations=15

test-slow: .venv/.ready-test
	@echo "== slow tests"
	$(BIN)/python -m pytest -m slow --durations=15
	$(BIN)/python -m pytest -m "hypothesis and not slow" --hypothesis-profile thorough

# The clients get a separate environment: they pin other versions and need no PyTorch.
test-serve: .venv/.ready-test .venv-serve/.ready
	@echo "== bytelm serve with its clients"
	BYTELM_CLIENTS=.venv-serve/bin/python $(BIN)/python -m pytest tests/serving --durations=5

test-page: .venv/.ready-page
	@echo "== the page of bytelm serve"
	$(BIN)/python -m pytest tests/serving/test_page.py tests/serving/test_page_chat.py tests/serving/test_page_tasks.py tests/serving/test_page_inside.py -rs --durations=5

RUNS ?= 12000
fuzz: .venv/.ready-fuzz
	$(BIN)/python -m tests.fuzz --runs $(RUNS) $(if $(RECORD),--record)

bench: .venv/.ready-bench
	$(BIN)/python -m benchmarks.tokenizer

bench-pretrain: .venv/.ready-bench .venv-litgpt/.ready
	$(BIN)/python -m benchmarks.pretrain --text "$(TEXT)" --litgpt-python .venv-litgpt/bin/python

# Set-up is left out: a machine with a GPU may have torch and no network. It prefers python3 to .venv/.
gpu:
	benchmarks/gpu.sh $(STAGES)

docs: .venv/.ready-docs
	$(BIN)/python docs/build_site.py

# The second installation replaces the package and keeps its dependencies.
package:
	rm -rf dist .venv-package
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip --disable-pip-version-check install --quiet build
	.venv-package/bin/python -m build --outdir dist
	for file in dist/*.whl dist/*.tar.gz; do \
		echo "== $$file"; \
		.venv-package/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt $$file && \
		tests/try_package.sh $(CURDIR)/.venv-package/bin && \
		.venv-package/bin/python -m pip uninstall --quiet --yes bytelm || exit 1; \
	done

lint: .venv/.ready-test
	@echo "== linter"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "bytelm needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== virtual environment in .venv/"
	$(PYTHON) -m venv .venv
	@echo "== bytelm and its pinned dependencies (PyTorch is the large one; minutes on a slow line)"
	$(PIP) install --upgrade pip --quiet
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/.ready-test: .venv/.ready
	@echo "== packages for the tests"
	$(PIP) install --constraint constraints.txt --editable '.[test]'
	@touch $@

.venv/.ready-page: .venv/.ready-test
	@echo "== the browser driver"
	$(PIP) install --constraint constraints.txt --editable '.[test,test-page]'
	@touch $@

.venv/.ready-fuzz: .venv/.ready
	@echo "== the fuzzer"
	$(PIP) install --constraint constraints.txt --editable '.[fuzz]'
	@touch $@

.venv/.ready-docs: .venv/.ready
	@echo "== the packages for the site"
	$(PIP) install --constraint constraints.txt --editable '.[docs]'
	@touch $@

.venv/.ready-bench: .venv/.ready
	@echo "== the peers that the benchmark measures"
	$(PIP) install --constraint constraints.txt --editable '.[bench]'
	@touch $@

# litgpt and transformers need different versions of huggingface_hub.
.venv-litgpt/.ready: constraints.txt
	@echo "== litgpt in a separate environment, .venv-litgpt/"
	$(PYTHON) -m venv .venv-litgpt
	.venv-litgpt/bin/python -m pip --disable-pip-version-check install $$(grep ^torch== constraints.txt) litgpt
	@touch $@

.venv-serve/.ready: constraints.txt
	@echo "== clients of bytelm serve in a separate environment, .venv-serve/"
	$(PYTHON) -m venv .venv-serve
	.venv-serve/bin/python -m pip --disable-pip-version-check install 'lm_eval[api]==0.4.13' openai==3.54.0 \
		$$(grep ^transformers== constraints.txt)
	@touch $@

# The newest versions that pass the tests become the pinned ones.
constraints: .venv/.ready-page .venv/.ready-bench .venv/.ready-docs
	@{ echo "# Versions that the tests pass with; made by make constraints."; \
	   $(PIP) freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	@mv constraints.new constraints.txt

clean:
	rm -rf .venv .venv-litgpt .venv-serve .venv-package build dist *.egg-info bytelm-demo
