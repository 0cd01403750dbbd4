"""Every op is complete: one file, a definition, a cost, a template, a tile and a test of its kernel."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

import ddtree
from ddtree.graph.op import Op
from ddtree.graph.ops import all_ops

PACKAGE, TESTS = Path(ddtree.__file__).parent, Path(__file__).parents[1]


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name())
def test_an_op_is_complete(op: type[Op]) -> None:
    name = op.name()
    module = importlib.import_module(f"ddtree.graph.ops.{name}")
    classes = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Op) and c.__module__ == module.__name__
    ]
    assert classes == [op] and module.__doc__
    for method in ("infer", "reference", "cost"):
        own = vars(op).get(method)
        assert own is not None and inspect.getdoc(getattr(op, method)), f"{name} has no {method} of its own"
    assert op.template == name and op.__doc__ and not op.__doc__.startswith(f"{op.__name__}("), (
        "a text, not dataclass's own"
    )
    fields = {f.name for f in dataclasses.fields(op)} - {"origin"}
    assert set(op.outputs) <= fields
    for field in fields:
        assert re.search(rf"\b{field}\b", op.__doc__), f"{name} does not say what {field} is"


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name())
def test_an_op_has_a_kernel_with_a_test(op: type[Op]) -> None:
    name = op.name()
    kernels = PACKAGE / "templates" / "kernels"
    others = [o.name() for o in all_ops() if o.name().startswith(name) and o is not op]
    shells = [f.name for f in kernels.glob(f"{name}*.cu.jinja") if not f.name.startswith(tuple(others))]
    assert shells, f"no template {name}*.cu.jinja"
    assert (PACKAGE / "templates" / "tiles" / f"{name}.py").is_file()
    assert (TESTS / "ops" / f"test_{name}.py").is_file()


def test_every_file_of_the_op_set_is_an_op_that_is_listed() -> None:
    files = {f.stem for f in (PACKAGE / "graph" / "ops").glob("*.py") if f.stem != "__init__"}
    assert files == {op.name() for op in all_ops()}
    assert len(set(all_ops())) == len(all_ops())


def test_names_follow_the_classes() -> None:
    assert {"rms_norm", "mla_tree_attention", "top_k", "all_reduce"} <= {op.name() for op in all_ops()}
