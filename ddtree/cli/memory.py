"""The memory plan as text and as data: what a model asks for, and what fits the cards that it may run on."""

from __future__ import annotations

from typing import Any

from ddtree.errors import UsageError
from ddtree.graph.explain import amount, table
from ddtree.graph.model import Model
from ddtree.runtime.memory import CARDS, ESTIMATES, MemoryPlan, fit, make_plan
from ddtree.templates.target import Target


def plans(model: Model, target: Target, rank: int) -> tuple[dict[str, MemoryPlan], list[str]]:
    """The plan of the YAML's limits and, by card, of the largest limits that fit; and why others do not fit at all."""
    made, faults = {"as asked": make_plan(model, target, rank)}, []
    for name, card in CARDS.items():
        try:
            made[f"{model.ranks} x {name}"] = fit(model, card.capacity, card.target, where=f"a {name} card")[1]
        except UsageError as e:
            faults.append(str(e))
    return made, faults


def memory_table(model: Model, target: Target, rank: int) -> str:
    """Bytes by use, a column for the YAML's limits and one for each card at the limits that fit it."""
    made, faults = plans(model, target, rank)
    rows = [
        ("sequences", *(str(p.sequences) for p in made.values())),
        ("context of each", *(f"{p.context:,}" for p in made.values())),
    ]
    for use in made["as asked"].uses:
        name = f"{use} (estimate)" if use in ESTIMATES else use
        rows.append((name, *(amount(p.uses[use]) for p in made.values())))
    rows.append(("total", *(amount(p.total) for p in made.values())))
    known = (amount(CARDS[name].capacity) for name in CARDS if f"{model.ranks} x {name}" in made)
    rows.append(("a card has", "", *known))
    return "\n".join([f"memory of rank {rank} of {model.ranks}", table(("use", *made), rows), *faults])


def memory_data(model: Model, target: Target, rank: int) -> dict[str, Any]:
    """The same as JSON-ready values: `memory` of the YAML's limits, `fits` by card."""
    made, _ = plans(model, target, rank)
    asked = made.pop("as asked")
    fits = {
        name: {"sequences": p.sequences, "context": p.context, "total": p.total, "memory": dict(p.uses)}
        for name, p in made.items()
    }
    return {"memory": {**asked.uses, "total": asked.total}, "fits": fits}
