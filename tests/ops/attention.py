"""What the tests of both attentions share: how far a kernel may be from the reference, and its partial results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ddtree.graph.op import Op
from ddtree.graph.rows import RowTable


def assert_attention(got: np.ndarray, want: np.ndarray) -> None:
    """Rows [rows, heads, width], finite and equal up to 2**-8 of a head's length on average and 2**-7 for each head.

    The kernels round each weight to bf16 before it meets the values, and the result once more: two relative errors of
    at most 2**-9 each. They add up to less than 2**-8 of the sum's length, except where values nearly cancel. A key too
    many or too few among n random ones moves a head by about n**-0.5 of its length, far more in every context tested.
    """
    assert got.shape == want.shape, f"{got.shape} is not {want.shape}"
    assert np.isfinite(got).all(), f"{(~np.isfinite(got)).sum()} of {got.size} values are not finite"
    error = np.linalg.norm(got - want, axis=2) / np.linalg.norm(want, axis=2)
    worst = np.unravel_index(error.argmax(), error.shape)
    assert error.max() <= 2**-7, f"head {worst[1]} of row {worst[0]} off by {error.max():.1e} of its length"
    assert error.mean() <= 2**-8, f"heads off by {error.mean():.1e} of their length on average"


def attend(
    run: Callable[..., Any], op: Op, inputs: dict[str, Any], rows: RowTable, **options: Any
) -> dict[str, np.ndarray]:
    """All that an attention makes of live rows, rows first: `y`, and of attention_merge.cuh `sums` [rows, part, heads, width],
    as the numbers they are or as bits of BF16, and `stats` [rows, part, heads, 2]; 0 for parts that the row does not have."""
    made = run(op, inputs, rows, workspaces=("sums", "stats"), **options)
    capacity, heads, width = op.y.shape
    stats, sums = (made[f"workspace:{name}"] for name in ("stats", "sums"))
    if sums.size < stats.size // 2 * width:
        sums = sums.view(np.uint16)
    found = {"sums": sums.reshape(-1, capacity, heads, width), "stats": stats.reshape(-1, capacity, heads, 2)}
    return {"y": made["y"]} | {name: parts.swapaxes(0, 1)[: len(rows)] for name, parts in found.items()}
