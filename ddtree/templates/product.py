"""Products with a weight on tensor cores: order of the sum, layout of the weight, launch. See include/ddtree/product.cuh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddtree.graph.op import OpError
from ddtree.graph.tensor import DType, Tensor, Weight
from ddtree.templates.kernel import Arg, Workspace
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import ceil_div

TILE = 16  # weight rows of an mma
STEP = 32  # columns of two mma's: 16 contiguous bytes of x a lane
MAX_SLICES = 16
RING = 96 * 1024  # bytes: fills an SM of the smallest target
SHARED_RING = RING // 2  # bytes: two blocks share an SM, and the next kernel's weights arrive beside this one's


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

    def __post_init__(self) -> None:
        for name in ("out", "inner", "x_stride", "y_stride", "x_batch", "y_batch"):
            if getattr(self, name) % 8:
                raise OpError(
                    f"{name} = {getattr(self, name)} must be a multiple of 8, the bf16 elements of a 16-byte access"
                )

    @property
    def slices(self) -> int:
        """Slices of the sum over `inner`: a power of two with at least four steps each, where padding to whole slices
        costs at most a sixteenth of the bytes. The weight's shape alone decides, so a row's bits never change."""
        steps = ceil_div(self.inner, STEP)
        slices = MAX_SLICES
        while slices > 1 and (steps < 4 * slices or (ceil_div(steps, slices) * slices - steps) * 16 > steps):
            slices //= 2
        return slices

    @property
    def steps(self) -> int:
        """Steps of 32 columns, padded to whole slices."""
        return ceil_div(ceil_div(self.inner, STEP), self.slices) * self.slices

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
    slices      slices of the sum
    m_tiles     16-row weight tiles of a block          n_tiles     tiles of eight rows of x of a block
    warps       warps of a block, each its own slices   sequential  slices of a warp, one after the other
    split       blocks that share an output tile        stages      steps in flight in each warp's ring
    """

    product: Product
    rows: int
    slices: int
    m_tiles: int
    n_tiles: int
    warps: int
    sequential: int
    split: int
    stages: int

    @property
    def groups(self) -> int:
        """Groups of rows of x."""
        return ceil_div(self.rows, 8 * self.n_tiles)

    @property
    def row_blocks(self) -> int:
        """Groups of weight rows."""
        return ceil_div(self.product.tiles, self.m_tiles)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Neighbouring blocks read the same weights."""
        return (self.groups, self.row_blocks * self.split, self.product.batch)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def smem(self) -> int:
        """Dynamic shared memory of a block: the rings, then the sums of the warps in their place."""
        ring = self.stages * self.warps * stage_bytes(self.m_tiles, self.n_tiles)
        sums = self.warps * 8 * self.n_tiles * (TILE * self.m_tiles + 4) * 4
        return max(ring, sums)

    @property
    def suffix(self) -> str:
        """Names the launch in a kernel's name."""
        return (
            f"m{self.m_tiles}n{self.n_tiles}_{self.slices}s{self.split}x{self.warps}x{self.sequential}_r{self.stages}"
        )

    def constants(self) -> dict[str, int | float | bool | str]:
        """What a shell prints of it."""
        p = self.product
        return {
            "out": p.out, "inner": p.inner, "x_stride": p.x_stride, "y_stride": p.y_stride,
            "x_batch": p.x_batch, "y_batch": p.y_batch, "steps": p.steps, "slices": self.slices,
            "m_tiles": self.m_tiles, "n_tiles": self.n_tiles, "warps": self.warps, "sequential": self.sequential,
            "split": self.split, "stages": self.stages,
        }  # fmt: skip

    def workspace(self) -> tuple[Workspace, ...]:
        """Shares of the blocks of a split, and how many of them have arrived."""
        if self.split == 1:
            return ()
        outputs = self.groups * self.row_blocks * self.product.batch
        shares = outputs * self.split * 8 * self.n_tiles * TILE * self.m_tiles * 4
        return Workspace("partial", shares), Workspace("arrived", outputs * 4)

    def workspace_args(self) -> tuple[Arg, ...]:
        """The kernel arguments that belong to `workspace`."""
        return tuple(Arg("workspace", w.name) for w in self.workspace())


