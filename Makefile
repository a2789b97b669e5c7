# Sirtaki: set-up, build, tests, demo. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

JOBS ?= $(shell nproc)
export PYTHON ?= /usr/bin/python3
VENV := .venv
PY := $(VENV)/bin/python

# Everything that ends up in the Python package.
SOURCES := $(shell find adapters compression kernels launcher runtime scheduler cmake -type f \
             -not -path '*/__pycache__/*' 2>/dev/null) CMakeLists.txt pyproject.toml
STAMP := build/stamps

.PHONY: help setup build docs wheel wheel-test release cxx check test lint format demo bench cases compat asan tsan clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install system packages, .venv and the Python packages (quick when all is there)
	@scripts/setup.sh all

# One set-up at a time: they share apt and .venv. Tools below make have their own JOBS.
.NOTPARALLEL:

.PHONY: setup-build setup-demo setup-docs setup-lint
setup-build:
	@scripts/setup.sh build

setup-demo:
	@scripts/setup.sh demo

setup-docs:
	@scripts/setup.sh docs

setup-lint:
	@scripts/setup.sh lint

build: setup-build $(STAMP)/package ## leave .venv with `import sirtaki` and .venv/bin/sirtakirun
	@$(PY) -c 'import sirtaki; print("build: sirtaki", sirtaki.__version__, "in $(VENV)")'

$(STAMP)/package: $(SOURCES) | setup-build
	@echo "build: compiling with $(JOBS) jobs and installing into $(VENV)"
	@# The compiler by the name that the release preset gives it: ccache then has what both compile once.
	@CC=$${CC:-gcc} CXX=$${CXX:-g++} CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(VENV)/bin/pip install -q --disable-pip-version-check --no-index \
	  --no-build-isolation --no-deps --force-reinstall .
	@mkdir -p $(STAMP) && touch $@

docs: setup-docs ## build the site from docs/ into build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build
	@echo "docs: open build/site/index.html, or run '$(PY) -m http.server --directory build/site'"

wheel: ## build wheels that need only glibc 2.31 into dist/, for CPython 3.10 and later; ARCH=aarch64: that of ARM
	@$(PYTHON) scripts/wheel_build.py --jobs $(JOBS) $(if $(ARCH),--arch $(ARCH))

wheel-test: ## install the wheels of dist/ in clean Debian systems and train there; writes benchmarks/results/install.json
	@$(PYTHON) scripts/wheel_test.py

release: setup ## test, and stage wheels, source archive and site in dist/; prints a checklist
	@$(PY) scripts/release.py --jobs $(JOBS)

cxx: setup ## build the C++ tree and its tests (preset release)
	@cmake --preset release --log-level=WARNING >/dev/null && cmake --build --preset release -j $(JOBS)

check: setup ## minutes after a change: lint of changed files, unit tests, simulations, one training
	@$(PY) scripts/run_tests.py --jobs $(JOBS) --check

test: setup ## lint, build and every test; ends with a table of minutes
	@$(PY) scripts/run_tests.py --jobs $(JOBS)

lint: setup-lint ## layer checker, clang-format, clang-tidy, ruff, mypy
	@$(PY) scripts/lint.py --jobs $(JOBS)

format: setup-lint ## rewrite sources in the project's format
	@$(PY) scripts/lint.py --fix

demo: setup-demo build ## train Fashion-MNIST on 4 ranks over an emulated 100 Mbit/s network
	@$(PY) scripts/demo.py

bench: setup build ## run the benchmark rig; results go to benchmarks/results
	@$(PY) -m benchmarks

asan: setup ## C++ tests under AddressSanitizer and UBSan
	@$(PY) scripts/run_tests.py --jobs $(JOBS) --only asan

tsan: setup ## C++ tests under ThreadSanitizer
	@$(PY) scripts/run_tests.py --jobs $(JOBS) --only tsan

cases: setup build ## programs that each judge one kind of fault, as users meet it; CASES=FOLDER for others
	@$(PY) scripts/run_cases.py $(or $(CASES),tests/cases)

compat: build ## programs under sirtakirun, torchrun, mpirun, srun; Lightning, Hugging Face, Ray; writes benchmarks/results/compat.json
	@scripts/setup.sh compat
	@$(PY) scripts/compat.py

clean: ## remove build outputs
	rm -rf build dist

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)
