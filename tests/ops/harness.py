"""Run one op: its rendered kernels on the CPU emulator (`emulate`) and its NumPy definition (`reference`).

    op = make(RmsNorm, x=tensor(64, 256), weight=weight(256), eps=1e-5)     # 64: the row capacity
    rows = decode_rows([5] * 9)                                             # 9 live rows
    inputs = random_inputs(op, rows, rng)
    assert_close(emulate(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])

Inputs, by field of the op: a float array for a BF16 or FP32 tensor (rounded to BF16 where the op says so), an integer
array, `Int4` or a float array for a weight, a `NumpyCache` for a cache, a list for a tuple of tensors and for every
rank's input of a collective. A tensor has as many rows as are live by its domain. Results have the same form: outputs of
live rows (BF16 as float32) and, for every cache, a new NumpyCache; the inputs stay as they are.

A collective runs on all its ranks at once, which must agree (tests/ops/together.py).

`emulate` also fails when a kernel reads past a buffer (guard pages), writes past the live rows, changes an input or a
weight, reads what nothing wrote (outputs, rows past the live ones and free cache slots are NaN or 0x5a), or leaves a
workspace so that a second launch gives other bits.

A mutation test: tests/ops/test_NAME.py has `catches(emulate)`, which asserts what must hold by calling the given
function like `emulate`; tests/ops/mutations/NAME.py lists MUTATIONS = [(header, old text, new text), ...]. See
test_mutations.py.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache as memoised
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ddtree.graph.numerics import Numerics, Precision, round_bf16
from ddtree.graph.op import Op, Run
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Cache, DType, Tensor
from ddtree.runtime.kv import NumpyCache
from ddtree.runtime.weights.int4 import Int4
from ddtree.templates.kernel import Kernel
from ddtree.templates.render import INCLUDE, render
from ddtree.templates.target import Target
from ddtree.templates.target import target as find_target
from tests.emulator import SCHEDULES, Module, Schedule
from tests.ops.memory import OpMemory, copy_cache
from tests.ops.operands import cache, make, random_cache, random_inputs, random_int4, tensor, weight, with_rows
from tests.ops.tables import decode_rows, prompt_rows, take, tree_rows
from tests.ops.together import BLOCKS, emulate_ranks

__all__ = [
    "ROW_COUNTS", "SCHEDULES", "assert_close", "assert_same_bits", "cache", "check_row_invariance", "check_schedules",
    "decode_rows", "emulate", "make", "prompt_rows", "random_cache", "random_inputs", "random_int4", "reference", "take",
    "tensor", "tree_rows", "weight", "with_rows",
]  # fmt: skip

ROW_COUNTS = (1, 2, 7, 8, 9, 16, 33, 64)
Mutation = tuple[str, str, str]  # header in templates/include/ddtree, text that occurs once in it, its replacement
Results = dict[str, Any]


def emulate(
    op: Op,
    inputs: dict[str, Any],
    rows: RowTable,
    *,
    tree: bool | None = None,
    schedule: Schedule = SCHEDULES[0],
    delayed: bool = True,
    mode: Literal["fast", "check"] = "fast",
    mutation: Mutation | None = None,
    target: str | Target = "compute_120f",
    tuning: dict[str, int] | None = None,
    workspaces: Sequence[str] = (),
) -> Results:
    """What the op's kernels make of `inputs`; see the module's text.

    tree        decode kernels (True) or prefill kernels (False); default: what the row table is
    schedule    one of SCHEDULES: in which order the emulator runs threads
    delayed     asynchronous copies arrive at the wait, not at the issue
    mode        `fast`, or `check`, which also finds races
    target      a Target of few `sms` gives a block several items
    workspaces  their contents become results too, as `workspace:NAME`: flat float32, 0 where nothing was written. Two orders
                of a sum differ there, but seldom in what was rounded to BF16
    """
    made_for = find_target(target) if isinstance(target, str) else target
    if op.collective:  # the threads of all blocks of all ranks at once are more than the emulator has room for
        made_for = replace(made_for, sms=min(made_for.sms, BLOCKS))
    kernels = render(op, made_for, tree=rows.tree if tree is None else tree, tuning=tuning)
    if op.collective:
        module = functools.partial(_module, mode=mode, mutation=mutation)
        return emulate_ranks(op, *kernels, inputs, rows, module, schedule=schedule, delayed=delayed)
    memory = OpMemory(op, inputs, rows, tuple(k.tile for k in kernels))

    def run() -> Results:
        memory.reset()
        for kernel in kernels:
            module = _module(kernel.source, kernel.name, mode, mutation)
            tile = kernel.tile
            module.launch(
                kernel.name, tile.grid, tile.block, memory.arguments(tile), tile.smem, schedule,
                cooperative=tile.coresident, delayed_copies=delayed,
            )  # fmt: skip
        return memory.results() | {f"workspace:{name}": memory.workspace(name) for name in workspaces}

    first = run()
    if not memory.workspaces_restored():
        for field, again in run().items():
            assert_same_bits(
                again, first[field], f"{field} of a second launch on the workspaces that the first one left"
            )
    return first


def reference(op: Op, inputs: dict[str, Any], rows: RowTable, precision: Precision = Precision.BF16) -> Results:
    """What the op's NumPy definition makes of `inputs`."""
    arrays: dict[str, Any] = {}
    for name, o in op.operands():
        if name in op.outputs:
            continue
        given = inputs[name]
        fresh = copy_cache if isinstance(o, Cache) else functools.partial(_rounded, dtype=o.dtype)
        if not isinstance(given, list):
            arrays[name] = fresh(given)
        elif name not in arrays:
            arrays[name] = [fresh(x) for x in given]
    made = op.reference(Run(Numerics(precision), rows), **arrays)
    outputs = dict(zip(output_names(op), made if isinstance(made, tuple) else (made,), strict=True))
    return outputs | caches_of(arrays)


