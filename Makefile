# `make demo` and `make test` are all that a newcomer needs: both set up what is missing first. Scripts that train models:
# lab/tutti_asr_lab/training/recipes. Commands that measure, and those that generate files: docs/developing.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled

.PHONY: setup demo serve test test-all test-lab test-release test-image test-avx2 check lint format docs bench release clean help

help:  ## show the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

setup: $(COMPILED)  ## make .venv with everything in it

$(READY): pyproject.toml clients/pyproject.toml lab/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a minute or so, mostly download) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./clients -e . -e ./lab -e '.[dev]'
	@git config core.hooksPath .githooks 2>/dev/null || true # checks of commit messages; a copy without git has none
	@touch $@

$(COMPILED): $(READY)
	@$(BIN)/python -m model.warm_up
	@touch $@

demo: setup  ## start a server, stream a recording in real time, show partials, final text and latencies
	@$(BIN)/tutti demo

serve: setup  ## serve the shipped models on 127.0.0.1:8080
	@$(BIN)/tutti serve

WORKERS ?= 2  # processes of the tests: with more than two the tests of timing fail on two cores
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup  ## all tests but the slow ones, twelve minutes on two cores with AVX-512
	@$(PYTEST) -m 'not slow and not image and not lab'

MARKS ?= not image and not lab
test-all: setup  ## all tests, half an hour; continuous integration leaves out those of the release
	@$(PYTEST) -m '$(MARKS)'

test-release: setup  ## the tests that .ci/run leaves out, half an hour: every night, and before a release
	@$(BIN)/python tests/ecosystem/environments.py serving livekit pipecat whisper
	@$(PYTEST) -m release
	@$(BIN)/python -m tutti_asr_lab.trials soak --minutes 3 --warmup-s 30 --capacity 100 --folder build/soak

test-lab: setup  ## the tests of training, planning and trials: every night, and before a release
	@$(PYTEST) -m 'not image' tests/lab

IMAGE_PACKAGES := podman runc netavark iptables mmdebstrap debian-archive-keyring tini
test-image: setup  ## build the image and run it as an operator does; Linux, as root, with the packages that it names
	@for each in podman runc mmdebstrap; do command -v $$each >/dev/null || { echo "needed: apt-get install $(IMAGE_PACKAGES)"; exit 1; }; done
	@CI=true $(BIN)/python -m pytest -m image tests/deploy/test_image_runs.py

# What depends on the processor: products, compiled code, slots, precisions, a server's answers.
ON_AVX2 := $(addprefix tests/model/, test_acoustic.py test_decoder.py test_network.py test_segment_model.py test_slots.py test_vad.py \
	audio ctc int8 machine moonshine published punctuation shipped speakers) \
	tests/batching/test_slots_stateful.py tests/batching/test_stepper.py \
	tests/server/test_server_e2e.py tests/server/resume
# These emulate all processors themselves in `make test-all`, or read files and graphs without computing.
EMULATING := tests/model/int8/test_arm64.py tests/model/int8/test_portability.py tests/server/resume/test_resume_processors.py
READING := tests/model/published/test_probes.py tests/model/published/test_refusals.py

test-avx2: export ATEN_CPU_CAPABILITY = avx2
test-avx2: export ONEDNN_MAX_CPU_ISA = AVX2
test-avx2: setup  ## tests of model, core and server as on a processor with AVX2 alone, two minutes on two cores
	@$(BIN)/python -c 'from model.machine.instructions import instruction_set as found; assert found() == "avx2", found()'
	@$(PYTEST) -m 'not image and not release' $(ON_AVX2) $(patsubst %,--ignore=%,$(EMULATING) $(READING))

check: setup lint docs  ## ruff, mypy --strict, rules of dependency, words of the documents, the documentation site
	@$(BIN)/python -m pytest tests/test_house.py tests/test_layering.py tests/test_words.py

lint: $(READY)  ## the part of `make check` that needs no compiled code and no tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry .

format: setup  ## put the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)  ## build the documentation site in build/site
	@$(BIN)/mkdocs build --strict

bench: setup  ## latency against live streams under each policy; writes loadtest/results/capacity.*; others: docs/developing.md
	@$(BIN)/python -m loadtest.capacity

release: setup  ## build wheels, npm package, chart, image context, site and checksums of this commit in build/release
	@$(BIN)/python -m deploy.release.build

clean:  ## remove what was made here, not the weights
	rm -rf $(VENV) build *.egg-info clients/*.egg-info lab/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
