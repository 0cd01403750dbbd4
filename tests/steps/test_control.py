"""The kernels that control rounds, against a host oracle: 500 random states, every schedule, planted faults."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ddtree.graph.build import Limits
from tests.emulator import SCHEDULES, KernelError
from tests.steps.machine import AUTO, CONFIGS, VOCAB, WORD, Machine, Model

MUTATIONS = [
    ("round.cuh", "int(rows > Rows)", "int(rows >= Rows)"),
    ("round.cuh", "min(round->budget, most)", "round->budget"),
    ("round.cuh", "first[i] + node_parent[at]", "node_parent[at]"),
    ("round.cuh", "= tree[i] + path[", "= first[i] + path["),
    ("round.cuh", "if (i == kScratch - 1 && active == kScratch) first[active] = sum + sizes[i];", ""),
    ("loop.cuh", "ends[i] = out.done[slot] != 0;", "ends[i] = out.done[slot] == 1;"),
    ("loop.cuh", "committed + wide > round->limit[slot]", "committed > round->limit[slot]"),
    ("loop.cuh", "&& asked[0] == 0 ", ""),
    ("loop.cuh", "turn - asked[1] < u32(Config::ring)", "turn < asked[1] + u32(Config::ring)"),
    ("loop.cuh", "turn - asked[1] < u32(Config::ring)", "turn - asked[1] <= u32(Config::ring)"),
    ("loop.cuh", "if (i < active && !ends[i]) round->slots[before] = slot;", ""),
    ("loop.cuh", "round->remaining[slot] -= n;", "round->remaining[slot] -= out.kept[slot];"),
    ("loop.cuh", "    __syncthreads();   // anchors and slots are read above and replaced below\n", ""),
]

CHOOSING = [  # faults of rounds that choose their size
    ("round.cuh", "Config::chooses ? kScratch - active :", "false ? 0 :"),
    ("round.cuh", "|| node == 0 ? 0 : node_depth[at]", "? 0 : node_depth[at]"),
    ("loop.cuh", "record.before = budget.before", "record.before = budget.lost"),
    ("loop.cuh", "record.drafted = budget.drafted", "record.drafted = budget.draft"),
    ("pending.cuh", "threadIdx.x == 0 ? take_in : draft", "draft"),
    ("pending.cuh", "total > 0 && (draft || full)", "total > 0 && draft"),
    ("pending.cuh", "- waiting + k", "+ k"),
    ("pending.cuh", ".waiting = waiting + 1", ".waiting = waiting"),
    ("pending.cuh", "    if (take_in)\n", "    if (take_in && draft)\n"),
    ("pending.cuh", "        round->time[0] = nanoseconds();\n", ""),
    ("choose_budget.cuh", "state->before = state->lost;", ""),
]


def random_round(limits: Limits, rng: random.Random, **how: Any) -> None:
    """One round from a random state: active slots in any order, stops, limits, pauses and full rings."""
    model = Model(limits, rng, missing=(1, rng.randint(1, 400)))
    machine = Machine(limits, model, **how)
    active = rng.sample(range(limits.sequences), rng.choice([limits.sequences, rng.randint(1, limits.sequences)]))
    model.seeds = {s: rng.randint(0, 3) for s in active}
    values = {name: np.zeros(limits.sequences, np.int32) for name in ("committed", "anchor", "remaining", "limit")}
    for s in active:
        values["committed"][s], values["anchor"][s] = rng.randint(1, 300), rng.randrange(VOCAB)
        values["remaining"][s] = rng.choice([0, 1, 2, 3, 9, 1000])
        values["limit"][s] = values["committed"][s] + rng.choice([1, 2, 3, 1000])
    state = machine.state
    state.taken = rng.choice([0, 5, 2**32 - 3])
    head = state.taken + rng.choice([0, 1, state.ring - 1])
    state._words["head"], state._words["tail"] = head & WORD, state.taken & WORD
    state.write(active, limits.nodes - 1, values)
    if machine.choosing:
        machine.choosing.randomise(active, values["committed"], rng)
    state.begin()
    state._words["pause"] = rng.random() < 0.2
    machine.launch(64)
    machine.round()


@pytest.mark.parametrize("limits", [*CONFIGS, AUTO], ids=lambda x: f"{x.sequences}x{x.nodes}")
def test_five_hundred_random_states(limits: Limits) -> None:
    rng = random.Random(limits.sequences)
    for _ in range(125):
        random_round(limits, rng)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_schedule_makes_a_difference(schedule: Any) -> None:
    rng = random.Random(7)
    for limits in (*CONFIGS[1:3], AUTO):
        for _ in range(3):
            random_round(limits, rng, mode="check", schedule=schedule)


@pytest.mark.parametrize("mutation", MUTATIONS + CHOOSING, ids=lambda m: m[1][:40])
def test_planted_faults_are_found(mutation: tuple[str, str, str]) -> None:
    rng, mode = random.Random(11), "check" if "__syncthreads" in mutation[1] else "fast"  # only the former finds races
    configs = [AUTO] if mutation in CHOOSING else CONFIGS
    with pytest.raises((AssertionError, KernelError, IndexError)):
        for limits in configs * 40:
            random_round(limits, rng, mode=mode, mutation=mutation)
