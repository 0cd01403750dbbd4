"""The base of every op: its fields, shape rule, NumPy reference, cost and template name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import Numerics
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Cache, Shard, Tensor, Weight

Operand = Tensor | Weight | Cache


class OpError(ValueError):
    """An op whose operands do not fit together; the builder adds the YAML place."""


class CacheRows(Protocol):
    """What a reference needs of a layer's cache."""

    def write(self, rows: RowTable, values: np.ndarray) -> None:
        """Store one row of values per row of the table: in scratch for tree rows, in pages otherwise."""

    def gather(self, rows: RowTable, row: int) -> np.ndarray:
        """The rows that `row` sees, in position order, itself last."""

    def committed(self, rows: RowTable, sequence: int, first: int) -> np.ndarray:
        """Rows of committed positions `first`.. of a sequence, in position order."""

    def commit(self, rows: RowTable, sequence: int, path: np.ndarray) -> None:
        """Copy scratch slots `path` to the positions that follow the committed ones, in order."""


@dataclass
class Run:
    """What surrounds a reference: the rounding rule, the rows of the step and per-sequence request state."""

    num: Numerics
    rows: RowTable
    state: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of a step graph.

    A subclass is a frozen dataclass whose fields are operands (Tensor, Weight, Cache or tuples of them) and plain
    values. `outputs` names the tensors it writes, in the order in which `reference` returns them. `origin` is the
    `file:line:column` of the YAML node that asked for it.
    """

    outputs: ClassVar[tuple[str, ...]] = ("y",)
    template: ClassVar[str] = ""
    whole: ClassVar[tuple[str, ...]] = ()  # inputs that every rank needs undivided, so that a gather may precede the op
    writes_cache: ClassVar[bool] = (
        False  # stores the step's rows in a cache: in scratch or pages, as StepGraph.tree says
    )
    collective: ClassVar[bool] = False  # `x` is a rank's part; the reference takes the list of every rank's instead

    origin: str = ""

    @classmethod
    def name(cls) -> str:
        """The op's name in YAML, in file names and in templates: `RmsNorm` is `rms_norm`."""
        return "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")

    @classmethod
    def infer(cls, **fields: Any) -> dict[str, Tensor]:
        """Shape rule: nameless output tensors for the given operands and values. Raises OpError."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise OpError when the operands do not fit together."""

    @cached_property
    def checked(self) -> bool:
        """True; raises OpError, like `check`, when the operands do not fit together."""
        self.check()
        return True

    def reference(self, run: Run, **arrays: Any) -> Any:
        """The op's mathematical definition on float32 arrays; returns the outputs (a tuple when there are several)."""
        raise NotImplementedError

    def cost(self, load: Load) -> Cost:
        """Fewest bytes and operations for `load`."""
        raise NotImplementedError

    def layout(self, field: str) -> str:
        """Names the layout in which the op's kernels want the weight of a field: equal names, one copy in memory."""
        return f"{self.name()}.{field}"

    def is_partial(self) -> bool:
        """Whether each rank holds only its share of a sum, so that an all-reduce must follow."""
        return False

    def require(self, holds: bool, message: str) -> None:
        """Raise OpError(message) unless `holds`."""
        if not holds:
            raise OpError(message)

    def operands(self) -> tuple[tuple[str, Operand], ...]:
        """Field name and operand of every operand; members of a tuple one after the other."""
        return self._operands

    @cached_property
    def _operands(self) -> tuple[tuple[str, Operand], ...]:
        fields = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        items = ((name, item) for name, value in fields for item in (value if isinstance(value, tuple) else (value,)))
        return tuple((name, item) for name, item in items if isinstance(item, Operand))

    def reads(self) -> list[Tensor]:
        """The tensors it reads."""
        return [o for name, o in self.operands() if isinstance(o, Tensor) and name not in self.outputs]

    def writes(self) -> list[Tensor]:
        """The tensors it writes."""
        return [o for name, o in self.operands() if isinstance(o, Tensor) and name in self.outputs]

    def weights(self) -> list[Weight]:
        """The weights it reads."""
        return [o for _, o in self.operands() if isinstance(o, Weight)]

    def caches(self) -> list[Cache]:
        """The caches it reads or writes."""
        return [o for _, o in self.operands() if isinstance(o, Cache)]

    def map_operands(self, change: Callable[[Operand], Operand]) -> Op:
        """The same op with every operand replaced by `change(operand)`."""

        def new(value: Any) -> Any:
            if isinstance(value, Operand):
                return change(value)
            return tuple(new(item) for item in value) if isinstance(value, tuple) else value

        return dataclasses.replace(self, **{f.name: new(getattr(self, f.name)) for f in dataclasses.fields(self)})

    def shard(self, shard: Shard) -> Op:
        """The rank's share of the op: every divided axis of every operand becomes its part."""

        def part(o: Operand) -> Operand:
            if isinstance(o, Weight):
                return dataclasses.replace(o, shard=shard)
            if isinstance(o, Tensor):
                return dataclasses.replace(o, shape=shard.divide(o.shape, o.split))
            return dataclasses.replace(o, row=shard.divide(o.row, o.split))

        return self.map_operands(part)


def row_traffic(load: Load, *tensors: Tensor) -> int:
    """Bytes of `load.rows` rows of the given tensors."""
    return sum(t.row_bytes(load.rows) for t in tensors)
