"""A drafter that is wrong, or was made for another target, is refused at the line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graph.spec import DRAFTER, TARGET, copy_models, edit, message, mistake, spot

MISTAKES = [
    ("mask_id: 4094\n\nweights", "¦mask: 4094\n\nweights", "mask: unknown key; did you mean 'mask_id'?"),
    ("mask_id: 4094\n\nweights", "mask_id: ¦4096\n\nweights", "mask_id: must be 0..4095, found 4096"),
    ("mask_id: 4094\n\nweights", "mask_id: ¦-1\n\nweights", "mask_id: must be at least 0, found -1"),
    ("taps: {layers: [1, 3, 5]", "taps: {¦layer: [1, 3, 5]", "taps.layer: unknown key; did you mean 'layers'?"),
    ("taps: {layers: [1, 3, 5]", "taps: {layers: [1, 3, ¦7]", "taps.layers[2]: a tap must be 0..6, found 7"),
    ("taps: {layers: [1, 3, 5]", "taps: {layers: [¦-1, 3, 5]", "taps.layers[0]: a tap must be 0..6, found -1"),
    ("taps: {layers: [1, 3, 5]", "taps: {layers: ¦[]", "taps.layers: needs 1 or more items, found 0"),
    ("hidden: hidden, vocab: 4096", "hidden: ¦hidden / 2, vocab: 4096", "taps.hidden: the drafter expects a target with hidden "
     f"128, {TARGET} has 256"),
    ("hidden: hidden, vocab: 4096", "hidden: hidden, vocab: ¦4095", f"taps.vocab: the drafter expects a target with vocab 4095, {TARGET} has 4096"),
    ("depth: 8}", "depth: ¦9}", f"taps.depth: the drafter expects a target with depth 9, {TARGET} has 8"),
    ("block_size: 8     ", "block_size: ¦1     ", "block_size: must be at least 2, found 1"),
    ("block_size: 8     ", "block_size: ¦65     ", "block_size: must be at most 64, found 65"),
    ("values: {window: 256, causal: true}", "values: {window: 256, causal: ¦maybe}", "graph[1].values.causal: unknown name 'maybe'; "
     "known names: eps, head, heads, hidden, kv_heads, taps, width"),
    ("weight: target.embed", "weight: ¦target.embd", "graph[0].weight: unknown weight 'target.embd'; did you mean 'target.embed'?"),
    ('{layers: 2..2, prefix: "layers.{layer}.", blocks: [context]', '{layers: ¦3..3, prefix: "layers.{layer}.", blocks: [context]',
     "features[3].layers: expected a range that starts at layer 2, after the one above, and counts up; found 3..3"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), MISTAKES, ids=[case[2][:60] for case in MISTAKES])
def test_a_mistake_is_one_line_at_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert mistake(tmp_path, old, new, name=DRAFTER) == expected


ELSEWHERE = [
    ("layers: [1, 3, 5], hidden", "layers: [1, 3], hidden",
     "¦{op: linear, x: features", "features[0]: linear: weight [256, 768] does not fit rows of 512 elements"),
    ("kv_heads: 2", "kv_heads: 3",
     "¦{op: draft_attention", "blocks.attention.ops[8]: draft_attention: 8 query heads do not divide by 3 key heads"),
    (", values: {window: 256}", "",
     "keys: {row: [kv_heads, head], window: ¦window}", "blocks.context.caches.keys.window: unknown name 'window'; known names: eps, head, heads, "
     "hidden, kv_heads, layer, taps, width"),
    ("blocks: [context], values: {window: 256}", "blocks: [context], values: {window: 300}",
     "¦{op: draft_attention", "blocks.attention.ops[8]: the block "
     "reads cache layers.0.keys, which `features` declares otherwise (row or window)"),
    ('  - {layers: 2..2, prefix: "layers.{layer}.", blocks: [context], values: {window: 0}}\n', "",
     "¦{op: draft_attention", "blocks.attention.ops[8]: "
     "the block reads cache layers.2.keys, which `features` declares nowhere"),
    ("values: {window: 256, causal: true}", "values: {window: 300, causal: true}",
     "¦{op: draft_attention", "blocks.attention.ops[8]: the block reads "
     "cache layers.0.keys, which `features` declares otherwise (row or window)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "expected"), ELSEWHERE, ids=[case[3][:60] for case in ELSEWHERE])
def test_a_mistake_may_show_at_what_depends_on_it(
    tmp_path: Path, old: str, new: str, where: str, expected: str
) -> None:
    target = copy_models(tmp_path)
    edit(tmp_path / DRAFTER, old, new)
    assert message(target) == f"{spot(where, tmp_path / DRAFTER)}: {expected}"


def test_a_file_without_its_kind_is_no_drafter(tmp_path: Path) -> None:
    target = copy_models(tmp_path)
    drafter = tmp_path / DRAFTER
    edit(drafter, "kind: drafter\n", "")
    at = spot("drafter: ¦dflash_tiny.yaml", target)
    assert (
        message(target) == f"{at}: decode.drafter: {drafter} is no drafter: its first keys should say `kind: drafter`"
    )


def test_ranks_divide_the_drafter_too(tmp_path: Path) -> None:
    target = copy_models(tmp_path)
    at = spot("split: [heads, ¦kv_heads", tmp_path / DRAFTER)
    assert message(target, ranks=4) == f"{at}: parallel.split[1]: kv_heads = 2 does not divide by 4 ranks"


@pytest.mark.parametrize("name", ["a\\0b", "x" * 300, "."])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    text = mistake(tmp_path, "  drafter: dflash_tiny.yaml", f'  drafter: ¦"{name}"')
    assert text.startswith("decode.drafter: cannot read ")
