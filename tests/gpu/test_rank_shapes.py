"""Every op of the published model at the shapes of one of eight ranks: kernel against reference, and row invariance."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.graph.build import Builder, build_step, steps_of
from ddtree.graph.model import load
from ddtree.graph.numerics import Numerics, Precision, round_bf16
from ddtree.graph.op import Op, Run
from ddtree.graph.ops import ExpertMlp, Route
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import DType, Tensor, Weight
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.kv import NumpyCache
from ddtree.runtime.weights import Int4
from tests.gpu.harness import gpu_runner
from tests.ops.harness import ROW_COUNTS, assert_same_bits, caches_of, copy_cache, output_names, take
from tests.ops.operands import random_inputs
from tests.ops.tables import prompt_rows, tree_rows

YAML = Path(__file__).parents[2] / "models" / "kimi_k26.yaml"
SKIPPED = (
    "embed",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "all_gather",
    "build_tree",
    "accept",
    "stop",
    "sample",
    "top_k",
    "select_rows",
)  # own tests, no new shapes
CONTEXT = 300


def _shape_key(op: Op) -> tuple[Any, ...]:
    return (
        op.name(),
        *(tuple(getattr(o, "shape", getattr(o, "row", ()))) for _, o in op.operands()),
        getattr(op, "dtype", ""),
    )


@functools.cache
def distinct_ops() -> list[tuple[str, Op, bool]]:
    """One op for each kind and shape of the four steps: label, op, and whether its rows are generated ones."""
    found: dict[tuple[Any, ...], tuple[str, Op, bool]] = {}
    for fused in ("true", "false"):
        switches = (f"passes.add_rms_norm={fused}", f"passes.latent_write={fused}")
        model = load(YAML, ("decode.prefill_rows=64", *switches))
        builder = Builder(model)
        for step in steps_of(model):
            graph = build_step(model, step, 0, builder)
            for op in (op for op in graph.ops if op.name() not in SKIPPED):
                shapes = "x".join(str(n) for _, o in op.operands() if isinstance(o, Weight) for n in o.shape[-2:])
                key = (graph.decode, *_shape_key(op))
                found.setdefault(key, (f"{step}-{op.name()}-{shapes}", op, graph.decode))
    return list(found.values())


class LazyExperts:
    """Dequantises an expert when the reference asks for it."""

    def __init__(self, stored: Int4) -> None:
        self.stored = stored

    @functools.cache  # noqa: B019 (lives as long as one test)
    def __getitem__(self, expert: int) -> np.ndarray:
        return self.stored[expert].dequantise(np.float32)


def _wanted(op: Op) -> int:
    """Capacity of an op on wanted rows; 0 for an op on rows."""
    return max((o.shape[0] for _, o in op.operands() if isinstance(o, Tensor) and o.domain == "wanted"), default=0)


def table(op: Op, generated: bool) -> RowTable:
    if wanted := _wanted(op):
        rows = tree_rows([CONTEXT, 65], [40, 24], seed=3)
        rows.wanted = np.random.default_rng(0).permutation(64)[:wanted].astype(np.int32)
        return rows
    if generated:
        rows = tree_rows([CONTEXT, 65], [40, 24], seed=3)
        rows.source = np.random.default_rng(0).permutation(64).astype(np.int32)
        return rows
    rows = prompt_rows([40, 24], start=[CONTEXT, 0])
    rows.source = np.arange(64, dtype=np.int32)
    return rows


def inputs_of(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, o in op.operands():
        if isinstance(o, Tensor) and name not in op.outputs and o.dtype is DType.INT32:
            top = op.gate.shape[0] if isinstance(op, ExpertMlp) else 160_000  # type: ignore[attr-defined]
            if isinstance(op, ExpertMlp):
                given[name] = np.stack([rng.permutation(top)[: o.shape[1]] for _ in range(len(rows))]).astype(np.int32)
            elif o.domain == "sequences":
                continue
            else:
                given[name] = rng.integers(0, top, (len(rows), *o.shape[1:])).astype(np.int32)
    if op.name() == "cache_commit":
        given["path"] = np.stack([np.sort(rng.permutation(20)[: op.path.shape[1]]) for _ in range(8)]).astype(np.int32)  # type: ignore[attr-defined]
        given["length"] = np.array([8, 5, 0, 0, 0, 0, 0, 0], np.int32)
    given |= {name: _weight(o, rng) for name, o in op.operands() if isinstance(o, Weight)}
    inputs = random_inputs(op, rows, rng, **given)
    for value in caches_of(inputs).values():
        value.write(rows, round_bf16(rng.standard_normal((len(rows), *value.cache.row)).astype(np.float32)))
    return inputs


def _weight(w: Weight, rng: np.random.Generator) -> np.ndarray | Int4:
    """Random contents in the types that they are stored in, since a rank holds gigabytes of experts."""
    size = np.float32(w.shape[-1] ** -0.5 if len(w.full) > 1 else 1.0)
    if w.dtype is DType.INT4:
        packed = rng.integers(0, 2**32, (*w.shape[:-1], w.shape[-1] // 8), np.uint32)
        scale = rng.uniform(0.5, 1.5, (*w.shape[:-1], w.shape[-1] // w.group)).astype(np.float32) * (size / 5)
        return Int4(packed, scale.astype(DType.BF16.numpy), w.group)
    values = rng.standard_normal(w.shape, np.float32) * size
    return round_bf16(values) if w.dtype is DType.BF16 else values


def reference(op: Op, inputs: dict[str, Any], rows: RowTable) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in inputs.items():
        if isinstance(value, Int4):
            arrays[name] = LazyExperts(value) if value.packed.ndim == 3 else value.dequantise(np.float32)
        elif isinstance(value, list):
            arrays[name] = [copy_cache(x) if isinstance(x, NumpyCache) else x for x in value]
        else:
            arrays[name] = copy_cache(value) if isinstance(value, NumpyCache) else value
    made = op.reference(Run(Numerics(Precision.BF16), rows), **arrays)
    outputs = dict(zip(output_names(op), made if isinstance(made, tuple) else (made,), strict=True))
    return outputs | caches_of(arrays)


@pytest.mark.parametrize(("op", "generated"), [c[1:] for c in distinct_ops()], ids=[c[0] for c in distinct_ops()])
def test_kernel_equals_reference_and_rows_are_invariant(op: Op, generated: bool, device: Device) -> None:
    rng = np.random.default_rng(7)
    rows = table(op, generated)
    if op.name() == "cache_commit":
        rows = tree_rows([CONTEXT, 65, 0, 0, 0, 0, 0, 0], [40, 24, 0, 0, 0, 0, 0, 0], seed=3)
    inputs, run = inputs_of(op, rows, rng), gpu_runner(device)
    got, want = run(op, inputs, rows, tree=generated and rows.tree), reference(op, inputs, rows)
    for name, made in got.items():
        if isinstance(made, NumpyCache):
            for part in ("rows", "scratch"):
                np.testing.assert_allclose(getattr(made, part), getattr(want[name], part), rtol=2**-6)
        else:
            _close(op, made, want[name])
    if op.name() == "mla_tree_attention" and rows.tree:
        _company(op, inputs, rows, got, run)
    if all(isinstance(o, Tensor | Weight) for _, o in op.operands()) and op.outputs:
        _invariant(op, inputs, rows, got, functools.partial(run, tree=generated))


def _close(op: Op, got: np.ndarray, want: np.ndarray) -> None:
    if isinstance(op, Route) and got.dtype == np.int32:
        assert (np.sort(got) == np.sort(want)).mean() > 0.98  # scores of random rows are nearly tied now and then
        return
    if got.dtype == np.int32:
        assert (got == want).all()
        return
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)
    assert error < (0.05 if isinstance(op, Route) else 6e-3), f"relative error {error:.2e}"


def _invariant(
    op: Op, inputs: dict[str, Any], rows: RowTable, whole: dict[str, np.ndarray], run: Callable[..., Any]
) -> None:
    """Any number of rows, in any order, has the bits of those rows among 64. (Parents do not matter to these ops.)"""
    rng = np.random.default_rng(1)
    loose = take(
        RowTable(**{**rows.__dict__, "parent": np.full(len(rows), -1, np.int32), "wanted": None, "_paths": {}}),
        range(len(rows)),
    )
    per_row = {
        n for n, o in op.operands() if isinstance(o, Tensor) and o.domain in ("rows", "wanted") and n not in op.outputs
    }
    if not per_row or any(isinstance(getattr(op, n), tuple) for n in per_row):
        return
    most = _wanted(op) or len(rows)
    for count in (n for n in ROW_COUNTS if n <= most):
        keep = rng.permutation(most)[:count]
        few = {n: v[keep] if n in per_row else v for n, v in inputs.items()}
        part = replace(rows, wanted=np.arange(count, dtype=np.int32), _paths={}) if _wanted(op) else take(loose, keep)
        made = run(op, few, part)
        for name in output_names(op):
            assert_same_bits(made[name], whole[name][keep], f"{op.name()}.{name} with {count} rows")


def _company(
    op: Op, inputs: dict[str, Any], rows: RowTable, whole: dict[str, np.ndarray], run: Callable[..., Any]
) -> None:
    """The first rows of the table, whose parents are among them, have the bits that they have among 64."""
    for count in ROW_COUNTS:
        keep = np.arange(count)
        made = run(op, inputs | {"q": inputs["q"][:count]}, take(rows, keep), tree=True)
        assert_same_bits(made["y"], whole["y"][:count], f"{op.name()} with {count} rows")
