# Every verb works on a fresh clone: the virtual environment is made when it is missing or pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
TESTS := $(RUN) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# Tests start hundreds of processes, and each would compile all of tileflow's Python anew where none of it may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick check lint docs bench doctor wheel release clean help

demo: $(VENV)/ready            ## train a small CNN from an ONNX file on real handwritten digits
	$(RUN) -m tileflow train digits_cnn.onnx --data digits --epochs 10 --micro-batch-size 16 --gradient-accumulation 2 --device-iterations 4 --learning-rate 0.003

# Neighbouring tests share kernels: with worksteal a process keeps to its part of the list until another has none left.
test: $(VENV)/ready            ## run the tests, on up to four cores
	$(TESTS)

quick: $(VENV)/ready           ## run the tests that a change needs (what differs from the last commit)
	$(RUN) tests/quick.py -- --numprocesses auto --maxprocesses 4 --dist worksteal

check: $(VENV)/ready           ## run the exhaustive ones as well: every CPU path, guarded and emulated (pip install bochscpu-python)
	$(TESTS) --exhaustive

lint: $(VENV)/ready            ## ruff and mypy
	$(VENV)/bin/pip install --quiet ruff mypy
	$(RUN) -m ruff check .
	$(RUN) -m mypy -p tileflow

docs: $(VENV)/ready            ## build the documentation's site, site/index.html
	$(VENV)/bin/pip install --quiet -e '.[docs]'
	$(VENV)/bin/zensical build --strict --clean

bench: $(VENV)/ready           ## compare with PyTorch (installs the peers)
	$(VENV)/bin/pip install --quiet -e '.[bench]'
	$(RUN) -m bench

doctor: $(VENV)/ready          ## what this machine offers and what is wrong
	$(RUN) -m tileflow doctor

PACK := kernels/machine/kernels.pack
wheel: $(VENV)/ready           ## build dist/: the sources, a wheel for every system, and one with kernels inside for Linux on x86-64
	$(VENV)/bin/pip install --quiet build wheel
	rm -rf dist build $(PACK)
	$(RUN) -m build --sdist
	$(RUN) -m build --wheel
	$(RUN) -m bench.packing $(PACK)
	$(RUN) -m build --wheel --outdir dist/packed
	rm -rf build $(PACK)
	$(RUN) -m wheel tags --remove --platform-tag manylinux_2_28_x86_64 dist/packed/*.whl
	mv dist/packed/*.whl dist && rmdir dist/packed

release: wheel                 ## check what would be released: metadata, README, and a first training from each in an environment of its own
	$(VENV)/bin/pip install --quiet twine
	$(RUN) -m twine check --strict dist/*.whl dist/*.tar.gz
	$(RUN) -m bench.releasing dist

clean:                         ## remove what the other verbs made
	rm -rf $(VENV) build dist site *.egg-info runs

help:                          ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/'

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade pip
	$(VENV)/bin/pip install --quiet -e '.[test]'
	touch $@
