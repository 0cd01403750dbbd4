"""The numbers of an ExpertMlp op, and what no kernel of it can do."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree.graph.op import OpError
from ddtree.graph.ops.expert_mlp import ExpertMlp
from ddtree.graph.tensor import DType
from ddtree.templates import panels
from ddtree.templates.tiles.rowwise import ceil_div

TILE_ROWS = 64  # rows that share one reading of an expert's weights
MOST_EXPERTS = 4096  # two ints each in shared memory
SLOTS = 2  # of a warp's ring
RING = 9216  # bytes of weights in flight for each warp: 147 KB an SM with two blocks of eight warps


@dataclass(frozen=True)
class Shape:
    """The numbers of an op. shared: width of the shared expert, 0 without one; int4: of the routed experts."""

    rows: int
    hidden: int
    width: int
    shared: int
    experts: int
    top_k: int
    int4: bool

    @property
    def pairs(self) -> int:
        """(row, slot) pairs at full capacity."""
        return self.rows * self.top_k

    @property
    def row_tiles(self) -> int:
        """Most tiles of routed experts: one for every 64 rows of an expert, and a ragged one for each touched expert."""
        return min(self.pairs, self.experts + self.pairs // TILE_ROWS)

    @property
    def shared_tiles(self) -> int:
        """Tiles of the shared expert at full capacity."""
        return ceil_div(self.rows, TILE_ROWS) if self.shared else 0

    @property
    def group(self) -> int:
        """16-row groups of `down` that a warp takes at once: as many as fill a slot of its ring."""
        panel = panels.INT4_BYTES if self.int4 else panels.BF16_BYTES
        fit = max(1, RING // SLOTS // (2 * panel * panels.count(self.width)))
        return next(n for n in range(fit, 0, -1) if self.hidden % (2 * panels.ROWS * n) == 0)


def shape(op: ExpertMlp) -> Shape:
    """The op's numbers. Raises OpError for what the kernels cannot do."""
    experts, width, hidden = op.gate.shape
    shared = op.shared_gate.shape[0] if op.shared_gate else 0
    if {w.dtype for w in (op.gate, op.up, op.down)} not in ({DType.INT4}, {DType.BF16}):
        raise OpError(
            f"gate, up and down must all be int4 or all bf16, found {op.gate.dtype}, {op.up.dtype}, {op.down.dtype}"
        )
    int4 = op.gate.dtype is DType.INT4
    if int4 and {op.gate.group, op.up.group, op.down.group} != {panels.GROUP}:
        raise OpError(f"the kernels know quantisation groups of {panels.GROUP}, {op.gate.name} has {op.gate.group}")
    for name, length in (("hidden size", hidden), ("expert width", width), ("shared expert's width", shared)):
        if length % panels.GROUP:
            raise OpError(f"a rank's {name} must be a multiple of {panels.GROUP}, found {length}; use fewer ranks")
    if experts > MOST_EXPERTS:
        raise OpError(f"the kernels know up to {MOST_EXPERTS} experts, found {experts}")
    return Shape(op.x.shape[0], hidden, width, shared, experts, op.ids.shape[1], int4)
