# Every target sets up .venv by itself; nothing else is needed than Python (3.10 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.PHONY: help demo test bench bench-quick lint docs clean
help:
	@echo "make demo   project scores onto four constraint sets, beside the published package (out/demo/)"
	@echo "make test   run the tests"
	@echo "make bench  time the layer against its peers, 15 minutes (make bench-quick: two)"
	@echo "make lint   ruff and mypy"
	@echo "make docs   build the documentation into site/"

$(VENV)/.installed: pyproject.toml
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo,studies,dev,docs]"
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py

test: $(VENV)/.installed
	@$(BIN)/python -m pytest

$(VENV)/.peers: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	@touch $@

bench: $(VENV)/.peers
	@$(BIN)/python benchmarks/run.py

bench-quick: $(VENV)/.peers
	@$(BIN)/python benchmarks/run.py --quick

lint: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Documentation built: site/index.html"

clean:
	rm -rf $(VENV) build site out src/*.egg-info