def stage_bytes(m_tiles: int, n_tiles: int) -> int:
    """One step of one warp: weights and rows of x."""
    return (2 * m_tiles + n_tiles) * 512


def decode_launch(product: Product, rows: int, target: Target, stages: int | None, may_split: bool) -> Launch:
    """For up to 64 rows. The rules follow timings on an H200 at the shapes of one rank of a 61-layer model with 1, 8, 16,
    32 and 64 rows (docs/performance.md)."""
    if may_split and product.batch == 1 and target.sms // 2 <= product.tiles < 4 * target.sms:
        return medium_launch(product, rows, target, stages)
    slices, tiles = product.slices, product.tiles * product.batch
    many = tiles >= target.sms
    n_tiles = min(8 if many else 4, ceil_div(rows, 8))
    split = 1
    if many:
        warps = min(8, slices) if n_tiles < 4 else max(1, slices // 2)
    else:
        warps = min(16 if n_tiles == 1 or (n_tiles == 2 and tiles >= 64) or not may_split else 8, slices)
        split = slices // warps
        while may_split and tiles * split < target.sms // 4 and split < slices:  # a split costs about a microsecond
            split *= 2
        warps = min(warps, slices // split)
    pairs = ceil_div(product.tiles, 2) * product.batch * split
    m_tiles = 2 if pairs >= target.sms // 2 and 2 * warps * stage_bytes(2, n_tiles) <= RING else 1
    sequential = slices // (warps * split)
    chain = product.steps // slices * sequential
    stage = warps * stage_bytes(m_tiles, n_tiles)
    ring = SHARED_RING if many and SHARED_RING // stage >= (2 if chain <= 10 else 3) else RING
    return Launch(
        product, rows, slices, m_tiles, n_tiles, warps, sequential, split, min(stages or ring // stage, chain)
    )


def medium_launch(product: Product, rows: int, target: Target, stages: int | None) -> Launch:
    """For a weight of half a tile to four tiles an SM: most linears of a rank.

    Up to 16 rows the weight alone counts, and every SM should have a block. From there on x is read from L2 once for every
    block, so that blocks take two tiles; a sum over two blocks then keeps all SMs busy.
    """
    slices, tiles, n_tiles = product.slices, product.tiles, ceil_div(rows, 8)
    whole = slices == MAX_SLICES  # a long sum, which blocks may share
    if n_tiles <= 2:
        m_tiles = 2 if 2 * ceil_div(tiles, 2) >= 3 * target.sms else 1
        split = 2 if whole and tiles < target.sms * 2 // 3 else 1
        warps = min(slices // split, 16)
    elif whole:
        m_tiles, warps = 2, 8
        split = 2 if n_tiles > 4 or ceil_div(tiles, 2) < target.sms * 3 // 4 else 1
    else:
        few = tiles < target.sms
        n_tiles = min(n_tiles, 4) if few else n_tiles
        m_tiles, split = 1 if few else 2, 1
        warps = min(slices, 8 if n_tiles <= 4 else 4)
    sequential = slices // (warps * split)
    fit = RING // (warps * stage_bytes(m_tiles, n_tiles))
    return Launch(
        product, rows, slices, m_tiles, n_tiles, warps, sequential, split, min(stages or fit, product.steps // slices * sequential)
    )  # fmt: skip


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
    stage = slices * stage_bytes(m_tiles, n_tiles)
    ring = RING if large or 2 * stage > SHARED_RING else SHARED_RING
    return Launch(
        product, rows, slices, m_tiles, n_tiles, slices, 1, 1, min(stages or ring // stage, product.steps // slices)
    )


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
    if made.smem > RING:
        raise OpError(
            f"tuning: {made.stages} stages need {made.smem} bytes of shared memory, at most {RING} fit; lower `stages`"
        )
    return made
