"""Linear: any shape and number of rows, sums whose order depends on the weight alone, generated and prompt rows.

Tolerance: kernel and reference sum the same exact products in fp32 in different orders, so sums of standard deviation 1
differ by some 1e-6 (`atol`); that moves few of them over a bf16 rounding boundary (`share`), by one bf16 step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import Linear
from ddtree.graph.rows import RowTable
from ddtree.templates.product import MANY_ROWS, Launch, Product, fitted, launch
from ddtree.templates.target import SHARED_LIMIT, TARGETS, Target
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
    assert tile_of(op, tree=True)["split"] == 4
    check(op, decode_rows([3] * rows), rng)


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


FORMS = [  # launches of a sum of eight slices: what blocks and warps share, and where x goes
    {"m_tiles": 1, "n_tiles": 1, "warps": 8, "bite": 4},
    {"m_tiles": 2, "n_tiles": 2, "warps": 2, "bite": 2},  # four slices a warp
    {"m_tiles": 3, "n_tiles": 1, "warps": 1, "bite": 1},  # all eight
    {"m_tiles": 2, "n_tiles": 2, "warps": 4, "bite": 1, "x_stages": 2, "stages": 2},
    {"m_tiles": 1, "n_tiles": 2, "team": 3, "warps": 2, "split": 4, "bite": 2, "x_stages": 3},
    {"m_tiles": 2, "n_tiles": 1, "team": 2, "warps": 2, "split": 2, "bite": 1, "x_stages": 4},
    {"m_tiles": 4, "n_tiles": 2, "team": 1, "warps": 1, "split": 8, "bite": 4},
]


@contextmanager
def launched(form: dict[str, int]) -> Iterator[None]:
    """Generated rows are multiplied in that form, whatever the rules say."""

    def chosen(product: Product, rows: int, target: Target, stages: int | None, may_split: bool) -> Launch:
        return fitted(product, rows, **form)  # type: ignore[arg-type]

    with mock.patch("ddtree.templates.product.decode_launch", chosen):
        yield


def check_forms(forms: list[dict[str, int]], rng: np.random.Generator, run=emulate, **options) -> None:
    """The same fp32 sums in every form; nothing stays in the memory in which blocks meet."""
    op, rows = linear(216, 1016, 16, dtype="fp32"), decode_rows([3] * 13)  # both axes end inside a tile
    inputs = random_inputs(op, rows, rng)
    want = reference(op, inputs, rows)["y"]
    first = None
    for form in forms:
        with launched(form):
            spaces = ("partial",) if form.get("split", 1) > 1 else ()
            made = run(op, inputs, rows, workspaces=spaces, **options)
        np.testing.assert_allclose(made["y"], want, rtol=2e-6, atol=ATOL)
        first = made["y"] if first is None else first
        assert_same_bits(made["y"], first, f"in the form {form}")
        for name in spaces:
            assert (made[f"workspace:{name}"].view(np.uint32) == 0xFFFFFFFF).all(), "a share was left"


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_every_form_of_launch_evaluates_the_same_sum(mode: str, rng: np.random.Generator) -> None:
    check_forms(FORMS, rng, mode=mode)


@pytest.mark.parametrize("form", FORMS[3:6])
def test_schedules_and_races_of_every_form(form: dict[str, int], rng: np.random.Generator) -> None:
    op, rows = linear(104, 1016, 16), decode_rows([3] * 11)
    with launched(form):
        check_schedules(op, random_inputs(op, rows, rng), rows)


def check_launches(op: Op, steps: list[tuple[int, int]], rng: np.random.Generator, run=emulate) -> set[int]:
    """Each generated row has the same fp32 sums in steps of all (capacities, live rows), on every target, and where the
    weight's first 16 rows are a weight of their own. Returns over how many blocks sums went."""
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
    steps = [(64, 1), (33, 9), (16, 16), (8, 3), (4, 4), (1, 1)]
    assert check_launches(linear(120, 4096, dtype="fp32"), steps, rng) == {1, 4}
    assert check_launches(linear(24, 504, dtype="fp32"), steps, rng) == {1}


@pytest.mark.parametrize("capacity", [1, 9, 64])
def test_a_head_has_few_slices_and_large_blocks(capacity: int, rng: np.random.Generator) -> None:
    op = linear(MANY_ROWS, 136, capacity, dtype="fp32")
    assert tile_of(op, tree=True)["slices"] == 1 and tile_of(op, tree=True)["team"] > 1
    check(op, decode_rows([3] * min(capacity, 11)), rng)
    assert Product(MANY_ROWS, 7168, 7168, MANY_ROWS).slices == 2


def test_a_row_does_not_depend_on_the_depth_of_the_rings(rng: np.random.Generator) -> None:
    op, rows = linear(576, 2048, dtype="fp32"), decode_rows([3] * 12)
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(emulate(op, inputs, rows, tuning={"stages": 1})["y"], emulate(op, inputs, rows)["y"])


def test_schedules_and_races(rng: np.random.Generator) -> None:
    op, rows = linear(24, 504, 16), decode_rows([3] * 11)
    check_schedules(op, random_inputs(op, rows, rng), rows)
    check_schedules(op, random_inputs(op, rows, rng), rows, tree=False)


WEIGHTS = [  # Kimi K2.6 and its drafter: out, inner, and which of them tensor parallelism divides
    (1536, 7168, None), (576, 7168, None), (64 * 192, 1536, 0), (7168, 64 * 128, 1), (18432, 7168, 0), (7168, 18432, 1),
    (384, 7168, None), (163840, 7168, 0), (7168, 6 * 7168, None), (8192, 7168, 0), (1024, 7168, 0),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_launches_of_large_models(target: Target) -> None:
    """Shared memory within the limit, two copies in flight unless one holds all, no weight padded, the same sum in every
    launch, and blocks that meet are resident together."""
    for out, inner, split in WEIGHTS:
        for ranks in (1, 2, 4, 8):
            out_, inner_ = out // (ranks if split == 0 else 1), inner // (ranks if split == 1 else 1)
            product = Product(out_, inner_, x_stride=inner_, y_stride=out_)
            assert product.steps * 32 == inner_ and product.slices == (2 if out_ >= MANY_ROWS else 8)
            for rows in (1, 8, 9, 16, 24, 33, 64):
                made = launch(product, tensor(rows, inner_), target, tree=True, tuning={}, may_split=True)
                chain = product.steps // made.slices * made.sequential
                assert made.smem <= SHARED_LIMIT and made.slices == product.slices and made.sequential <= 8
                assert made.stages >= 2 or made.bite == chain
                assert made.warps * made.sequential * made.split == made.slices
                assert made.split == 1 or made.grid[0] * made.grid[1] <= target.sms
            prompt = [launch(product, tensor(n, inner_), target, tree=False, tuning={}) for n in (1, 16, 256, 4096)]
            assert all(made.smem <= SHARED_LIMIT and made.stages >= 2 for made in prompt)
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
    check(linear(24, 504, 72), prompt_rows([66]), rng, run)  # over four warps; a second group of rows
    check(linear(360, 40, 1024), prompt_rows([3]), rng, run)  # four tiles a block, the last block has three
    check_forms(FORMS, rng, run)
    check_forms(FORMS[3:5], rng, run, mode="check")
