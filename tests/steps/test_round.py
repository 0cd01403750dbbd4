"""The kernels between the steps of a round: the same row tables, texts and records as the host decoder's."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.runtime.decoder import Decoder, Round, Sampling
from tests.emulator import guarded
from tests.ops.memory import RowsMemory
from tests.steps.emulated import KIMI_TINY, EmulatedStep, emulated_decoder
from tests.steps.rounds import Between, Table

STATE = ("committed", "anchor", "remaining")


class KernelRounds:
    """The state of a host decoder, advanced by kernels only. Its record afterwards says what the round did."""

    def __init__(self, host: Decoder, mask_id: int) -> None:
        self.host, self.limits = host, host.limits
        self.kernels = Between(host.limits, mask_id)
        values = {name: host._each(name) for name in STATE}
        for s in host.slots:
            host.pool.reserve(s, int(values["committed"][s]) + self.limits.depths + 1)
        self.pages = guarded(host.pool.table)
        limit = np.full(self.limits.sequences, 1 << 20)
        self.kernels.state.write(list(host.slots), host.budget, values | {"limit": limit})

    def run(self) -> dict[int, Round]:
        steps: dict[str, EmulatedStep] = self.host.steps  # type: ignore[assignment]
        kernels, n, places = self.kernels, self.limits.sequences, {}
        committed = kernels.state.arrays["committed"]
        self.tables = {
            k: Table(n, committed, self.pages.ctypes.data, self.pages.shape[1]) for k in ("draft", "verify", "commit")
        }
        places = {f"{k}_table": t.struct for k, t in self.tables.items()}
        places |= {f"{k}_ids": guarded(np.full(64, -7, np.int32)) for k in ("draft", "verify")}
        given: dict[str, Any] = {k: guarded(np.asarray(v)) for k, v in self.host._request().items()}
        if self.limits.block:
            kernels.run("draft_rows", places)
            inputs = {"ids": places["draft_ids"], "anchor": kernels.array("anchor"), "budget": kernels.array("budgets")}
            steps["draft"].launch(inputs, self.tables["draft"].struct)
            drafted = ("node_token", "node_parent", "node_depth", "node_score", "count")
            places |= {k: guarded(self._out("draft", k)) for k in drafted}
        kernels.run("tree_rows", places)
        given["remaining"] = kernels.array("remaining")
        steps["verify"].launch({"ids": places["verify_ids"], **given}, self.tables["verify"].struct)
        places |= {k: guarded(self._out("verify", k)) for k in ("path", "length", "emitted", "kept", "done")}
        kernels.run("commit_rows", places)
        commit = {k: places[k] for k in ("path", "length")}
        if self.limits.block:
            t = steps["verify"].graph.outputs["features"]
            at = steps["verify"].graph.offsets[t.name]
            commit["features"] = guarded(steps["verify"].arena[at : at + t.nbytes].view(np.uint16).reshape(t.shape))
        steps["commit"].launch(commit, self.tables["commit"].struct)
        kernels.run("advance", places)
        return {s: self._result(s) for s in self.host.slots}

    def _out(self, step: str, name: str) -> np.ndarray:
        emulated: EmulatedStep = self.host.steps[step]  # type: ignore[assignment,index]
        return emulated.read(emulated.graph.outputs[name], self.limits.sequences)

    def _result(self, slot: int) -> Round:
        record = self.kernels.state.records[0]
        r = record["slot"][slot]
        n, length = int(r["nodes"]), int(r["length"])
        tree = DraftTree(*(a[:n] for a in (r["token"], r["parent"], r["depth"], record["score"][slot])))
        return Round(tree, r["path"][:length].tolist(), r["emitted"][:length].tolist())


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
        rounds = KernelRounds(other, mask_id)
        got, want = rounds.run(), host.round()
        kernels, record = rounds.kernels, rounds.kernels.state.records[0]
        for slot, done in want.items():
            assert got[slot].emitted == done.emitted and got[slot].path == done.path
            for name in ("token", "parent", "depth", "score"):
                assert getattr(got[slot].tree, name).tolist() == getattr(done.tree, name).tolist(), name
            mine = other.slots[slot]
            for name in STATE:
                assert kernels.array(name)[slot] == getattr(host.slots[slot], name)
                setattr(mine, name, int(kernels.array(name)[slot]))
        rows = sum(len(r.tree) for r in want.values())
        assert rounds.tables["verify"].counts() == (rows, rows) and record["rows"] == rows
        assert rounds.tables["verify"].arrays["parent"][rows:].tolist() == [-7] * (64 - rows)
        assert record["slots"][: record["active"]].tolist() == list(want)
        assert kernels.state.unread == 1 and kernels.more[0] == 1 and not kernels.state.running


def test_rows_memory_matches_the_header() -> None:
    """The struct that tests build is the one that kernels read: 4 ints and 8 pointers."""
    from tests.ops.tables import decode_rows

    assert len(RowsMemory(decode_rows([3])).struct) == struct.calcsize("4i8P") == 80
