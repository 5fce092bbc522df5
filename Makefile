# Every target sets up what it needs in .venv; a second call starts at once.
#   make demo    train a small model on two workers
#   make test    the test suite, each framework in its environment (test-main, test-tensorflow, …: one)
#   make check   ruff, mypy, the site; known vulnerabilities of dependencies, where the index says
#   make docs    the site, in build/site
#   make signatures  renew tests/public_api.txt, the public names and signatures
#   make compat  what of Ray's names and arguments there is; renews docs/compatibility.md (ARGS: directories with scripts)
#   make dist    wheel, source archive, SBOM and licences, in dist/; TRY=1 tries both, LOWEST=1 with old requirements,
#                PYTHONS="python3.10 python3.14" on these
#   make bench   the benchmarks, against peers in .venv-peers
#   make clean   remove environments, caches and build outputs

PYTHON ?= python3
# torch goes first and pinned: a looser request may resolve to a build of several gigabytes.
TORCH := torch==2.13.0
# Not compiled by pip: of some packages few modules are ever imported, and Python compiles these then.
PIP := -m pip --disable-pip-version-check install -qq --no-compile
COMPILE := -m compileall -qq -x '/(tests|plotly|transformers/models)/'
PY := .venv/bin/python
# Frameworks that cannot share an environment with the rest, and a browser: environments/NAME.txt in .venv-NAME.
ENVIRONMENTS := tensorflow horovod ray ui
# The complete suite: two tests at a time (many wait for processes), and coverage with its floor.
# With ARGS it is these options instead.
PYTEST = $(or $(ARGS),-n 2 --dist=worksteal --cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE))
COVERAGE := 90

# The suite starts thousands of interpreters: compiled modules are kept, whatever the caller says.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo test test-main $(ENVIRONMENTS:%=test-%) check docs dist signatures compat bench clean

demo: .venv/.demo
	@echo "demo: examples/01_quickstart.py"
	@$(PY) examples/01_quickstart.py

test: test-main $(ENVIRONMENTS:%=test-%)

test-main: .venv/.dev
	@echo "test: pytest $(PYTEST)"
	@$(PY) -m pytest $(PYTEST)

# An environment that cannot be made here is skipped, with the reason; with ALL=1 that is an error.
$(ENVIRONMENTS:%=test-%): test-%:
	@if $(MAKE) --no-print-directory .venv-$*/.done; then \
		echo "test: pytest --environment=$*"; \
		.venv-$*/bin/python -m pytest --environment=$* $(ARGS); \
	elif [ -n "$(ALL)" ]; then \
		echo "test: the $* environment could not be set up (above), and ALL=1 allows no skipping" >&2; exit 1; \
	else \
		echo "test: SKIPPED the $* tests: their environment could not be set up, for the reason above" >&2; \
	fi

check: .venv/.dev docs
	@echo "check: ruff check"
	@$(PY) -m ruff check .
	@echo "check: ruff format"
	@$(PY) -m ruff format --check .
	@echo "check: mypy --strict"
	@$(PY) -m mypy --strict src tests scripts
	@echo "check: known vulnerabilities of dependencies"
	@$(PY) scripts/vulnerabilities.py

docs: .venv/.dev
	@echo "docs: sphinx, warnings are errors"
	@$(PY) -m sphinx --quiet --fail-on-warning --jobs auto -c docs . build/site
	@echo "docs: build/site/index.html"

dist: .venv/.dev
	@echo "dist: the archives of HEAD"
	@$(PY) scripts/dist.py $(if $(TRY),--try) $(if $(LOWEST),--lowest) $(PYTHONS:%=--python=%)

signatures: .venv/.dev
	@echo "signatures: scripts/public_api.py"
	@$(PY) scripts/public_api.py

compat: .venv/.dev
	@echo "compat: scripts/compatibility.py"
	@$(PY) scripts/compatibility.py $(ARGS)

bench: .venv/.dev .venv-peers/.done
	@echo "bench: benchmarks/run.py"
	@$(PY) benchmarks/run.py $(ARGS)

clean:
	@echo "clean: environments, caches, build outputs"
	@rm -rf .venv .venv-* .coverage .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.torch:
	@echo "setup: .venv with $(TORCH)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v < (3, 15) or sys.exit("lockstep needs Python 3.10 to 3.14, but $(PYTHON) is %d.%d: run make PYTHON=python3.11." % v)'
	@$(PYTHON) -m venv .venv
	@$(PY) $(PIP) $(TORCH)
	@touch $@

.venv/.demo: .venv/.torch pyproject.toml constraints-dev.txt
	@echo "setup: lockstep and what the demo needs"
	@$(PY) $(PIP) -c constraints-dev.txt -e ".[torch]" scikit-learn
	@touch $@

.venv/.dev: .venv/.torch pyproject.toml constraints-dev.txt
	@echo "setup: lockstep and the development tools"
	@$(PY) $(PIP) "pip>=25.1" # the first that reads dependency groups
	@$(PY) $(PIP) -c constraints-dev.txt -e . --group dev
	@$(PY) $(COMPILE) .venv/lib || true # some packages have templates that are no Python
	@touch $@

.venv-horovod/.done: scripts/install_horovod.py
$(ENVIRONMENTS:%=.venv-%/.done): .venv-%/.done: environments/%.txt environments/%.sh pyproject.toml
	@echo "setup: .venv-$* with environments/$*.txt"
	@$(PYTHON) -m venv .venv-$*
	@bash environments/$*.sh .venv-$*/bin/python
	@touch $@

.venv-peers/.done: benchmarks/requirements-peers.txt pyproject.toml
	@echo "setup: .venv-peers with $(TORCH), lockstep and benchmarks/requirements-peers.txt"
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python $(PIP) $(TORCH)
	@.venv-peers/bin/python $(PIP) -e . -r benchmarks/requirements-peers.txt
	@touch $@
