# Needs Python >= 3.10 with venv, and make. The first call of any target sets up .venv; a change of pyproject.toml,
# constraints.txt or requirements/ sets it up again; to change the Python below it, remove .venv. All packages but torch
# are compared with the SHA-256 in requirements/.
#
#   make install          the command: .venv/bin/seatrial; its last line says the versions
#   make run ARGS=...     seatrial run; make changes the exit code: for that of the verdict use .venv/bin/seatrial
#   make check            style, types, import contracts, house rules
#   make test             the tests that run anywhere
#   make test-marked      the tests that need something of the machine or take long; a test that cannot run says why
#   make test-all         both
#   make test-gpu         the tests that need a GPU, on a machine with one; tools/gpu_first_hour.sh has everything else
#
# PYTHON=/path/to/python       the Python to build .venv from; if it has torch >= 2.4, that torch is used
# PIP_ARGS="..."               for every pip install, such as --index-url URL
# TORCH_PIP_ARGS="..."         for that of torch alone: the index with its CPU, CUDA or ROCm wheels

PYTHON ?=
PIP_ARGS ?=
TORCH_PIP_ARGS ?=
ARGS ?=
export PIP_ARGS TORCH_PIP_ARGS

BIN := .venv/bin
RUN_READY := .venv/.ready-to-run
DEV_READY := .venv/.ready-to-test

.PHONY: install run check test test-marked test-all test-gpu

install: $(RUN_READY)

run: $(RUN_READY)
	@$(BIN)/seatrial run $(ARGS)

check: $(DEV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q tests/test_house.py

# Most tests wait, or use one core: one process more than there are cores, four at most. The tests of a file stay in one
# process: they share what is dear to start.
test: $(DEV_READY)
	$(BIN)/pytest --numprocesses $$($(BIN)/python -c 'import os; print(min(4, os.cpu_count() + 1))') --dist loadfile

test-marked: $(DEV_READY)
	$(BIN)/pytest --marked

test-all: test test-marked

test-gpu: $(DEV_READY)
	$(BIN)/pytest -m gpu

# The stamps are written last, so an interrupted set-up starts again.
$(RUN_READY): pyproject.toml constraints.txt $(wildcard requirements/*.txt)
	@for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python3.10); do \
		"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue; \
		"$$python" tools/set_up.py run && touch $@ && exit 0 || exit 1; \
	done; \
	echo "make: found no Python >= 3.10 with venv as $(or $(PYTHON),python3 or python3.10 to python3.14);" \
		"install one (Debian and Ubuntu: also python3-venv) or name it: make PYTHON=/path/to/python." >&2; exit 1

$(DEV_READY): $(RUN_READY)
	@$(BIN)/python tools/set_up.py dev && touch $@
