# make test              every check, and each test on the oldest or the newest supported pair
# make test ARGS="-k x"  every check, and what pytest finds with these arguments, on both pairs
# make demo              show the locks at work, then serve the site that uses them
# make demo LOCKS=etcd   the same, with the locks in an etcd (or LOCKS=zookeeper) instead of the database
# make help              the rest

SHELL := /bin/bash
.DELETE_ON_ERROR:
# Tests start hundreds of processes, each of which would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE

# Each Python has its own Django, see requirements.txt.
BASE := 3.11
NEWEST := 3.13
BETWEEN := 3.12
NEXT := 3.14
# What `make matrix` tries.
PYTHONS := $(BASE) $(BETWEEN) $(NEWEST) $(NEXT)

env = .envs/$(1)/.ready
bin = .envs/$(1)/bin

.PHONY: help test test-all test-slow matrix lint demo show bench screenshots docs build lock clean packages

help:
	@echo "make test       lint, types, migrations, and the tests, each on Python $(BASE) or $(NEWEST)"
	@echo "make test-all   the same and the tests on Python $(BETWEEN)"
	@echo "make test-slow  the tests that take long, and those of make test on the other Python"
	@echo "make matrix     each Python, with the lowest and the highest versions of the extras, on real servers;"
	@echo "                ALLOW_MISSING=$(NEXT) leaves it out if it is not installed; PYTHONS=$(BASE) tries only that one"
	@echo "make lint       lint, format, types, prose, migrations, workflows"
	@echo "make demo       show the locks at work, then serve the site; ONCE=1 ends after the show,"
	@echo "                LOCKS=zookeeper keeps the locks there, in one of its own or at ZOOKEEPER=host:port,"
	@echo "                LOCKS=etcd likewise, or at ETCD=host:port"
	@echo "make bench      measure distlock beside its peers, into docs/performance.md;"
	@echo "                QUICK=1 a few minutes, ARGS=\"locks --resume\" some parts, or those that are missing"
	@echo "make screenshots  take the pictures of the admin in docs/"
	@echo "make docs       build the site of the documentation in build/docs/"
	@echo "make build      build the wheel and the source distribution and check what is in them"
	@echo "make lock       write the requirements files from the dependency groups in pyproject.toml; ARGS=--upgrade for newer versions"
	@echo "make clean      remove what these have made"
	@echo "ARGS=\"...\"      arguments for pytest: what it finds with them, on both Pythons"

test: packages
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint tests-$(BASE) tests-$(NEWEST)

test-all: test
	@$(MAKE) --no-print-directory tests-$(BETWEEN)

# Long faults and clusters, each on one of two Pythons; and what `make test` has run on one of them,
# on the other one, if they could differ there.
test-slow: packages
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target tests-$(BASE) tests-$(NEWEST) TIER="-m slow"

# Tests wait, too, so two Pythons with two processes each take less time than one after the other;
# each process has servers of its own. Each Python gets its share of the tests, or what ARGS asks for.
# A distribution's own Python, as BASE often is, is faster than one that is built without optimizations.
# A process that crashes ends the run. If pytest-xdist began another one, it would wait for ever for
# tests that no process runs.
tests-$(BASE): private SHARE := --share=0:0.49
tests-$(NEWEST): private SHARE := --share=0.49:1
TESTS := $(addprefix tests-,$(BASE) $(BETWEEN) $(NEWEST))
.PHONY: $(TESTS)
$(TESTS): tests-%: .envs/%/.ready .envs/pyright/.ready
	$(call bin,$*)/python -m pytest -q --basetemp=.envs/$*/tmp --numprocesses=2 --dist=loadfile --max-worker-restart=0 $(or $(ARGS),$(SHARE)) $(TIER)

# A Python that is missing fails, unless ALLOW_MISSING names it.
matrix: $(call env,$(BASE)) .envs/build/.ready
	@tools/packages $(BASE) $(PYTHONS)
	@$(call bin,$(BASE))/python -m tools.matrix .envs/build/bin/uv $(PYTHONS)

lint: packages $(call env,$(BASE))
	$(call bin,$(BASE))/ruff check .
	$(call bin,$(BASE))/ruff format --check .
	$(call bin,$(BASE))/mypy
	$(call bin,$(BASE))/python tools/prose.py
	$(call bin,$(BASE))/python manage.py makemigrations --check --dry-run
	$(call bin,$(BASE))/zizmor --offline --quiet .github

packages:
	@tools/packages $(BASE) $(NEWEST)

# The demo runs on SQLite: Django, Celery and this package are all it needs, unless it is to start a
# server.
address_zookeeper = $(ZOOKEEPER)
address_etcd = $(ETCD)
ifneq ($(filter $(LOCKS)/$(address_$(LOCKS)),zookeeper/ etcd/),)
demo: .envs/demo/.ready
	@.envs/demo/bin/python -m tools.with_server $(LOCKS) $(MAKE) --no-print-directory show
else
demo: show
endif

show: .envs/demo/.ready
	.envs/demo/bin/python manage.py migrate --verbosity 0
	.envs/demo/bin/python manage.py demo --once
ifndef ONCE
	.envs/demo/bin/python manage.py demo --serve
endif

bench: packages .envs/bench/.ready
	@test -e /usr/share/java/curator-recipes.jar -a -x "$$(command -v javac)" || tools/install \
		"The benchmarks need Curator and a Java compiler." "Elsewhere, Curator is left out." \
		default-jdk-headless libcurator-recipes-java || true
	.envs/bench/bin/python -m benchmarks $(if $(QUICK),--quick,--docs) $(ARGS)

screenshots: packages $(call env,$(BASE))
	$(call bin,$(BASE))/python -m tools.screenshots

# A warning, as of a link that leads nowhere, is an error.
docs: .envs/docs/.ready
	rm -rf build/docs
	.envs/docs/bin/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html"

build: .envs/build/.ready
	rm -rf build dist
	.envs/build/bin/python -m build --quiet --outdir dist .
	.envs/build/bin/python -m twine check --strict dist/*
	.envs/build/bin/check-wheel-contents dist/*.whl
	.envs/build/bin/pyroma --quiet --min 10 --skip-tests AuthorEmail,Url dist/*.tar.gz  # there are no addresses yet
	.envs/build/bin/python tools/check_dist.py dist/*.whl dist/*.tar.gz

lock: .envs/build/.ready
	tools/lock .envs/build/bin/uv $(ARGS)

clean:
	rm -rf .envs build dist .mypy_cache .pytest_cache .ruff_cache

.envs/demo/.ready: requirements.txt pyproject.toml tools/environment
	@tools/environment .envs/demo "$(BASE) $(BETWEEN) $(NEWEST)" -c requirements.txt -e .[celery,zookeeper] dj-database-url

.envs/bench/.ready: benchmarks/requirements.txt tools/environment | packages
	@tools/environment .envs/bench "$(BASE) $(NEWEST)" -r benchmarks/requirements.txt

.envs/docs/.ready: docs/requirements.txt tools/environment
	@tools/environment .envs/docs $(NEWEST) -r docs/requirements.txt

.envs/build/.ready: tools/requirements.txt tools/environment
	@tools/environment .envs/build "$(BASE) $(BETWEEN) $(NEWEST)" -r tools/requirements.txt

.envs/pyright/.ready: tools/package.json | packages
	rm -rf .envs/pyright
	mkdir -p .envs/pyright
	cp tools/package.json .envs/pyright/
	npm install --prefix .envs/pyright --silent --no-audit --no-fund
	touch $@

.envs/%/.ready: requirements.txt tools/environment | packages
	@tools/environment .envs/$* $* -r requirements.txt
