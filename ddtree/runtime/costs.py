"""What rounds cost here, for `budget: auto`: from the YAML, or measured when a model is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ddtree.graph.buckets import BUCKETS
from ddtree.graph.budget import Costs
from ddtree.graph.model import Model
from ddtree.runtime.decoder import Decoder, Sampling

REPEATS = 3


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
