PYTHON ?= python3
BIN := .venv/bin
# one thread a process: tests run side by side, and more threads than cores only wait for each other
ONE := OMP_NUM_THREADS=1

.PHONY: demo pictures docs test test-slow test-flower test-flower-slow lint format clean

demo: .venv/ready
	$(BIN)/fedflux compare --dataset digits --algorithms fedavg,flux --shifts px,py,pygx,pxgy --levels 4,6,8 --jobs 2 --out runs/demo
	$(BIN)/fedflux report runs/demo
	@echo
	@echo "Open runs/demo/report.html: the first table holds FLUX beside FedAvg under each shift, the last"
	@echo "line of every run says what sets its clusters apart. Then your own data: docs/quickstart.md"

# the pictures of the documents, from the runs of the demo and of their own
pictures: .venv/ready
	$(BIN)/python -m docs.pictures

# the documents as a site: open site/index.html, or `python -m http.server -d site`, which also searches; a warning is
# an error (not with --quiet, which hides warnings from the count of them, too)
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

test: .venv/ready
	$(ONE) $(BIN)/python -m pytest -n auto -m 'not slow'

# real kills, a real browser, whole grids: minutes
test-slow: .venv/ready
	$(ONE) $(BIN)/python -m pytest -n auto -m slow

# what needs Flower, on the in-process Grid
test-flower: .venv-flower/ready
	$(ONE) .venv-flower/bin/python -m pytest tests/deploy

# real processes, TLS, keys, kills and Ray: many minutes
test-flower-slow: .venv-flower/ready
	$(ONE) .venv-flower/bin/python -m pytest tests/slow/test_flower_loopback.py tests/slow/test_tutorials.py

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

# Flower wants older versions of rich, typer and protobuf than the rest, so it has an environment of its own
.venv-flower/ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --disable-pip-version-check -c constraints-flower.txt torch
	.venv-flower/bin/pip install --quiet --disable-pip-version-check -c constraints-flower.txt -e '.[flower,privacy,serve]' 'flwr[simulation]' pytest
	touch $@

clean:
	rm -rf .venv .venv-flower build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
