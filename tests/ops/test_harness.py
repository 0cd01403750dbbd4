"""The harness sees what a kernel must not do. Each case is one wrong kernel in the place of `add`."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.ops import Add
from ddtree.templates.kernel import Arg, Kernel, Tile, Workspace
from tests.emulator import KernelError
from tests.ops import harness
from tests.ops.harness import (
    assert_same_bits,
    cache,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_cache,
    random_inputs,
    reference,
    take,
    tensor,
    tree_rows,
)

WIDTH, CAPACITY, LIVE = 8, 4, 3
SUM = "if (row < rows->count) y[at] = to_bf16(to_float(a[at]) + to_float(b[at]));"
SOURCE = """
#include "ddtree/rows.cuh"
using namespace ddtree;
KERNEL(8) sum(bf16* a, const bf16* b, const Rows* rows, bf16* y, int* count) {
    const int row = blockIdx.x, at = row * 8 + threadIdx.x;
    BODY
}
"""


def run(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    op, rows = make(Add, a=tensor(CAPACITY, WIDTH), b=tensor(CAPACITY, WIDTH)), decode_rows([3] * LIVE)
    inputs = random_inputs(op, rows, np.random.default_rng(0))
    args = (Arg("tensor", "a"), Arg("tensor", "b"), Arg("rows"), Arg("tensor", "y"), Arg("workspace", "count"))
    tile = Tile("sum", "", {}, args, (CAPACITY, 1, 1), WIDTH, workspace=(Workspace("count", 4),))
    monkeypatch.setattr(harness, "render", lambda *_, **__: [Kernel(tile, op, SOURCE.replace("BODY", body))])
    assert_same_bits(emulate(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


def test_a_right_kernel_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, SUM)


def test_a_workspace_may_keep_what_no_launch_relies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, SUM + "count[0] = row;")


@pytest.mark.parametrize(
    ("body", "report"),
    [
        (SUM.replace("row < rows->count", "row < rows->count - 1"), "differ"),
        (SUM.replace("row < rows->count", "true"), "y was written past its 3 live rows"),
        (SUM + "if (row == 0) a[at] = b[at];", "input a was written"),
        (SUM + "if (row == 0 && count[0]++ >= 8) y[at] = b[at];", "second launch on the workspaces"),
    ],
)
def test_a_wrong_kernel_is_seen(monkeypatch: pytest.MonkeyPatch, body: str, report: str) -> None:
    with pytest.raises(AssertionError, match=report):
        run(monkeypatch, body)


def test_a_read_past_the_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError):
        run(monkeypatch, SUM + "if (b[at + 8].bits == 1) y[at] = b[at];")


def test_a_tree_has_its_parents_before_it() -> None:
    rows = tree_rows([70, 0, 3], [5, 0, 8], free_slots=True)
    assert [len(rows.of(s)) for s in range(3)] == [5, 0, 8]
    for r in range(len(rows)):
        up = rows.parent[r]
        if up < 0:
            assert rows.position[r] == rows.committed[rows.sequence[r]]
        else:
            assert up < r and rows.sequence[up] == rows.sequence[r] and rows.position[up] == rows.position[r] - 1
    assert all(len(set(rows.node[rows.of(s)])) == len(rows.of(s)) for s in range(3))


def test_taking_rows_keeps_paths() -> None:
    rows = tree_rows([70], [6], chain=True)
    back = take(rows, [1, 0])
    assert back.parent.tolist() == [1, -1] and back.path(0) == [1, 0]
    with pytest.raises(ValueError, match="lost its parent"):
        take(rows, [2, 0])


def test_a_random_cache_holds_the_committed_positions_and_no_more() -> None:
    rows = prompt_rows([5, 70], start=[65, 0], seed=3)
    made = random_cache(cache(8), rows, np.random.default_rng(0))
    assert np.isfinite(made.rows).sum() == 65 * 8
    assert np.isfinite(made.committed(rows, 0, 0)).all()
