# Every target says what it does; bare `make` prints them. CI calls these and has no logic of its own.
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast test-first-day test-long test-crash conformance soak lint format docs docs-serve docs-site clean bench-ingest bench-pipe bench-cascade bench-mutation \
  bench-partitioning bench-file-size bench-optimize bench-merge-on-read bench-incremental-read bench-freshness bench-footprint \
  bench-ingest-server bench-chain bench-s3-sqs bench-doctor \
  simulate-days

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## create .venv from the pinned lock, check Java, download the jars; starts nothing
	@tools/setup.sh

run: setup ## everything on this machine: Kafka, Spark, Dagster and its UI, sample traffic; Ctrl-C stops it
	@exec $(BIN)/engagement-platform up

test: setup lint ## lint, then every test but the slow ones and those of the first day (40 to 50 minutes on 2 cores)
	@$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not browser and not first_day"

test-first-day: setup ## what a newcomer does and sees: the tutorial, services, and the UI in Chromium (13 minutes)
	@$(PYTEST) -m "(browser or first_day) and not slow"

test-fast: setup ## tests without broker, browser, PostgreSQL and process kills
	@$(PYTEST) -m "not slow and not broker and not crash and not browser and not first_day and not postgres"

test-crash: setup ## only the tests that kill processes
	@$(PYTEST) -m crash

test-long: setup lint ## every test, the slow ones included
	@$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not browser and not first_day"
	@$(PYTEST) -m "browser or first_day"

conformance: setup ## end and stop runs at every commit, plant bugs: every run ends as undisturbed, every bug is caught (hours)
	@$(BIN)/python -m engagement_platform_tests.conformance $(ARGS)

soak: setup ## run everything for HOURS=2 and see whether anything grows without bound
	@$(BIN)/python -m engagement_platform_tests.conformance.soak --hours $(or $(HOURS),2) $(ARGS)

lint: setup ## ruff, mypy strict, import-linter; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## rewrite the code as ruff wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## regenerate the reference pages that come from the code
	@$(BIN)/python -m tools.docs

docs-serve: setup ## the pages of docs/ as a site on http://127.0.0.1:8000, built anew as they change; Ctrl-C stops it
	@$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:8000

docs-site: setup ## build the site of docs/ into site/; a page that is not in the navigation or a dead link fails it
	@$(BIN)/mkdocs build --strict --clean

bench-ingest: setup ## ingestion against a plain streaming append, per layout; prints rows/s and the ratio
	@$(BIN)/python -m benchmarks.ingest $(ARGS)

bench-pipe: setup ## a batch of ingest-engagements over Connect: seconds, CPU seconds and files, step by step
	@$(BIN)/python -m benchmarks.pipe $(ARGS)

bench-cascade: setup ## chains of requests resolved by the rules, a million by default; prints requests/s
	@$(BIN)/python -m benchmarks.cascade $(ARGS)

bench-mutation: setup ## every way of applying conversions from one layout; seconds, bytes, ratios, targets, a plot
	@$(BIN)/python -m benchmarks.mutation $(ARGS)

bench-partitioning: setup ## three layouts of the same rows: reads, update, insert, OPTIMIZE, files by size; a plot and a page
	@$(BIN)/python -m benchmarks.partitioning $(ARGS)

bench-file-size: setup ## the move of mutations on files of nine sizes; the best one and how sure that is; a plot and a page
	@$(BIN)/python -m benchmarks.file_size $(ARGS)

bench-merge-on-read: setup ## merge on read against MERGE, overwrite, delta-rs, with ARGS=--peers other formats; a plot and a page
	@$(BIN)/python -m benchmarks.merge_on_read $(ARGS)

bench-incremental-read: setup ## bytes that reading one same change takes in a table ten times as large; seconds
	@$(BIN)/python -m benchmarks.incremental_read $(ARGS)

bench-chain: setup ## from a commit to its rows in the next table, of each hop of the chain of streams; p50, p95
	@$(BIN)/python -m benchmarks.chain_latency $(ARGS)

bench-optimize: setup ## where the seconds of OPTIMIZE go, per partition: snapshot, plan, read and write, commit
	@$(BIN)/python -m benchmarks.optimize_cost $(ARGS)

bench-doctor: setup ## seconds that `doctor PATH --json` takes on a table of ten thousand files, start of the process included
	@$(BIN)/python -m benchmarks.doctor $(ARGS)

bench-freshness: setup ## from produced to visible in the view, at four rates of profile changes; p50, p95, a plot
	@$(BIN)/python -m benchmarks.freshness $(ARGS)

bench-s3-sqs: setup ## objects/s of the s3-sqs source and the thirty tables, beside moto's and Spark's own; created to readable
	@$(BIN)/python -m benchmarks.s3_sqs $(ARGS)

bench-footprint: setup ## what `up` takes with everything on, ten minutes: cores, memory, runs, freshness, files, event log
	@$(BIN)/python -m benchmarks.footprint $(ARGS)

bench-ingest-server: setup ## events/s that the ingest server takes, and how long answers take, at full speed and half of it
	@$(BIN)/python -m benchmarks.ingest_server $(ARGS)

simulate-days: setup ## files and seconds of a move as days go by, without and with another layout and maintenance; a plot
	@$(BIN)/python -m benchmarks.simulate_days $(ARGS)

clean: ## remove caches and the virtual environment; data and jars in the home folders stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db \
	  derby.log artifacts site
	find engagement_platform engagement_platform_tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
