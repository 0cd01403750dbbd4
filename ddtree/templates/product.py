"""Products with a weight on tensor cores: order of the sum, layout of the weight, launch. See include/ddtree/product.cuh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddtree.graph.op import OpError
from ddtree.graph.tensor import DType, Tensor, Weight
from ddtree.templates.kernel import Arg, Workspace
from ddtree.templates.target import RESERVED, SHARED_LIMIT, Target
from ddtree.templates.tiles.rowwise import ceil_div

TILE = 16  # weight rows of an mma
STEP = 32  # columns of two mma's: 16 contiguous bytes of x a lane
MAX_SLICES = 8
LONG = 128  # steps of a sum that is worth sharing among blocks
MANY_ROWS, FEW_SLICES = 16_384, 2  # so many weight rows keep the memory busy without more slices
RING = 98 * 1024  # bytes of rings and their mbarriers: fills an SM of the smallest target


def require_bf16(*operands: Tensor | Weight) -> None:
    """Raise OpError unless all are BF16."""
    for o in operands:
        if o.dtype is not DType.BF16:
            raise OpError(f"{o.name} is {o.dtype}, the kernel multiplies bf16")


@dataclass(frozen=True)
class Product:
    """`batch` products y = W x with W [out, inner], for each row.

    x_stride, y_stride  elements from row to row      x_batch, y_batch  elements from one batch to the next
    """

    out: int
    inner: int
    x_stride: int
    y_stride: int
    batch: int = 1
    x_batch: int = 0
    y_batch: int = 0
    slices: int = 0  # of the sum over `inner`; 0: what the shape of the weight says

    def __post_init__(self) -> None:
        for name in ("out", "inner", "x_stride", "y_stride", "x_batch", "y_batch"):
            if getattr(self, name) % 8:
                raise OpError(
                    f"{name} = {getattr(self, name)} must be a multiple of 8, the bf16 elements of a 16-byte access"
                )
        if not self.slices:
            most = FEW_SLICES if self.out >= MANY_ROWS else MAX_SLICES
            object.__setattr__(self, "slices", min(self._most_slices, most))

    @property
    def _most_slices(self) -> int:
        """A power of two of slices with at least four steps each, where padding to whole slices costs at most a sixteenth of
        the bytes. The weight's shape alone decides, so a row's bits never change."""
        steps = ceil_div(self.inner, STEP)
        slices = MAX_SLICES
        while slices > 1 and (steps < 4 * slices or (ceil_div(steps, slices) * slices - steps) * 16 > steps):
            slices //= 2
        return slices

    @property
    def steps(self) -> int:
        """Steps of 32 columns, padded to whole slices; of `inner` alone."""
        return ceil_div(ceil_div(self.inner, STEP), self._most_slices) * self._most_slices

    @property
    def tiles(self) -> int:
        """16-row tiles of W."""
        return ceil_div(self.out, TILE)

    def pack(self, matrices: np.ndarray) -> np.ndarray:
        """[batch, out, inner] bf16 to fragment order [batch, tiles, steps, half, lane, 8], zeros where it is padded.

        Lane 4 g + t holds, for each half, columns 8 t + 4 half + {0, 1 | 2, 3} of rows g and g + 8 as
        {row g: 0, 1}, {row g + 8: 0, 1}, {row g: 2, 3}, {row g + 8: 2, 3}: a[0] .. a[3] of an mma.
        """
        full = np.zeros((self.batch, self.tiles * TILE, self.steps * STEP), np.uint16)
        full[:, : self.out, : self.inner] = matrices.view(np.uint16)
        # [batch, tile, 8-row half, g, step, t, column half, pair]: a pair of columns moves as one 32-bit word
        pairs = full.view(np.uint32).reshape(self.batch, self.tiles, 2, 8, self.steps, 4, 2, 2)
        order = pairs.transpose(0, 1, 4, 6, 3, 5, 7, 2)
        packed = np.ascontiguousarray(order).view(matrices.dtype)
        return packed.reshape(self.batch, self.tiles, self.steps, 2, 32, 8)


@dataclass(frozen=True)
class Launch:
    """How a product is divided among blocks and warps. It decides speed, not bits, as long as `slices` is the same.

    rows        row capacity
    slices      slices of the sum                       sequential  slices of a warp, one after the other
    m_tiles     16-row weight tiles of a warp           n_tiles     tiles of eight rows of x of a block
    team        warps on the same slices                warps       teams of a block, each its own slices
    split       blocks that share an output tile        bite        steps of a copy
    stages      bites of weights in flight in each warp's ring
    x_stages    bites of x in each team's ring; 0: x goes to registers
    """

    product: Product
    rows: int
    slices: int
    m_tiles: int
    n_tiles: int
    team: int
    warps: int
    sequential: int
    split: int
    bite: int
    stages: int
    x_stages: int

    @property
    def block_tiles(self) -> int:
        """16-row weight tiles of a block."""
        return self.m_tiles * self.team

    @property
    def groups(self) -> int:
        """Groups of rows of x."""
        return ceil_div(self.rows, 8 * self.n_tiles)

    @property
    def row_blocks(self) -> int:
        """Groups of weight rows."""
        return ceil_div(self.product.tiles, self.block_tiles)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Neighbouring blocks read the same weights."""
        return (self.groups, self.row_blocks * self.split, self.product.batch)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.team * self.warps

    @property
    def smem(self) -> int:
        """Dynamic shared memory of a block: the rings, then the sums of the teams in their place; an mbarrier a stage."""
        weights = self.team * self.stages * self.m_tiles * self.bite * 1024
        x = self.x_stages * self.n_tiles * self.bite * 512
        sums = 8 * self.n_tiles * (TILE * self.block_tiles + 4) * 4
        return self.warps * (max(weights + x, sums) + 8 * self.team * self.stages)

    @property
    def suffix(self) -> str:
        """Names the launch in a kernel's name."""
        return (
            f"m{self.m_tiles}x{self.team}n{self.n_tiles}_{self.slices}s{self.split}x{self.warps}x{self.sequential}"
            f"_b{self.bite}r{self.stages}x{self.x_stages}"
        )

    def constants(self) -> dict[str, int | float | bool | str]:
        """What a shell prints of it."""
        p = self.product
        return {
            "out": p.out, "inner": p.inner, "x_stride": p.x_stride, "y_stride": p.y_stride,
            "x_batch": p.x_batch, "y_batch": p.y_batch, "steps": p.steps, "slices": self.slices,
            "m_tiles": self.m_tiles, "n_tiles": self.n_tiles, "team": self.team, "warps": self.warps,
            "sequential": self.sequential, "split": self.split, "bite": self.bite, "stages": self.stages,
            "x_stages": self.x_stages,
        }  # fmt: skip

    def workspace(self, row_blocks: int = 0) -> tuple[Workspace, ...]:
        """Sums that the blocks of a split give each other; for `row_blocks` where products share a launch."""
        if self.split == 1:
            return ()
        outputs = self.groups * (row_blocks or self.row_blocks) * self.product.batch
        shares = outputs * self.split * 8 * self.n_tiles * TILE * self.block_tiles * 4
        return (Workspace("partial", shares, fill=0xFF),)

    def workspace_args(self) -> tuple[Arg, ...]:
        """The kernel arguments that belong to `workspace`."""
        return tuple(Arg("workspace", w.name) for w in self.workspace())


