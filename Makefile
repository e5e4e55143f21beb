# Every target sets up .venv by itself; nothing else is needed than Python (3.10 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: of the many thousand installed, most never are. That has to be
# kept, or every process of the tests compiles torch again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
TORCH ?= torch==2.13.0

.PHONY: help demo test test-core test-all test-machines test-sanitized test-platforms test-matrix fuzz bench bench-gpu bench-quick bench-page arena lint docs release-check clean
help:
	@echo "make demo   a guided tour: the layer, its peers, three studies (out/demo/index.html)"
	@echo "make test   run the tests"
	@echo "make test-core  those of the core alone, 90 seconds"
	@echo "make test-all  the slow ones too; LINSAT_DATA=folder adds the linear programs of lp/netlib and lp/miplib3"
	@echo "make test-machines  what depends on arithmetic, as other processors and with more threads"
	@echo "make test-sanitized  the kernel's tests, in C and Python, with gcc's address, undefined-behaviour and thread sanitizers"
	@echo "make test-platforms  the C tests for aarch64 and Windows, in emulators, and their answers beside those here"
	@echo "make bench  time the layer against its peers, 20 minutes (make bench-quick: three)"
	@echo "make bench-gpu  time the Triton kernels against torch operations on a GPU, where there is one"
	@echo "make bench-page  docs/performance.md and the table of the README from the last make bench"
	@echo "make arena  other projects' benchmarks with linsat beside them, an hour, and docs/arena.md"
	@echo "make fuzz   random systems against HiGHS and Clarabel; FUZZ=\"--minutes 5 --seed 1\" sets how long"
	@echo "make test-matrix  the tests with the oldest and newest versions, and without any extra"
	@echo "make lint   ruff, mypy, pyright and the direction of imports"
	@echo "make docs   build the documentation into site/, notebooks executed, links checked"
	@echo "make release-check  build sdist and wheel, install the wheel into an empty environment, test it there"

# torch comes first and alone: a requirement of another package could pull a far larger build.
$(VENV)/.installed: pyproject.toml tools/pyproject.toml studies/pyproject.toml
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) "$(TORCH)"
	@$(PIP) -e ".[demo]" -e tools -e studies
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	@echo "Adding the tools for development to $(VENV)"
	@$(PIP) -e ".[dev,docs,jax,gpu]"
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py

# One process a core, at most four; whoever has finished takes tests over from the others.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

test: $(VENV)/.tools
	@$(PYTEST)

test-core: $(VENV)/.tools
	@$(PYTEST) tests/core

test-all: $(VENV)/.tools
	@$(PYTEST) -m "slow or not slow"

test-machines: $(VENV)/.tools
	@$(BIN)/python scripts/machines.py $(MACHINES)

test-sanitized: $(VENV)/.tools
	@$(BIN)/python scripts/sanitized.py $(SANITIZED)

test-platforms: $(VENV)/.tools
	@$(BIN)/python scripts/platforms.py $(PLATFORMS)

# qpth declares numpy below 2, although it runs with 2.
$(VENV)/.peers: $(VENV)/.installed
	@$(PIP) -e ".[bench]"
	@$(PIP) --no-deps qpth==0.0.18
	@touch $@

bench: $(VENV)/.peers
	@$(BIN)/python benchmarks/run.py

bench-quick: $(VENV)/.peers
	@$(BIN)/python benchmarks/run.py --quick

bench-gpu: $(VENV)/.installed
	@$(PIP) "triton>=3"
	@$(BIN)/python benchmarks/gpu.py

bench-page: $(VENV)/.peers
	@$(BIN)/python benchmarks/page.py

# qpth declares numpy below 2, although it runs with 2.
$(VENV)/.arena: $(VENV)/.installed
	@$(PIP) -e ".[arena]"
	@$(PIP) --no-deps qpth==0.0.18
	@touch $@

# Goes on where it was stopped; ARENA=--fresh begins anew, ARENA=--quick takes a few minutes and writes no page.
arena: $(VENV)/.arena
	@cd benchmarks && ../$(BIN)/python -m arena $(ARENA)

lint: $(VENV)/.tools
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

docs: $(VENV)/.tools
	@NOTEBOOKS=run NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@$(BIN)/python scripts/check_links.py site
	@echo "Documentation built: site/index.html"

fuzz: $(VENV)/.tools
	@$(BIN)/python -m fuzz.run $(FUZZ)

test-matrix:
	@$(PYTHON) scripts/test_matrix.py

release-check:
	@$(PYTHON) scripts/release_check.py --torch "$(TORCH)"

clean:
	rm -rf $(VENV) build dist .release site out src/*.egg-info tools/build tools/src/*.egg-info studies/build studies/src/*.egg-info
