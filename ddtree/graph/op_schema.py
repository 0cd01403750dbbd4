"""YAML models of the ops, made from the op classes: an op's fields are described once, in its own file."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any, Literal, Union

from pydantic import Discriminator, Field, Tag, create_model

from ddtree.graph.expression import Expression
from ddtree.graph.op import Op
from ddtree.graph.ops import yaml_ops
from ddtree.graph.rope import Rope
from ddtree.graph.strict import Strict
from ddtree.graph.tensor import Cache, Tensor, Weight

REFERENCE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*$"  # dots are for names that the engine gives, such as target.embed
OUTPUT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\[[^\[\]]+\])?$"  # name, or name[size, ...]
Reference = Annotated[str, Field(pattern=REFERENCE_PATTERN)]
Output = Annotated[str, Field(pattern=OUTPUT_PATTERN)]


def field_kind(hint: Any) -> Any:
    """The type that decides how YAML writes a field: `Weight | None` is a Weight."""
    options = (
        [a for a in typing.get_args(hint) if a is not type(None)] if type(None) in typing.get_args(hint) else [hint]
    )
    return options[0]


def _yaml_type(hint: Any) -> Any:
    kind = field_kind(hint)
    if kind in (Tensor, Weight, Cache, Rope):
        return Reference
    if typing.get_origin(kind) is tuple:
        return list[Reference]
    if kind in (int, float):
        return Expression
    if kind is bool:
        return bool | str
    return kind


def op_fields(cls: type[Op]) -> dict[str, tuple[Any, bool]]:
    """Type hint of each field that YAML may write, and whether it must."""
    hints = typing.get_type_hints(cls)
    return {
        f.name: (hints[f.name], f.default is dataclasses.MISSING)
        for f in dataclasses.fields(cls)
        if f.name != "origin"
    }  # fmt: skip


def _model(cls: type[Op]) -> type[Strict]:
    fields: dict[str, Any] = {"op": (Literal[cls.name()], ...)}
    for name, (hint, required) in op_fields(cls).items():
        kind = Output if name in cls.outputs else _yaml_type(hint)
        fields[name] = (kind, ...) if required else (kind | None, None)
    doc = (cls.__doc__ or "").strip().splitlines()[0]
    return create_model(cls.__name__, __base__=Strict, __doc__=doc, **fields)


OP_CLASSES: dict[str, type[Op]] = {cls.name(): cls for cls in yaml_ops()}
OP_FIELDS = {name: op_fields(cls) for name, cls in OP_CLASSES.items()}
OP_TAG = "op: "  # what a tag starts with; tags stand in the locations of pydantic's errors, and no key looks like one


def op_tag(node: Any) -> str | None:
    """Which model an item of a list of ops is for."""
    return f"{OP_TAG}{node['op']}" if isinstance(node, dict) and "op" in node else None


OP_NODES: tuple[Any, ...] = tuple(Annotated[_model(cls), Tag(f"{OP_TAG}{name}")] for name, cls in OP_CLASSES.items())
if typing.TYPE_CHECKING:
    OpNode = Any  # a mypy type cannot be computed; the members are made from the op classes
else:
    OpNode = Annotated[Union[OP_NODES], Discriminator(op_tag)]  # noqa: UP007
