"""A kernel: its source, how it is launched, and which memory each argument stands for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ddtree.graph.op import Op

ArgKind = Literal["tensor", "weight", "pages", "scratch", "rows", "workspace", "group"]
Constant = int | float | bool | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Arg:
    """One pointer argument.

    kind   tensor     an activation: the op's field `of`
           weight     a parameter: the op's field `of`, in the tile's layout; `part` names one of several arrays
           pages      a cache's committed rows, layout [page][64][row]; windowed: [sequence][ring position][row]
           scratch    a cache's tree rows, layout [sequence][64][row]
           rows       the step's row table, `const ddtree::Rows*`
           workspace  memory of the op itself, named `of` (Workspace)
           group      the rank's view of its group, `ddtree::Group*` (include/ddtree/ranks.cuh)
    index  position in a tuple field
    """

    kind: ArgKind
    of: str = ""
    part: str = ""
    index: int = 0


@dataclass(frozen=True)
class Workspace:
    """Memory that belongs to one op. `fill` is the byte that it holds before the first launch; a kernel that relies on it
    must restore it before it ends."""

    name: str
    nbytes: int
    fill: int = 0


@dataclass(frozen=True)
class Tile:
    """The launch of one kernel of an op: what tiles/<op>.py decides.

    name       C identifier of the kernel; equal names mean equal source
    template   file in templates/kernels without `.cu.jinja`
    constants  values that the shell prints: ints, floats, bools, enum names and tuples of numbers only
    grid       blocks (x, y, z) at the step's full row capacity; kernels read the live row count from the row table
    block      threads of a block         smem  dynamic shared memory in bytes
    coresident whether all blocks of the grid must be resident together (they wait for one another)
    """

    name: str
    template: str
    constants: dict[str, Constant]
    args: tuple[Arg, ...]
    grid: tuple[int, int, int]
    block: int
    smem: int = 0
    workspace: tuple[Workspace, ...] = ()
    coresident: bool = False


@dataclass(frozen=True)
class Kernel:
    """A rendered kernel: `tile` with its source. An op may need several, launched in order."""

    tile: Tile
    op: Op = field(repr=False)
    source: str = field(repr=False)

    @property
    def name(self) -> str:
        """C identifier of the kernel."""
        return self.tile.name
