PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format clean

demo: .venv/ready
	$(BIN)/fedflux run --dataset digits --shift px --level 3 --algorithm flux

test: .venv/ready
	$(BIN)/python -m pytest -n auto

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and pinned: the constraint then keeps every later step from fetching another build
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
