# The environment is made from the lock file on first use; `make clean` removes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test demo pretrained check campaign format lock peers clean

test: $(VENV)/ready
	@$(BIN)/pytest

# Three to four minutes on one core: see docs/results.md. On less text Bayesian training pays more.
demo: $(VENV)/ready
	@rm -rf runs/demo
	@echo "A model that comes with bayesrnn reads a sentence, and the same words in another order:"
	@$(BIN)/bayesrnn score pretrained --text "return a list of all the names in the current module ."
	@$(BIN)/bayesrnn score pretrained --text "module list the in . names return current all a the of"
	@echo
	@echo "Now the same from the start. A plain LSTM on the prose inside Python:"
	@$(BIN)/bayesrnn train --data pydocs --train-words 150000 --preset tiny --method lstm --run runs/demo/lstm
	@echo "The same network, Bayesian:"
	@$(BIN)/bayesrnn train --data pydocs --train-words 150000 --preset tiny --method bbb --run runs/demo/bbb
	@echo
	@$(BIN)/bayesrnn report runs/demo/lstm runs/demo/bbb --out runs/demo/report.html

# The model in the package, from the text inside the Python that runs this.
PRETRAINED := bayesrnn/tasks/language/pretrained.safetensors
pretrained: $(VENV)/ready
	@$(BIN)/bayesrnn train --data pydocs --preset tiny --method bbb --epochs 20 --run runs/pretrained
	@$(BIN)/bayesrnn prune runs/pretrained --drop 0.6 --posterior --storage int8 --export $(PRETRAINED)

check: $(VENV)/ready
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/basedpyright --level error
	@PYTHONPATH=. $(BIN)/lint-imports --no-cache > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(MAKE) --no-print-directory test

# Faults against the command, and a training that is interrupted a hundred times: half an hour.
FAULTS ?= 5000
campaign: $(VENV)/ready
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.campaign --faults $(FAULTS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.campaign soak

format: $(VENV)/ready
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

# A training step in other libraries, in an environment of its own.
peers:
	@$(PYTHON) -m venv --clear $(VENV)-peers
	@$(VENV)-peers/bin/pip install --quiet torch==2.13.0 --requirement benchmarks/peers.txt --editable .
	@$(VENV)-peers/bin/python benchmarks/peers.py

# Rewrite requirements.lock from pyproject.toml's ranges; torch is held at one version.
lock:
	@$(PYTHON) -m venv --clear $(VENV)-lock
	@$(VENV)-lock/bin/pip install --quiet torch==2.13.0
	@$(VENV)-lock/bin/pip install --quiet --editable '.[dev]'
	@$(VENV)-lock/bin/pip freeze --exclude-editable --exclude bayesrnn | sed 's/+cpu$$//' > requirements.lock
	@rm -rf $(VENV)-lock

$(VENV)/ready: requirements.lock pyproject.toml
	@echo "Making the environment in $(VENV) (once)..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bayesrnn needs Python 3.11 or newer; set PYTHON=")'
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	@rm -rf $(VENV) .pytest_cache .ruff_cache
