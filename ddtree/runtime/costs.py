"""What rounds cost here, for `budget: auto`: from the YAML, or measured when a model is loaded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from ddtree.graph.buckets import BUCKETS, bucket
from ddtree.graph.budget import Costs
from ddtree.graph.model import Model
from ddtree.runtime.decoder import Decoder, Sampling

REPEATS = 3
ROUNDS = 6  # of each row capacity, for measured_rounds


def written(model: Model, target: str) -> Costs | None:
    """The costs that the YAML gives for a target (`cpu` or a GPU's), or None."""
    for name, given in model.target.spec.decode.tree.costs.items():
        if name == target:
            return Costs.of({int(rows): ms for rows, ms in given.verify.items()}, given.draft)
    return None


def measured(
    verify: Callable[[int], object],
    draft: Callable[[], object],
    *,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Costs by running: `verify(rows)` does everything after the draft at a row capacity of BUCKETS, `draft()` one draft.
    Both return when the work is done. Each runs once unmeasured; the fastest of `repeats` runs counts, since whatever
    disturbs a run makes it slower. More rows never count as cheaper than fewer."""

    def best(run: Callable[[], object]) -> float:
        run()
        times = []
        for _ in range(repeats):
            began = clock()
            run()
            times.append(clock() - began)
        return max(1e-6, 1e3 * min(times))

    verified = np.maximum.accumulate([best(lambda rows=rows: verify(rows)) for rows in BUCKETS])  # type: ignore[misc]
    return Costs(tuple(verified.tolist()), best(draft))


def measured_steps(decoder: Decoder) -> Costs:
    """Costs of a decoder whose steps the host runs one by one, from a sequence of one token."""
    slot, _ = decoder.start([0], Sampling(), 2)
    try:
        return measured(lambda rows: decoder.rehearse(slot, rows), decoder.draft_trees)
    finally:
        decoder.end(slot)


def _favoured(rows: int) -> Costs:
    """Costs by which rounds draft, and verify as many rows as that row capacity holds."""
    return Costs(tuple(1e-3 if b == rows else 1e6 for b in BUCKETS), 1e-12)


def measured_rounds(decoder: Decoder) -> Costs:
    """Costs of a decoder whose GPU chooses, from its own rounds on one sequence: with costs that favour one row capacity
    after the other, and some that favour no draft. The fastest round of each kind counts, with the idle time before it. Row
    capacities that no tree fills cost what the next smaller one does."""
    best: dict[tuple[bool, int], float] = {}
    dear = Costs((1e-3, *(1e6,) * (len(BUCKETS) - 1)), 1e-2)  # a draft: too dear, and no probe for thousands of rounds
    for costs in (dear, *map(_favoured, BUCKETS)):
        decoder.use(costs)
        slot, _ = decoder.start([0], Sampling(), min(8 * ROUNDS, decoder.context - 1))
        try:
            for _ in range(ROUNDS):
                done = decoder.round()[slot]
                assert done.choice
                key = done.choice.draft, bucket(done.choice.rows)
                best[key] = min(best.get(key, math.inf), 1e3 * sum(done.seconds.values()))
        finally:
            decoder.end(slot)
    plain = best[False, 1]
    draft = max(1e-6, best[True, 1] - plain)
    verify = [plain, *(best.get((True, b), 0.0) - draft for b in BUCKETS[1:])]
    return Costs(tuple(np.maximum.accumulate(verify).tolist()), draft)
