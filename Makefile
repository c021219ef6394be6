# Everything below needs nothing but Python 3.11 with headers and venv, g++, git and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
NATIVE_SOURCES := CMakeLists.txt pyproject.toml $(shell find native -name '*.[chi]pp' -o -name '*.inl' -o -name CMakeLists.txt)

PART ?= 1/1

.PHONY: install page demo test test-full test-loaded test-thread test-native test-system test-gpu test-dask test-mutations test-coverage docs lint format bench soak wheel check-aarch64 clean
.DEFAULT_GOAL := install

install: $(VENV)/.native

# Every file is checked against a hash in constraints.txt. PyTorch comes first and from a folder: pip would otherwise prefer PyPI's build
# with CUDA to the build for CPUs that its configuration may name. Only what that build needs beyond constraints.txt has no hash.
$(VENV)/.packages: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip download --quiet --no-deps --dest build/wheels "$$(grep -o '^torch==[0-9.]*' constraints.txt)"
	sed -n '/^torch==/,/[^\]$$/p' constraints.txt | \
		$(BIN)/python -m pip install --quiet --no-deps --no-index --find-links build/wheels --require-hashes --requirement /dev/stdin
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement constraints.txt
	$(BIN)/python tools/requirements.py dev | $(BIN)/python -m pip install --quiet --requirement /dev/stdin
	touch $@

$(VENV)/.native: $(VENV)/.packages $(NATIVE_SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

demo: install
	$(BIN)/python examples/mnist_ddp/demo.py

# Budgets are seconds, and a machine shared with others gives no two runs the same: `make test BUDGETS=` prints seconds only.
BUDGETS ?= --enforce-budgets
test: install page
	$(BIN)/python -m pytest tests --ignore tests/native --ignore tests/system --ignore tests/gpu $(BUDGETS)

# Everything but tests/system, every rank a fresh interpreter; in pieces: PART=1/4 to PART=4/4.
test-full: install page
	$(BIN)/python -m pytest tests --ignore tests/system --ignore tests/gpu --tier full --part "$(PART)"

# What communicates, beside eight busy processes, with deadlines ten times as long; it has no time limit of its own.
COMMUNICATING := bench boot cli comm conformance examples faults keras memory mixing model openness pipeline session \
	torch train tune
test-loaded: install page
	$(BIN)/python -m pytest $(COMMUNICATING:%=tests/%) --busy 8 --deadline-factor 10

# What communicates, with the thread that drives operations where a machine has more processors than ranks.
test-thread: install
	HOCKET_PROGRESS=thread $(BIN)/python -m pytest tests/comm tests/conformance tests/memory tests/session tests/torch

# The native core as it is shipped, and under address and thread sanitizer.
test-native: install
	$(BIN)/python -m pytest tests/native

# The page of `hocket observe serve`, built into the package; needs npm's registry.
PAGE := src/hocket/observe/serve/assets/index.html
page: $(PAGE)
$(PAGE): $(VENV)/.native ui/package-lock.json $(shell find ui/src ui/*.ts ui/*.html ui/package.json src/hocket/observe/serve -name '*.py' -o -path 'ui/*' -type f)
	$(BIN)/python tools/page.py

# What needs root and Debian packages; CONTRIBUTING.md lists them.
test-system: install page
	$(BIN)/python -m pytest tests/system $(BUDGETS)

# What needs an NVIDIA GPU; with the torch that is there, CuPy, Numba and JAX.
test-gpu: install
	$(BIN)/python -m pytest tests/gpu --tier full

# The test suite of dask.distributed over hocket's protocol, and over its own TCP; in pieces: PART=1/8. Needs GitHub, or
# DISTRIBUTED_SOURCE.
test-dask: install
	$(BIN)/python tools/dask_suite.py --part "$(PART)"

# Whether the tests see 43 small bugs, put in one after the other; ONLY=id: that one; AGAIN=1: those caught before, too.
test-mutations: install
	$(BIN)/python -m tests.mutations.run $(if $(filter undefined,$(origin ONLY)),,--only "$(ONLY)") $(if $(AGAIN),--again)

# Lines and branches of src/ that `make test` goes through, in ranks and other processes, too; TIER=full: all tests.
TIER ?= quick
test-coverage: install page
	@case "$(TIER)" in quick|full) ;; *) echo "TIER must be quick or full, not '$(TIER)'" >&2; exit 2;; esac
	mkdir -p build/coverage && rm -f build/coverage/data*
	$(BIN)/python -m coverage run -m pytest tests --ignore tests/native --ignore tests/system --ignore tests/gpu --tier $(TIER) --deadline-factor 5; \
	code=$$?; $(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report && exit $$code

lint: install
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'native/*.?pp' 'native/*.inl' 'tests/native/*.?pp')
	$(BIN)/mypy
	$(MAKE) --no-print-directory docs

format: install
	$(BIN)/ruff check --no-cache --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'native/*.?pp' 'native/*.inl' 'tests/native/*.?pp')

bench: install
	$(BIN)/python benchmarks/allreduce_cpu.py
	$(BIN)/python benchmarks/bcast.py
	$(BIN)/python benchmarks/busy.py
	$(BIN)/python benchmarks/collectives_cpu.py
	$(BIN)/python benchmarks/ddp_step.py
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/hierarchy.py
	$(BIN)/python benchmarks/hyparflow.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/mixing.py
	$(BIN)/python benchmarks/models_simulated.py
	$(BIN)/python benchmarks/overlap.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/pipeline_sim.py
	$(BIN)/python benchmarks/split.py
	$(BIN)/python benchmarks/suite.py
	$(BIN)/python benchmarks/vgg.py

soak: install
	HOCKET_SOAK=1 $(BIN)/python -m pytest tests --ignore tests/system --ignore tests/gpu --tier full --timeout 3600

# The source archive and manylinux wheels in dist/, each tried out in an environment of its own: for PYTHON, and for FURTHER, versions
# of Debian's newer suites that are unpacked into build/. Without apt: make wheel FURTHER=
FURTHER ?= 3.13 3.14
wheel: install page
	rm -rf dist
	for version in $(FURTHER); do \
	  test -x build/python$$version/usr/bin/python$$version || $(BIN)/python tools/debian_python.py $$version build/python$$version || exit; \
	done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/wheel.py dist $(foreach version,$(FURTHER),build/python$(version)/usr/bin/python$(version))

# Whether everything native compiles for 64-bit ARM, where it has no vector kernels; nothing is run. Needs g++-aarch64-linux-gnu. Python's
# own headers are this machine's: both have 64 bits and the same order of bytes.
check-aarch64: install
	mkdir -p build/aarch64-include
	ln -sfn /usr/include/x86_64-linux-gnu build/aarch64-include/aarch64-linux-gnu
	$(BIN)/cmake -S . -B build/aarch64 -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DHOCKET_STRICT=ON \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	CPATH=$(CURDIR)/build/aarch64-include $(BIN)/cmake --build build/aarch64

# The site: every page, checked for broken links, in build/site.
docs: install
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) build dist demo-report hocket-records bench-results
