"""Rounds without a draft: the kernels that let features wait, and whole rounds through emulated kernels."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from ddtree.graph.budget import Costs
from ddtree.graph.build import Limits
from ddtree.graph.model import load
from ddtree.runtime.decoder import Sampling
from ddtree.templates.budget import ARGUMENTS, budget_tiles, first_state
from ddtree.templates.render import render_tile
from ddtree.templates.round import state_dtype
from tests.emulator import guarded
from tests.runtime.decoders import GOLDENS
from tests.steps.emulated import KIMI_TINY, emulated_decoder, run_tile

COLUMNS = ("sequence", "position", "parent", "node", "committed", "pages", "wanted", "source")
ROW = 48  # bytes


class Waiting:
    """The kernels' memory for rounds without a draft."""

    def __init__(self, sequences: int) -> None:
        self.limits = Limits(sequences, 256, 7, 8, 64, 63, auto=True)
        self.tiles, self.state = budget_tiles(self.limits, ROW), guarded(first_state(self.limits))
        self.pending = guarded(np.full((sequences, self.limits.pending, ROW), 0xEE, np.uint8))
        self.columns = {c: guarded(np.full(64, -7, np.int32)) for c in COLUMNS}
        packed = struct.pack("4i8P", -1, -1, sequences, 1, *(self.columns[c].ctypes.data for c in COLUMNS))
        self.table, self.round = guarded(np.frombuffer(packed, np.uint8)), guarded(np.zeros(1, state_dtype()))
        self.conditions = {f"on_{name}": guarded(np.full(1, 77, np.uint32)) for name in ("take_in", "draft", "commit")}

    def launch(self, name: str, slots: list[int], **places: np.ndarray) -> None:
        order, self.round["active"] = guarded(np.array(slots, np.int32)), len(slots)
        self.round["slots"] = order.ctypes.data
        known: dict[str, Any] = {
            "slots": order,
            "active": self.round,
            "budget_state": self.state,
            "pending": self.pending,
        }
        known |= {"round": self.round, **{name: word.ctypes.data for name, word in self.conditions.items()}}
        known |= {"context_table": self.table, **{k: guarded(v) for k, v in places.items()}}
        run_tile(self.tiles[name], render_tile(self.tiles[name]), [known[a] for a in ARGUMENTS[name]])

    def keep(self, slots: list[int], features: np.ndarray) -> None:
        self.launch("keep_features", slots, features=features)

    def take_in(self, slots: list[int], committed: np.ndarray, *, draft: bool) -> list[tuple[int, int, int]]:
        """(slot, position, row of pending) of the rows that the drafter takes in."""
        self.state["draft"] = draft
        positions = guarded(committed)
        self.round["committed"] = positions.ctypes.data
        self.launch("context_rows", slots)
        count, wanted = struct.unpack("2i", self.table[:8].tobytes())
        c = {name: self.columns[name][:count].tolist() for name in COLUMNS}
        assert wanted == count and c["wanted"] == list(range(count)) and c["parent"] == c["node"] == [-1] * count
        assert bool(self.state["take_in"][0]) == (count > 0) and self.round["time"][0, 0] == 1
        assert [int(word[0]) for word in self.conditions.values()] == [count > 0, draft, draft]
        return list(zip(c["sequence"], c["position"], c["source"], strict=True))


def test_features_wait_until_a_draft() -> None:
    w, rng = Waiting(3), np.random.default_rng(0)
    assert w.limits.pending == 16
    committed, kept = np.array([100, 7, 63], np.int32), dict[tuple[int, int], bytes]()
    for slots in ([2, 0], [2, 0], [0]):
        features = rng.integers(0, 255, (len(slots), ROW)).astype(np.uint8)
        w.keep(slots, features)
        for s, row in zip(slots, features, strict=True):
            kept[s, int(committed[s])] = row.tobytes()
            committed[s] += 1
        assert w.take_in(slots, committed, draft=False) == []
    assert w.state["slot"]["waiting"].tolist() == [[3, 0, 2]]
    rows = w.take_in([0, 1, 2], committed, draft=True)
    assert [(s, p) for s, p, _ in rows] == [(0, 100), (0, 101), (0, 102), (2, 63), (2, 64)]
    for s, p, source in rows:
        assert w.pending.reshape(-1, ROW)[source].tobytes() == kept[s, p]
    assert w.state["slot"]["waiting"].tolist() == [[0, 0, 0]]
    assert w.take_in([0, 1, 2], committed, draft=True) == []


@pytest.mark.parametrize(("sequences", "room"), [(1, 16), (8, 8)])
def test_a_full_buffer_is_taken_in_without_a_draft(sequences: int, room: int) -> None:
    w, slots = Waiting(sequences), list(range(sequences))
    committed = np.full(sequences, 50, np.int32)
    for n in range(room):
        w.keep(slots, np.full((sequences, ROW), n, np.uint8))
        committed += 1
        rows = w.take_in(slots, committed, draft=False)
        assert len(rows) == (sequences * room if n == room - 1 else 0)
    assert [p for _, p, _ in rows] == list(range(50, 50 + room)) * sequences
    assert w.pending[:, :, 0].tolist() == [list(range(room))] * sequences


def test_whole_rounds_on_emulated_kernels() -> None:
    """With a draft, without, and with what waited: the tokens of plain decoding."""
    d = emulated_decoder(load(KIMI_TINY, ("tree.budget=auto", "tree.width=8")))
    d.use(Costs.of({1: 2.1, 8: 4.6, 16: 7.2, 32: 10.9, 64: 15.5}, 0.5))
    slot, token = d.start(GOLDENS[1]["prompt_ids"], Sampling(), 40)
    made, sizes = [token], list[int]()
    for turn in range(7):
        assert d.policy
        d.policy.drafts = turn not in (1, 2, 4)
        done = d.round()[slot]
        made += done.emitted
        sizes.append(len(done.tree))
    d.end(slot)
    assert [sizes[i] for i in (1, 2, 4)] == [1, 1, 1] and max(sizes) > 3
    assert made == GOLDENS[1]["greedy_ids"][: len(made)] and len(made) > 8
