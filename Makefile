# Every target sets up what it needs in .venv: the first time takes minutes, later times nothing.
# PYTHON=/path/to/python3.12 make …   chooses the Python; without it the first fitting one is taken.
# Without make (Windows, Colab): the plain pip lines are in README.md.

SHELL := /bin/sh
PY := .venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What each set-up installs: the demo only the engine, the lab also JupyterLab, `all` the tests too.
EXTRAS_demo :=
EXTRAS_lab := [lab,triton,serve]
EXTRAS_all := [lab,triton,serve,hub,train,dev]

# A checkout that was moved has a .venv that points to the old place: set it up anew.
MOVED := $(shell test ! -e .venv/.home || test "$$(cat .venv/.home)" = "$$(pwd)" || echo FORCE)

.DEFAULT_GOAL := help
.PHONY: help setup demo lab test lint format lessons exercises bench-course picture constraints clean FORCE

help:  ## what you can say here
	@echo "make demo         the bundled GPT-2 serves a burst of requests, live in this terminal"
	@echo "make lab          open the course in JupyterLab, in ./toyserve-lab"
	@echo "make test         format, lint, types and all tests, as CI runs them"
	@echo "make setup        only set up .venv, with everything that the others need"
	@echo "make lint         format check, lint and types alone      make format   put them right"
	@echo "make lessons      build the notebooks from lessons/source; make exercises  from solutions/source"
	@echo "make bench-course time and memory of every lesson"
	@echo "make picture      make the README's picture from a real run"
	@echo "make constraints  resolve constraints.txt anew (maintainers)"
	@echo "make clean        remove .venv and caches; your work in toyserve-lab stays"

demo: .venv/.setup-demo
	@$(PY) -m toyserve demo

lab: .venv/.setup-lab
	@$(PY) -m toyserve lab

setup: .venv/.setup-all
	@echo "Ready: .venv/bin/toyserve --help"

# All checks run even if one fails; pytest's own closing line comes last. Files are handed out in
# their order, which has those of minutes first: sorted by count, they would be the last, alone.
test: .venv/.setup-all
	@failed=""; \
	$(PY) -m ruff format --check . || failed="$$failed format"; \
	$(PY) -m ruff check . || failed="$$failed lint"; \
	$(PY) -m mypy || failed="$$failed types"; \
	test -z "$$failed" || echo "Failed above:$$failed. Going on to the tests."; \
	$(PY) -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder || failed="$$failed tests"; \
	test -z "$$failed"

lint: .venv/.setup-all
	@$(PY) -m ruff format --check . && $(PY) -m ruff check . && $(PY) -m mypy

format: .venv/.setup-all
	@$(PY) -m ruff check --fix . ; $(PY) -m ruff format .

lessons: .venv/.setup-all
	@$(PY) -m toyserve.course.glossary
	@$(PY) -m toyserve.course.builder

exercises: .venv/.setup-all
	@$(PY) -m toyserve.course.exercise_builder

bench-course: .venv/.setup-all
	@$(PY) benchmarks/course_cost.py

picture: .venv/.setup-demo
	@$(PY) docs/make_picture.py

# The stamp is younger than what it depends on: then there is nothing to do.
.venv/.setup-%: pyproject.toml constraints.txt $(MOVED)
	@sh .ci/venv "$(EXTRAS_$*)"
	@touch $@

constraints: .venv/.setup-all
	@sh .ci/constraints

clean:
	rm -rf .venv build toyserve.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

FORCE:
