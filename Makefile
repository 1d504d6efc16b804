# make demo: set up and run the main job on bundled data.  make test: set up and pass the tests.
# make reference: write the generated pages under docs/.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export HOMOPHILY_DATA ?= $(wildcard ../shared/data)

.PHONY: demo test reference setup clean

demo: setup
	$(BIN)/homophily compare methods=local,random,panm,dac,kin,oracle seeds=0,1,2

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

reference: setup
	$(BIN)/python -m docs.generate

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[peer,report,test]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
