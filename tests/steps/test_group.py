"""kimi-tiny on two ranks through emulated kernels: collectives run on both at once, everything else rank by rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddtree.graph.build import build_ranks, steps_of
from ddtree.graph.model import Model, load
from ddtree.graph.rows import RowTable
from ddtree.runtime.decoder import Decoder
from ddtree.runtime.launches import Place
from ddtree.runtime.load import folders, make_decoder
from ddtree.templates.target import TARGETS
from tests.ops.memory import RowsMemory
from tests.ops.operands import live
from tests.ops.together import BLOCKS, Ranks
from tests.steps.emulated import KIMI_TINY, EmulatedStep, _module, rank_memory, run_tile
from tests.steps.test_generation import GREEDY, SAMPLED, generate

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "kimi_tiny_greedy.json").read_text())


class EmulatedGroupStep:
    """A StepExecutor over all ranks; rank 0's outputs."""

    def __init__(self, steps: Sequence[EmulatedStep], group: Ranks) -> None:
        self.steps, self.group = list(steps), group

    def run(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
        """Every launch of the step, first those of one op on all ranks, then the next op's."""
        table, first = RowsMemory(rows), self.steps[0]
        given = [{n: s._input(t, inputs[n]) for n, t in s.graph.inputs.items()} for s in self.steps]
        for step in self.steps:
            step.arena[:] = 0xFF
        for launches in zip(*(step.launches for step in self.steps), strict=True):
            kernel = launches[0].kernel
            args = [
                [step._address(place, mine, table.struct) for place in launch.places]
                for step, launch, mine in zip(self.steps, launches, given, strict=True)
            ]
            if kernel.op.collective:
                self.group.launch(kernel.tile, kernel.source, [args], _module)
            else:
                for mine in args:
                    run_tile(kernel.tile, kernel.source, mine)
        self.group.check()
        return {name: first.read(t, live(t, rows)) for name, t in first.graph.outputs.items()}


def group_decoder(model: Model) -> Decoder:
    where = folders(model, None, None)
    graphs = {name: build_ranks(model, name) for name in steps_of(model)}
    ops = [op for ranks in graphs.values() for op in ranks[0].ops]
    group = Ranks(ops, model.ranks, one_shot=4 * 256 // 8)  # four rows go in one shot, more in two
    few = replace(TARGETS["compute_120f"], sms=BLOCKS)
    caches, steps = [], {name: [] for name in graphs}
    for rank in range(model.ranks):
        mine = [ranks[rank] for ranks in graphs.values()]
        shared, own = rank_memory(model, mine, where)
        shared[Place("group")] = group.structs[rank]
        caches += own
        for graph in mine:
            steps[graph.name].append(EmulatedStep(graph, shared, few))
    return make_decoder(model, {name: EmulatedGroupStep(made, group) for name, made in steps.items()}, caches)


def test_two_ranks_tree_has_the_bits_of_plain_decoding() -> None:
    prompt = GOLDENS[4]["prompt_ids"]
    tree = group_decoder(load(KIMI_TINY, ("tree.budget=7",), ranks=2))
    plain = group_decoder(load(KIMI_TINY, draft=False, ranks=2))
    for sampling, tokens in ((GREEDY, 12), (SAMPLED, 6)):
        made = generate(tree, prompt, tokens, sampling)
        assert made == generate(plain, prompt, tokens, sampling)
        assert sampling is not GREEDY or made[0] == GOLDENS[4]["greedy_ids"][:tokens]
