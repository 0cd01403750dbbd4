"""Linear: any shape and number of rows, sums whose order depends on the weight alone, generated and prompt rows.

Tolerance: kernel and reference sum the same exact products in fp32 in different orders, so sums of standard deviation 1
differ by some 1e-6 (`atol`); that moves few of them over a bf16 rounding boundary (`share`), by one bf16 step.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import Linear
from ddtree.graph.rows import RowTable
from ddtree.templates.product import RING, Product, launch
from ddtree.templates.target import TARGETS
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
    reference,
    rendered,
    tensor,
    tree_rows,
    weight,
)

ATOL = 4e-6


def linear(out: int, inner: int, rows: int = 64, *, dtype: str = "bf16", domain: str = "rows") -> Op:
    return make(Linear, x=tensor(rows, inner, domain=domain), weight=weight(out, inner), dtype=dtype)


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate, **options) -> None:
    inputs = random_inputs(op, rows, rng)
    got, want = run(op, inputs, rows, **options)["y"], reference(op, inputs, rows)["y"]
    if op.dtype == "fp32":
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=ATOL)
    else:
        assert_close(got, want, atol=ATOL, share=0.01)


def tile_of(op: Op, tree: bool):
    (kernel,) = rendered(op, tree=tree)
    return kernel.tile.constants


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, tree: bool, rng: np.random.Generator) -> None:
    check(linear(128, 256), decode_rows([3] * rows), rng, tree=tree)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize(
    ("out", "inner"),
    [
        (8, 8),
        (24, 40),
        (40, 200),
        (136, 776),
        (256, 128),
        (256, 768),
        (96, 1536),
        (2048, 32),
        (32, 2304),
        (32, 6 * 256),
    ],
)
def test_any_shape(out: int, inner: int, tree: bool, rng: np.random.Generator) -> None:
    """Ragged ends of both axes, and the shapes of kimi-tiny and parts of larger ones."""
    check(linear(out, inner, 16), decode_rows([3] * 13), rng, tree=tree)


@pytest.mark.parametrize("rows", [1, 20, 64])
def test_float_results_of_a_sum_over_several_blocks(rows: int, rng: np.random.Generator) -> None:
    op = linear(72, 7168, dtype="fp32")
    assert tile_of(op, tree=True)["split"] == 16
    check(op, decode_rows([3] * rows), rng)


def test_two_slices_in_one_warp_and_two_tiles_in_one_block(rng: np.random.Generator) -> None:
    op = linear(6024, 2048, 24)
    assert (tile_of(op, tree=True)["sequential"], tile_of(op, tree=True)["m_tiles"]) == (2, 2)
    check(op, decode_rows([3] * 9), rng)


def test_square_tiles_of_prompt_rows(rng: np.random.Generator) -> None:
    op = linear(376, 136, 4096)
    assert (tile_of(op, tree=False)["m_tiles"], tile_of(op, tree=False)["n_tiles"]) == (4, 8)
    check(op, prompt_rows([40, 0, 31]), rng)


def test_rows_of_other_domains(rng: np.random.Generator) -> None:
    check(linear(32, 64, 8, domain="wanted"), prompt_rows([5, 9, 1]), rng)
    check(linear(32, 64, 8, domain="sequences"), prompt_rows([5, 9, 1]), rng)


def test_a_result_of_several_axes(rng: np.random.Generator) -> None:
    op = make(Linear, x=tensor(8, 2, 32), weight=weight(48, 64), y=tensor(8, 3, 16))
    check(op, decode_rows([3] * 5), rng)


@pytest.mark.parametrize("shape", [(64, 256), (72, 7168)])
def test_no_rows(shape: tuple[int, int], rng: np.random.Generator) -> None:
    op, rows = linear(*shape), tree_rows([5], [0])
    inputs = random_inputs(op, rows, rng)
    for tree in (True, False):
        assert emulate(op, inputs, rows, tree=tree)["y"].shape == (0, shape[0])


def check_launches(op: Op, steps: list[tuple[int, int]], rng: np.random.Generator, run=emulate) -> set[int]:
    """Each generated row has the same fp32 sums in steps of all (capacities, live rows), on every target, and where the
    weight's first 16 rows are a weight of their own, which more blocks share. Returns over how many blocks sums went."""
    inputs = random_inputs(op, decode_rows([3] * max(live for _, live in steps)), rng)
    whole = run(op, inputs, decode_rows([3] * len(inputs["x"])))["y"]
    splits = set()
    for capacity, live in steps:
        for target in TARGETS:
            for out in (op.weight.shape[0], 16):
                step = linear(out, op.weight.shape[1], capacity, dtype="fp32")
                few = {"x": inputs["x"][:live], "weight": inputs["weight"][:out]}
                made = run(step, few, decode_rows([3] * live), target=target)["y"]
                assert_same_bits(made, whole[:live, :out], f"{out} outputs at capacity {capacity} on {target}")
                splits.add(rendered(step, tree=True, target=target)[0].tile.constants["split"])
    return splits


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
def test_a_row_does_not_depend_on_its_company(tree: bool, rng: np.random.Generator) -> None:
    op, rows = linear(40, 776, dtype="fp32"), decode_rows(list(range(64)))
    check_row_invariance(op, random_inputs(op, rows, rng), rows, tree=tree)


