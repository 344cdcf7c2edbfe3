# Everything a checkout needs: python3.11 or newer with venv and pip, git, make. The first call sets up .venv, and says
# what it does.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin
STAMP = .venv/.stamp
PACKAGES = console recommender runbooks engine

# Without cached bytecode the console starts two to three times slower.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run run-kubernetes shell test test-thorough test-postgres test-long mutants bench bench-console agreement picture format lint types imports check lock dependencies sbom wheel clean

run: $(STAMP)  ## the console on a live demo cluster
	@echo "Starting the demo: ten minutes of AI work a minute. The first time it plays a month of history; the console says how far it is."
	@$(BIN)/muster --demo
	@echo "\`make shell\` opens a shell in which README's commands work as printed."

run-kubernetes: $(STAMP)  ## the console on a Kubernetes cluster with Kueue on loopback; needs ../shared/kubernetes
	@$(BIN)/python -m tests.support.run_kubernetes

# The commands of make itself are not for what is started in there.
shell: $(STAMP)  ## your own shell, in which `muster` is a command, as where it is installed
	@echo "In this shell \`muster\` is a command: muster overview, muster --help. \`exit\` leaves it."
	@unset MAKEFLAGS MFLAGS MAKELEVEL; PATH="$(CURDIR)/$(BIN):$$PATH" "$${SHELL:-/bin/sh}" || true

test: $(STAMP)  ## the tests, without the ones marked thorough or slow, and with fewer random cases
	$(BIN)/python -m pytest -m "not slow and not thorough" -n auto --dist loadfile

test-thorough: $(STAMP)  ## all but the ones marked slow, with a third of the random cases
	TESTS_THOROUGH=1 $(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

# The tests that keep something: what an engine in memory decides is the same wherever its cell is kept.
find_test = $(or $(wildcard tests/console/*/test_$(1).py tests/console/*/*/test_$(1).py),$(error no test_$(1).py))
ON_POSTGRES = tests/runbooks tests/recommender \
  $(shell grep -rl --include='*.py' -e 'Engine.open.path' -e 'Engine.open.tmp_path' -e ' Records.' tests/engine) \
  $(foreach name,agents api audit client_contract flows identity kept_where presence proposals server telemetry tokens, \
  $(call find_test,$(name)))

test-postgres: $(STAMP)  ## what `make test` runs and keeps something, on a PostgreSQL server of its own
	$(BIN)/python -m pytest --database postgres -m "not slow and not thorough" -n auto --dist loadfile $(ON_POSTGRES)

test-long: $(STAMP)  ## every test, also the ones that take minutes, with every random case
	TESTS_THOROUGH=all $(BIN)/python -m pytest -m "slow or not slow" -n auto --dist loadfile

mutants: $(STAMP)  ## does a test fail for each fault in the code that trust rests on
	$(BIN)/python tests/mutants/run.py

bench: $(STAMP)  ## the budgets of the house, measured
	$(BIN)/python tests/bench/run.py --json bench-results.json

bench-console: $(STAMP)  ## the console in a real terminal on 130,000 nodes and a million workloads: key to paint, memory
	$(BIN)/python tests/bench/console_bench.py --json bench-console-results.json

agreement: $(STAMP)  ## 300 random lives on a real Kueue and on the model of it: who starts where, and who is preempted
	$(BIN)/python tests/bench/kueue_agreement.py --json agreement-results.json

picture: $(STAMP)  ## the pictures of the documents, from the real console on a demo engine
	$(BIN)/python docs/picture.py docs

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

check: lint types imports test-thorough  ## what continuous integration runs

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Muster needs Python 3.11 or newer")'
	@echo "[1/4] Making the environment .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@echo "[2/4] Installing $$(grep -c == requirements.lock) packages into it"
	@$(BIN)/pip install --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	@echo "[3/4] Installing Muster itself, from this folder"
	@$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "[4/4] Compiling, so that the console starts quickly"
	@PYTHONUNBUFFERED=1 $(BIN)/python -m compileall -j 0 -x '/tests?/' .venv/lib $(PACKAGES) | \
	  awk '/^Compiling/ && ++files % 1000 == 0 { print "      " files " files"; fflush() } END { print "      " files " files, done" }'
	@touch $(STAMP)

lock:  ## newest versions that pyproject.toml allows, with hashes, written to requirements.lock
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check --no-compile uv
	PATH="$(CURDIR)/build/lock/bin:$$PATH" build/lock/bin/python deploy/supply.py lock
	rm -rf build/lock

dependencies: $(STAMP)  ## docs/dependencies.md: why each package is there, and its licence
	$(BIN)/python deploy/supply.py dependencies

sbom: $(STAMP)  ## a bill of materials of what the image installs: CycloneDX
	@mkdir -p dist && $(BIN)/python deploy/supply.py sbom > dist/muster.cdx.json && echo dist/muster.cdx.json

wheel: $(STAMP)  ## the wheel: the same source gives the same bytes
	@rm -f dist/*.whl && $(BIN)/python -m hatchling build -t wheel -d dist && sha256sum dist/*.whl

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +
