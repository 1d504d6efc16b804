# make demo: compare six methods on bundled data.   make test: run all checks and tests.   make help: all targets.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export HOMOPHILY_DATA ?= $(wildcard ../shared/data)

.PHONY: help demo test docs build reference setup clean

help:
	@echo 'make demo        compare six methods on bundled data'
	@echo 'make test        run the linter, the type checker and the tests'
	@echo 'make docs        build the documentation site in build/docs/'
	@echo 'make build       build the source distribution and the wheel in dist/'
	@echo 'make reference   write the generated pages under docs/'
	@echo 'make setup       create $(VENV) with the package and its tools; the other targets do this first'
	@echo 'make clean       remove $(VENV), dist/ and caches'

demo: setup
	$(BIN)/homophily compare methods=local,random,panm,dac,kin,oracle seeds=0,1,2

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

docs: setup
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet -c docs -d build/doctrees . build/docs
	@echo 'the site: build/docs/index.html'

build: setup
	$(BIN)/python -m build --no-isolation

reference: setup
	$(BIN)/python -m docs.generate

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[peer,report,live,tables,metrics,huggingface,docs,trackers,test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
