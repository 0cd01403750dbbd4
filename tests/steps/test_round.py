"""The kernels between the steps of a round: the same row tables, texts and records as the host decoder's."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.runtime.decoder import Decoder, Round, Sampling
from ddtree.templates.render import render_tile
from ddtree.templates.round import ARGUMENTS, record_dtype, round_tiles
from tests.emulator import guarded
from tests.ops.memory import RowsMemory
from tests.steps.emulated import KIMI_TINY, EmulatedStep, emulated_decoder, run_tile

_COLUMNS = ("sequence", "position", "parent", "node", "committed", "pages", "wanted", "source")


class Table:
    """An empty row table with room for 64 rows; kernels fill it."""

    def __init__(self, committed: np.ndarray, pages: np.ndarray) -> None:
        self.arrays = {c: guarded(np.full(64, -7, np.int32)) for c in _COLUMNS} | {
            "committed": committed,
            "pages": pages,
        }
        packed = struct.pack(
            "4i8P", 0, 0, len(committed), pages.shape[1], *(self.arrays[c].ctypes.data for c in _COLUMNS)
        )
        self.struct = guarded(np.frombuffer(packed, np.uint8))

    def counts(self) -> tuple[int, int]:
        return struct.unpack("2i", self.struct[:8].tobytes())  # type: ignore[return-value]


class KernelRounds:
    """The state of a host decoder, advanced by kernels only. `record` afterwards says what the round did."""

    def __init__(self, host: Decoder, mask_id: int) -> None:
        self.host, self.limits, n = host, host.limits, host.limits.sequences
        self.state = {k: guarded(host._each(k)) for k in ("committed", "anchor", "remaining")}
        self.slots = guarded(np.array([*host.slots, *[0] * (n - len(host.slots))], np.int32))
        for s in host.slots:
            host.pool.reserve(s, int(self.state["committed"][s]) + self.limits.depths + 1)
        self.pages = guarded(host.pool.table)
        names = ("committed", "anchor", "remaining")
        packed = struct.pack(
            "2i4P", len(host.slots), 41, self.slots.ctypes.data, *(self.state[k].ctypes.data for k in names)
        )
        self.round = guarded(np.frombuffer(packed, np.uint8))
        self.record = guarded(np.zeros(n, record_dtype(self.limits)))
        self.scores = guarded(np.zeros((n, self.limits.nodes)))
        self.flag = guarded(np.zeros(1, np.uint32))
        self.tiles = round_tiles(self.limits, mask_id)

    def between(self, name: str, places: dict[str, Any]) -> None:
        run_tile(self.tiles[name], render_tile(self.tiles[name]), [places.get(a, 0) for a in ARGUMENTS[name]])

    def run(self) -> dict[int, Round]:
        steps: dict[str, EmulatedStep] = self.host.steps  # type: ignore[assignment]
        n, places = (
            self.limits.sequences,
            {"round": self.round, "record": self.record, "scores": self.scores, "flag": self.flag},
        )
        tables = {k: Table(self.state["committed"], self.pages) for k in ("draft", "verify", "commit")}
        places |= {f"{k}_table": t.struct for k, t in tables.items()}
        places |= {f"{k}_ids": guarded(np.full(64, -7, np.int32)) for k in ("draft", "verify")}
        places["count"] = guarded(np.full(n, -7, np.int32))
        verify_inputs = {**self.host._request(), "remaining": self.state["remaining"]}
        if self.limits.block:
            self.between("draft_rows", places)
            budget = guarded(np.full(n, min(self.host.budget, 64 // len(self.host.slots) - 1), np.int32))
            steps["draft"].launch(
                {"ids": places["draft_ids"], "anchor": self.state["anchor"], "budget": budget}, tables["draft"].struct
            )
            places |= {
                k: guarded(self._out("draft", k))
                for k in ("node_token", "node_parent", "node_depth", "node_score", "count")
            }
        self.between("tree_rows", places)
        given = {k: guarded(np.asarray(v)) for k, v in verify_inputs.items()}
        steps["verify"].launch({"ids": places["verify_ids"], **given}, tables["verify"].struct)
        places |= {k: guarded(self._out("verify", k)) for k in ("path", "length", "emitted", "kept", "done")}
        self.between("commit_rows", places)
        commit = {k: places[k] for k in ("path", "length")}
        if self.limits.block:
            t = steps["verify"].graph.outputs["features"]
            at = steps["verify"].graph.offsets[t.name]
            commit["features"] = guarded(steps["verify"].arena[at : at + t.nbytes].view(np.uint16).reshape(t.shape))
        steps["commit"].launch(commit, tables["commit"].struct)
        self.between("advance", places)
        self.tables = tables
        return {s: self._result(s) for s in self.host.slots}

    def _out(self, step: str, name: str) -> np.ndarray:
        emulated: EmulatedStep = self.host.steps[step]  # type: ignore[assignment,index]
        return emulated.read(emulated.graph.outputs[name], self.limits.sequences)

    def _result(self, slot: int) -> Round:
        from ddtree.graph.ops.build_tree import DraftTree

        r, n = self.record[slot], int(self.record[slot]["nodes"])
        tree = DraftTree(r["token"][:n], r["parent"][:n], r["depth"][:n], self.scores[slot, :n])
        return Round(tree, r["path"][: r["length"]].tolist(), r["emitted"][: r["length"]].tolist())


PROMPTS = [[3840, 331, 284, 605, 263], [3840, 258, 374], [3840, 331, 284, 605, 263, 1081, 99, 105, 593]]


def started(draft: bool) -> tuple[Decoder, int]:
    model = load(KIMI_TINY, ("decode.sequences=4", "tree.budget=7"), draft=draft)
    d = emulated_decoder(model)
    for p in PROMPTS:
        d.start(p, Sampling(0.7, 0, 0.9, 3), 100)
    d.end(1)  # leaves a free slot between two active ones
    return d, model.drafter.spec.mask_id if model.drafter else 0


@pytest.mark.parametrize("draft", [True, False])
def test_kernels_do_what_the_host_decoder_does(draft: bool) -> None:
    host, mask_id = started(draft)
    other, _ = started(draft)
    for _ in range(2):
        kernels = KernelRounds(other, mask_id)
        got, want = kernels.run(), host.round()
        for slot, done in want.items():
            assert got[slot].emitted == done.emitted and got[slot].path == done.path
            for name in ("token", "parent", "depth", "score"):
                assert getattr(got[slot].tree, name).tolist() == getattr(done.tree, name).tolist(), name
            assert kernels.state["committed"][slot] == host.slots[slot].committed
            assert kernels.state["anchor"][slot] == host.slots[slot].anchor
            assert kernels.state["remaining"][slot] == host.slots[slot].remaining
            mine = other.slots[slot]
            mine.committed, mine.anchor, mine.remaining = (
                int(kernels.state[k][slot]) for k in ("committed", "anchor", "remaining")
            )
        assert kernels.flag[0] == 42  # the turn after 41
        rows = sum(len(r.tree) for r in want.values())
        assert kernels.tables["verify"].counts() == (rows, rows)
        assert kernels.tables["verify"].arrays["parent"][rows:].tolist() == [-7] * (64 - rows)


def test_rows_memory_matches_the_header() -> None:
    """The struct that tests build is the one that kernels read: 4 ints and 8 pointers."""
    from tests.ops.tables import decode_rows

    assert len(RowsMemory(decode_rows([3])).struct) == struct.calcsize("4i8P") == 80
