"""kimi-tiny through emulated kernels from the prompt to the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.graph.rows import RowTable
from ddtree.runtime.decoder import Decoder, Sampling
from tests.steps.emulated import KIMI_TINY, emulated_decoder

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "kimi_tiny_greedy.json").read_text())
GREEDY = Sampling()
SAMPLED = Sampling(0.9, 40, 0.95, 11)


def generate(d: Decoder, prompt: list[int], tokens: int, sampling: Sampling) -> tuple[list[int], list[bytes]]:
    """The tokens, and the bits of the logits that each but the first was chosen from."""
    slot, token = d.start(prompt, sampling, tokens)
    verify, seen = d.steps["verify"].run, {}

    def recorded(inputs: Mapping[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
        seen.update(out := verify(inputs, rows))
        return out

    d.steps["verify"].run = recorded  # type: ignore[method-assign]
    ids, bits = [token], []
    while len(ids) < tokens:
        done = d.round()[slot]
        ids += done.emitted
        bits += [seen["logits"][node].tobytes() for node in done.path]  # one sequence: a row is a node
    d.steps["verify"].run = verify  # type: ignore[method-assign]
    d.end(slot)
    return ids[:tokens], bits[: tokens - 1]


@pytest.fixture(scope="module")
def plain() -> Decoder:
    return emulated_decoder(load(KIMI_TINY, draft=False))


@pytest.mark.parametrize(("sampling", "tokens"), [(GREEDY, 24), (SAMPLED, 10)], ids=["greedy", "sampled"])
def test_tree_has_the_bits_of_plain_decoding(plain: Decoder, sampling: Sampling, tokens: int) -> None:
    tree = emulated_decoder(load(KIMI_TINY, ("tree.budget=15",)))
    prompt = GOLDENS[0]["prompt_ids"]
    assert generate(tree, prompt, tokens, sampling) == generate(plain, prompt, tokens, sampling)


@pytest.mark.parametrize("index", [5, 7])
def test_teacher_forced_argmax_where_the_gap_is_wide(plain: Decoder, index: int) -> None:
    """Forced by giving the golden tokens as one long tree: a chain of 63 nodes has the logits of plain decoding."""
    golden = GOLDENS[index]
    prompt, ids, gaps = golden["prompt_ids"], golden["greedy_ids"], np.array(golden["gaps"])
    slot, first = plain.start(prompt, GREEDY, 200)
    chosen = [first]
    for start in range(0, len(ids) - 1, 32):
        chunk = np.array(ids[start : start + 32], np.int32)
        chosen += _chain(plain, slot, chunk)
    plain.end(slot)
    wide = gaps >= 0.5
    assert (np.array(chosen[: len(ids)])[wide] == np.array(ids)[wide]).all()


def _chain(d: Decoder, slot: int, tokens: np.ndarray) -> list[int]:
    """Verify a chain of given tokens and commit all of it; returns the target's choice after each."""
    from ddtree.graph.ops.build_tree import DraftTree

    n = len(tokens)
    tree = DraftTree(tokens, np.arange(-1, n - 1, dtype=np.int32), np.arange(n, dtype=np.int32), np.zeros(n))
    rows = d._tree_rows({slot: tree})
    out = d.steps["verify"].run({"ids": tokens, **d._request(), "remaining": d._each("remaining")}, rows)
    for i in range(n):  # a commit step takes one row per sequence here, so the path goes in piece by piece
        path, length = np.full((1, d.limits.depths + 1), i, np.int32), np.ones(1, np.int32)
        d._commit(rows, {"path": path, "length": length})
        d.slots[slot].committed += 1
    return out["chosen"].tolist()
