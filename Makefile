# Needs Python >= 3.11 with venv, and make. The first call of any target sets up .venv; a change of pyproject.toml or
# constraints.txt sets it up again; to change the Python below it, remove .venv.
#
#   make install          the command alone: .venv/bin/seatrial
#   make run ARGS=...     seatrial run; make has exit codes of its own, .venv/bin/seatrial tells the verdict by its code
#   make check            style, types, import contracts, house rules
#   make test             the tests that run anywhere
#   make test-marked      the tests that this machine must be fit for; what cannot run says why
#   make test-all         both
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

.PHONY: install run check test test-marked test-all

install: $(RUN_READY)

run: $(RUN_READY)
	@$(BIN)/seatrial run $(ARGS)

check: $(DEV_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q tests/test_house.py

test: $(DEV_READY)
	$(BIN)/pytest

test-marked: $(DEV_READY)
	$(BIN)/pytest --marked

test-all: test test-marked

# The stamps are written last, so an interrupted set-up is begun again.
$(RUN_READY): pyproject.toml constraints.txt
	@for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
		"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		"$$python" tools/set_up.py run && touch $@ && exit 0 || exit 1; \
	done; \
	echo "make: found no Python >= 3.11 with venv as $(or $(PYTHON),python3 or python3.11 to python3.14);" \
		"install one (Debian and Ubuntu: also python3-venv) or name it: make PYTHON=/path/to/python." >&2; exit 1

$(DEV_READY): $(RUN_READY)
	@$(BIN)/python tools/set_up.py dev && touch $@
