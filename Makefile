# Short names for the README's commands.
.PHONY: demo test lint
VENV := .venv

demo:
	python3 -m venv $(VENV) && $(VENV)/bin/pip install . && $(VENV)/bin/ddtree-run models/kimi_tiny.yaml -p "def fibonacci(n):"

test:
	python3 -m venv $(VENV) && $(VENV)/bin/pip install -e '.[test]' && $(VENV)/bin/pytest

lint:
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy
