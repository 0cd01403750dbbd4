"""The memory plan of one GPU: what a model's steps take there, and which context and how many sequences fit.

Everything is known before a GPU is touched. Sizes of weights, caches, arenas and workspaces are those that the runtime
allocates; what the driver keeps for itself and what captured graphs take are estimates, marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddtree.errors import UsageError
from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import DRAFT, Builder, Limits, build_step, steps_of
from ddtree.graph.explain import amount
from ddtree.graph.model import Model
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache
from ddtree.runtime.kv import PAGE
from ddtree.runtime.packed import total_bytes, uses_of
from ddtree.templates.group import BUFFERS, ONE_SHOT, WORD, buffer_words
from ddtree.templates.kernel import Workspace
from ddtree.templates.program import distinct, tuning_of, with_buckets
from ddtree.templates.render import tiles
from ddtree.templates.target import TARGETS, Target

RESERVE = 50  # a fiftieth of the rest stays free: what is estimated, and the rounding of allocations
DRIVER = 800_000_000  # bytes, estimate: CUDA context, kernels, and what the driver keeps of a card
LAUNCH = 16_384  # bytes of a launch in a captured graph, estimate
FLOOR = 32_768  # positions that are worth fewer sequences, where neither is given
ESTIMATES = ("comm buffers", "graphs", "driver", "reserve")


@dataclass(frozen=True)
class Card:
    """A GPU to plan for: the bytes that it reports, and its code-generation target."""

    capacity: int
    target: Target


CARDS = {
    "96 GB": Card(97_887 << 20, TARGETS["compute_120f"]),  # RTX PRO 6000
    "141 GB": Card(143_771 << 20, TARGETS["sm_90a"]),  # H200
}


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank by use, in the order in which they are shown."""

    model: str
    ranks: int
    sequences: int
    context: int
    uses: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.uses.values())


