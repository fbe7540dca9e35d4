# Every target sets itself up: a machine with make and Python 3.11, 3.12, 3.13 or 3.14 is enough.
# The first run makes .venv from constraints.txt; delete .venv to start over.
# `make PYTHON=/path/to/python3.12 …` chooses the interpreter that .venv is made with.

VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip --disable-pip-version-check install -qq -c constraints.txt
READY := $(VENV)/.ready
BROWSER := .browser/.ready
AXE := axe-core@4.14.0
WORKERS ?= 2
PYTEST := $(PY) -m pytest -n $(WORKERS) --durations=30
# Most of a cold test is XLA's: its newer emitters of fused loops, and LLVM's optimisation. Tests that are not about bits,
# noise or sensitivities do without both; pages only without the first, because the second was not measured there. All
# others compile as users do; tests/conftest.py insists.
QUICK := XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
QUICK_PAGES := XLA_FLAGS=--xla_cpu_use_fusion_emitters=false
QUICKLY := $(addprefix tests/,applications cli datasets encoding estimators methods paper plot report solution theory)

# Succeeds in an interpreter that can make the environment. A pyenv shim may exist and yet not run, and
# Debian ships a Python without ensurepip, so a candidate counts only once it has run this.
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))

.PHONY: help demo test test-pages test-fast test-heavy lint docs format clean bench-rates bench-solver bench-solver-private bench-constants bench-multitask bench-penalty bench-noise-aware bench-few-sources bench-units bench-unit-memory bench-large bench-results bench-survey bench-utility bench-estimators bench-tables bench-training bench-smoothness bench-speed trust bench-audits golden

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

demo: $(READY)  ## tune on flights from New York and write a report, in flights-run/
	@$(VENV)/bin/dpbilevel demo --force

test: $(READY) $(BROWSER)  ## run every test and doctest but those of pages
	$(PYTEST) tests $(QUICKLY:%=--ignore=%) --ignore=tests/pages
	$(QUICK) $(PYTEST) src $(QUICKLY)

test-pages: $(READY)  ## run the documentation, the examples and small benchmarks
	$(QUICK_PAGES) $(PYTEST) tests/pages

test-fast: $(READY)  ## all of these without the slow tests
	$(PYTEST) -m "not slow and not heavy"

test-heavy: $(READY)  ## what takes minutes: scikit-learn's checks of all estimators with all defaults, all random models
	$(PY) -m pytest -n $(WORKERS) -m heavy

lint: $(READY)  ## check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy src

docs: $(READY)  ## build the documentation as a site, strictly, into site/
	@$(PY) -m properdocs build --strict

format: $(READY)  ## fix style and format
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

bench-rates: $(READY)  ## measure the exponents of the theorems (a quarter of an hour)
	$(PY) benchmarks/rates.py

bench-solver: $(READY)  ## solve problems with known solutions, without noise (a quarter of an hour)
	$(PY) benchmarks/solver.py

bench-solver-private: $(READY)  ## the same with noise (days on one core: ARGS="--processes 16", or in pieces)
	$(PY) benchmarks/solver_private.py $(ARGS)
	$(PY) benchmarks/solver_private.py --report

bench-constants: $(READY)  ## halve and double the constants of the default (hours; ARGS="--processes 16")
	$(PY) benchmarks/constants.py $(ARGS)

bench-multitask: $(READY)  ## a shared representation beside separate models (half an hour)
	$(PY) benchmarks/multitask.py $(ARGS)

bench-units: $(READY)  ## rows, aircraft and groups of rows on real flights (a few minutes)
	$(PY) benchmarks/units.py $(ARGS)

bench-unit-memory: $(READY)  ## memory and time of units with few of k rows (ten minutes)
	$(PY) benchmarks/unit_memory.py $(ARGS)

bench-large: $(READY)  ## tune on a table of 20 GB with 2 GB of memory (half an hour, 45 GB of disk)
	$(PY) benchmarks/large.py $(ARGS)

bench-noise-aware: $(READY)  ## loss against penalty, with and without the noise of training (a few minutes)
	$(PY) benchmarks/noise_aware.py $(ARGS)

bench-few-sources: $(READY)  ## weights of sources with few rows (a few minutes)
	$(PY) benchmarks/few_sources.py $(ARGS)

bench-penalty: $(READY)  ## measure the error of a hypergradient against the penalty (two minutes)
	$(PY) benchmarks/penalty.py

bench-results: $(READY)  ## draw the other pages of docs/results (a few minutes)
	$(PY) benchmarks/sampling_costs.py
	$(PY) benchmarks/sampling_truth.py
	$(PY) benchmarks/theory_curves.py
	$(PY) benchmarks/leak.py

