"""choose_budget and settle_budget on the emulator: the decisions of graph/budget.py, bit for bit, over many rounds."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.graph.buckets import BUCKETS, bucket
from ddtree.graph.budget import PATIENCE, PROBE, Choice, Costs, Policy
from ddtree.graph.build import Limits
from ddtree.graph.ops.build_tree import DraftTree, best_first
from ddtree.templates.budget import ARGUMENTS, budget_tiles, first_state, joined
from ddtree.templates.render import INCLUDE, render_tile
from tests.emulator import SCHEDULES, KernelError, Module, guarded
from tests.emulator.nvrtc import compile_ptx
from tests.emulator.schedule import Schedule

Change = tuple[str, str]
HEADERS = ("choose_budget.cuh", "budget_state.cuh")


def limits(sequences: int, depths: int) -> Limits:
    return Limits(sequences, 256, depths, depths + 1, 64, 63, auto=True)


def changed_headers(old: str, new: str) -> Path:
    """An include folder with the kernels' headers, `old` replaced in the one that has it."""
    texts = {name: (INCLUDE / "ddtree" / name).read_text() for name in HEADERS}
    if (
        sum(text.count(old) for text in texts.values()) != 1
    ):  # no assertion, which would pass for a fault that was caught
        raise ValueError(f"the headers must contain {old!r} once")
    folder = Path(tempfile.mkdtemp())
    (folder / "ddtree").mkdir()
    for name, text in texts.items():
        (folder / "ddtree" / name).write_text(text.replace(old, new))
    return folder


class OnGpu:
    """A kernel on the GPU of this machine, launched like an emulated one."""

    def __init__(self, source: str, twin: Module) -> None:
        from tests.emulator.gpu import GpuModule  # only here: it needs a driver

        self.module = GpuModule(source, twin)

    def launch(self, name: str, grid: Any, block: int, args: list[np.ndarray], smem: int, _: Schedule) -> None:
        self.module.launch(name, grid, block, args, smem)


@cache
def modules(
    sequences: int, depths: int, mode: str = "fast", change: Change | None = None
) -> dict[str, tuple[Any, Any]]:
    """The kernels of a shape by name, `mode` fast or check on the emulator or gpu; `change` replaces a text of their headers."""
    folders = [changed_headers(*change)] if change else []
    tiles, made = budget_tiles(limits(sequences, depths), 64), {}
    for name, tile in tiles.items():
        emulated = Module(
            render_tile(tile), [tile.name], mode="check" if mode == "check" else "fast", include_dirs=folders
        )
        made[name] = tile, OnGpu(render_tile(tile), emulated) if mode == "gpu" else emulated
    return made


class Kernels:
    """The device's side: state, trees and outputs in guarded memory. Garbage stands where nothing should be read."""

    def __init__(self, shape: Limits, costs: Costs, schedule: Schedule, mode: str, change: Change | None) -> None:
        self.limits, self.schedule = shape, schedule
        self.modules = modules(shape.sequences, shape.depths, mode, change)
        n, k = shape.sequences, shape.nodes
        self.places = {
            "costs": guarded(costs.table),
            "budget_state": guarded(first_state(shape)),
            "node_token": guarded(np.full((n, k), -1, np.int32)),
            "node_parent": guarded(np.full((n, k), -1, np.int32)),
            "node_depth": guarded(np.full((n, k), -1, np.int32)),
            "node_score": guarded(np.full((n, k), -np.inf)),
            "count": guarded(np.zeros(n, np.int32)),
            "emitted": guarded(np.full((n, shape.depths + 1), -1, np.int32)),
            "length": guarded(np.zeros(n, np.int32)),
        }

    @property
    def state(self) -> np.void:
        return self.places["budget_state"][0]

    def join(self, slot: int) -> None:
        """A sequence joins in a slot."""
        memory = self.places["budget_state"].view(np.uint8)
        for offset, data in joined(self.limits, slot):
            memory[offset : offset + data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)

    def launch(self, name: str, slots: list[int]) -> None:
        order = guarded(np.array(slots, np.int32))
        places = {**self.places, "active": guarded(np.array([len(slots)], np.int32)), "slots": order}
        tile, module = self.modules[name]
        module.launch(tile.name, tile.grid, tile.block, [places[a] for a in ARGUMENTS[name]], tile.smem, self.schedule)

    def choose(self, slots: list[int], trees: dict[int, DraftTree]) -> None:
        for name, fill in (("node_token", -1), ("node_parent", -1), ("node_depth", -1), ("node_score", -np.inf)):
            if trees:
                self.places[name][:] = fill
        self.places["count"][:] = -7
        for s, tree in trees.items():
            for name in ("token", "parent", "depth", "score"):
                self.places[f"node_{name}"][s, : len(tree)] = getattr(tree, name)
            self.places["count"][s] = len(tree)
        self.launch("choose_budget", slots)

    def settle(self, slots: list[int], emitted: dict[int, list[int]]) -> None:
        for s, tokens in emitted.items():
            self.places["emitted"][s] = -1
            self.places["emitted"][s, : len(tokens)] = tokens
            self.places["length"][s] = len(tokens)
        self.launch("settle_budget", slots)