class Sizes:
    """What the steps of one rank take, apart from caches, whose size follows from context and sequences.

    Raises SpecError or OpError for a model whose kernels cannot be made for `target`.
    """

    def __init__(self, model: Model, target: Target, rank: int = 0) -> None:
        self.model, self.target, self.limits = model, target, Limits.of(model)
        self.buckets = needed_buckets(self.limits)
        builder = Builder(model, self.buckets[-1])
        self.graphs = [build_step(model, step, rank, builder) for step in steps_of(model)]

    @cached_property
    def caches(self) -> list[Cache]:
        """Every layer's caches."""
        return list({n: c for g in self.graphs for n, c in g.caches().items()}.values())

    def plan(self) -> MemoryPlan:
        """All uses."""
        uses = uses_of(self.graphs)
        mine = {n: u for n, u in uses.items() if not n.startswith(DRAFT)}
        drafter = {n: u for n, u in uses.items() if n.startswith(DRAFT)}
        sequences, context = self.limits.sequences, self.model.target.spec.context
        pages, rings, scratch = cache_bytes(self.caches, sequences, context)
        bytes_of = {
            "weights": total_bytes(mine),
            "drafter": total_bytes(drafter),
            "kv pages": pages,
            "drafter windows": rings,
            "tree scratch": scratch,
            "arenas": self._arenas(),
            "workspaces": sum(self._workspaces(g, n) for g in self.graphs for n in self._capacities(g)),
            "comm buffers": self._comm(),
            "graphs": LAUNCH * sum(len(g.ops) * len(self._capacities(g)) for g in self.graphs if g.name != "prefill"),
            "driver": DRIVER,
        }
        bytes_of["reserve"] = sum(bytes_of.values()) // RESERVE
        return MemoryPlan(self.model.target.spec.name, self.model.ranks, sequences, context, bytes_of)

    def _capacities(self, graph: StepGraph) -> list[int]:
        """Row capacities at which a step exists."""
        return self.buckets if graph.name == "verify" else [graph.rows]

    def _arenas(self) -> int:
        """Activations and inputs of every step; the capacities of the verify step share those of the largest."""
        return sum(g.arena + sum(t.nbytes for t in g.inputs.values()) for g in self.graphs)

    def _workspaces(self, graph: StepGraph, rows: int) -> int:
        """Memory that kernels of one step hand on to each other; ops that launch the same kernels share it."""
        tuning = tuning_of(self.model, self.target.name)
        found: dict[tuple[str, str], Workspace] = {}
        for _, op in with_buckets(distinct([graph]), [rows]):
            tree = graph.tree if op.writes_cache else graph.decode
            made = tiles(op, self.target, tree=tree, tuning=tuning.get(op.name(), {}))
            names = "+".join(tile.name for tile in made)
            found.update({(names, w.name): w for tile in made for w in tile.workspace})
        return sum(w.nbytes for w in found.values())

    def _comm(self) -> int:
        """The rank's mailbox."""
        ops = [op for graph in self.graphs for op in graph.ops if op.collective]
        return BUFFERS * WORD * buffer_words(ops, ONE_SHOT // WORD) if ops else 0


def pages_of(context: int) -> int:
    """Pages of a sequence of `context` positions, overshoot of the last round included."""
    return -(-(context + MAX_ROWS) // PAGE)


def cache_bytes(caches: Sequence[Cache], sequences: int, context: int) -> tuple[int, int, int]:
    """Bytes of pages, of windowed caches' rings, and of tree scratch."""
    pages = sum(pages_of(context) * sequences * PAGE * c.row_bytes for c in caches if c.window is None)
    rings = sum(sequences * c.pages() * PAGE * c.row_bytes for c in caches if c.window is not None)
    return pages, rings, sum(sequences * MAX_ROWS * c.row_bytes for c in caches)


def with_limits(model: Model, context: int, sequences: int) -> Model:
    """The model at another context and number of sequences."""
    spec = model.target.spec
    decode = spec.decode.model_copy(update={"sequences": sequences})
    return replace(
        model, target=replace(model.target, spec=spec.model_copy(update={"context": context, "decode": decode}))
    )


def most_sequences(model: Model) -> int:
    """As many as one round's rows hold: a drafted block each, or a row each."""
    return MAX_ROWS // max(1, Limits.of(model).block)


def make_plan(model: Model, target: Target, rank: int = 0) -> MemoryPlan:
    """The plan of a model as its YAML describes it."""
    return Sizes(model, target, rank).plan()


def require_fit(plan: MemoryPlan, capacity: int, where: str) -> None:
    """Raise UsageError with the numbers when a plan is larger than `capacity`, the bytes of each GPU."""
    if plan.total > capacity:
        parts = ", ".join(f"{name} {amount(size)}" for name, size in plan.uses.items() if size > 0.005 * plan.total)
        many = "s" if plan.sequences > 1 else ""
        raise UsageError(
            f"{plan.model} with {plan.sequences} sequence{many} of {plan.context:,} positions needs {amount(plan.total)} on each "
            f"of {plan.ranks} GPUs, {where} has {amount(capacity)}: {parts}; lower the context or the sequences, or use more GPUs"
        )


def fit(
    model: Model, capacity: int, target: Target, *, context: int | None = None, sequences: int | None = None,
    where: str = "each GPU",
) -> tuple[Model, MemoryPlan]:  # fmt: skip
    """The model at the largest limits that fit, with its plan.

    context, sequences  what the user fixed. One of them given: the most of the other, up to the YAML's context or what a
                        round holds. Both: they must fit. Neither: the YAML's sequences, or as many fewer as it takes for
                        32,768 positions each, and the longest context for them.

    Raises UsageError with the numbers when nothing fits.
    """
    limit, asked = model.target.spec.context, model.target.spec.decode.sequences
    if context is not None and context > limit:
        raise UsageError(f"a context of {context:,} positions exceeds the model's {limit:,}")

    def plan(positions: int, many: int) -> MemoryPlan:
        return make_plan(with_limits(model, positions, many), target)

    def positions_of(pages: int) -> int:
        return min(limit, pages * PAGE - MAX_ROWS)

    if context is not None and sequences is not None:
        found = plan(context, sequences)
    elif context is not None:
        found = _largest(lambda n: plan(context, n), 1, most_sequences(model), capacity)
    else:
        counts = range(asked, 1, -1) if sequences is None else ()
        many = sequences or next((n for n in counts if plan(min(limit, FLOOR), n).total <= capacity), 1)
        found = _largest(lambda pages: plan(positions_of(pages), many), pages_of(PAGE), pages_of(limit), capacity)
    require_fit(found, capacity, where)
    return with_limits(model, found.context, found.sequences), found


def _largest(plan: Callable[[int], MemoryPlan], low: int, high: int, capacity: int) -> MemoryPlan:
    """The plan of the largest number of `low`..`high` that fits; that of `low` if none does.

    Sizes grow almost evenly, so that a straight line between the ends of what is left says where to look.
    """
    fits, over = plan(low), plan(high)
    if over.total <= capacity:
        return over
    while fits.total <= capacity and high - low > 1:
        guess = low + (capacity - fits.total) * (high - low) // (over.total - fits.total)
        middle = min(max(guess, low + 1), high - 1)
        tried = plan(middle)
        if tried.total <= capacity:
            low, fits = middle, tried
        else:
            high, over = middle, tried
    return fits
