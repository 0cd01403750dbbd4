"""Ops and their operands for tests: shapes in, checked op out; random contents to match."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ddtree.graph.numerics import round_bf16
from ddtree.graph.op import Op, Operand
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Cache, DType, Tensor, Weight
from ddtree.runtime.kv import NumpyCache
from ddtree.runtime.weights.int4 import Int4, pack
from tests.ops.tables import physical_pages


def tensor(*shape: int, dtype: str = "bf16", domain: str = "rows") -> Tensor:
    """An activation without a name; `make` names it after its field."""
    return Tensor("", shape, DType(dtype), domain=domain)


def weight(*shape: int, dtype: str = "bf16", count: int = 0, group: int = 32, split: int | None = None) -> Weight:
    """A parameter without a name; `shape` without the stacked axis, whose length is `count`."""
    return Weight("", "{expert}" if count else "", shape, DType(dtype), count=count, group=group, split=split)


def cache(*row: int, window: int | None = None, context: int = 4096) -> Cache:
    """One layer's cache without a name."""
    return Cache("", row, window=window, context=context)


def make(kind: type[Op], **fields: Any) -> Op:
    """An op with its operands named after their fields and its outputs inferred, checked.

    As in the builder, an output without a domain takes that of the first input. Give an output yourself where the shape
    rule is not what you want. A tuple's members are named field0, field1, ...
    """

    def named(name: str, value: Any) -> Any:
        if isinstance(value, Tensor | Weight | Cache):
            return dataclasses.replace(value, name=name)
        return tuple(named(f"{name}{i}", item) for i, item in enumerate(value)) if isinstance(value, tuple) else value

    given = {name: named(name, value) for name, value in fields.items()}
    inputs = [t for v in given.values() for t in (v if isinstance(v, tuple) else (v,)) if isinstance(t, Tensor)]
    domain = inputs[0].domain if inputs else "rows"
    for name, out in kind.infer(**given).items():
        given.setdefault(name, dataclasses.replace(out, name=name, domain=out.domain or domain))
    op = kind(**given)
    op.check()
    return op


def with_rows(op: Op, capacity: int) -> Op:
    """The same op in a step of another row capacity."""

    def resized(o: Operand) -> Operand:
        if isinstance(o, Tensor) and o.domain == "rows":
            return dataclasses.replace(o, shape=(capacity, *o.shape[1:]))
        return o

    return op.map_operands(resized)


def live(t: Tensor, rows: RowTable) -> int:
    """Rows of a tensor that a step with this row table uses; a source tensor is used whole."""
    wanted = len(rows) if rows.wanted is None else len(rows.wanted)
    return {"rows": len(rows), "wanted": wanted, "sequences": len(rows.committed)}.get(t.domain, t.shape[0])


def random_int4(rng: np.random.Generator, shape: tuple[int, ...], group: int = 32, size: float = 1.0) -> Int4:
    """INT4 matrices [..., out, in] with weights of standard deviation about `size`."""
    q = rng.integers(-8, 8, shape)
    scale = rng.uniform(0.5, 1.5, (*shape[:-1], shape[-1] // group)) * (size / 5)
    return Int4(pack(q), round_bf16(scale).astype(DType.BF16.numpy), group)


def random_cache(
    c: Cache, rows: RowTable, rng: np.random.Generator, *, written: bool = False, size: float = 1.0
) -> NumpyCache:
    """A cache whose committed positions hold normal values and whose other memory is NaN.

    written  also store a row for every row of the table, as the CacheWrite before an attention does
    """
    made = NumpyCache(c, physical_pages(rows), len(rows.committed))
    for s, count in enumerate(rows.committed):
        if count:
            history = RowTable(
                np.full(count, s, np.int32), np.arange(count, dtype=np.int32), np.full(count, -1, np.int32),
                np.full(count, -1, np.int32), rows.committed, rows.pages, tree=False,
            )  # fmt: skip
            made.write(history, round_bf16(rng.standard_normal((count, *c.row)) * size))
    if written:
        made.write(rows, round_bf16(rng.standard_normal((len(rows), *c.row)) * size))
    return made


def random_inputs(op: Op, rows: RowTable, rng: np.random.Generator, **given: Any) -> dict[str, Any]:
    """Contents of every input of an op: `given` where given, else normal values (float tensors and weights, standard
    deviation 1; matrices 1/sqrt(in)) and caches whose committed positions are filled. Integer tensors must be given."""
    made: dict[str, Any] = {}
    for name, o in op.operands():
        if name in given or name in op.outputs:
            continue
        value: Any
        if isinstance(o, Cache):
            value = random_cache(o, rows, rng)
        elif isinstance(o, Weight):
            value = _random_weight(o, rng)
        else:
            if o.dtype not in (DType.BF16, DType.FP32, DType.FP64):
                raise ValueError(f"give the contents of {name}: random {o.dtype} has no meaning")
            value = _normal(o.dtype, (live(o, rows), *o.shape[1:]), rng)
        if op.collective and name == "x":
            made[name] = [value, *(_normal(o.dtype, value.shape, rng) for _ in range(op.ranks - 1))]
        elif isinstance(getattr(op, name), tuple):
            made.setdefault(name, []).append(value)
        else:
            made[name] = value
    return made | given


def _random_weight(w: Weight, rng: np.random.Generator) -> np.ndarray | Int4:
    size = w.shape[-1] ** -0.5 if len(w.full) > 1 else 1.0
    if w.dtype is DType.INT4:
        return random_int4(rng, w.shape, w.group, size)
    return _normal(w.dtype, w.shape, rng) * np.float32(size)


def _normal(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(shape)
    return x if dtype is DType.FP64 else round_bf16(x) if dtype is DType.BF16 else x.astype(np.float32)
