"""ExpertMlp for generated rows in one launch: what its blocks hand to one another, at shapes that cut the work in every way.

test_expert_mlp.py has the tests that hold for any launches of the op, and those of the launches for prompt rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.templates.target import TARGETS
from ddtree.templates.tiles import expert_mlp as tiles
from tests.ops.harness import (
    SCHEDULES,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    rendered,
    with_rows,
)
from tests.ops.test_expert_mlp import check, choices, expert_mlp, inputs

# Panels of a warp, parts of K of the shared gate_up and of its down, warps: 3, 3, 2, 2; the last part of down is half a bite.
UNEVEN = {"hidden": 384, "experts": 6, "top_k": 2, "width": 64, "shared": 192}
WIDE = {"hidden": 2048, "experts": 10, "top_k": 3, "width": 256, "shared": 64}  # eight warps, two parts, one part
PLAIN = {"hidden": 256, "experts": 40, "top_k": 4, "width": 128}  # two warps of a panel a bite; no shared expert
SPACES = ("act", "part", "sync", "shared_act", "shared_sums")


def spaces(op: Op) -> tuple[str, ...]:
    return SPACES if op.shared_gate else SPACES[:3]  # type: ignore[attr-defined]


def require_restored(op: Op, made: dict[str, Any]) -> None:
    """Every workspace holds what the next launch relies on."""
    for name in spaces(op):
        words = made[f"workspace:{name}"].view(np.uint32)
        assert (words == (0 if name == "sync" else 0xFFFFFFFF)).all(), f"{name} is not as it was found"


def check_restored(op: Op, given: dict[str, Any], run: Callable[..., Any] = emulate, **options: Any) -> None:
    require_restored(op, run(op, given, decode_rows([5] * len(given["x"])), workspaces=spaces(op), **options))


@pytest.mark.parametrize("shape", [UNEVEN, WIDE, PLAIN], ids=["uneven", "wide", "plain"])
@pytest.mark.parametrize(("live", "blocks"), [(1, 5), (9, 3), (33, 2), (64, 7)])
def test_shapes_and_numbers_of_blocks(shape: dict[str, int], live: int, blocks: int) -> None:
    op = expert_mlp(**shape)
    assert len(rendered(op, tree=True)) == 1
    given = inputs(op, live, seed=live)
    check(op, given, tuning={"blocks": blocks})
    check_restored(op, given, tuning={"blocks": blocks})


@pytest.mark.parametrize("shape", [UNEVEN, WIDE], ids=["uneven", "wide"])
def test_a_row_does_not_depend_on_its_company(shape: dict[str, int]) -> None:
    op = expert_mlp(**shape)
    given = inputs(op, 64, seed=1, ids=choices(64, op, np.random.default_rng(2), 4))
    check_row_invariance(op, given, decode_rows([5] * 64), counts=(1, 2, 9, 33), tuning={"blocks": 4})


def test_the_number_of_blocks_changes_no_bit() -> None:
    op, rows = expert_mlp(**UNEVEN), decode_rows([5] * 20)
    given = inputs(op, 20, seed=3)
    results = [emulate(op, given, rows, tuning={"blocks": blocks})["y"] for blocks in (1, 2, 30)]
    for made in results[1:]:
        assert_same_bits(made, results[0])


@pytest.mark.parametrize("live", [1, 11])
def test_schedules_and_races(live: int) -> None:
    op = expert_mlp(**{**UNEVEN, "hidden": 256}, rows=16)
    check_schedules(op, inputs(op, live, seed=4), decode_rows([5] * live), tuning={"blocks": 3})


def test_fewer_live_rows_than_the_step_can_hold() -> None:
    op = expert_mlp(**UNEVEN, rows=64)
    check(op, inputs(op, 3, seed=5), tuning={"blocks": 3})


def test_the_experts_of_row_0_have_more_rows_than_a_tile() -> None:
    """Their first tiles stand in front, the others among those of later experts."""
    op = expert_mlp(**PLAIN)
    ids = choices(64, op, np.random.default_rng(6))
    ids[:20] = [39, 0, 7, 20]
    check(op, inputs(op, 64, seed=6, ids=ids), tuning={"blocks": 3})


@pytest.mark.parametrize("name", TARGETS)
def test_all_blocks_of_the_published_model_are_resident(name: str) -> None:
    """Two on an SM of 227 KB, one on an SM of 100 KB, each with a kilobyte of the system's."""
    op, target = expert_mlp(hidden=7168, experts=384, top_k=8, width=256, shared=256), TARGETS[name]
    (tile,) = tiles.tiles(op, target, tree=True, tuning={})
    resident, memory = (2, 227) if name == "sm_90a" else (1, 100)
    assert tile.coresident and tile.grid == (resident * target.sms, 1, 1)
    assert resident * (tile.smem + 1024) <= memory * 1024


def test_capacities_share_a_kernel() -> None:
    op = expert_mlp(**WIDE)
    assert [k.source for k in rendered(with_rows(op, 7), tree=True)] == [k.source for k in rendered(op, tree=True)]


def cancelling(op: Op, live: int, seed: int) -> dict[str, Any]:
    """Inputs whose second and third 64 columns of x give sums of some thousands that cancel in the shared expert: fp32 sums in
    another order differ in the tenth bit, which an activation shows after its rounding too. Routed experts weigh nothing."""
    given = inputs(op, live, seed, gates=np.zeros((live, op.ids.shape[1]), np.float32))  # type: ignore[attr-defined]
    given["x"][:, 64:128] *= 4096
    given["x"][:, 128:192] = -given["x"][:, 64:128]
    for name in ("shared_gate", "shared_up"):
        given[name][..., 128:192] = given[name][..., 64:128]
    return given


def test_parts_of_k_are_added_in_order() -> None:
    op = expert_mlp(**UNEVEN)
    check_row_invariance(op, cancelling(op, 9, 11), decode_rows([5] * 9), counts=(1, 3), tuning={"blocks": 4})


def catches(run: Callable[..., Any]) -> None:
    """One source, fast and checked."""
    op = expert_mlp(**{**UNEVEN, "experts": 40})
    few = inputs(op, 11, seed=7, ids=choices(11, op, np.random.default_rng(8), 6))
    for schedule in SCHEDULES:
        check(op, few, run, tuning={"blocks": 3}, schedule=schedule)
    check(op, inputs(op, 1, seed=8), run, tuning={"blocks": 30})  # the last ones start with `down`
    check_restored(op, few, run, tuning={"blocks": 3})
    ids = choices(64, op, np.random.default_rng(9), 12)
    ids[:20] = [11, 0]
    check(op, inputs(op, 64, seed=9, ids=ids), run, tuning={"blocks": 3})
    check_row_invariance(op, cancelling(op, 3, 11), decode_rows([5] * 3), counts=(1,), run=run, tuning={"blocks": 3})
    check(op, inputs(op, 5, seed=10), run, tuning={"blocks": 24}, mode="check")
