# Two commands for a newcomer: make demo, make test. Both set up what they need in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
# Into a pipe Ansible's output is buffered otherwise, and not live
export PYTHONUNBUFFERED := 1
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Where test-torch keeps PyTorch, for the Python of the rig's hosts (/usr/bin/python3)
export AORTA_TORCH_DIR ?= /var/cache/aorta-torch
PYTEST := PYTHONPATH=collections $(BIN)/python -m pytest

# A run of the demo, and what came out of it once more at the very end
demo = run=demo-$$(date -u +%Y%m%dT%H%M%SZ); $(BIN)/ansible-playbook aorta.yml -i $(1) -e aorta_run_id=$$run $(ARGS); \
	status=$$?; cat aorta-runs/$$run/summary.txt 2> /dev/null; exit $$status

.DEFAULT_GOAL := help
.PHONY: help demo demo-docker test machine lint unit conformance integration test-cluster test-torch artifact benchmark sanity docs clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(VENV)/.run: requirements.txt constraints.txt meta/ee-requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 has no venv module: apt install python3-venv"; exit 1; }
	$(BIN)/pip install -q --disable-pip-version-check -r requirements.txt -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	$(BIN)/pip install -q --disable-pip-version-check -r requirements-dev.txt -c constraints.txt
	@touch $@

demo: $(VENV)/.run ## The whole main job on this machine, without GPUs, containers or PyTorch
	@$(call demo,inventories/local)

demo-docker: $(VENV)/.dev ## The same in containers, with an image built here, where a Docker engine answers
	@$(BIN)/python playbooks/files/make_image.py --load aorta-standin:local
	@$(call demo,inventories/local-docker)

test: lint unit conformance integration artifact ## Everything that decides whether a change lands
	@echo "make test: all stages passed (what was skipped, and why, stands under each stage)"

machine: ## Install what the integration tests need from Debian (root only)
	@tests/prepare_machine.sh

lint: $(VENV)/.dev ## Style, types, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint -s .
	$(BIN)/ansible-lint
	cd collections && $(BIN)/mypy --config-file ../pyproject.toml ansible_collections/aorta/automation/plugins
	$(BIN)/antsibull-changelog lint
	$(BIN)/antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs self .
	PYTHONPATH=collections $(BIN)/python tools/generate_config_docs.py --check

unit: $(VENV)/.dev ## Unit tests
	$(PYTEST) tests/unit -q

conformance: $(VENV)/.dev ## Real traces and cases with known outcome (skipped where they are not at hand)
	$(PYTEST) tests/conformance -q

integration: $(VENV)/.dev ## Real playbooks, sshd, Docker engines, ansible-runner, a real browser
	$(PYTEST) tests/integration -q -m "not slow"

test-cluster: $(VENV)/.dev ## The slow ones among the integration tests: every fault of a cluster, large traces
	$(PYTEST) tests/integration -q -m slow

test-torch: $(VENV)/.dev ## A real distributed PyTorch run on two hosts; installs CPU PyTorch in TORCH_DIR (0.9 GB) once
	@[ -d $(AORTA_TORCH_DIR)/torch ] || $(BIN)/pip install -q --disable-pip-version-check --target $(AORTA_TORCH_DIR) \
	  --only-binary=:all: --python-version $$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') torch==2.13.0
	$(PYTEST) tests/integration/test_torch.py -q

artifact: $(VENV)/.dev ## Build, install elsewhere, ansible-test sanity and units, a run from the installed collection
	tests/artifact.sh

benchmark: $(VENV)/.dev ## Speed and memory of the analysis engine (ARGS=--large also 1.5 GB)
	$(BIN)/python tests/benchmark/analysis.py $(ARGS)

sanity: artifact

docs: $(VENV)/.dev ## Generate the configuration reference
	PYTHONPATH=collections $(BIN)/python tools/generate_config_docs.py

clean: ## Remove what the targets above have made
	rm -rf $(VENV) dist .ansible .pytest_cache .mypy_cache .ruff_cache .hypothesis