def output_names(op: Op) -> list[str]:
    """Where results hold the outputs: by field, members of a tuple by field and index."""
    fields = [(name, getattr(op, name)) for name in op.outputs]
    return [
        f"{n}{i}" if isinstance(v, tuple) else n
        for n, v in fields
        for i in range(len(v) if isinstance(v, tuple) else 1)
    ]


def caches_of(arrays: dict[str, Any]) -> dict[str, NumpyCache]:
    """The caches among a reference's arguments; members of a tuple by field and index."""
    found = {name: value for name, value in arrays.items() if isinstance(value, NumpyCache)}
    lists = ((name, value) for name, value in arrays.items() if isinstance(value, list))
    return found | {f"{n}{i}": x for n, value in lists for i, x in enumerate(value) if isinstance(x, NumpyCache)}


def _rounded(x: np.ndarray | Int4, dtype: DType) -> np.ndarray:
    if isinstance(x, Int4):
        return x.dequantise()
    return round_bf16(x) if dtype is DType.BF16 else np.asarray(x, dtype.numpy)


@memoised
def _module(source: str, name: str, mode: Literal["fast", "check"], mutation: Mutation | None) -> Module:
    folders = [] if mutation is None else [_mutated(*mutation)]
    return Module(source, [name], mode=mode, include_dirs=folders)


@memoised
def _mutated(header: str, old: str, new: str) -> Path:
    """An include folder with one changed header. Its path depends on the change alone, so that the emulator's compile
    cache recognises it."""
    text = (INCLUDE / "ddtree" / header).read_text()
    if text.count(old) != 1:  # not an assertion: a mutation test takes those for a fault that was caught
        raise ValueError(f"{header} must contain {old!r} once, found {text.count(old)} times")
    changed = text.replace(old, new)
    folder = Path(tempfile.gettempdir()) / "ddtree-mutations" / hashlib.sha256(changed.encode()).hexdigest()[:16]
    (folder / "ddtree" / header).parent.mkdir(parents=True, exist_ok=True)
    (folder / "ddtree" / header).write_text(changed)
    return folder


def assert_close(
    got: np.ndarray, want: np.ndarray, *, ulps: float = 1.0, atol: float = 0.0, share: float = 1.0
) -> None:
    """Finite and equal up to `ulps` bf16 steps, each at most 2**-7 of the value, plus `atol`.

    share  how many of the values may differ at all. Another order of a sum moves few values to the next bf16; a rounding
           point too many or too few moves a good part of them
    """
    assert got.shape == want.shape, f"{got.shape} is not {want.shape}"
    assert np.isfinite(got).all(), f"{(~np.isfinite(got)).sum()} of {got.size} values are not finite"
    np.testing.assert_allclose(got, want, rtol=ulps * 2**-7, atol=atol)
    differ = np.mean(got != want)
    assert differ <= share, f"{differ:.1%} of the values differ, at most {share:.1%} may"


def assert_same_bits(got: Any, want: Any, what: str = "result") -> None:
    """Equal bit for bit; caches in pages and scratch, any NaN equal to any."""
    if isinstance(got, NumpyCache):
        assert_same_bits(got.rows, want.rows, f"{what}: pages")
        assert_same_bits(got.scratch, want.scratch, f"{what}: scratch")
        return
    assert got.shape == want.shape and got.dtype == want.dtype, (
        f"{what}: {got.shape} {got.dtype}, {want.shape} {want.dtype}"
    )
    differ = _bits(got) != _bits(want)
    assert not differ.any(), f"{what}: {differ.sum()} of {differ.size} differ, first at {tuple(np.argwhere(differ)[0])}"


def _bits(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        return x
    canonical = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    return canonical.view(f"u{x.dtype.itemsize}")


def check_row_invariance(
    op: Op,
    inputs: dict[str, Any],
    rows: RowTable,
    *,
    counts: Sequence[int] = ROW_COUNTS,
    seed: int = 0,
    run: Callable[..., Results] = emulate,
    **options: Any,
) -> None:
    """A row's output bits are the same in any company: for every count, that many of the rows in random order, in a step
    of exactly that capacity and in one of the op's own, against all rows together. Rows must have no parents."""
    rng = np.random.default_rng(seed)
    together = run(op, inputs, rows, **options)
    per_row = {name for name, o in op.operands() if isinstance(o, Tensor) and o.domain == "rows"}
    for count in counts:
        keep = rng.permutation(len(rows))[:count]
        few = {name: _part(value, keep) if name in per_row else value for name, value in inputs.items()}
        for step in (op, with_rows(op, count)):
            made = run(step, few, take(rows, keep), **options)
            for field in output_names(op):
                assert_same_bits(made[field], together[field][keep], f"{field} with {count} of {len(rows)} rows")


def _part(value: Any, keep: np.ndarray) -> Any:
    return [x[keep] for x in value] if isinstance(value, list) else value[keep]


def check_schedules(
    op: Op, inputs: dict[str, Any], rows: RowTable, *, run: Callable[..., Results] = emulate, **options: Any
) -> None:
    """Every schedule, with immediate and delayed copies, and the race-checking build give the same bits."""
    want = run(op, inputs, rows, **options)
    cases = [{"schedule": s, "delayed": d} for s in SCHEDULES for d in (False, True)] + [{"mode": "check"}]
    for case in cases:
        for field, made in run(op, inputs, rows, **case, **options).items():
            assert_same_bits(made, want[field], f"{field} under {case}")


def rendered(op: Op, *, tree: bool, target: str = "compute_120f") -> list[Kernel]:
    """The op's kernels, for tests that look at tiles or sources."""
    return render(op, find_target(target), tree=tree)
