# WarrenMQ. `make` alone prints what there is. No step asks a question.
#
# Two environments, so that compiled and uncompiled never mix:
#   .venv       editable install; the compiled modules lie beside their .py under src/
#   .venv-pure  a plain install of the package built with WARREN_PURE=1: its own copy, where no compiled file exists
#
# A target installs what it needs and no more: `make run` the broker, `make test` also Spark, a Java runtime and the
# clients that the tests drive. Every step is printed with the seconds since make started.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PURE_BIN := .venv-pure/bin
PIP_FLAGS := -qq --disable-pip-version-check --no-input
SOURCES := $(shell find src -name '*.py' -o -name '*.pxd' -o -name '*.sql' -o -path '*/management/ui/*')

# Any python3 that is new enough; `make install PYTHON=/path/to/python` chooses another.
ifndef PYTHON
export PYTHON := $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
endif

# With a C compiler at hand a failed compilation is an error; without one the install goes on, slower, and says so.
CC_FOUND := $(shell command -v $${CC:-cc} 2>/dev/null)
export WARREN_REQUIRE_COMPILED ?= $(if $(CC_FOUND),1,0)

# Tests of one file stay in one process; `make test WORKERS=0` runs all in one, `ARGS=...` goes to pytest.
WORKERS ?= auto
PYTEST_FLAGS := -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

ifndef STARTED
export STARTED := $(shell date +%s)
endif
say = printf '%4d s  %-43s\n' $$(( $$(date +%s) - $(STARTED) ))

.PHONY: help install run spark test test-pure lint format bench bench-start soak fuzz audit wheel interop-tools clean

help: ## print this table
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# Two jobs: packages are installed on one core while the other one compiles.
install: ## build the broker into .venv (quick when nothing changed)
	@$(MAKE) -j2 .venv/.compiled .venv/.broker

run: install ## start the broker in the foreground (ARGS="--port 5673" passes flags on)
	@exec $(BIN)/warren serve $(ARGS)

spark: install .venv/.spark ## add what the analysis and its charts need: Spark, a Java runtime, plotly

test: install .venv/.test-tools ## the whole test suite, compiled
	@$(say) 'running the tests'
	@$(BIN)/python -m pytest $(PYTEST_FLAGS)
	@$(say) 'done'

test-pure: .venv-pure/.installed ## the same suite with no compiled module
	@$(PURE_BIN)/python -c 'import warrenmq; assert not warrenmq.COMPILED, warrenmq.__file__'
	@$(PURE_BIN)/python -m pytest $(PYTEST_FLAGS)

lint: .venv/.linters ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict src
	@$(BIN)/lint-imports --no-cache

format: .venv/.linters ## rewrite the layout of the code as lint wants it
	@$(BIN)/ruff check --fix-only --select I .
	@$(BIN)/ruff format .

bench: install .venv/.test-tools ## measure beside RabbitMQ, print ratios (ARGS="--quick" for a short look)
	@$(BIN)/python benchmarks/run.py $(ARGS)

bench-start: ## how long a newcomer waits: clone to ready line, wheel to ready line, process start to ready line
	@$(PYTHON) benchmarks/start.py $(ARGS)

soak: install ## ten minutes of steady load: does anything grow, is anything lost? (ARGS="--minutes 1" for less)
	@$(BIN)/python tools/soak.py $(ARGS)

fuzz: install ## feed random bytes to the protocol until stopped (ARGS="-max_total_time=600")
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install $(PIP_FLAGS) atheris \
		|| { echo 'make fuzz: atheris could not be installed here (it needs Linux and a Python it supports)' >&2; exit 1; }
	@$(BIN)/python tests/fuzz/fuzz_protocol.py $(ARGS)

audit: install .venv/.test-tools ## attack a broker, its data folder and its client; verdicts in one table (ARGS="--fuzz 30" for less)
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/pip install $(PIP_FLAGS) -c constraints.txt pip-audit \
		|| echo 'make audit: pip-audit could not be installed; the dependencies are not checked' >&2
	@$(BIN)/python tools/audit.py $(ARGS)

wheel: .venv/.broker ## build a wheel for this platform and a pure one into dist/, and try both in fresh environments
	@$(BIN)/python tools/build_wheels.py

