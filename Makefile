# Every target sets up what it needs in .venv; a second call starts at once.
#   make demo    train a small model on two workers
#   make test    the test suite
#   make check   ruff and mypy
#   make bench   the benchmarks, against peers in .venv-peers
#   make clean   remove environments, caches and build outputs

PYTHON ?= python3
# torch goes first and pinned: a looser request may resolve to a build of several gigabytes.
TORCH := torch==2.13.0
PIP := -m pip --disable-pip-version-check install -qq
PY := .venv/bin/python

.DELETE_ON_ERROR:
.PHONY: demo test check bench clean

demo: .venv/.demo
	@echo "demo: examples/01_quickstart.py"
	@$(PY) examples/01_quickstart.py

test: .venv/.dev
	@echo "test: pytest"
	@$(PY) -m pytest $(ARGS)

check: .venv/.dev
	@echo "check: ruff check"
	@$(PY) -m ruff check .
	@echo "check: ruff format"
	@$(PY) -m ruff format --check .
	@echo "check: mypy --strict"
	@$(PY) -m mypy --strict src tests

bench: .venv/.dev .venv-peers/.done
	@echo "bench: benchmarks/run.py"
	@$(PY) benchmarks/run.py $(ARGS)

clean:
	@echo "clean: environments, caches, build outputs"
	@rm -rf .venv .venv-peers .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.torch:
	@echo "setup: .venv with $(TORCH)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v < (3, 14) or sys.exit("lockstep needs Python 3.10 to 3.13, but $(PYTHON) is %d.%d: run make PYTHON=python3.11." % v)'
	@$(PYTHON) -m venv .venv
	@$(PY) $(PIP) $(TORCH)
	@touch $@

.venv/.demo: .venv/.torch pyproject.toml constraints-dev.txt
	@echo "setup: lockstep and what the demo needs"
	@$(PY) $(PIP) -c constraints-dev.txt -e ".[torch]" scikit-learn
	@touch $@

.venv/.dev: .venv/.torch pyproject.toml constraints-dev.txt
	@echo "setup: lockstep and the development tools"
	@$(PY) $(PIP) -c constraints-dev.txt -e ".[dev]"
	@touch $@

.venv-peers/.done: benchmarks/requirements-peers.txt
	@echo "setup: .venv-peers with $(TORCH) and benchmarks/requirements-peers.txt"
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python $(PIP) $(TORCH)
	@.venv-peers/bin/python $(PIP) -r benchmarks/requirements-peers.txt
	@touch $@
