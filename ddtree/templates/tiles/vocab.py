"""How kernels divide a row of logits among blocks: by token id, so that the split depends on the vocabulary alone."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.tensor import DType, Tensor
from ddtree.templates.tiles.rowwise import ceil_div

THREADS = 256
PER_THREAD = 16  # logits
MOST_ROWS = 64  # rows of blocks in a grid; blocks stride over further rows
MOST_TOKENS = 1 << 23  # keeps sums of 40-bit probability masses below 2**63


def require_logits(logits: Tensor) -> None:
    """Raise OpError unless the kernels can walk rows of these logits."""
    if logits.dtype is not DType.FP32 or len(logits.shape) != 2 or not 1 <= logits.shape[1] <= MOST_TOKENS:
        raise OpError(
            f"{logits.name} must be fp32 [rows, 1..{MOST_TOKENS} tokens], found {logits.dtype} {list(logits.shape)}"
        )


def chunks(logits: Tensor) -> int:
    """Blocks that share a row."""
    return ceil_div(logits.shape[1], THREADS * PER_THREAD)


def row_blocks(logits: Tensor) -> int:
    """Rows that a grid covers at once."""
    return min(logits.shape[0], MOST_ROWS)