def random_costs(rng: np.random.Generator) -> Costs:
    """Stairs with flat parts, so that sizes tie, and slopes that are not monotone."""
    steps = rng.choice([0.0, 0.0, 0.5, 1.0, 2.5], len(BUCKETS))
    return Costs(tuple((1.0 + np.cumsum(steps)).tolist()), float(rng.choice([0.0, 0.25, 0.5, 1.0, 4.0])))


def random_tree(rng: np.random.Generator, depths: int, most: int) -> DraftTree:
    """A tree from candidates in coarse steps, so that probabilities tie; some confident, some lost, some tiny or broken."""
    k = int(rng.integers(1, 9))
    coarse = rng.choice([0.125, 0.5, 1.0])
    lp = -coarse * np.sort(rng.integers(0, int(rng.choice([2, 8, 40])), (depths, k)), axis=1).astype(np.float32)
    kind = rng.random()
    if kind < 0.05:
        lp[rng.integers(depths) :] = np.nan
    elif kind < 0.1:
        lp[:, 1:] = -np.inf
    elif kind < 0.15:
        lp -= 400
    token = np.stack([rng.permutation(12)[:k] for _ in range(depths)]).astype(np.int32)
    return best_first(int(rng.integers(12)), lp, token, int(rng.integers(0, most + 1)))


def walk(rng: np.random.Generator, tree: DraftTree, deepest: int) -> list[int]:
    """Tokens of a round: down the tree for a while, then the bonus."""
    node, tokens = 0, list[int]()
    while len(tokens) < deepest and rng.random() < 0.7:
        children = np.flatnonzero(tree.parent == node)
        if not len(children):
            break
        node = int(children[min(len(children) - 1, rng.geometric(0.6) - 1)])
        tokens.append(int(tree.token[node]))
    return [*tokens, int(rng.integers(12))]


def same_choice(device: Kernels, host: Policy, choice: Choice, slots: list[int]) -> None:
    state = device.state
    assert {s: int(device.places["count"][s]) - 1 for s in slots} == choice.sizes
    assert (state["rows"], BUCKETS[state["bucket"]]) == (choice.rows, bucket(choice.rows))
    assert (state["ms"], state["expected"], state["waited"]) == (choice.ms, choice.expected, host.waited)


def same_lesson(device: Kernels, host: Policy) -> None:
    state = device.state
    assert state["slot"]["hits"].tobytes() == host.hits.tobytes()
    assert state["slot"]["mass"].tobytes() == host.mass.tobytes()
    factors = np.stack([host.factors(s)[1:] for s in range(len(host.hits))])
    assert np.multiply.accumulate(state["slot"]["ratio"], axis=-1).tobytes() == factors.tobytes()
    assert (state["slot"]["walk"] - 1).tolist() == host.walk.tolist()
    assert state["lost"] == host.lost and bool(state["draft"]) == host.drafts


def play(
    seed: int,
    sequences: int,
    depths: int,
    rounds: int,
    schedule: Schedule = SCHEDULES[0],
    mode: str = "fast",
    change: Change | None = None,
) -> list[Choice]:
    """Rounds with sequences that join and leave; every decision and all state afterwards are compared."""
    rng = np.random.default_rng(seed)
    shape, costs = limits(sequences, depths), random_costs(rng)
    host, device = Policy(costs, sequences, depths), Kernels(shape, costs, schedule, mode, change)
    slots, made = list[int](), list[Choice]()
    for i in range(rounds):
        if i % 6 == 0:
            fresh = rng.permutation(sequences)[: rng.integers(1, sequences + 1)].tolist()
            for s in set(fresh) - set(slots):
                host.join(s), device.join(s)
            slots = fresh
        trees = {s: random_tree(rng, depths, 64 - len(slots)) for s in slots} if host.drafts else {}
        if trees and rng.random() < 0.5:  # the same tree everywhere: nodes of different slots tie
            trees = dict.fromkeys(trees, trees[slots[0]])
        choice = host.choose(trees) if trees else host.plain(slots)
        device.choose(slots, trees)
        same_choice(device, host, choice, slots)
        known = {s: host.trees[s].first(choice.sizes[s] + 1) for s in slots}
        emitted = {s: walk(rng, tree, depths) if choice.draft else [int(rng.integers(12))] for s, tree in known.items()}
        host.settle(choice, emitted)
        device.settle(slots, emitted)
        same_lesson(device, host)
        made.append(choice)
    return made


@pytest.mark.parametrize(("sequences", "depths"), [(1, 7), (3, 4), (8, 7), (32, 1), (1, 15)])
def test_five_hundred_rounds_are_decided_as_on_the_host(sequences: int, depths: int) -> None:
    made = [choice for seed in range(5) for choice in play(seed, sequences, depths, 20)]
    assert len(made) == 100
    drafts = [c for c in made if c.draft]
    assert drafts and len({c.rows for c in drafts}) > 4
    assert sequences > 1 or any(not c.draft for c in made)


