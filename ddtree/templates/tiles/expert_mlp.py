"""Launches and weight layout of ExpertMlp: one for generated rows (include/ddtree/expert_decode.cuh); group, gate_up, down and
combine for prompt rows and shapes that the one cannot do (include/ddtree/expert_mlp.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.ops.expert_mlp import ExpertMlp
from ddtree.graph.tensor import DType
from ddtree.templates import panels
from ddtree.templates.kernel import Arg, Tile, Workspace
from ddtree.templates.target import Target
from ddtree.templates.tiles import expert_decode
from ddtree.templates.tiles.expert_shape import RING, SLOTS, Shape, shape
from ddtree.templates.tiles.rowwise import ceil_div, domain, domain_suffix, kernel_name

MOST_WARPS = 8
SUMS = 4 * 512  # bytes: a warp's sums of two column tiles, twice
PLACE = 64  # bytes: how far its stream is
GROUP_THREADS = 512
COMBINE_THREADS = 128


def pack(op: ExpertMlp, field: str, array: Any) -> dict[str, np.ndarray]:
    """A weight as panels.

    down: of every 16 rows the top panel has the even ones, so that a thread's results are neighbours, and the two panels of
    an mma stand side by side.
    """
    int4, down = getattr(op, field).dtype is DType.INT4, field in ("down", "shared_down")
    if down:
        array = Reordered(even_odd(array.packed), even_odd(array.scale)) if int4 else even_odd(array)
    made = panels.int4_panels(array) if int4 else panels.bf16_panels(array)
    return {"panels": panels.side_by_side(made, 2 if int4 else 4) if down else made}


@dataclass(frozen=True)
class Reordered:
    """An INT4 weight with its rows reordered."""

    packed: np.ndarray
    scale: np.ndarray


def even_odd(matrix: np.ndarray) -> np.ndarray:
    """[..., out, in] with every 16 rows in the order 0 2 4 .. 14 1 3 5 .. 15."""
    *lead, out, columns = matrix.shape
    return matrix.reshape(*lead, out // 16, 8, 2, columns).swapaxes(-3, -2).reshape(matrix.shape)


def tiles(op: ExpertMlp, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One launch for generated rows if it knows the shape, else four; both read the same weights.

    tuning   blocks: most blocks of the launches that read weights (default two on each SM, or what is resident at once);
             decides speed, not bits
    """
    s = shape(op)
    if tree and expert_decode.knows(s):
        return (expert_decode.tile(op, s, target, tuning),)
    blocks = tuning.get("blocks", 2 * target.sms)
    return _group(op, s), _gate_up(op, s, blocks), _down(op, s, blocks), _combine(op, s)


def _workspaces(s: Shape) -> dict[str, Workspace]:
    """What the launches hand on to each other. None needs a certain content before the first one."""
    sizes = {
        "tiles": (1 + s.row_tiles) * 16,
        "pairs": s.pairs * 4,
        "act": s.pairs * s.width * 2,
        "shared_act": s.rows * s.shared * 2,
        "part": s.rows * (s.top_k + bool(s.shared)) * s.hidden * 4,
    }
    return {name: Workspace(name, nbytes) for name, nbytes in sizes.items() if nbytes}


def _tile(op: ExpertMlp, s: Shape, kernel: str, specialised: tuple[object, ...], **rest: Any) -> Tile:
    """The launch of one kernel: its name, and as workspaces those among its arguments."""
    every = _workspaces(s)
    constants = {"domain": domain(op.x), **rest.pop("constants")}
    return Tile(
        name=kernel_name(f"expert_mlp_{kernel}", *specialised, domain_suffix(op.x)),
        template=f"expert_mlp_{kernel}",
        constants=constants,
        workspace=tuple(every[arg.of] for arg in rest["args"] if arg.kind == "workspace"),
        **rest,
    )


def _group(op: ExpertMlp, s: Shape) -> Tile:
    return _tile(
        op, s, "group", (s.experts, s.top_k),
        constants={"experts": s.experts, "top_k": s.top_k, "threads": GROUP_THREADS},
        args=(Arg("tensor", "ids"), Arg("rows"), Arg("workspace", "tiles"), Arg("workspace", "pairs")),
        grid=(1, 1, 1), block=GROUP_THREADS,
    )  # fmt: skip


def _streaming(s: Shape, warps: int, sums: int, **own: int) -> dict[str, Any]:
    """Constants of a kernel that reads weights through rings; `sums`: other shared memory of each warp, in bytes."""
    return {
        "hidden": s.hidden, "width": s.width, "shared_width": s.shared, "top_k": s.top_k, "int4": s.int4, "warps": warps,
        "slots": SLOTS, "slot_bytes": RING // SLOTS, "smem": warps * (RING + PLACE + 8 * SLOTS + sums), **own,
    }  # fmt: skip


def _gate_up(op: ExpertMlp, s: Shape, blocks: int) -> Tile:
    constants = _streaming(s, warps=min(MOST_WARPS, panels.count(s.hidden)), sums=SUMS)
    items = (s.row_tiles * s.width + s.shared_tiles * s.shared) // panels.ROWS
    shared = (
        Arg("weight", "shared_gate", "panels"),
        Arg("weight", "shared_up", "panels"),
        Arg("workspace", "shared_act"),
    )
    return _tile(
        op, s, "gate_up", _specialised(s),
        constants=constants,
        args=(
            Arg("tensor", "x"), Arg("weight", "gate", "panels"), Arg("weight", "up", "panels"),
            Arg("workspace", "tiles"), Arg("workspace", "pairs"), Arg("rows"), Arg("workspace", "act"),
            *(shared if s.shared else ()),
        ),
        grid=(min(items, blocks), 1, 1), block=32 * constants["warps"], smem=constants["smem"],
    )  # fmt: skip


def _down(op: ExpertMlp, s: Shape, blocks: int) -> Tile:
    constants = _streaming(s, warps=MOST_WARPS, sums=0, group=s.group)
    items = (s.row_tiles + s.shared_tiles) * s.hidden // (2 * panels.ROWS * s.group)
    shared = (Arg("workspace", "shared_act"), Arg("weight", "shared_down", "panels"))
    return _tile(
        op, s, "down", _specialised(s),
        constants=constants,
        args=(
            Arg("workspace", "act"), Arg("weight", "down", "panels"), Arg("workspace", "tiles"), Arg("workspace", "pairs"),
            Arg("rows"), Arg("workspace", "part"), *(shared if s.shared else ()),
        ),
        grid=(min(ceil_div(items, MOST_WARPS), blocks), 1, 1), block=32 * MOST_WARPS, smem=constants["smem"],
    )  # fmt: skip


def _specialised(s: Shape) -> tuple[object, ...]:
    """What the kernels that read weights depend on."""
    return s.hidden, s.width, f"shared{s.shared}" if s.shared else "", "int4" if s.int4 else "bf16", f"top{s.top_k}"


def _combine(op: ExpertMlp, s: Shape) -> Tile:
    return _tile(
        op, s, "combine", (s.hidden, f"top{s.top_k}", "shared" if s.shared else ""),
        constants={"hidden": s.hidden, "top_k": s.top_k, "shared": bool(s.shared), "threads": COMBINE_THREADS},
        args=(Arg("tensor", "gates"), Arg("workspace", "part"), Arg("rows"), Arg("tensor", "y")),
        grid=(s.rows, ceil_div(s.hidden // 8, COMBINE_THREADS), 1), block=COMBINE_THREADS,
    )  # fmt: skip
