# cog-triton: `make predict` answers a prompt, `make test` runs the tests; both set up what they need.

PROMPT ?= What is machine learning?
PORT ?= 5000
PYTHON ?= $(shell sh scripts/find_python.sh)
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

export PROMPT

.PHONY: predict serve test check schema bench soak clean

predict: $(INSTALLED)
	@$(RUN) scripts/run_prediction.py --prompt "$$PROMPT"

serve: $(INSTALLED)
	@$(RUN) scripts/run_server.py --port $(PORT)

test: $(INSTALLED_DEV)
	$(RUN) -m pytest

check: $(INSTALLED_DEV)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/hadolint Dockerfile

bench: $(INSTALLED_DEV)
	$(RUN) scripts/benchmark_overhead.py

soak: $(INSTALLED_DEV)
	$(RUN) -m tests.cancel_storm --num 1000

schema:
	sh scripts/generate_schema.sh

clean:
	rm -rf $(VENV) .run .pytest_cache .mypy_cache .ruff_cache .hypothesis bench-results

$(INSTALLED): requirements.txt requirements-cog.txt scripts/find_python.sh
	@test -n "$(PYTHON)" || { sh scripts/find_python.sh --explain; exit 1; }
	@echo "Installing dependencies into $(VENV) (about 500 MB, once)"
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --disable-pip-version-check --no-compile \
		-r requirements.txt -r requirements-cog.txt
	@touch $@

$(INSTALLED_DEV): $(INSTALLED) requirements-dev.txt requirements-bench.txt requirements-evaluate.txt
	$(RUN) -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch $@