def wait_for_probes(draft: float, change: Change | None = None) -> list[int]:
    """Rounds, of 50, that draft though drafting has stopped. Drafts that cost too much stop."""
    shape, costs = limits(1, 7), Costs.of({1: 1.0, 64: 64.0}, draft)
    host, device = Policy(costs, 1, 7), Kernels(shape, costs, SCHEDULES[0], "fast", change)
    drafted = []
    tree = best_first(1, np.full((7, 2), -6, np.float32), np.full((7, 2), 5, np.int32), 63)
    for _ in range(50):
        trees = {0: tree} if host.drafts else {}
        choice = host.choose(trees) if trees else host.plain([0])
        device.choose([0], trees)
        same_choice(device, host, choice, [0])
        host.settle(choice, {0: [3]})
        device.settle([0], {0: [3]})
        same_lesson(device, host)
        drafted.append(choice.draft)
    stop = drafted.index(False)
    assert host.lost == PATIENCE
    return [i + 1 - stop for i, d in enumerate(drafted) if d and i > stop]


def test_a_long_wait_ends_with_a_probe() -> None:
    """Every sixteenth round, or as seldom as keeps probes below a fortieth of the time."""
    assert wait_for_probes(0.4) == [PROBE, 2 * PROBE]
    assert wait_for_probes(0.5) == [20, 40] and wait_for_probes(1.1) == [44]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_order_of_threads_matters(schedule: Schedule) -> None:
    play(11, 3, 4, 6, schedule, "check")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120f"])
def test_no_product_is_fused_into_a_sum(arch: str) -> None:
    """What the emulator cannot show: NVRTC fuses a * b + c of plain operators, with another rounding than the host's."""
    for tile in budget_tiles(limits(8, 7), 64).values():
        ptx = compile_ptx(render_tile(tile), arch)
        assert "fma.rn.f64" not in ptx
        assert tile.template != "choose_budget" or "mul.rn.f64" in ptx
    fused = "KERNEL(32)\nf(double* x) { x[0] = x[1] * x[2] + x[3]; }\n"
    assert "fma.rn.f64" in compile_ptx('#include "ddtree/prims.cuh"\n' + fused, arch)


@pytest.mark.gpu
@pytest.mark.parametrize(("sequences", "depths"), [(1, 7), (8, 7), (1, 15)])
def test_a_gpu_decides_as_the_host(sequences: int, depths: int) -> None:
    for seed in range(3):
        assert len(play(seed, sequences, depths, 20, mode="gpu")) == 20


MUTATIONS = [
    ("least[at], other < mine)", "least[at], other > mine)"),
    ("theirs > key || (equal && theirs == key)", "theirs > key"),
    ("costs[Config::capacities + 1 + bucket]", "costs[Config::capacities + bucket]"),
    ("__dadd_rn(kPrior, slot->hits[depth]) /", "slot->hits[depth] /"),
    ("back = at % nodes - 1; back > 0", "back = at % nodes - 1; back > 64"),
    ("bitcast<u64>(p < 1. ? p : 1.) + 1", "bitcast<u64>(p) + 1"),
    ("bitcast<u64>(p < 1. ? p : 1.) + 1", "bitcast<u64>(p < 1. ? p : 1.)"),
    ("total = min(total, most - active);", "total = min(total, most);"),
    ("in && key == largest) atomicMin", "in && key == largest) atomicMax"),
    ("return pays ? best :", "return true ? best :"),
    ("distance < most; distance *= 2", "distance < 32; distance *= 2"),
    ("state->waited = draft ? 0 :", "state->waited = draft ? 1 :"),
    ("if (draft) state->slot[slot].full = count[slot], state->slot[slot].walk = 1;",
     "state->slot[slot].full = count[slot], state->slot[slot].walk = 1;"),
    ("low ? __ffs(low) - 1 : high ? 31 + __ffs(high) : -1", "low ? __ffs(low) - 1 : high ? 32 + __ffs(high) : -1"),
    ("if (any && lane == 0)", "if (lane == 0)"),
    ("i < length && walk >= 0", "i < 1 && walk >= 0"),
    ("kDecay = 0.95", "kDecay = 0.9500001"),
    ("lost < kPatience ? lost : kPatience : 0.", "lost : 0."),
    ("rounds >= kProbe &&", "rounds > kProbe &&"),
    ("kPrice = 40.", "kPrice = 30."),
    ("__dmul_rn(whole, 1.9082149292705877e-10)", "0."),
]  # fmt: skip


@pytest.mark.parametrize("change", MUTATIONS, ids=[new for _, new in MUTATIONS])
def test_a_fault_is_caught(change: Change) -> None:
    with pytest.raises((AssertionError, KernelError)):
        for seed in range(8):
            play(seed, 3, 4, 20, change=change)
            play(seed, 1, 15, 40, change=change)
        wait_for_probes(0.4, change), wait_for_probes(0.5, change)
