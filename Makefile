# Each target does all its own set-up: a virtual environment in .venv, and Java 17+ where Spark is run.
# PYTHON=... names the interpreter to make .venv with (after `make clean`); ARGS=... is handed on to the program that is run.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo check test soak cluster-test kafka lint bench docs dist release-check clean

PY := .venv/bin/python
# Processes of tests. With two cores, the third one works while tests of the others wait for Kafka, or for Spark.
JOBS ?= 3
export PYTHON

# Spark's workers are whatever `python3` is unless told. What a cluster's own Spark is set up by (PYTHONPATH often leads to
# its pyspark, HADOOP_CONF_DIR to a file system that is not this machine's) would decide over what is in .venv.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
# PYTHONDONTWRITEBYTECODE, which containers like to set, would have each of the hundreds of processes that tests start compile
# all that it imports.
unexport PYTHONDONTWRITEBYTECODE
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS PYTHONPATH PYTHONHOME HADOOP_CONF_DIR

# JAVA_HOME decides over PATH in Spark's start scripts, so it is always set.
WITH_JAVA = JAVA_HOME="$$(tools/java.sh)" && export JAVA_HOME &&

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: ## count words over real text, killed and restarted twice, and compare with a plain recount
	@tools/venv.sh rocksdb
	@$(WITH_JAVA) $(PY) examples/word_count.py $(ARGS)

check: ## lint, types and the quick tests that need neither Spark nor servers, for each change
	@$(MAKE) --no-print-directory lint
	@$(PY) -m pytest -q -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not spark and not server" $(ARGS)

# The archives take half a minute of one processor where they are made. Meanwhile the other one lints, runs the doctests, and
# compiles the tests, which else each process of pytest would do for itself.
test: ## everything that must stay green: lint, types, layers, doctests, tests: some 15 minutes on two cores
	@tools/venv.sh rocksdb,redis,testing,dev,docs
	@tools/chromium.sh >/dev/null || true  # without one, tests of the page in a browser are skipped
	@$(WITH_JAVA) { { $(PY) -m tests.spark.class_archive && $(PY) -m tests.kafka.class_archive; } & archive=$$!; \
		{ $(PY) -m pytest -q --doctest-modules statefx providers && \
		{ $(PY) -m pytest -q --collect-only >/dev/null || true; }; } & doctests=$$!; \
		$(MAKE) --no-print-directory lint; linted=$$?; \
		wait $$archive && wait $$doctests && exit $$linted; }
	@$(WITH_JAVA) $(PY) -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS)

soak: ## what takes too long for each day, such as crashes at each moment, and ledgers that are killed 200 times: more than an hour
	@tools/venv.sh rocksdb,redis,testing,dev
	@$(WITH_JAVA) $(PY) -m tests.spark.class_archive
	@$(WITH_JAVA) $(PY) -m tests.kafka.class_archive
	@$(WITH_JAVA) $(PY) -m pytest -q -s -m soak $(ARGS)

cluster-test: ## topologies on a standalone cluster of two executors, which are killed: two minutes
	@tools/venv.sh rocksdb,redis,testing,dev
	@$(WITH_JAVA) $(PY) -m pytest -q -s -m soak tests/spark/test_cluster.py $(ARGS)

kafka: ## a Kafka broker to try things with, until Ctrl-C; prints its address (ARGS="payments:2 totals" are its topics)
	@tools/venv.sh rocksdb,redis,testing,dev,docs
	@$(WITH_JAVA) exec $(PY) -m tests.kafka.broker $(ARGS)

lint: ## ruff, mypy --strict and the import contracts
	@tools/venv.sh rocksdb,redis,testing,dev,docs
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "not formatted; run: $(PY) -m ruff format ."; exit 1; }
	@$(PY) -m mypy
	@.venv/bin/lint-imports

bench: ## the benchmarks: prints a table, writes build/bench.json (ARGS="--quick" for a short look)
	@tools/venv.sh rocksdb,redis,dev,bench
	@$(WITH_JAVA) $(PY) tests/benchmarks/bench.py $(ARGS)

docs: ## the documentation, into docs/_build/html
	@tools/venv.sh docs
	@$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Without isolation the archives are made by what .venv has, need no network, and are the same bytes each time.
dist: ## the wheel and the sdist of a release, into dist/
	@tools/venv.sh release
	@rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist .

release-check: ## what must hold of a release, in empty environments (PYTHONS names interpreters): ten minutes
	@tools/venv.sh rocksdb,redis,testing,dev,docs
	@tools/venv.sh release
	@$(WITH_JAVA) PYTHONS="$(PYTHONS)" $(PY) -m pytest -q -s -m "slow or soak" tests/tools/test_release.py $(ARGS)

clean: ## remove .venv, caches and what was built
	@rm -rf .venv build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
