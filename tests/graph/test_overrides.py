"""`--set KEY=VALUE`: what it reaches, what it says, and whose mistake a bad value is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddtree.graph.model import load
from tests.graph.spec import MODELS, TARGET, copy_models, message, spot

TINY = MODELS / TARGET


def located(expected: str) -> str:
    """A message with every `<text>` replaced by the place in the file that it marks."""
    return re.sub(r"<([^>]+)>", lambda found: spot(found[1], TINY).replace(f"{MODELS}/", ""), expected)


def refusal(tmp_path: Path, *settings: str) -> str:
    target = copy_models(tmp_path)
    return message(target, settings).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("key", ["budget", "tree.budget", "decode.tree.budget", " tree.budget "])
def test_any_suffix_of_a_key_path_names_the_key(key: str) -> None:
    model = load(TINY, [f"{key}=7"])
    assert model.target.spec.decode.tree.budget == 7
    assert model.notes == [f"decode.tree.budget = 7 overrides 15 in {spot('budget: ¦15', TINY)}"]


@pytest.mark.parametrize(
    ("setting", "read", "note"),
    [
        ("block_size=4", lambda m: m.target.spec.decode.block_size == 4, "decode.block_size = 4 overrides 8 in "),
        ("width=1", lambda m: m.target.spec.decode.tree.width == 1, "decode.tree.width = 1 overrides 'auto' in "),
        ("stop.ids=[1, 2]", lambda m: m.target.spec.decode.stop.ids == [1, 2], "decode.stop.ids = [1, 2] overrides a list in "),
        ("stop={strings: [x]}", lambda m: m.target.spec.decode.stop.strings == ["x"], "decode.stop = {strings: [x]} overrides a mapping in "),
        ("constants.eps=1e-6", lambda m: m.target.names["eps"] == 1e-6, "constants.eps = 1e-6 overrides 1e-05 in "),
        ("name=a=b", lambda m: m.target.spec.name == "a=b", "name = a=b overrides 'kimi-tiny' in "),
        ("decode.loop=[verify, accept, commit]", lambda m: m.target.spec.decode.loop[0] == "verify", "decode.loop = "),
        ("blocks.moe.ops[1].scale=2 * route_scale", lambda m: m.target.spec.blocks["moe"].ops[1].scale == "2 * route_scale", "blocks.moe"),
        ("graph[2].layers=1..7", lambda m: m.target.spec.graph[2].layers == "1..7", "graph[2].layers = 1..7 overrides '1..7' in "),
    ],
)  # fmt: skip
def test_values_are_yaml_of_any_kind(setting: str, read: object, note: str) -> None:
    model = load(TINY, [setting])
    assert read(model) and model.notes[0].startswith(note)  # type: ignore[operator]


def test_a_later_setting_wins_and_says_what_it_replaces() -> None:
    model = load(TINY, ["tree.budget=7", "budget=9", "tree={budget: 3}", "tree.budget=4"])
    assert model.target.spec.decode.tree.budget == 4
    assert [note.partition(" in ")[0] for note in model.notes] == [
        "decode.tree.budget = 7 overrides 15",
        "decode.tree.budget = 9 overrides --set tree.budget=7",
        "decode.tree = {budget: 3} overrides a mapping",
        "decode.tree.budget = 4 overrides 3",
    ]


UNKNOWN = [
    ("budgt=7", "--set budgt: kimi_tiny.yaml has no such key; did you mean 'budget'?"),
    ("decode.tre.budget=7", "--set decode.tre.budget: kimi_tiny.yaml has no such key; did you mean 'decode.tree.budget'?"),
    ("zzzzzzzz=7", "--set zzzzzzzz: kimi_tiny.yaml has no such key"),
    ("udget=7", "--set udget: kimi_tiny.yaml has no such key; did you mean 'budget'?"),
    ("layers=1", "--set layers: 2 keys end so: graph[1].layers, graph[2].layers; write more of the path"),
    ("eps=0.1", "--set eps: 7 keys end so: blocks.dense_mlp.ops[0].eps, blocks.mla.ops[0].eps, blocks.mla.ops[2].eps, "
     "blocks.mla.ops[6].eps, blocks.moe.ops[0].eps, constants.eps; write more of the path"),
    ("tree.budget", "--set wants KEY=VALUE, found 'tree.budget'"),
    ("=3", "--set wants KEY=VALUE, found '=3'"),
    ("", "--set wants KEY=VALUE, found ''"),
    ("stop.ids=[1", "--set stop.ids=[1: not YAML: expected ',' or ']', but got '<stream end>'"),
    ("name=*x", "--set name=*x: aliases (*name) are not supported; write the value out"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "expected"), UNKNOWN, ids=[s for s, _ in UNKNOWN])
def test_a_key_that_is_none_or_several(tmp_path: Path, setting: str, expected: str) -> None:
    assert refusal(tmp_path, setting) == expected


BAD = [
    ("tree.budget=99", "decode.tree.budget: must be at most 63, found 99 (overrides 15 in <budget: ¦15>)"),
    ("budget=many", "decode.tree.budget: expected a whole number or 'auto', found 'many' (overrides 15 in <budget: ¦15>)"),
    ("tree.budget=", "decode.tree.budget: expected a whole number or 'auto', found null (overrides 15 in <budget: ¦15>)"),
    ("block_size=1", "decode.block_size: must be at least 2, found 1 (overrides 8 in <block_size: ¦8>)"),
    ("block_size=9", "decode.block_size: must be at most 8, the drafter's trained block, found 9 (overrides 8 in <block_size: ¦8>)"),
    ("tree={budget: 70}", "decode.tree.budget: must be at most 63, found 70 (overrides a mapping in <  tree: ¦{>)"),
    ("tree={bugdet: 7}", "decode.tree.bugdet: unknown key; did you mean 'budget'? (overrides a mapping in <  tree: ¦{>)"),
    ("tree=7", "decode.tree: expected a mapping, found 7 (overrides a mapping in <  tree: ¦{>)"),
    ("stop.ids=[1, 9999]", "decode.stop.ids[1]: a stop id must be 0..4095, found 9999 (overrides a list in <ids: ¦[3841>)"),
    ("drafter=none.yaml", "decode.drafter: cannot read none.yaml: No such file or directory (overrides 'dflash_tiny.yaml' in <drafter: ¦dflash>)"),
    ("dims.hidden=2 * vocb", "dims.hidden: unknown name 'vocb'; did you mean 'vocab'? (overrides 256 in <hidden: ¦256>)"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "expected"), BAD, ids=[s for s, _ in BAD])
def test_a_bad_value_is_the_settings_mistake(tmp_path: Path, setting: str, expected: str) -> None:
    assert refusal(tmp_path, setting) == located(f"--set {setting}: {expected}")


def test_a_mistake_at_an_op_names_the_settings_inside_it(tmp_path: Path) -> None:
    assert refusal(tmp_path, "blocks.moe.ops[1].top_k=99") == located(
        "<¦{op: route>: blocks.moe.ops[1]: route: top_k must be 1..16, found 99 (with --set blocks.moe.ops[1].top_k=99)"
    )


def test_other_mistakes_stay_the_files(tmp_path: Path) -> None:
    assert refusal(tmp_path, "parallel.tensor=3") == located(
        "<split: [¦heads>: parallel.split[0]: heads = 8 does not divide by 3 ranks"
    )


def test_what_was_replaced_has_no_keys_below(tmp_path: Path) -> None:
    assert refusal(tmp_path, "tree=7", "tree.budget=9") == "--set tree.budget: kimi_tiny.yaml has no such key"