bench-audits: $(READY)  ## attack every method and estimator (hours; ARGS=--quick takes twenty minutes)
	$(PY) benchmarks/audits.py $(ARGS)

bench-survey: $(READY)  ## estimators on many small problems (an hour with ARGS="--processes 2"; interrupted, it resumes)
	$(PY) benchmarks/survey.py $(ARGS)

bench-utility: $(READY)  ## compare methods on real data (hours; ARGS=--quick takes ten minutes)
	$(PY) benchmarks/utility.py $(ARGS)

bench-estimators: $(READY) .venv-diffprivlib/.ready  ## estimators beside scikit-learn, diffprivlib and DP-EBM (an hour)
	$(PY) benchmarks/side_by_side.py --peer .venv-diffprivlib/bin/python $(ARGS)

bench-tables: $(READY)  ## Adult and California from their CSV files with four commands (a few minutes)
	$(PY) benchmarks/tables.py $(ARGS)

bench-training: $(READY)  ## training with defaults on plain columns, beside its goals (ten minutes)
	$(PY) benchmarks/training.py $(ARGS)

bench-smoothness: $(READY)  ## penalties of smoothness, tuned and not, on simulated curves (a quarter of an hour)
	$(PY) benchmarks/smoothness.py $(ARGS)

bench-speed: $(READY) .venv-speed/.ready  ## speed and memory beside plain JAX, jaxopt, jax_privacy and Opacus (an hour)
	$(PY) benchmarks/speed.py --peer .venv-speed/bin/python $(ARGS)

trust: $(READY)  ## kill runs and processes, send signals, fill disks, race for budgets, try bad inputs (two hours; ARGS=--quick: minutes)
	@$(PIP_INSTALL) atheris || echo "No atheris here: inputs that coverage chooses are left out."
	$(PY) benchmarks/trust.py $(ARGS)

golden: $(READY)  ## compare every released bit with those of another revision: make golden BASE=main (ten minutes)
	@test -n "$(BASE)" || { echo "BASE is missing: say make golden BASE=<revision>" >&2; exit 2; }
	@folder=$$(mktemp -d) && trap 'git worktree remove --force "$$folder/base"; rm -rf "$$folder"' EXIT && \
	  git worktree add -q --detach "$$folder/base" $(BASE) && \
	  PYTHONPATH="$$folder/base/src" $(PY) "$$folder/base/benchmarks/golden.py" --out "$$folder/before.json" && \
	  PYTHONPATH=src $(PY) benchmarks/golden.py --out "$$folder/after.json" && \
	  $(PY) benchmarks/golden.py --compare "$$folder/before.json" "$$folder/after.json"

.venv-diffprivlib/.ready: benchmarks/diffprivlib.txt
	@$(PY) -m venv --clear .venv-diffprivlib
	@.venv-diffprivlib/bin/python -m pip --disable-pip-version-check install -qq -r benchmarks/diffprivlib.txt
	@touch $@

.venv-speed/.ready: benchmarks/speed.txt
	@$(PY) -m venv --clear .venv-speed
	@.venv-speed/bin/python -m pip --disable-pip-version-check install -qq -r benchmarks/speed.txt
	@touch $@

# Chromium and axe-core look at reports. Where they cannot be had, the tests that need them skip and say so.
$(BROWSER):
	@mkdir -p .browser
	@command -v chromium >/dev/null || [ "$$(id -u)" -ne 0 ] || { echo "Installing Chromium (once) …"; \
	  apt-get -qq -o Acquire::Retries=0 update && apt-get -qq -y install --no-install-recommends chromium; \
	} >.browser/chromium.log 2>&1 || true
	@test -f .browser/axe.min.js || { cd .browser && npm pack --silent $(AXE) \
	  && tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js; } >.browser/axe.log 2>&1 || true
	@if command -v chromium >/dev/null && test -f .browser/axe.min.js; then touch $@; \
	  else echo "No Chromium or no axe-core (see .browser/*.log): tests of reports in a browser are left out."; fi

clean:  ## remove caches and build outputs (not .venv)
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .jax_cache
	find . -name $(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# An existing usable .venv is kept and brought up to date, unless PYTHON asks for an interpreter.
$(READY): pyproject.toml setup.py constraints.txt
	@echo "Setting up $(VENV) (once, about a minute) …"
	@if [ -n "$(PYTHON)" ] || ! $(PY) -c '$(USABLE)' >/dev/null 2>&1; then \
	  for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	    if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then \
	      exec "$$python" -m venv --clear $(VENV); \
	    fi; \
	  done; \
	  echo "No usable Python: install Python 3.11, 3.12, 3.13 or 3.14 (with venv), or name one: make PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi
	@$(PIP_INSTALL) pip setuptools
	@$(PIP_INSTALL) --no-build-isolation -e '.[all,dev,docs]'
	@touch $@