interop-tools: ## install the non-Python clients that the interop tests drive (Debian, Ubuntu)
	@command -v apt-get >/dev/null || { echo 'make interop-tools: no apt-get here; install amqp-tools, RabbitMQ'"'"'s Java client' \
		'(amqp-client.jar in /usr/share/java), a JDK and npm yourself' >&2; exit 1; }
	@as_root=; [ "$$(id -u)" = 0 ] || as_root='sudo -n'; \
	DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -q amqp-tools librabbitmq-client-java \
		$$(command -v javac >/dev/null || echo default-jdk-headless) $$(command -v npm >/dev/null || echo nodejs npm) \
		|| { echo 'make interop-tools: apt-get failed (root or password-free sudo is needed, and "apt-get update" may be due)' >&2; exit 1; }

clean: ## remove everything that was built
	rm -rf .venv .venv-pure build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	find src -name '*.so' -delete

# --- what the above stand on ---

# Python's own pip installs into an environment without one, which is created 4 seconds faster; pip itself follows.
define make_environment
	@[ -n "$(PYTHON)" ] || { echo 'make: Python 3.11 or newer is needed; none found. Say which: make install PYTHON=...' >&2; exit 1; }
	@[ -x $(1)/bin/python ] || { $(say) "creating $(1) with $$($(PYTHON) --version)"; rm -rf $(1); \
		{ $(PYTHON) -m pip --python "$$(command -v $(PYTHON))" --version && $(PYTHON) -m venv --without-pip $(1) || $(PYTHON) -m venv $(1); } >/dev/null 2>&1 || { \
		rm -rf $(1); echo 'make: $(PYTHON) can neither run pip nor create a virtual environment with one.' \
		'On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }; }
endef

# pip for an environment that may have none yet.
pip = $$([ -x $(1)/bin/pip ] && echo $(1)/bin/pip || echo $(PYTHON) -m pip --python $(1)/bin/python)

.venv/.created:
	$(call make_environment,.venv)
	@touch $@

.venv/.tools: .venv/.created constraints.txt
	@$(say) 'installing the build tools: setuptools, Cython'
	@$(call pip,.venv) install $(PIP_FLAGS) -c constraints.txt setuptools Cython
	@touch $@

.venv/.dependencies: .venv/.created pyproject.toml constraints.txt
	@$(say) 'installing what the broker needs: uvloop, FastAPI, ...'
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
		> .venv/dependencies.txt
	@$(call pip,.venv) install $(PIP_FLAGS) -c constraints.txt -r .venv/dependencies.txt pip
	@touch $@

.venv/.broker: .venv/.tools .venv/.dependencies
	@WARREN_PURE=1 $(BIN)/pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@$(say) 'installed what the broker needs'
	@touch $@

.venv/.compiled: .venv/.tools setup.py $(SOURCES)
	@$(say) '$(if $(CC_FOUND),compiling the hot modules,no C compiler found: WarrenMQ will run uncompiled (slower))'
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(if $(CC_FOUND),$(say) 'compiled the hot modules')
	@touch $@

.venv/.spark: .venv/.broker pyproject.toml constraints.txt
	@$(say) 'installing Spark, a Java runtime and plotly'
	@WARREN_PURE=1 $(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --no-build-isolation -e '.[ui,spark,jre]'
	@touch $@

.venv/.test-tools: .venv/.broker pyproject.toml constraints.txt
	@$(say) 'installing what the tests need: Spark, a Java runtime, other clients'
	@WARREN_PURE=1 $(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@

.venv/.linters: .venv/.test-tools
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --no-build-isolation ruff mypy types-setuptools
	@touch $@

# build/lib is removed first: files deleted from src would otherwise live on in the package.
.venv-pure/.installed: pyproject.toml constraints.txt setup.py $(SOURCES)
	$(call make_environment,.venv-pure)
	@$(say) 'installing WarrenMQ uncompiled, and what the tests need, into .venv-pure'
	@rm -rf build/lib build/bdist.*
	@$(call pip,.venv-pure) install $(PIP_FLAGS) -c constraints.txt pip setuptools Cython
	@$(PURE_BIN)/pip uninstall $(PIP_FLAGS) -y warrenmq 2>/dev/null || true
	@WARREN_PURE=1 $(PURE_BIN)/pip install $(PIP_FLAGS) -c constraints.txt --no-build-isolation '.[test]'
	@touch $@
