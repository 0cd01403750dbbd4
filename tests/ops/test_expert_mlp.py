"""ExpertMlp: the emulated kernels against the reference for all kinds of routing, and a row against itself in company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops.expert_mlp import ExpertMlp
from ddtree.graph.tensor import DType
from ddtree.runtime.weights.int4 import Int4, pack
from tests.ops.harness import (
    ROW_COUNTS,
    assert_close,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    random_int4,
    reference,
    rendered,
    tensor,
    weight,
    with_rows,
)

TINY = {"hidden": 256, "experts": 16, "top_k": 4, "width": 128, "shared": 128}
PRODUCTION = {"hidden": 1792, "experts": 12, "top_k": 8, "width": 256, "shared": 256}  # a quarter of the rows' width
RAGGED = {"hidden": 352, "experts": 9, "top_k": 3, "width": 96, "shared": 32}  # half panels on every axis
# y is a sum of about ten products of size 1 in fp32. An activation that rounds the other way, since fp32 sums have another
# order, moves it by a bf16 step of the activation (2**-8) times a weight (0.1); hardly ever do several meet.
ATOL = 2e-3


def expert_mlp(
    *,
    hidden: int,
    experts: int,
    top_k: int,
    width: int,
    shared: int = 0,
    rows: int = 64,
    dtype: str = "int4",
    group: int = 32,
) -> Op:
    wide = weight(width, hidden, dtype=dtype, count=experts, group=group)
    fields = {"gate": wide, "up": wide, "down": weight(hidden, width, dtype=dtype, count=experts, group=group)}
    if shared:
        fields |= {
            "shared_gate": weight(shared, hidden),
            "shared_up": weight(shared, hidden),
            "shared_down": weight(hidden, shared),
        }
    routing = {"ids": tensor(rows, top_k, dtype="int32"), "gates": tensor(rows, top_k, dtype="fp32")}
    return make(ExpertMlp, x=tensor(rows, hidden), **routing, **fields)


def choices(live: int, op: Op, rng: np.random.Generator, among: int | None = None) -> np.ndarray:
    """int32 [live, top_k]: distinct random experts of the first `among`."""
    experts = among or op.gate.shape[0]
    return np.argsort(rng.random((live, experts)), axis=1)[:, : op.ids.shape[1]].astype(np.int32)


def inputs(op: Op, live: int, seed: int, **given: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    given.setdefault("ids", choices(live, op, rng))
    given.setdefault("gates", rng.random((live, op.ids.shape[1])).astype(np.float32))
    return random_inputs(op, decode_rows([5] * live), rng, **given)


def check(op: Op, given: dict[str, Any], run: Callable[..., Any] = emulate, **options: Any) -> np.ndarray:
    rows = decode_rows([5] * len(given["x"]))
    got = run(op, given, rows, **options)["y"]
    assert_close(got, reference(op, given, rows)["y"], atol=ATOL)
    return got


@pytest.mark.parametrize("live", ROW_COUNTS)
def test_tiny_shape(live: int) -> None:
    op = expert_mlp(**TINY)
    check(op, inputs(op, live, seed=live))


@pytest.mark.parametrize("live", [1, 9, 64])
def test_reduced_production_shape(live: int) -> None:
    op = expert_mlp(**PRODUCTION)
    check(op, inputs(op, live, seed=live))


@pytest.mark.parametrize("live", [1, 33])
@pytest.mark.parametrize("width", [32, 64, 96])
def test_widths_of_other_ranks(width: int, live: int) -> None:
    """kimi-tiny on two and four ranks, and a width of one and a half panels."""
    op = expert_mlp(**{**TINY, "width": width, "shared": width})
    check(op, inputs(op, live, seed=width))


@pytest.mark.parametrize("dtype", ["int4", "bf16"])
def test_half_panels_and_uneven_shares_of_k(dtype: str) -> None:
    op = expert_mlp(**RAGGED, dtype=dtype)
    check(op, inputs(op, 17, seed=1))


@pytest.mark.parametrize("dtype", ["int4", "bf16"])
def test_without_a_shared_expert(dtype: str) -> None:
    op = expert_mlp(**{**TINY, "shared": 0}, dtype=dtype)
    check(op, inputs(op, 9, seed=2))


@pytest.mark.parametrize("live", [1, 8, 9, 64])
def test_all_rows_choose_the_same_experts(live: int) -> None:
    """One tile of up to eight column tiles; twelve experts have no row."""
    op = expert_mlp(**TINY)
    ids = np.tile(np.array([11, 2, 15, 7], np.int32), (live, 1))
    check(op, inputs(op, live, seed=3, ids=ids))


def test_one_expert_for_each_row_among_384() -> None:
    op = expert_mlp(hidden=64, experts=384, top_k=1, width=32, shared=32)
    ids = np.array([[383], [0], [255], [256], [383], [257], [31], [32]], np.int32)
    check(op, inputs(op, 8, seed=4, ids=ids))


@pytest.mark.parametrize(("count", "among"), [(65, 16), (150, 4), (130, 5)])
def test_prompt_rows(count: int, among: int) -> None:
    """Experts with more rows than a tile has, and a shared expert of several tiles."""
    op, rows, rng = expert_mlp(**TINY, rows=150), prompt_rows([count]), np.random.default_rng(count)
    given = random_inputs(
        op, rows, rng, ids=choices(count, op, rng, among), gates=rng.random((count, 4)).astype(np.float32)
    )  # fmt: skip
    assert_close(emulate(op, given, rows)["y"], reference(op, given, rows)["y"], atol=ATOL)
    check_row_invariance(op, given, rows, counts=(1, 64, count - 1))


def test_lowest_nibbles_and_extreme_scales() -> None:
    """Weights of -8 everywhere; scales from subnormal to huge, whose effect on y is as large or small."""
    op = expert_mlp(**{**TINY, "shared": 0, "experts": 4, "top_k": 1})
    given = inputs(op, 4, seed=5, ids=np.arange(4, dtype=np.int32)[:, None], gates=np.ones((4, 1), np.float32))
    down = random_int4(np.random.default_rng(6), op.down.shape)
    scale = down.scale.astype(np.float32) * np.array([1, 2.0**100, 2.0**-126, 0], np.float32)[:, None, None]
    given["down"] = Int4(down.packed, scale.astype(DType.BF16.numpy), 32)
    given["gate"] = Int4(pack(np.full(op.gate.shape, -8)), given["gate"].scale, 32)
    given["x"] = -abs(given["x"]) * 0.1
    rows = decode_rows([5] * 4)
    got, want = emulate(op, given, rows)["y"], reference(op, given, rows)["y"]
    for row, size in enumerate((1, 2.0**100, 2.0**-126)):
        assert_close(got[row], want[row], atol=ATOL * size * 50)  # weights of standard deviation 1 instead of 0.1
    assert not got[3].any()


def test_a_nan_row_does_not_poison_others() -> None:
    op = expert_mlp(**TINY)
    ids = np.tile(np.array([1, 2, 3, 4], np.int32), (9, 1))
    clean = inputs(op, 9, seed=7, ids=ids)
    dirty = clean | {"x": clean["x"].copy()}
    dirty["x"][4, 77] = np.nan
    rows = decode_rows([5] * 9)
    got, before = emulate(op, dirty, rows)["y"], emulate(op, clean, rows)["y"]
    assert np.isnan(got[4]).all()
    assert_same_bits(np.delete(got, 4, axis=0), np.delete(before, 4, axis=0))


def test_no_live_row_writes_nothing() -> None:
    op = expert_mlp(**TINY)
    rows = decode_rows([5])
    rows.sequence = rows.sequence[:0]
    given = {k: v[:0] if k in ("x", "ids", "gates") else v for k, v in inputs(op, 1, seed=8).items()}
    assert emulate(op, given, rows)["y"].shape == (0, 256)


@pytest.mark.parametrize("shape", [TINY, RAGGED], ids=["tiny", "ragged"])
def test_a_row_does_not_depend_on_its_company(shape: dict[str, int]) -> None:
    op = expert_mlp(**shape)
    check_row_invariance(op, inputs(op, 64, seed=9), decode_rows([5] * 64))


def test_an_expert_with_many_rows_treats_each_alike() -> None:
    op = expert_mlp(**TINY)
    given = inputs(op, 64, seed=10, ids=np.tile(np.array([3, 1, 0, 2], np.int32), (64, 1)))
    check_row_invariance(op, given, decode_rows([5] * 64), counts=(1, 9, 33))


def cancelling(op: Op, live: int, seed: int) -> dict[str, Any]:
    """Inputs whose second and third 64 columns of x give sums of some thousands that cancel: fp32 sums in another order differ
    in the tenth bit, which an activation shows after its rounding too. All rows choose the same experts."""
    given = inputs(op, live, seed, ids=np.tile(np.arange(op.ids.shape[1], dtype=np.int32), (live, 1)))
    given["x"][:, 64:128] *= 4096
    given["x"][:, 128:192] = -given["x"][:, 64:128]
    for name in ("gate", "up", "shared_gate", "shared_up"):
        given[name][..., 128:192] = given[name][..., 64:128]
    return given


def kept(op: Op, given: dict[str, Any], run: Callable[..., Any], **options: Any) -> dict[str, np.ndarray]:
    """Results and what the kernels of prompt rows hand on, rows first: y, `part` in fp32, `act` and `shared_act` as pairs of bf16."""
    capacity, live = op.x.shape[0], len(given["x"])
    names = ("part", "act", "shared_act")
    made = run(op, given, decode_rows([5] * live), workspaces=names, tree=False, **options)
    return {"y": made["y"]} | {
        name: made[f"workspace:{name}"].view(np.uint32).reshape(capacity, -1)[:live] for name in names
    }


def check_alone(op: Op, given: dict[str, Any], rows: list[int], run: Callable[..., Any] = emulate) -> None:
    """What is made of each of `rows` in a step of its own has the bits that it has among all."""
    together = kept(op, given, run)
    for row in rows:
        few = {name: value[[row]] if name in ("x", "ids", "gates") else value for name, value in given.items()}
        for name, made in kept(with_rows(op, 1), few, run).items():
            assert_same_bits(made, together[name][[row]], f"{name} of row {row}")


@pytest.mark.parametrize("live", [9, 64])
@pytest.mark.parametrize("dtype", ["int4", "bf16"])
def test_sums_and_activations_do_not_depend_on_company(dtype: str, live: int) -> None:
    op = expert_mlp(**TINY, dtype=dtype)
    given = (
        cancelling(op, live, 15)
        if dtype == "bf16"
        else inputs(op, live, 16, ids=choices(live, op, np.random.default_rng(17), 5))
    )
    check_alone(op, given, [0, 7, live - 1])


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_number_of_blocks_changes_no_bit(blocks: int) -> None:
    op, rows = expert_mlp(**TINY), decode_rows([5] * 33)
    given = inputs(op, 33, seed=11)
    assert_same_bits(emulate(op, given, rows, tuning={"blocks": blocks})["y"], emulate(op, given, rows)["y"])


def test_schedules_and_races() -> None:
    op = expert_mlp(hidden=160, experts=6, top_k=2, width=64, shared=32, rows=16)
    check_schedules(op, inputs(op, 11, seed=12), decode_rows([5] * 11), tuning={"blocks": 3})


def test_generated_rows_take_one_launch_and_other_shapes_four() -> None:
    op = expert_mlp(**TINY)
    assert len(rendered(op, tree=True)) == 1 and len(rendered(with_rows(op, 1024), tree=False)) == 4
    wide = expert_mlp(**{**TINY, "width": 512})  # more activations than a lane's registers hold
    assert [k.source for k in rendered(wide, tree=True)] == [
        k.source for k in rendered(with_rows(wide, 1024), tree=False)
    ]


def test_other_groups_are_refused() -> None:
    with pytest.raises(OpError, match="groups of 32, gate has 64"):
        rendered(expert_mlp(**{**TINY, "shared": 0}, group=64), tree=True)


@pytest.mark.parametrize(
    ("changed", "message"), [({"hidden": 264}, "hidden size .* 264"), ({"shared": 48}, "shared .* 48")]
)
def test_odd_shapes_are_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(OpError, match=f"{message}; use fewer ranks"):
        rendered(expert_mlp(**{**TINY, **changed}, dtype="bf16"), tree=True)


def catches(run: Callable[..., Any]) -> None:
    op = expert_mlp(hidden=160, experts=6, top_k=2, width=96, shared=32, rows=16)
    given = inputs(op, 11, seed=13)
    for options in ({}, {"mode": "check"}):
        check(op, given, run, tuning={"blocks": 3}, **options)
    long, rows, rng = with_rows(op, 80), prompt_rows([80]), np.random.default_rng(14)
    many = random_inputs(long, rows, rng, ids=choices(80, op, rng, 2), gates=np.ones((80, 2), np.float32))
    assert_close(run(long, many, rows)["y"], reference(long, many, rows)["y"], atol=ATOL)
    company = expert_mlp(**{**TINY, "experts": 4}, dtype="bf16", rows=9)
    check_alone(company, cancelling(company, 9, 15), [0, 8], run)
