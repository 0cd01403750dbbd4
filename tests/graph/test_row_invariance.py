"""Definitions of the model's ops treat rows one by one: a row's bits are the same alone and in any company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ddtree.graph.numerics import Precision
from ddtree.graph.op import Op
from ddtree.graph.ops import (
    MODEL_OPS,
    Add,
    CacheWrite,
    DraftAttention,
    Embed,
    ExpertMlp,
    Linear,
    MlaLatent,
    MlaQuery,
    MlaTreeAttention,
    MlaValue,
    RmsNorm,
    Rotate,
    Route,
    SelectRows,
    Swiglu,
)  # fmt: skip
from ddtree.graph.rope import Rope, Yarn
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Tensor
from ddtree.runtime.kv import NumpyCache
from tests.ops.harness import reference
from tests.ops.operands import cache, make, random_cache, random_inputs, tensor, weight
from tests.ops.tables import prompt_rows, take, tree_rows

ROPE = Rope("main", 16, 50000.0, "interleaved", Yarn(4, 64, 32, 1, 1, 1), None, True)
HALF = Rope("half", 16, 50000.0, "half")
N = 64  # row capacity
Given = Callable[[Op, RowTable, np.random.Generator], dict[str, Any]]


def _nothing(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    return {}


def _ids(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    return {"ids": rng.integers(0, 50, len(rows)).astype(np.int32)}


def _chosen(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    return {"ids": np.stack([rng.permutation(8)[:3] for _ in range(len(rows))]).astype(np.int32)}


def _written(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    return {"cache": random_cache(op.caches()[0], rows, rng, written=True)}


def _t(*shape: int) -> Tensor:
    return tensor(N, *shape)


def _int4(*shape: int) -> Any:
    return weight(*shape, dtype="int4", count=8)


OPS: dict[type[Op], tuple[Callable[[], Op], Given]] = {
    Embed: (lambda: make(Embed, ids=tensor(N, dtype="int32"), weight=weight(50, 64)), _ids),
    RmsNorm: (lambda: make(RmsNorm, x=_t(64), weight=weight(64), eps=1e-5), _nothing),
    Linear: (lambda: make(Linear, x=_t(64), weight=weight(96, 64)), _nothing),
    Rotate: (lambda: make(Rotate, x=_t(4, 16), rope=HALF), _nothing),
    Swiglu: (lambda: make(Swiglu, gate=_t(96), up=_t(96)), _nothing),
    Add: (lambda: make(Add, a=_t(64), b=_t(64)), _nothing),
    MlaLatent: (lambda: make(MlaLatent, x=_t(48), weight=weight(32), rope=ROPE, eps=1e-6), _nothing),
    MlaQuery: (lambda: make(MlaQuery, q=_t(4, 32), weight=weight(4 * 32, 32), rope=ROPE), _nothing),
    MlaTreeAttention: (lambda: make(MlaTreeAttention, q=_t(4, 48), cache=cache(48), rope=ROPE, head=32), _written),
    MlaValue: (lambda: make(MlaValue, z=_t(4, 32), weight=weight(4 * 32, 32), value=16), _nothing),
    CacheWrite: (lambda: make(CacheWrite, x=_t(48), cache=cache(48)), _nothing),
    DraftAttention: (lambda: make(DraftAttention, q=_t(4, 16), k=_t(2, 16), v=_t(2, 16), keys=cache(2, 16), values=cache(2, 16),
                                  window=0, causal=False), _nothing),
    Route: (lambda: make(Route, x=_t(64), weight=weight(8, 64), bias=weight(8, dtype="fp32"), top_k=3, scale=2.0), _nothing),
    ExpertMlp: (lambda: make(ExpertMlp, x=_t(64), ids=tensor(N, 3, dtype="int32"), gates=tensor(N, 3, dtype="fp32"),
                             gate=_int4(32, 64), up=_int4(32, 64), down=_int4(64, 32), shared_gate=weight(32, 64),
                             shared_up=weight(32, 64), shared_down=weight(64, 32)), _chosen),
    SelectRows: (lambda: make(SelectRows, x=_t(64)), _nothing),
}  # fmt: skip


def test_every_model_op_is_here() -> None:
    assert set(OPS) == set(MODEL_OPS)


def _bits(value: Any, keep: np.ndarray, rows: RowTable) -> bytes:
    """The rows `keep` of a result; of a cache, what the rows of the table wrote."""
    if isinstance(value, NumpyCache):
        value = value.scratch[rows.sequence, rows.node] if rows.tree else value.rows[
            rows.pages[rows.sequence, rows.position // 64], rows.position % 64]  # fmt: skip
    assert not np.isnan(value[keep]).any()
    return np.ascontiguousarray(value[keep]).tobytes()


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("kind", MODEL_OPS, ids=lambda k: k.name())
def test_a_row_alone_is_the_row_in_company(kind: type[Op], precision: Precision) -> None:
    build, given = OPS[kind]
    op, rng = build(), np.random.default_rng(7)
    trees = kind is not DraftAttention
    rows = tree_rows([0, 5, 70, 200], [9, 12, 1, 20], seed=3) if trees else prompt_rows([8, 8, 8], start=[3, 64, 130])
    rows.wanted = None
    inputs = random_inputs(op, rows, rng, **given(op, rows, rng))
    together = reference(op, inputs, rows, precision)
    per_row = {name for name, o in op.operands() if isinstance(o, Tensor)}
    shuffled = rng.permutation(len(rows)) if trees else np.concatenate([rows.of(s) for s in (2, 0, 1)])

    def part(keep: np.ndarray) -> dict[str, Any]:
        few = {name: value[keep] if name in per_row else value for name, value in inputs.items()}
        return reference(op, few, take(rows, keep), precision)

    # A tree row keeps its ancestors, whose cache rows it reads; a drafted row keeps its block.
    companies = [np.array(rows.path(r)) if trees else rows.of(int(rows.sequence[r])) for r in range(len(rows))]
    for keep in [*companies, shuffled]:
        made, kept = part(keep), take(rows, keep)
        assert made.keys() == together.keys()
        for field, value in together.items():
            if isinstance(value, NumpyCache) and kind is not CacheWrite:
                continue  # read only
            got = _bits(made[field], np.arange(len(keep)), kept)
            assert got == _bits(value, keep, rows), f"{field} of rows {keep.tolist()}"
