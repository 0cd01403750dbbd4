"""The memory plan of one GPU: what a model's steps take there, and which context and how many sequences fit.

Everything is known before a GPU is touched. Sizes of weights, caches, arenas and workspaces are those that the runtime
allocates; what the driver keeps for itself and what captured graphs take are estimates, marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddtree.errors import UsageError
from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import DRAFT, Builder, Limits, build_step, steps_of
from ddtree.graph.explain import amount
from ddtree.graph.model import Model
from ddtree.graph.ops import AllGather, AllReduce
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache
from ddtree.runtime.kv import PAGE
from ddtree.runtime.packed import total_bytes, uses_of
from ddtree.templates.kernel import Workspace
from ddtree.templates.program import distinct, tuning_of
from ddtree.templates.render import tiles
from ddtree.templates.target import TARGETS, Target

RESERVE = 50  # a fiftieth of the rest stays free: what is estimated, and the rounding of allocations
DRIVER = 800_000_000  # bytes, estimate: CUDA context, kernels, and what the driver keeps of a card
LAUNCH = 16_384  # bytes of a launch in a captured graph, estimate
SLOTS = 3  # rotating buffers of an all-reduce; flags in the data double them
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
        builder = Builder(model)
        self.steps = [build_step(model, s, rank, builder) for s in steps_of(model) if s != "verify"]
        self.verify = [build_step(model, "verify", rank, Builder(model, n)) for n in needed_buckets(self.limits)]

    @property
    def graphs(self) -> list[StepGraph]:
        """Every step, verify once for each row capacity."""
        return [*self.steps, *self.verify]

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
            "workspaces": sum(self._workspaces(g) for g in self.graphs),
            "comm buffers": self._comm(),
            "graphs": LAUNCH * sum(len(g.ops) for g in self.graphs if g.name != "prefill"),
            "driver": DRIVER,
        }
        bytes_of["reserve"] = sum(bytes_of.values()) // RESERVE
        return MemoryPlan(self.model.target.spec.name, self.model.ranks, sequences, context, bytes_of)

    def _arenas(self) -> int:
        """Activations of every step; the capacities of the verify step share theirs."""
        shared = max(g.arena + _inputs(g) for g in self.verify)
        return shared + sum(g.arena + _inputs(g) for g in self.steps)

    def _workspaces(self, graph: StepGraph) -> int:
        """Memory that kernels of one step hand on to each other; ops that launch the same kernels share it."""
        tuning = tuning_of(self.model, self.target.name)
        found: dict[tuple[str, str], Workspace] = {}
        for _, op in distinct([graph]):
            tree = graph.tree if op.writes_cache else graph.decode
            made = tiles(op, self.target, tree=tree, tuning=tuning.get(op.name(), {}))
            names = "+".join(tile.name for tile in made)
            found.update({(names, w.name): w for tile in made for w in tile.workspace})
        return sum(w.nbytes for w in found.values())

    def _comm(self) -> int:
        """Buffers of collectives: every rank's rows with flags, in rotation; a gathered tensor twice."""
        small = large = gathered = 0
        for graph in self.graphs:
            for op in graph.ops:
                if isinstance(op, AllReduce) and op.x.shape[0] <= MAX_ROWS:
                    small = max(small, op.x.nbytes)
                elif isinstance(op, AllReduce):
                    large = max(large, op.x.nbytes)
                elif isinstance(op, AllGather):
                    gathered = max(gathered, op.y.nbytes)
        return 2 * SLOTS * self.model.ranks * small + 2 * large + 2 * gathered


def _inputs(graph: StepGraph) -> int:
    return sum(t.nbytes for t in graph.inputs.values())


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
        raise UsageError(
            f"{plan.model} with {plan.sequences} sequences of {plan.context:,} positions needs {amount(plan.total)} on each of "
            f"{plan.ranks} GPUs, {where} has {amount(capacity)}: {parts}; lower the context or the sequences, or use more GPUs"
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
    if context is not None and sequences is not None:
        return _checked(with_limits(model, context, sequences), capacity, target, where)
    least = with_limits(model, context or min(limit, PAGE), sequences or 1)
    base = Sizes(least, target)
    plan = base.plan()
    require_fit(plan, capacity, where)
    rest = plan.total - _cached(base.caches, plan)
    while True:  # what is no cache grows a little with both limits, so that the first try may be too large
        made = with_limits(model, *_largest(base, capacity - rest, context, sequences, limit, asked))
        plan = make_plan(made, target)
        if plan.total <= capacity:
            return made, plan
        rest = plan.total - _cached(base.caches, plan)


def _cached(caches: Sequence[Cache], plan: MemoryPlan) -> int:
    return sum(cache_bytes(caches, plan.sequences, plan.context))


def _checked(model: Model, capacity: int, target: Target, where: str) -> tuple[Model, MemoryPlan]:
    plan = make_plan(model, target)
    require_fit(plan, capacity, where)
    return model, plan


def _largest(
    base: Sizes, room: int, context: int | None, sequences: int | None, limit: int, asked: int
) -> tuple[int, int]:
    """(context, sequences) whose caches take at most `room` bytes, but never less than those of `base`."""
    least = base.model.target.spec.context

    def longest(n: int) -> int:
        """The longest context of n sequences that ends with a page; 0 if there is none."""
        fixed, each = (sum(cache_bytes(base.caches, n, pages * PAGE - MAX_ROWS)) for pages in (0, 1))
        pages = (room - fixed) // max(1, each - fixed)
        return max(0, min(limit, pages * PAGE - MAX_ROWS))

    if sequences is not None:
        return max(least, longest(sequences)), sequences
    if context is not None:
        return context, next((n for n in range(most_sequences(base.model), 1, -1) if longest(n) >= context), 1)
    enough = next((n for n in range(asked, 1, -1) if longest(n) >= min(limit, FLOOR)), 1)
    return max(least, longest(enough)), enough