def test_a_row_does_not_depend_on_the_launch(rng: np.random.Generator) -> None:
    large, small = linear(576, 2048, dtype="fp32"), linear(24, 504, dtype="fp32")
    assert check_launches(large, [(64, 1), (33, 9), (16, 16), (8, 3), (4, 4), (1, 1)], rng) == {1, 2, 16}
    assert check_launches(small, [(64, 33), (33, 33), (16, 9), (8, 8), (4, 2), (1, 1)], rng) == {4}


def test_a_row_does_not_depend_on_the_depth_of_the_rings(rng: np.random.Generator) -> None:
    op, rows = linear(576, 2048, dtype="fp32"), decode_rows([3] * 12)
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(emulate(op, inputs, rows, tuning={"stages": 1})["y"], emulate(op, inputs, rows)["y"])


def test_schedules_and_races(rng: np.random.Generator) -> None:
    op, rows = linear(24, 504, 16), decode_rows([3] * 11)
    assert tile_of(op, True)["split"] == 4
    check_schedules(op, random_inputs(op, rows, rng), rows)
    check_schedules(op, random_inputs(op, rows, rng), rows, tree=False)


WEIGHTS = [  # Kimi K2.6 and its drafter: out, inner, and which of them tensor parallelism divides
    (1536, 7168, None), (576, 7168, None), (64 * 192, 1536, 0), (7168, 64 * 128, 1), (18432, 7168, 0), (7168, 18432, 1),
    (384, 7168, None), (163840, 7168, 0), (7168, 6 * 7168, None), (8192, 7168, 0), (1024, 7168, 0),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_launches_of_large_models(target) -> None:
    """Shared memory within the limit, at least two steps in flight, no weight padded, the same sum in every launch."""
    for out, inner, split in WEIGHTS:
        for ranks in (1, 2, 4, 8):
            out_, inner_ = out // (ranks if split == 0 else 1), inner // (ranks if split == 1 else 1)
            product = Product(out_, inner_, x_stride=inner_, y_stride=out_)
            assert product.steps * 32 == inner_ and product.slices >= 4
            for rows in (1, 8, 9, 16, 24, 33, 64):
                made = launch(product, tensor(rows, inner_), target, tree=True, tuning={}, may_split=True)
                assert made.smem <= RING and made.stages >= 2 and made.slices == product.slices
                assert made.warps * made.sequential * made.split == made.slices and made.sequential <= 2
            prompt = [launch(product, tensor(n, inner_), target, tree=False, tuning={}) for n in (1, 16, 256, 4096)]
            assert all(made.smem <= RING and made.stages >= 2 for made in prompt)
            assert len({made.slices for made in prompt}) == 1


def test_what_the_kernel_refuses() -> None:
    with pytest.raises(OpError, match="multiple of 8"):
        rendered(linear(12, 64), tree=True)
    with pytest.raises(OpError, match="multiple of 8"):
        rendered(linear(16, 60), tree=True)
    with pytest.raises(OpError, match="source"):
        rendered(linear(16, 64, domain="source"), tree=True)
    with pytest.raises(OpError, match="multiplies bf16"):
        rendered(dataclasses.replace(linear(16, 64), weight=weight(16, 64, dtype="fp32")), tree=True)
    with pytest.raises(OpError, match="lower `stages`"):
        launch(Product(7168, 7168, 7168, 7168), tensor(64, 7168), TARGETS["sm_90a"], tree=True, tuning={"stages": 8})


def catches(run) -> None:
    rng = np.random.default_rng(0)
    check(linear(24, 40, 13), decode_rows([3] * 13), rng, run)  # both axes of W end inside a tile, x inside eight rows
    check(linear(24, 504, 16), decode_rows([3] * 11), rng, run, mode="check")  # a sum over four blocks
    check(linear(24, 504, 72), prompt_rows([66]), rng, run)  # over four warps; a second group of rows
    check(linear(360, 40, 1024), prompt_rows([3]), rng, run)  # four tiles a block, the last block has three
    check(linear(6024, 2048, 24), decode_rows([3] * 2), rng, run)  # two slices a warp
    check_launches(linear(576, 2048, 4, dtype="fp32"), [(1, 1), (16, 2)], rng, run)  # sums over 1, 2 and 16 blocks
