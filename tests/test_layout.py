"""The shape of the package: who imports whom, how long files are, and what must not be written anywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ddtree"
PYTHON = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(f for f in PACKAGE.rglob("*") if f.suffix in (".py", ".jinja", ".cuh", ".cu", ".h"))

LAYERS = ["errors", "graph", "templates", "runtime", "serve", "cli"]
MAY_IMPORT = {  # parts of the package that each part may import, besides itself
    "errors": set[str](),
    "graph": {"errors"},
    "templates": {"errors", "graph"},
    "runtime": {"errors", "graph", "templates"},
    "serve": {"errors", "graph", "templates", "runtime"},
    "cli": {"errors", "graph", "templates", "runtime", "serve"},
}
GPU = {"cuda", "cupy", "pynvml"}
FORBIDDEN = {  # top-level modules
    "errors": GPU | {"jinja2", "numpy", "pydantic", "yaml"},
    "graph": GPU | {"jinja2", "safetensors", "tiktoken"},
    "templates": GPU | {"safetensors", "tiktoken", "yaml"},
    "runtime": {"starlette", "uvicorn"},
    "serve": GPU,
    "cli": GPU,
}
NEVER = {"torch", "transformers", "tests", "tools"}
CITATIONS = re.compile(r"DeepSeek-V[23] \((2024)\)")  # papers that define an op; not names of models to run
MODELS = re.compile(r"kimi|moonshot|qwen|deepseek|llama|gemma|mistral|glm", re.IGNORECASE)
LIMITS = {".py": 400, ".cuh": 500, ".jinja": 60}


def part(file: Path) -> str:
    """The part of the package that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module with its line, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield str(node.module), node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names if node.module == "ddtree")


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", PYTHON, ids=name)
def test_imports_point_one_way(file: Path) -> None:
    mine = part(file)
    if mine == "__init__":
        mine = "errors"  # the package itself imports nothing of its parts
    assert mine in MAY_IMPORT, f"{name(file)} belongs to no known part"
    for module, line in imports(ast.parse(file.read_text(encoding="utf-8"))):
        top, _, rest = module.partition(".")
        if top == "ddtree" and rest:
            other = rest.partition(".")[0]
            assert other in MAY_IMPORT[mine] | {mine, "__version__"}, f"{name(file)}:{line}: {mine} imports {other}"
        assert top not in FORBIDDEN[mine] | NEVER, f"{name(file)}:{line}: {mine} imports {top}"


def test_the_parts_form_a_chain() -> None:
    for i, layer in enumerate(LAYERS):
        assert MAY_IMPORT[layer] <= set(LAYERS[:i])


@pytest.mark.parametrize("file", SOURCES, ids=name)
def test_files_are_short(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= LIMITS[file.suffix], f"{name(file)} has {lines} lines"


@pytest.mark.parametrize("file", PYTHON, ids=name)
def test_functions_are_short(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{name(file)}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize("file", SOURCES, ids=name)
def test_models_are_data(file: Path) -> None:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        found = MODELS.search(CITATIONS.sub("", line))
        assert not found, f"{name(file)}:{number} names a model: {line.strip()}"


@pytest.mark.parametrize("file", SOURCES + sorted((ROOT / "models").glob("*.*")), ids=name)
def test_nothing_is_left_for_later(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = re.search(r"\b(TODO|FIXME|XXX|HACK|NotImplemented\b(?!Error))", text)
    assert not found, f"{name(file)}: {found and found[0]}"


@pytest.mark.parametrize("file", PYTHON, ids=name)
def test_a_module_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), f"{name(file)} has no docstring"


def test_inline_assembly_stands_among_the_primitives() -> None:
    for file in SOURCES:
        if file.suffix in (".cuh", ".jinja") and "prims" not in (file.stem, file.parent.name):
            assert not re.search(r"\basm\b", file.read_text(encoding="utf-8")), name(file)
