"""Names to operands: what a YAML op's fields mean where the op stands."""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from ddtree.graph.expression import Expression, ExpressionError, Number, evaluate, names_in
from ddtree.graph.model import Source
from ddtree.graph.op import Op, OpError
from ddtree.graph.op_schema import OP_CLASSES, OP_FIELDS, field_kind
from ddtree.graph.rope import Rope
from ddtree.graph.schema import CacheSpec, WeightSpec
from ddtree.graph.tensor import Cache, DType, Tensor, Weight
from ddtree.graph.yaml_text import Path_

_OUTPUT = re.compile(r"^(\w+)(?:\[([^\[\]]+)\])?$")


@dataclass
class Scope:
    """What names mean at one place of a graph.

    space    prefix of everything that belongs to this file, empty for the target
    label    prefix of the tensors and caches that are made here, such as `layers.3.`
    values   numbers and truth values bound for these layers, over the file's names
    tensors  the newest tensor of each name
    wanted   most rows that select_rows keeps here
    used     how often each tensor name was written, to keep names unique
    sources  every weight of the graph by name: a checkpoint tensor has one shape and dtype, whoever reads it
    """

    source: Source[Any]
    context: int
    space: str = ""
    label: str = ""
    values: dict[str, Number | bool] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    caches: dict[str, Cache] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    wanted: int = 0
    used: dict[str, int] = field(default_factory=dict)
    sources: dict[str, Weight] = field(default_factory=dict)

    def child(self, label: str, values: dict[str, Number | bool]) -> Scope:
        """A layer's scope: tensors are shared, weights and caches of its blocks are its own."""
        return replace(
            self, label=self.label + label, values={**self.values, **values}, weights=dict(self.weights), caches={}
        )

    def number(self, expression: Expression, path: Path_) -> Number:
        """Value of an expression here."""
        names = {**self.source.names, **{k: v for k, v in self.values.items() if not isinstance(v, bool)}}
        try:
            return evaluate(expression, names)
        except ExpressionError as e:
            raise self.source.doc.error(path, str(e)) from None

    def whole(self, expression: Expression, path: Path_) -> int:
        """Whole value of an expression here."""
        value = self.number(expression, path)
        if value != int(value):
            raise self.source.doc.error(path, f"expected a whole number, found {value}")
        return int(value)

    def shape(self, expressions: list[Expression], path: Path_) -> tuple[tuple[int, ...], int | None]:
        """Numbers of a shape, and the axis whose expression names a divided dim."""
        sizes = tuple(self.whole(e, (*path, i)) for i, e in enumerate(expressions))
        if any(n < 1 for n in sizes):
            raise self.source.doc.error(path, f"sizes must be positive, found {list(sizes)}")
        axes = [i for i, e in enumerate(expressions) if names_in(e) & self.source.split]
        if len(axes) > 1:
            raise self.source.doc.error(path, "only one axis may name a divided dim")
        return sizes, axes[0] if axes else None

    def add_weight(self, name: str, spec: WeightSpec, prefix: str, path: Path_) -> None:
        """Declare a weight of this place."""
        full, split = self.shape(spec.shape, (*path, "shape"))
        ranks = self.source.spec.parallel.tensor
        split = None if spec.replicate else split
        if split is not None and full[split] % ranks:
            raise self.source.doc.error(
                (*path, "shape"), f"axis {split} of {list(full)} does not divide by {ranks} ranks"
            )
        if spec.dtype == "int4" and (len(full) != 2 or full[1] % spec.group):
            raise self.source.doc.error(
                (*path, "shape"),
                f"an int4 weight is a matrix whose input axis is a multiple of {spec.group}, found {list(full)}",
            )
        count = self.whole(spec.count, (*path, "count"))
        if count < 0:
            raise self.source.doc.error((*path, "count"), f"must be 0 or positive, found {count}")
        if bool(count) != ("{expert}" in spec.source):
            raise self.source.doc.error(
                (*path, "source"), "a stacked weight has `count` and {expert} in its source, others have neither"
            )
        source = prefix + spec.source
        weight = Weight(self.space + source, source, full, DType(spec.dtype), split, count, spec.group)
        if self.sources.setdefault(weight.name, weight) != weight:
            other = self.sources[weight.name]
            raise self.source.doc.error(
                (*path, "source"),
                f"{source} is {_described(weight)} here and {_described(other)} elsewhere in this file",
            )
        self.weights[name] = weight

    def add_cache(self, name: str, spec: CacheSpec, path: Path_) -> None:
        """Declare a cache of this place."""
        row, split = self.shape(spec.row, (*path, "row"))
        window = self.whole(spec.window, (*path, "window")) if spec.window is not None else 0
        if window < 0:
            raise self.source.doc.error((*path, "window"), f"must be 0 (keep all) or positive, found {window}")
        if name in self.caches:
            raise self.source.doc.error(path, f"another block of this layer has a cache {name!r}; rename one", key=True)
        self.caches[name] = Cache(
            f"{self.space}{self.label}{name}", row, DType(spec.dtype), spec.page, self.context, window or None, split
        )

    def make(self, node: Any, path: Path_) -> Op:
        """Turn a YAML op into an op, and remember the tensors that it writes."""
        cls = OP_CLASSES[node.op]
        fields: dict[str, Any] = {"origin": str(self.source.doc.mark(path))}
        for name, (hint, _) in OP_FIELDS[node.op].items():
            if name not in cls.outputs and (value := getattr(node, name)) is not None:
                fields[name] = self._operand(hint, value, (*path, name))
        try:
            inferred = cls.infer(**fields)
            for name in cls.outputs:
                fields[name] = self._output(getattr(node, name), inferred[name], fields, (*path, name))
            op = cls(**fields)
            op.checked  # noqa: B018 (raises)
        except OpError as e:
            raise self.source.doc.error(path, f"{node.op}: {e}") from None
        except (ValueError, IndexError, ZeroDivisionError):  # how a shape rule meets a wrong number of axes
            raise self.source.doc.error(path, f"{node.op}: these operands do not fit: {_shapes(fields)}") from None
        for name in cls.outputs:
            self.tensors[output_name(getattr(node, name))] = fields[name]
        return op

    def _operand(self, hint: Any, value: Any, path: Path_) -> Any:
        kind = field_kind(hint)
        if kind is Tensor:
            return self._lookup(self.tensors, value, path, "tensor")
        if kind is Weight:
            return self._lookup(self.weights, value, path, "weight")
        if kind is Cache:
            return self._lookup(self.caches, value, path, "cache")
        if kind is Rope:
            return self._lookup(self.source.ropes, value, path, "rope")
        if kind is int:
            return self.whole(value, path)
        if kind is float:
            return float(self.number(value, path))
        if kind is bool:
            return self._truth(value, path)
        assert typing.get_origin(kind) is typing.Literal
        return value

    def _truth(self, value: bool | str, path: Path_) -> bool:
        found = self.values.get(value, value) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise self.source.doc.error(path, f"expected true, false or a name bound to one, found {value!r}")
        return found

    def _lookup(self, table: dict[str, Any], name: str, path: Path_, what: str) -> Any:
        if name in table:
            return table[name]
        near = get_close_matches(name, table, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(table)) or 'none'}"
        raise self.source.doc.error(path, f"unknown {what} {name!r}; {hint}")

    def _output(self, reference: str, inferred: Tensor, fields: dict[str, Any], path: Path_) -> Tensor:
        name, shape = _parts(reference)
        result = replace(inferred, name=self.fresh(name), domain=inferred.domain or _first_domain(fields))
        if inferred.domain == "wanted":
            result = replace(result, shape=(self.wanted, *result.shape[1:]))
        if shape is None:
            return result
        sizes, split = self.shape(typing.cast("list[Expression]", shape.split(",")), path)
        tensor = replace(result, shape=(result.shape[0], *sizes), split=None if split is None else split + 1)
        if tensor.width != result.width:
            raise self.source.doc.error(
                path, f"the shape {list(sizes)} has {tensor.width} elements a row, the op writes {result.width}"
            )
        return tensor

    def fresh(self, name: str) -> str:
        """A graph-wide unique tensor name."""
        full = f"{self.space}{self.label}{name}"
        self.used[full] = self.used.get(full, 0) + 1
        return full if self.used[full] == 1 else f"{full}.{self.used[full]}"


def _described(weight: Weight) -> str:
    divided = "undivided" if weight.split is None else f"divided along axis {weight.split}"
    return f"{weight.dtype.value} {[weight.count] * bool(weight.count) + list(weight.full)} {divided}"


def _shapes(fields: dict[str, Any]) -> str:
    shapes = {
        n: v.row if isinstance(v, Cache) else v.shape
        for n, v in fields.items()
        if isinstance(v, Tensor | Weight | Cache)
    }
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _first_domain(fields: dict[str, Any]) -> str:
    return next((v.domain for v in fields.values() if isinstance(v, Tensor)), "rows")


def output_name(reference: str) -> str:
    """The name in `name[size, size]`."""
    return _parts(reference)[0]


def _parts(reference: str) -> tuple[str, str | None]:
    match = _OUTPUT.match(reference)
    assert match, reference  # the schema's pattern
    return match[1], match[2]
