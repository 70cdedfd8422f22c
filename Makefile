# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# one more than cores: tests of clusters wait for one another
TEST_PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
LOWEST ?= .cache/lowest
DEMO_DATA ?= demo-data
DEMO_OUT ?= demo-out

.PHONY: help install demo test test-lowest test-browser test-consumers lint types bench bench-full clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# one stamp a set of extras, redone when pyproject.toml changes
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(VENV)/.dev  ## Make the environment with everything that development needs

demo: $(VENV)/.demo  ## Generate completions, run them to Parquet, validate, write the report
	$(BIN)/python -m retok_dask.demo $(DEMO_DATA) --output $(DEMO_OUT)
	$(BIN)/retok run $(DEMO_DATA)/recipe.yaml
	$(BIN)/retok validate $(DEMO_OUT)
	$(BIN)/retok report $(DEMO_OUT)
	@echo
	@echo "Tokens:  $(DEMO_OUT)/data/*/*.parquet"
	@echo "Report:  $(DEMO_OUT)/report/report.html"

test: $(VENV)/.dev  ## Install what the tests need and run them
	@$(BIN)/python -m compileall -q retok_dask  # once, where Python keeps no bytecode: tests start hundreds of processes
	$(BIN)/python -m pytest -m "not browser and not consumers" -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test-lowest:  ## Run the tests with the oldest libraries that pyproject.toml allows, in an environment of their own
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(CURDIR)/$(LOWEST) $(LOWEST)/bin/uv pip install --quiet --resolution lowest-direct --editable '.[test]'
	$(LOWEST)/bin/python -m pytest -m "not browser and not consumers" -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test-browser: $(VENV)/.dev  ## Drive a real JupyterLab in Chromium (.ci/install-browser puts that on a Debian machine)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	$(BIN)/python -m pytest -m browser tests/browser

test-consumers: $(VENV)/.dev  ## Load exports by the trainers' own code, each in its own environment (5 GB, torch for the CPU)
	$(BIN)/python -m pytest -m consumers tests/exits

lint: $(VENV)/.dev  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## Check types
	$(BIN)/mypy

bench: $(VENV)/.dev  ## Benchmarks, side by side with public tools
	$(BIN)/python -m benchmarks

bench-full: $(VENV)/.dev  ## The 902,087-completion job in full
	$(BIN)/python -m benchmarks full

clean:  ## Remove the demo's files
	rm -rf $(DEMO_DATA) $(DEMO_OUT)
