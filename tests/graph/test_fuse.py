"""Fused graphs: the bits of unfused ones with fewer ops, each fusion on its own switch, and only where it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.build import build_ranks, build_step, steps_of
from ddtree.graph.cost import Load
from ddtree.graph.model import Model, load
from ddtree.graph.numerics import Precision
from ddtree.graph.op import Op
from ddtree.graph.ops import (
    FUSED_OPS,
    Add,
    AddRmsNorm,
    AllReduce,
    AllReduceAddRmsNorm,
    CacheWrite,
    ConcatTaps,
    LatentWrite,
    Linear,
    LinearGroup,
    MlaLatent,
    MlaNorms,
    RmsNorm,
)
from ddtree.graph.passes.add_rms_norm import fuse_add_rms_norm
from ddtree.graph.passes.all_reduce_add_rms_norm import fuse_all_reduce
from ddtree.graph.passes.fuse import FUSIONS
from ddtree.graph.passes.latent_write import fuse_latent_write
from ddtree.graph.passes.linear_group import group_linears
from ddtree.graph.passes.mla_norms import fuse_mla_norms
from ddtree.graph.passes.verify import verify
from ddtree.graph.rope import Rope
from ddtree.graph.schema import Passes
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Tensor
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.graph.spec import MODELS
from tests.ops.harness import cache, make, tensor, weight
from tests.runtime.decoders import GOLDENS, decode, watch

OFF = tuple(f"passes.{name}=false" for name in FUSIONS)
LAYERS = {"kimi_tiny": (8, 3), "kimi_k26": (61, 6)}  # target, drafter


def shipped(*settings: str, name: str = "kimi_tiny", ranks: int | None = None) -> Model:
    return load(MODELS / f"{name}.yaml", settings, ranks=ranks)


NO_GROUPS = ("passes.linear_group=false", "passes.mla_norms=false", "passes.all_reduce_add_rms_norm=false")


def counts(graph: StepGraph) -> tuple[int, int]:
    return sum(isinstance(op, AddRmsNorm) for op in graph.ops), sum(isinstance(op, LatentWrite) for op in graph.ops)


def test_every_fusion_has_its_op_and_its_switch() -> None:
    assert list(FUSIONS) == [op.name() for op in FUSED_OPS] == list(Passes.model_fields)


@pytest.mark.parametrize(("name", "ranks"), [("kimi_tiny", 1), ("kimi_tiny", 2), ("kimi_k26", 8)])
def test_ops_that_are_saved(name: str, ranks: int) -> None:
    """Two additions a layer, each read by a norm; the last one only where no selection of rows stands between."""
    fused, plain = shipped(*NO_GROUPS, name=name, ranks=ranks), shipped(*OFF, name=name, ranks=ranks)
    target, drafter = LAYERS[name]
    saved = {
        "prefill": (2 * target - 1, target),
        "draft": (2 * drafter - 1, 0),
        "verify": (2 * target, target),
        "commit": (0, 0),
    }
    for step in steps_of(fused):
        made, whole = build_step(fused, step), build_step(plain, step)
        assert counts(made) == saved[step] and counts(whole) == (0, 0)
        assert len(whole.ops) - len(made.ops) == sum(saved[step])
        left = [op for op in made.ops if isinstance(op, MlaLatent | Add)]
        assert len(left) == (step in ("prefill", "draft")), "the addition before the selected rows stays"


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        # every latent write is part of two norms
        ("add_rms_norm", {"add_rms_norm", "all_reduce_add_rms_norm", "latent_write"}),
        ("all_reduce_add_rms_norm", {"all_reduce_add_rms_norm", "latent_write"}),
        ("latent_write", {"latent_write", "mla_norms"}),
        ("linear_group", {"linear_group", "mla_norms"}),
        ("mla_norms", {"mla_norms"}),
    ],
)
def test_a_switch_is_for_one_fusion_and_those_that_want_it(name: str, gone: set[str]) -> None:
    graphs = [build_step(shipped(f"passes.{name}=false", ranks=ranks), "verify") for ranks in (1, 2)]
    assert {op.name() for g in graphs for op in g.ops if isinstance(op, FUSED_OPS)} == set(FUSIONS) - gone


@pytest.mark.parametrize(("name", "ranks"), [("kimi_tiny", 1), ("kimi_tiny", 2), ("kimi_k26", 8)])
def test_groups_and_norms_of_every_layer(name: str, ranks: int) -> None:
    """Query and key latents of a layer, gate and up of a dense one; in the drafter q, k, v and gate, up; and when rows are
    committed, the keys and values of all its layers."""
    model = shipped(name=name, ranks=ranks)
    target, drafter = LAYERS[name]
    sizes = {
        step: sorted(len(op.ys) for op in build_step(model, step).ops if isinstance(op, LinearGroup))
        for step in steps_of(model)
    }
    assert sizes["verify"] == [2] * (target + 1)
    assert sizes["draft"] == [2] * drafter + [3] * drafter
    assert sizes["commit"] == [2 * drafter]
    assert sizes["prefill"] == [2] * (target + 1) + [2 * drafter]
    for step in ("verify", "prefill"):
        ops = build_step(model, step).ops  # type: ignore[arg-type]
        assert sum(isinstance(op, MlaNorms) for op in ops) == target
        assert not any(isinstance(op, LatentWrite) for op in ops)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_step_reads_and_writes_stays(ranks: int) -> None:
    fused, plain = shipped(ranks=ranks), shipped(*OFF, ranks=ranks)
    for step in steps_of(fused):
        for a, b in zip(build_ranks(fused, step), build_ranks(plain, step), strict=True):
            assert (a.inputs, a.outputs, a.weights(), a.caches()) == (b.inputs, b.outputs, b.weights(), b.caches())


def test_a_fused_addition_still_adds_what_the_ranks_summed() -> None:
    graph = build_step(shipped("passes.all_reduce_add_rms_norm=false", ranks=2), "verify")
    summed = {op.y.name for op in graph.ops if isinstance(op, AllReduce)}
    assert {op.b.name for op in graph.ops if isinstance(op, AddRmsNorm)} == summed and len(summed) == 16


@pytest.mark.parametrize(("name", "ranks"), [("kimi_tiny", 2), ("kimi_k26", 8)])
def test_every_sum_over_ranks_takes_in_what_follows_it(name: str, ranks: int) -> None:
    """But the last of a prompt and of a draft, behind which rows are selected."""
    target, drafter = LAYERS[name]
    wanted = {
        "prefill": (2 * target - 1, 1),
        "draft": (2 * drafter - 1, 1),
        "verify": (2 * target, 0),
        "commit": (0, 0),
    }
    model = shipped(name=name, ranks=ranks)
    for step in steps_of(model):
        ops = build_step(model, step).ops
        found = tuple(sum(type(op) is kind for op in ops) for kind in (AllReduceAddRmsNorm, AllReduce))
        assert found == wanted[step] and not any(isinstance(op, AddRmsNorm) for op in ops)


def test_cost_is_that_of_the_parts_without_what_passes_between_them() -> None:
    for rows in (1, 8, 64):
        at = Load(rows, 100)
        fused, plain = (build_step(m, "verify") for m in (shipped(*NO_GROUPS), shipped(*OFF)))
        a, b = fused.cost(at), plain.cost(at)
        sums, latents = counts(fused)
        row, latent = 2 * 256 * rows, 2 * 160 * rows  # bytes of a sum and of a cache row
        assert (b.weights, b.flops) == (a.weights, a.flops)
        assert (b.read - a.read, b.write - a.write) == (sums * row + latents * latent, latents * latent)


# Where a fusion may be, and where not.


def step_of(ops: Sequence[Op], *outputs: Tensor) -> StepGraph:
    written = {t.name for op in ops for t in op.writes()}
    inputs = {t.name: t for op in ops for t in op.reads() if t.name not in written}
    graph = StepGraph("verify", tuple(ops), inputs, {t.name: t for t in outputs}, 8, tree=True, decode=True)
    verify(graph, "test")
    return graph


def named(op: Op, **names: str) -> Op:
    """The op with operands renamed, by field."""
    return replace(op, **{field: replace(getattr(op, field), name=name) for field, name in names.items()})


def addition(width: tuple[int, ...] = (16,)) -> Op:
    return named(make(Add, a=tensor(8, *width), b=tensor(8, *width)), y="s")


def norm(y: str, x: str = "s", width: tuple[int, ...] = (16,)) -> Op:
    return named(make(RmsNorm, x=tensor(8, *width), weight=weight(width[-1]), eps=1e-5), x=x, weight=f"{y}.weight", y=y)


def test_other_readers_of_a_sum_keep_it() -> None:
    tap = named(make(ConcatTaps, taps=(tensor(8, 16),)), y="t")
    tap = replace(tap, taps=(addition().writes()[0],))
    again = named(make(Add, a=tensor(8, 16), b=tensor(8, 16)), a="s", b="h", y="s2")
    graph = step_of(
        [addition(), tap, norm("h"), again, norm("k")], *addition().writes(), *tap.writes(), *again.writes()
    )
    fused = fuse_add_rms_norm(graph)
    verify(fused, "add_rms_norm")
    assert [op.name() for op in fused.ops] == ["add_rms_norm", "concat_taps", "add", "rms_norm"]
    assert fused.ops[0].writes() == [*addition().writes(), *norm("h").writes()], (
        "the first norm, at the addition's place"
    )
    assert fused.ops[3] == norm("k") and fused.outputs == graph.outputs


@pytest.mark.parametrize(
    "ops",
    [
        [addition(), norm("h", x="other")],
        [addition((2, 16)), norm("h", width=(2, 16))],
        [addition()],
        [norm("h")],
    ],
    ids=["another tensor's norm", "a norm by heads", "no norm", "no addition"],
)
def test_no_fused_norm(ops: list[Op]) -> None:
    graph = step_of(ops)
    assert fuse_add_rms_norm(graph) == graph


def reduced_addition(residual: str = "a") -> list[Op]:
    """x summed over ranks to t, s = t + residual or residual + t with its norm h."""
    total = named(make(AllReduce, x=tensor(8, 16), ranks=2), y="t")
    terms = {"a": "a", "b": "t"} if residual == "a" else {"a": "t", "b": "b"}
    made: dict[str, Any] = {"a": tensor(8, 16), "b": tensor(8, 16), "weight": weight(16), "eps": 1e-5}
    return [total, named(make(AddRmsNorm, **made), **terms, sum="s", y="h")]


@pytest.mark.parametrize("residual", ["a", "b"])
def test_a_reduced_addition(residual: str) -> None:
    reduction, add = reduced_addition(residual)
    fused = fuse_all_reduce(step_of([reduction, add], *add.writes()))
    verify(fused, "all_reduce_add_rms_norm")
    (op,) = fused.ops
    assert isinstance(op, AllReduceAddRmsNorm) and op.reads() == [*reduction.reads(), getattr(add, residual)]
    assert op.writes() == add.writes() and op.ranks == 2


@pytest.mark.parametrize("outputs", [["t"], []], ids=["an output", "another reader"])
def test_no_reduced_addition(outputs: list[str]) -> None:
    reduction, add = reduced_addition()
    other = norm("k", x="t") if not outputs else norm("k", x="h")
    graph = step_of([reduction, add, other], *(reduction.writes() if outputs else ()))
    assert fuse_all_reduce(graph) == graph


def row() -> Op:
    made: dict[str, Any] = {"x": tensor(8, 24), "weight": weight(16), "rope": Rope("r", 8, 1e4, "half"), "eps": 1e-6}
    return named(make(MlaLatent, **made), y="row")


def write(name: str = "cache") -> Op:
    made = named(make(CacheWrite, x=tensor(8, 24), cache=cache(24)), x="row")
    return replace(made, cache=replace(made.caches()[0], name=name))  # type: ignore[call-arg]


def test_a_row_that_only_a_cache_wants() -> None:
    fused = fuse_latent_write(step_of([row(), norm("h", x="other"), write()]))
    verify(fused, "latent_write")
    assert [op.name() for op in fused.ops] == ["rms_norm", "latent_write"] and fused.ops[1].caches() == write().caches()


@pytest.mark.parametrize(
    ("ops", "outputs"),
    [
        ([row(), write(), norm("h", x="row", width=(24,))], []),
        ([row(), write()], row().writes()),
        ([row(), write(), write("second")], []),
        ([row(), norm("h", x="row", width=(24,))], []),
        ([write()], []),
    ],
    ids=["another reader", "an output", "two caches", "no cache", "no latent row"],
)
def test_no_fused_write(ops: list[Op], outputs: list[Tensor]) -> None:
    graph = step_of(ops, *outputs)
    assert fuse_latent_write(graph) == graph


def linear(y: str, x: str = "h", dtype: str = "bf16", split: int | None = None) -> Op:
    given: dict[str, Any] = {"x": tensor(8, 16), "weight": weight(8, 16, split=split), "dtype": dtype}
    made = make(Linear, **given) if split != 1 else make(Linear, **given | {"x": replace(tensor(8, 16), split=1)})
    return named(made, x=x, weight=f"{y}.weight", y=y)


def test_linears_of_the_same_rows_meet_at_the_first() -> None:
    graph = step_of([norm("h", x="in"), linear("a"), linear("o", x="a8"), linear("b"), linear("c", dtype="fp32")])
    fused = group_linears(graph)
    verify(fused, "linear_group")
    assert [op.name() for op in fused.ops] == ["rms_norm", "linear_group", "linear", "linear"]
    assert [t.name for t in fused.ops[1].writes()] == ["a", "b"]
    assert [w.name for w in fused.ops[1].weights()] == ["a.weight", "b.weight"]


@pytest.mark.parametrize(
    "ops",
    [
        [linear("a"), linear("b", x="other")],
        [linear("a"), linear("b", dtype="fp32")],
        [linear("a", split=1), linear("b", split=1)],
    ],
    ids=["other rows", "another type", "sums of ranks"],
)
def test_no_group(ops: list[Op]) -> None:
    graph = step_of(ops)
    assert group_linears(graph) == graph


def both_norms(*between: Op) -> StepGraph:
    made = make(
        LatentWrite, x=tensor(8, 24), weight=weight(16), cache=cache(24), rope=Rope("r", 8, 1e4, "half"), eps=1e-6
    )
    stored = replace(named(made, x="kva"), cache=write().caches()[0])  # type: ignore[call-arg]
    source = replace(linear("kva"), y=replace(tensor(8, 24), name="kva"), weight=weight(24, 16))  # type: ignore[call-arg]
    return step_of([source, norm("h2", x="q"), *between, stored])


def test_the_cache_row_joins_the_norm_before_it() -> None:
    fused = fuse_mla_norms(both_norms(linear("a", x="h2")))
    verify(fused, "mla_norms")
    assert [op.name() for op in fused.ops] == ["linear", "mla_norms", "linear"]


def test_a_cache_row_does_not_pass_another_write_of_its_cache() -> None:
    graph = both_norms(write())
    assert fuse_mla_norms(graph) == graph


def test_a_cache_row_does_not_pass_its_own_input() -> None:
    late = both_norms()
    graph = replace(late, ops=(late.ops[1], late.ops[0], late.ops[2]))
    assert fuse_mla_norms(graph) == graph


# Bits.


def decoder(precision: Precision, *settings: str, ranks: int | None = None) -> Decoder:
    m = shipped(*settings, ranks=ranks)
    return cpu_decoder(m, folders(m, None, None), precision=precision)


@pytest.mark.parametrize(("precision", "ranks"), [(Precision.FP32, 1), (Precision.BF16, 1), (Precision.FP32, 2)])
def test_fused_steps_have_the_bits_of_unfused_ones(precision: Precision, ranks: int) -> None:
    golden, seen = GOLDENS[4], []
    for settings in ((), OFF):
        d = decoder(precision, *settings, ranks=ranks)
        steps = {step: watch(d, step) for step in d.steps}
        made = decode(d, golden["prompt_ids"], 8, Sampling())
        runs = [(step, run[1]) for step, watched in steps.items() for run in watched.runs]
        seen.append((made, runs, d.caches))
    (made, runs, caches), (want, plain, stored) = seen
    assert made == want and len(runs) == len(plain) > 3
    if precision is Precision.FP32:
        assert made[0] == golden["greedy_ids"][:8]
        assert made[1] == golden["accept"]["tree15"]["lengths"][: len(made[1])]
    for (step, outputs), (_, wanted) in zip(runs, plain, strict=True):
        for name, value in wanted.items():
            assert outputs[name].tobytes() == value.tobytes(), f"{step}.{name}"
    for a, b in zip(caches, stored, strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(a.scratch, b.scratch)  # type: ignore[attr-defined]
