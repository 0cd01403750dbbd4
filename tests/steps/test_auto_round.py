"""Whole rounds that choose their size: the round's parts in their order and with their branches, kernels and steps on the
emulator, against the host's decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddtree.graph.budget import Costs
from ddtree.graph.model import load
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.runtime.cuda.round import Branch, Choosing, RoundParts
from ddtree.runtime.decoder import Decoder, Round, Sampling
from ddtree.templates.budget import state_dtype
from tests.emulator import guarded
from tests.runtime.decoders import GOLDENS
from tests.steps.emulated import KIMI_TINY, EmulatedStep, emulated_decoder
from tests.steps.rounds import Between, Table

COSTS = Costs.of({1: 2.1, 8: 4.6, 16: 7.2, 32: 10.9, 64: 15.5}, 0.5)
STATE = ("committed", "anchor", "remaining")
DRAFTED = ("node_token", "node_parent", "node_depth", "node_score", "count")
OUTCOME = ("path", "length", "emitted", "kept", "done")


class Parts:
    """A decoder's sequences, advanced by the parts of a round alone. Every row capacity is verified by the same step."""

    def __init__(self, host: Decoder, mask_id: int) -> None:
        self.host, self.steps = host, host.steps
        features = self._step("verify").graph.outputs["features"]
        self.kernels = k = Between(host.limits, mask_id, row_bytes=features.row_bytes(1))
        assert k.sizes
        k.sizes.use(COSTS)
        for s in host.slots:
            host.pool.reserve(s, 400)
            k.sizes.join(s)
        limit = np.full(host.limits.sequences, 1 << 20)
        k.state.write(list(host.slots), host.budget, {n: host._each(n) for n in STATE} | {"limit": limit})
        self.pages = guarded(host.pool.table)
        shared = (host.limits.sequences, k.state.arrays["committed"], self.pages.ctypes.data, self.pages.shape[1])
        self.tables = {name: Table(*shared) for name in ("draft", "verify", "commit", "context")}
        self.ids = {name: guarded(np.full(64, -7, np.int32)) for name in ("draft", "verify")}
        self.request = {name: guarded(np.asarray(v)) for name, v in host._request().items()}
        self.pending = guarded(np.full(features.shape, 0xFFFF, np.uint16))
        self.places = {f"{name}_table": t.struct for name, t in self.tables.items()}
        self.places |= {f"{name}_ids": ids for name, ids in self.ids.items()}
        self.places |= {name: self._at("draft", name) for name in DRAFTED}
        self.places |= {name: self._at("verify", name) for name in (*OUTCOME, "features")}
        self.places["pending"] = self.pending.ctypes.data
        choosing = Choosing(k.sizes, "context step", "store step")  # type: ignore[arg-type]
        verify = dict.fromkeys((1, 4, 6, 8, 12, 16, 24, 32, 48, 64), "verify step")
        parts: Any = RoundParts(None, k.state, "draft step", verify, "commit step", choosing, k.tiles, {})  # type: ignore[arg-type]
        self.sequence = parts.sequence()

    def _step(self, name: str) -> EmulatedStep:
        return self.steps[name]  # type: ignore[index,return-value]

    def _at(self, step: str, name: str) -> int:
        made = self._step(step)
        return made.arena.ctypes.data + made.graph.offsets[made.graph.outputs[name].name]

    def run(self, part: Any) -> None:
        """One part of the round, or the body that its condition names."""
        if isinstance(part, Branch):
            value = int(self.kernels.conditions[part.condition][0])
            at = value if part.kind == "SWITCH" else 0 if value else 1
            for inner in part.bodies[at] if at < len(part.bodies) else ():
                self.run(inner)
        elif part.endswith(" step"):
            self._launch(part.removesuffix(" step"))
        else:
            self.kernels.run(part, self.places)

    def _launch(self, name: str) -> None:
        k, places = self.kernels, self.places
        given: dict[str, Any] = {"ids": self.ids.get(name)}
        if name == "draft":
            given |= {"anchor": k.array("anchor"), "budget": k.array("budgets")}
        elif name == "verify":
            given |= {**self.request, "remaining": k.array("remaining")}
        elif name == "context":
            given |= {"features": self.pending}
        else:
            given |= {n: places[n] for n in ("path", "length", "features")}
        self._step(name).launch(given, self.tables["commit" if name == "store" else name].struct)

    def round(self) -> dict[int, Round]:
        """What the record of a whole round says."""
        for part in self.sequence:
            self.run(part)
        state, sizes = self.kernels.state, self.kernels.sizes
        at = state.taken % state.ring
        slots = state.columns["slots"][at, : state.columns["active"][at]].tolist()
        assert sizes and state.unread == 1
        choice, done = sizes.choice(state, at, slots), dict[int, Round]()
        for s in slots:
            r = state.records[at]["slot"][s]
            n, length = int(r["nodes"]), int(r["length"])
            score = state.records[at]["score"][s][:n].copy()
            tree = DraftTree(*(r[name][:n].copy() for name in ("token", "parent", "depth")), score)
            done[s] = Round(tree, r["path"][:length].tolist(), r["emitted"][:length].tolist(), choice=choice)
        state.take()
        return done


def started(sequences: int) -> tuple[Decoder, int]:
    model = load(KIMI_TINY, ("tree.budget=auto", f"decode.sequences={sequences}"))
    d = emulated_decoder(model)
    for i in range(sequences):
        d.start(GOLDENS[i + 1]["prompt_ids"], Sampling(), 100)
    assert model.drafter
    return d, model.drafter.spec.mask_id


@pytest.mark.parametrize(("sequences", "rounds"), [(1, 7), (3, 3)])
def test_parts_of_a_round_do_what_the_host_decoder_does(sequences: int, rounds: int) -> None:
    """With a draft, without, and with what waited: the same trees, tokens and reasons, and at the end the same caches."""
    host, mask_id = started(sequences)
    other, _ = started(sequences)
    host.use(COSTS)
    for s in host.slots:
        host.policy.join(s)  # type: ignore[union-attr]
    parts = Parts(other, mask_id)
    for turn in range(rounds):
        assert host.policy and parts.kernels.sizes
        drafts = turn not in (1, 2, 4)
        host.policy.drafts = drafts
        at = parts.kernels.sizes.state + state_dtype(host.limits).fields["draft"][1]  # type: ignore[index]
        parts.kernels.device.write(at, np.array([drafts], np.int32))
        want, got = host.round(), parts.round()
        assert list(got) == list(want)
        for s, done in want.items():
            assert got[s].emitted == done.emitted and got[s].path == done.path and got[s].choice == done.choice
            for name in ("token", "parent", "depth", "score"):
                assert getattr(got[s].tree, name).tolist() == getattr(done.tree, name).tolist(), name
    for mine, theirs in zip(other.caches, host.caches, strict=True):
        for s in host.slots:  # pages lie elsewhere, for one of the two reserved more of them
            a, b = (committed(c, d, host.slots[s].committed, s) for c, d in ((mine, other), (theirs, host)))
            assert a == b


def committed(cache: Any, d: Decoder, positions: int, slot: int) -> list[bytes]:
    """The committed rows of a layer's cache."""
    if cache.ring:
        return [cache.rows[slot, p % cache.ring].tobytes() for p in range(max(0, positions - cache.ring), positions)]
    return [cache.rows[d.pool.table[slot, p // 64], p % 64].tobytes() for p in range(positions)]
