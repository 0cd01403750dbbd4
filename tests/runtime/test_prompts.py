"""Prompts of every awkward length: chunks, pages and windows leave no trace in the bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import Folders, cpu_decoder
from tests.graph.spec import DRAFTER, copy_models, edit
from tests.runtime.decoders import GOLDENS, PLAIN, ROOT, decode, decoder, prompt, rounds, watch
from tests.runtime.test_sequences import assert_same_rounds

LENGTHS = (1, 63, 64, 65, 255, 256, 257, 300)
LONG = prompt(300)


def committed(d: Decoder, slot: int) -> dict[str, np.ndarray]:
    """What every cache holds of a sequence, in position order (of a ring, the positions that it still holds)."""
    length, found = d.slots[slot].committed, {}
    for cache in d.caches:
        keep = range(max(0, length - cache.ring), length) if cache.ring else range(length)  # type: ignore[attr-defined]
        place = [(slot, p % cache.ring) if cache.ring else (d.pool.table[slot, p // 64], p % 64) for p in keep]  # type: ignore[attr-defined]
        found[cache.cache.name] = np.stack([cache.rows[at] for at in place])  # type: ignore[attr-defined]
    return found


@pytest.fixture(scope="module")
def whole() -> dict[str, np.ndarray]:
    """The caches after one chunk of 300 rows."""
    d = decoder("prefill_rows=512")
    slot, _ = d.start(LONG, Sampling(), 8)
    found = committed(d, slot)
    d.end(slot)
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_and_later_rows_change_no_bit(length: int, whole: dict[str, np.ndarray]) -> None:
    d = decoder("prefill_rows=64")
    slot, _ = d.start(LONG[:length], Sampling(), 8)
    found = committed(d, slot)
    d.end(slot)
    assert len(found) == 8 + 6
    for name, rows in found.items():
        first = 300 - len(whole[name])  # a ring has forgotten the first positions of the longest prompt
        mine = rows[max(0, first - (length - len(rows))) :]
        assert not np.isnan(rows).any()
        assert mine.tobytes() == whole[name][max(0, length - len(rows) - first) :][: len(mine)].tobytes(), name


@pytest.mark.parametrize("length", [1, 64, 257])
def test_the_first_token_and_the_rounds_do_not_depend_on_chunks(length: int) -> None:
    a, b = (rounds(decoder(f"prefill_rows={n}"), LONG[:length], 8) for n in (64, 512))
    assert a[0] == b[0]
    assert_same_rounds(a[1], b[1])


def test_logits_after_chunks() -> None:
    seen = {}
    for rows in (64, 100, 512):
        d = decoder(f"prefill_rows={rows}")
        watched = watch(d, "prefill")
        d.end(d.start(LONG[:257], Sampling(), 8)[0])
        d.steps = {**d.steps, "prefill": watched.step}
        assert [len(i["ids"]) for i, _, _ in watched.runs] == {64: [64] * 4 + [1], 100: [100, 100, 57], 512: [257]}[
            rows
        ]
        seen[rows] = watched.runs[-1][1]["logits"].tobytes()
    assert len(set(seen.values())) == 1


def test_the_context_filled_to_its_end() -> None:
    text = prompt(100, seed=3)
    want = decode(decoder(PLAIN), text, 28)[0]
    d = decoder("context=128")
    assert decode(d, text, 28)[0] == want  # the last round may commit past the limit
    assert decode(decoder(PLAIN, "context=128"), text, 28)[0] == want
    assert decode(d, prompt(127, seed=3), 1)[0] == decode(decoder(PLAIN), prompt(127, seed=3), 1)[0]
    assert len(d.pool.free) == d.pool.total == 3


@pytest.mark.parametrize("block", [2, 4, 8])
def test_a_block_gives_trees_of_its_depth(block: int) -> None:
    golden = GOLDENS[5]  # whose drafts are accepted to the end
    d = decoder(f"block_size={block}", "tree.budget=15")
    made, done = rounds(d, golden["prompt_ids"], 40)
    assert made[:40] == golden["greedy_ids"][:40]
    assert max(r.tree.depth.max() for r in done) == block - 1
    assert max(len(r.emitted) for r in done) == block


def test_a_budget_of_zero_is_plain_decoding() -> None:
    made, lengths = decode(decoder("tree.budget=0"), GOLDENS[0]["prompt_ids"], 12)
    assert made == GOLDENS[0]["greedy_ids"][:12] and lengths == [1] * 11


def test_a_ring_holds_what_the_window_needs(tmp_path: Path) -> None:
    target = copy_models(tmp_path)
    drafter = tmp_path / DRAFTER
    for name in ("keys", "values") * 2:  # caches that keep everything; the attention's window stays
        edit(drafter, f"{name}: {{row: [kv_heads, head], window: window}}", f"{name}: {{row: [kv_heads, head]}}")
    where = Folders(ROOT / "models" / "kimi_tiny", ROOT / "models" / "kimi_tiny_dflash")
    full = cpu_decoder(load(target), where)
    assert all(not cache.ring for cache in full.caches) and any(cache.ring for cache in decoder().caches)  # type: ignore[attr-defined]
    for length in (250, 300):
        assert_same_rounds(rounds(decoder(), LONG[:length], 20)[1], rounds(full, LONG[:length], 20)[1])
