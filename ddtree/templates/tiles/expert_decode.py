"""The launch of ExpertMlp for generated rows; see include/ddtree/expert_decode.cuh."""

from __future__ import annotations

from ddtree.graph.ops.expert_mlp import ExpertMlp
from ddtree.templates import panels
from ddtree.templates.kernel import Arg, Tile, Workspace
from ddtree.templates.target import SHARED_LIMIT, Target
from ddtree.templates.tiles.expert_shape import RING, SLOTS, Shape
from ddtree.templates.tiles.rowwise import ceil_div, domain, domain_suffix, kernel_name

MOST_ROWS = 64
MOST_WIDTH = 256  # a lane keeps the activations of a column in registers
MOST_SHARED_PANELS = 2  # of K, in a bite
SUMS = 2 * 512  # bytes: a warp's sums, twice
SYNC_BYTES = 3 * 128  # counters, each on a line of its own
BLOCK_BYTES = 1 << 15  # a block for so many bytes of weights


def warps(s: Shape) -> int:
    """Warps that share K of gate_up: every one has at least two whole panels. 0: no number does."""
    return next(
        (n for n in (8, 4, 2) if s.hidden % (n * panels.COLUMNS) == 0 and s.hidden >= 2 * n * panels.COLUMNS), 0
    )


def knows(s: Shape) -> bool:
    """Whether the kernel can do the op: INT4 experts that a warp's ring and registers hold, whole panels, up to 64 rows."""
    whole = s.width % panels.COLUMNS == 0 and s.shared % panels.COLUMNS == 0 and s.hidden % 128 == 0
    n = warps(s)
    bites = n > 0 and 2 * panels.INT4_BYTES * _first_bite(s, n) <= RING // SLOTS
    return s.int4 and whole and bites and s.width <= MOST_WIDTH and s.rows <= MOST_ROWS and _memory(s) <= SHARED_LIMIT


def _first_bite(s: Shape, n: int) -> int:
    """Panels of the first of two bites: an even number, so that both start on 64 bytes."""
    each = panels.count(s.hidden) // n
    return (each + 3) // 4 * 2 if each > 2 else 1


def _memory(s: Shape) -> int:
    """Dynamic shared memory: rings, their barriers and items, sums or the making of the list, row tiles, queue."""
    n, pairs = warps(s), MOST_ROWS * s.top_k
    most_tiles = min(pairs, s.experts + pairs // 8)
    rings = n * (RING + 16 + 8)
    return ceil_div(rings + max(n * SUMS, s.experts * 12) + most_tiles * 18, 16) * 16 + 64


def _blocks(s: Shape, target: Target, resident: int, tuning: dict[str, int]) -> int:
    """As many as are resident at once, but no more than there is work for."""
    weights = s.experts * 3 * s.width * s.hidden * panels.INT4_BYTES // (panels.ROWS * panels.COLUMNS)
    return min(tuning.get("blocks", resident * target.sms), max(1, weights // BLOCK_BYTES))


def tile(op: ExpertMlp, s: Shape, target: Target, tuning: dict[str, int]) -> Tile:
    """One launch of blocks that wait for one another: a grid must fit on the GPU at once."""
    n, smem = warps(s), _memory(s)
    resident = 2 if target.arch == "sm_90a" else 1
    parts = s.top_k + ceil_div(s.shared, MOST_SHARED_PANELS * panels.COLUMNS)
    spaces = {
        "act": s.pairs * s.width * 2,
        "part": s.rows * parts * s.hidden * 4,
        "shared_act": s.rows * s.shared * 2,
        "shared_sums": s.shared // panels.ROWS * _shared_parts(s, n) * ceil_div(MOST_ROWS, 8) * 512,
    }
    shared = (
        Arg("weight", "shared_gate", "panels"), Arg("weight", "shared_up", "panels"), Arg("weight", "shared_down", "panels"),
        Arg("workspace", "shared_act"), Arg("workspace", "shared_sums"),
    )  # fmt: skip
    return Tile(
        name=kernel_name(
            "expert_decode", s.hidden, s.width, f"shared{s.shared}" if s.shared else "", s.experts, f"top{s.top_k}",
            domain_suffix(op.x), f"x{resident}",
        ),
        template="expert_decode",
        constants={
            "hidden": s.hidden, "width": s.width, "shared_width": s.shared, "experts": s.experts, "top_k": s.top_k, "warps": n,
            "group": s.group, "slot_bytes": RING // SLOTS, "smem": smem, "resident": resident, "domain": domain(op.x),
        },
        args=(
            Arg("tensor", "x"), Arg("tensor", "ids"), Arg("tensor", "gates"), Arg("weight", "gate", "panels"),
            Arg("weight", "up", "panels"), Arg("weight", "down", "panels"), Arg("rows"), Arg("workspace", "act"),
            Arg("workspace", "part"), Arg("workspace", "sync"), Arg("tensor", "y"), *(shared if s.shared else ()),
        ),
        grid=(_blocks(s, target, resident, tuning), 1, 1), block=32 * n, smem=smem,
        workspace=(
            Workspace("sync", SYNC_BYTES), *(Workspace(name, size, fill=0xFF) for name, size in spaces.items() if size),
        ),
        coresident=True,
    )  # fmt: skip


def _shared_parts(s: Shape, n: int) -> int:
    """Parts of K of the shared gate_up."""
    each = panels.count(s.hidden) // n
    return each // 2 if each % 2 == 0 else each