def fitted(
    product: Product, rows: int, *, slices: int = 0, m_tiles: int, n_tiles: int, team: int = 1, warps: int, split: int = 1,
    bite: int, x_stages: int = 0, most: int = 64, stages: int | None = None,
) -> Launch:  # fmt: skip
    """A launch with the longest bites, of at most `bite` steps, of which two or all fit into a block, and rings as deep as
    fit, `most` bites at most."""
    slices = slices or product.slices
    sequential, chain = slices // (warps * split), product.steps // slices
    for steps in range(bite, 0, -1):
        whole = chain * sequential // steps
        left = RING // warps - x_stages * n_tiles * steps * 512
        deep = min(left // (team * (m_tiles * steps * 1024 + 8)), whole, most)
        if chain % steps == 0 and deep >= min(2, whole):
            break
    return Launch(
        product, rows, slices, m_tiles, n_tiles, team, warps, sequential, split, steps, stages or max(1, deep), x_stages
    )


def decode_launch(product: Product, rows: int, target: Target, stages: int | None, may_split: bool) -> Launch:
    """For up to 64 rows. The rules follow timings on an H200 of 2,500 launches at the shapes of one rank of a 61-layer model
    with 1 to 64 rows (docs/performance.md).

    Up to 16 rows the weight alone counts: every SM has a block whose warps divide the sum. From there on x, which every block
    reads from L2, counts as much: blocks take as many weight rows as keep all SMs busy, and share long sums.
    """
    tiles, slices, n_tiles = product.tiles, product.slices, ceil_div(rows, 8)
    if product.out >= MANY_ROWS:
        return _many_rows(product, rows, target, stages)
    if product.batch > 1:
        n_tiles = min(n_tiles, 4) if slices > 1 else n_tiles
        x_stages, bite = (0, 4) if n_tiles == 1 else (3, 2)
        return fitted(product, rows, m_tiles=1, n_tiles=n_tiles, team=2 if slices > 1 else 4, warps=min(4, slices), bite=bite,
                      x_stages=x_stages, stages=stages)  # fmt: skip
    long = may_split and slices == MAX_SLICES and product.steps >= LONG
    if long and n_tiles >= 2 and tiles <= target.sms * (1 if n_tiles == 2 else 3):
        return _shared_sum(product, rows, target, stages)
    if 2 * tiles >= 3 * target.sms:
        return _large(product, rows, stages)
    x_stages, bite = ((0, 4), (3, 2), (2, 1))[min(n_tiles, 3) - 1]
    n_tiles = min(4, n_tiles)
    return fitted(product, rows, m_tiles=1, n_tiles=n_tiles, warps=slices, bite=bite, x_stages=x_stages, stages=stages)


def _many_rows(product: Product, rows: int, target: Target, stages: int | None) -> Launch:
    """A head: each block takes its share of the weight rows, so that all end together. With many rows of x one block fills an
    SM, and x is read once an SM."""
    n_tiles = ceil_div(rows, 8)
    m_tiles, most_team = (1, 8) if n_tiles <= 2 else (2, 6)
    blocks = target.sms * (target.shared // (RING + RESERVED) if n_tiles <= 2 else 1)
    team = min(most_team, ceil_div(ceil_div(product.tiles, blocks), m_tiles))
    x_stages, bite = ((0, 4), (0, 2), (3, 1))[min(n_tiles, 3) - 1]
    return fitted(product, rows, m_tiles=m_tiles, n_tiles=n_tiles, team=team, warps=product.slices, bite=bite,
                  x_stages=x_stages, stages=stages)  # fmt: skip


def _shared_sum(product: Product, rows: int, target: Target, stages: int | None) -> Launch:
    """A long sum over four blocks, with as few weight tiles a block as let all blocks be resident: x is read from L2 once
    for every block's tiles, and a block reads a quarter of it."""
    split, n_tiles = 4, ceil_div(rows, 8)
    tiles = ceil_div(product.tiles * split, target.sms)
    m_tiles = 1 if tiles <= (4 if n_tiles <= 4 else 3) else 3 if tiles == 9 and n_tiles <= 4 else 2
    made = [
        fitted(product, rows, m_tiles=m_tiles, n_tiles=n_tiles, team=ceil_div(tiles, m_tiles), warps=product.slices // split,
               split=split, bite=bite, x_stages=x_stages, stages=stages)
        for bite, x_stages in ((4, 3), (2, 4))
    ]  # fmt: skip
    return made[0] if made[0].bite > 2 else made[1]


def _large(product: Product, rows: int, stages: int | None) -> Launch:
    """More tiles than SMs and sums that are not worth sharing."""
    n_tiles, slices = ceil_div(rows, 8), product.slices
    if n_tiles <= 2:  # two bites in each ring leave room for the next kernel's blocks
        bite = 4 if n_tiles == 1 else 3
        return fitted(product, rows, m_tiles=2, n_tiles=n_tiles, warps=slices, bite=bite, most=2, stages=stages)
    if n_tiles <= 4:
        return fitted(product, rows, m_tiles=4, n_tiles=n_tiles, warps=slices, bite=1, x_stages=2, stages=stages)
    return fitted(
        product, rows, m_tiles=2, n_tiles=n_tiles, team=2, warps=min(4, slices), bite=1, x_stages=3, stages=stages
    )


def prefill_launch(product: Product, rows: int, target: Target, stages: int | None) -> Launch:
    """For prompt rows: tiles as large as the number of blocks allows, so that what is read from L2 is used often.

    Fewer slices than generated rows have: their number is the weight's own here too, since a row's bits follow from it.
    """
    slices = min(product.slices, 8 if product.tiles < 64 else 4)
    blocks = ceil_div(product.tiles, 4) * ceil_div(rows, 64) * product.batch
    large = blocks >= 2 * target.sms and slices <= 4  # the sums of more warps do not fit
    n_tiles = min(8 if large else 4, ceil_div(rows, 8))
    groups = ceil_div(rows, 8 * n_tiles) * product.batch
    m_tiles = 4
    while m_tiles > 1 and ceil_div(product.tiles, m_tiles) * groups < target.sms // 2:
        m_tiles //= 2
    return fitted(
        product, rows, slices=slices, m_tiles=m_tiles, n_tiles=n_tiles, warps=slices, bite=1,
        x_stages=3 if slices <= 4 else 2, stages=stages,
    )  # fmt: skip


def launch(
    product: Product, x: Tensor, target: Target, *, tree: bool, tuning: dict[str, int], may_split: bool = False
) -> Launch:
    """The launch for all rows that `x` may have; `tuning.stages` overrides the depth of the rings.

    may_split  whether the kernel takes the workspaces of a sum over blocks. Raises OpError for rings too large.
    """
    rows, stages = x.shape[0], tuning.get("stages")
    made = (
        decode_launch(product, rows, target, stages, may_split)
        if tree
        else prefill_launch(product, rows, target, stages)
    )
    if made.smem > SHARED_LIMIT:
        raise OpError(
            f"tuning: {made.stages} stages need {made.smem} bytes of shared memory, at most {SHARED_LIMIT} fit; lower `stages`"
        )
    return made
