"""Every mistake in a target's YAML is one line that points to it and says what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree.graph.build import build_step
from ddtree.graph.model import load
from ddtree.graph.ops import yaml_ops
from ddtree.graph.schema import ModelSpec
from tests.graph.spec import MODELS, check, copy_models, edit, message, mistake, spot

OPS = ", ".join(op.name() for op in yaml_ops())
KEYS_OF_A_TARGET = ", ".join(f.alias or name for name, f in ModelSpec.model_fields.items())
FULL_LOOP = "['draft', 'top_k', 'build_tree', 'verify', 'accept', 'commit']"

KEYS = [
    ("context: 4096", "¦contxt: 4096", "contxt: unknown key; did you mean 'context'?"),
    ("stream: x", "¦zzz: 1\nstream: x", f"zzz: unknown key; valid keys: {KEYS_OF_A_TARGET}"),
    ("name: kimi-tiny", "name: a\n¦name: b", "name: duplicate key 'name', first written in line 4; remove one of them"),
    ("  hidden: 256", "  hidden: 256\n  ¦hidden: 256", "dims.hidden: duplicate key 'hidden', first written in line 9; "
     "remove one of them"),
    ("schema: ddtree/1\n", "¦", "the key 'schema' is missing"),
    ("schema: ddtree/1", "schema: ¦ddtree/2", "schema: expected 'ddtree/1', found 'ddtree/2'"),
    ("{tensor: 1,", "{¦tensr: 1,", "parallel.tensr: unknown key; did you mean 'tensor'?"),
    ("  prefix: language_model.", "  ¦prefx: language_model.", "checkpoint.prefx: unknown key; did you mean 'prefix'?"),
    ("beta_fast: 32, beta_slow", "¦beta_fst: 32, beta_slow", "rope.main.beta_fst: unknown key; did you mean 'beta_fast'?"),
    ("norm: {source: input", "norm: {¦sourse: input", "blocks.mla.weights.norm.sourse: unknown key; did you mean 'source'?"),
    ("latent: {row:", "latent: {¦rows:", "blocks.mla.caches.latent.rows: unknown key; did you mean 'row'?"),
    ("    caches:\n", "    ¦cache:\n", "blocks.mla.cache: unknown key; did you mean 'caches'?"),
    ("weight: norm, eps: eps, y: h}", "weight: norm, ¦epz: eps, y: h}", "blocks.mla.ops[0].epz: unknown key; did you mean 'eps'?"),
    ("x: x, weight: norm, eps: eps, y: h}", "weight: norm, eps: eps, y: h, ¦inpt: x}",
     "blocks.mla.ops[0].inpt: unknown key; valid keys: op, x, weight, y, eps"),
    ("- {op: rms_norm, x: x, weight: norm, eps: eps,", "- ¦{op: rms_norm, x: x, weight: norm,",
     "blocks.mla.ops[0]: the key 'eps' is missing"),
    ("- {op: embed, ids: ids", "- {op: embed, ¦idz: ids", "graph[0].idz: unknown key; did you mean 'ids'?"),
    ('{layers: 0..0, prefix: "', '{layers: 0..0, ¦prefx: "', "graph[1].prefx: unknown key; did you mean 'prefix'?"),
    ("budget: 15", "¦budgt: 15", "decode.tree.budgt: unknown key; did you mean 'budget'?"),
    ("  stop: {ids:", "  stop: {¦id:", "decode.stop.id: unknown key; did you mean 'ids'?"),
    ("  bos: {token", "  ¦boss: {token", "text.boss: unknown key; did you mean 'bos'?"),
    ("    base_tokens: 3840", "    ¦base_toknes: 3840", "text.tokenizer.base_toknes: unknown key; did you mean 'base_tokens'?"),
    ("    limits: {characters: 400000,", "    limits: {¦character: 400000,",
     "text.tokenizer.limits.character: unknown key; did you mean 'characters'?"),
    ('      close: "</think>"', '      ¦clos: "</think>"', "text.chat.reasoning.clos: unknown key; did you mean 'close'?"),
    ("      sort_keys: true", "      ¦sort_key: true", "text.chat.tools.sort_key: unknown key; did you mean 'sort_keys'?"),
    ("stream: x", "tuning: {sm_90a: {linear: {¦stags: 1}}}\nstream: x",
     "tuning.sm_90a.linear.stags: unknown key; did you mean 'stages'?"),
    ("stream: x", "tuning: {¦sm_90: {}}\nstream: x",
     "tuning.sm_90: expected 'compute_120f' or 'sm_90a', found 'sm_90'; did you mean 'sm_90a'?"),
    ("stream: x", "tuning: {sm_90a: {¦linea: {}}}\nstream: x", "tuning.sm_90a.linea: unknown name 'linea'; did you mean 'linear'?"),
]  # fmt: skip

VALUES = [
    ("context: 4096", "context: ¦10", "context: must be at least 64, found 10"),
    ("context: 4096", "context: ¦99999999999", "context: must be at most 16777216, found 99999999999"),
    ("context: 4096", "context: ¦4096.0", "context: expected a whole number, found 4096.0"),
    ("name: kimi-tiny", "name: ¦7", "name: expected text, found 7"),
    ("name: kimi-tiny", "kind: ¦drafter\nname: a", "kind: this file describes a drafter; give the YAML of the target that names it"),
    ("  eps: 1e-5", "  eps: ¦tiny", "constants.eps: expected a number, found 'tiny'"),
    ("  eps: 1e-5", "  eps: ¦.nan", "constants.eps: expected a finite number, found nan"),
    ("ignore: []", 'ignore: [¦"re:("]', "checkpoint.ignore[0]: not a regular expression: missing ), unterminated "
     "subpattern at position 0, found 're:('"),
    ("text_config.hidden_size: hidden", "text_config.hidden_size: ¦{a: 1}", "checkpoint.config.text_config.hidden_size: "
     "expected a number or an expression or true or false or a list, found a mapping"),
    ("dtype: fp32}", "dtype: ¦fp23}", "blocks.moe.weights.bias.dtype: expected 'bf16', 'fp32' or 'int4', found 'fp23'; "
     "did you mean 'fp32'?"),
    ("kind: yarn", "kind: ¦yarm", "rope.main.kind: expected 'plain' or 'yarn', found 'yarm'; did you mean 'yarn'?"),
    ("theta: 50000, l", "theta: ¦1, l", "rope.main.theta: must be above 1.0, found 1"),
    ("theta: 50000, l", "theta: ¦.inf, l", "rope.main.theta: expected a finite number, found inf"),
    ("beta_fast: 32, beta", "beta_fast: ¦0, beta", "rope.main.beta_fast: must be above 0.0, found 0"),
    ("  main: {kind: yarn, dim: rope, theta: 50000, layout: interleaved, factor: 4, original: 1024,",
     "  main: ¦{kind: yarn, dim: rope, theta: 50000, layout: interleaved, factor: 4,",
     "rope.main: kind yarn needs `original`, the context length of the first training"),
    ("softmax_gain: true", "softmax_gain: true, amplitude: ¦loud", "rope.main.amplitude: expected a number or 'auto', found 'loud'"),
    ("softmax_gain: true", "softmax_gain: ¦1", "rope.main.softmax_gain: expected true or false, found 1"),
    ("sequences: 1", "sequences: ¦0", "decode.sequences: must be at least 1, found 0"),
    ("prefill_rows: 256", "prefill_rows: ¦0", "decode.prefill_rows: must be at least 1, found 0"),
    ("  drafter: dflash_tiny.yaml", "  drafter: ¦7", "decode.drafter: expected text, found 7"),
    ("stream: x", "tuning: {sm_90a: {linear: {stages: ¦0}}}\nstream: x", "tuning.sm_90a.linear.stages: must be at least 1, found 0"),
    ('"[EOS]": 3841', '"[EOS]": ¦x', "text.tokenizer.special.[EOS]: expected a whole number, found 'x'"),
    ('"[EOS]": 3841', '"[EOS]": ¦5000', "text.tokenizer.special.[EOS]: special: [EOS] has id 5000, outside 3840..4095"),
    ('      close: "</think>"', '      close: ¦"</thnk>"', "text.chat.reasoning.close: </thnk> is not one of tokenizer.special"),
    ('  bos: {token: "[BOS]"', '  bos: {token: ¦"<s>"', "text.bos.token: <s> is not one of tokenizer.special"),
    ("ranks: tiktoken.model", "ranks: ¦../t.model", "text.tokenizer.ranks: must name a file inside its folder, without '..' "
     "and not absolute; found '../t.model'"),
]  # fmt: skip

DIMS = [
    ("  hidden: 256", "  hidden: ¦[1]", "dims.hidden: expected a number or an expression, found a list"),
    ("  hidden: 256", "  hidden: ¦true", "dims.hidden: expected a number or an expression, found true"),
    ("  hidden: 256", "  hidden:¦", "dims.hidden: expected a number or an expression, found null"),
    ("  hidden: 256", "  hidden: ¦-256", "dims.hidden: a dim must be positive, found -256"),
    ("  hidden: 256", "  hidden: ¦vocab / 5", "dims.hidden: expected a whole number, found 819.2"),
    ("  hidden: 256", "  hidden: ¦.inf", "dims.hidden: expected a finite number or an expression, found inf"),
    ("  hidden: 256", "  hidden: ¦1e400", "dims.hidden: expected a finite number or an expression, found inf"),
    ("  hidden: 256", "  hidden: ¦two fish", "dims.hidden: 'two fish' is not an arithmetic expression"),
    ("  hidden: 256", "  hidden: ¦2 * vocb", "dims.hidden: unknown name 'vocb'; did you mean 'vocab'?"),
    ("  hidden: 256", "  hidden: ¦32 * heads", "dims.hidden: a dim may name only dims above it, found 'heads'"),
    ("  hidden: 256", "  hidden: ¦vocab // 0", "dims.hidden: integer division or modulo by zero"),
    ("  hidden: 256", "  hidden: ¦" + "9" * 5000, "dims.hidden: a number of 5000 characters is too long"),
    ("  hidden: 256", "  ¦hid den: 256", "dims.hid den: a name has letters, digits and _ and does not start with a digit, found 'hid den'"),
    ("  hidden: 256", "  ¦7: 256", "dims.7: a name has letters, digits and _ and does not start with a digit, found '7'"),
    ("split: [heads,", "split: [¦hads,", "parallel.split[0]: unknown dim 'hads'; did you mean 'heads'?"),
    ("{tensor: 1, split: [heads", "{tensor: 3, split: [¦heads", "parallel.split[0]: heads = 8 does not divide by 3 ranks"),
    ("{tensor: 1,", "{tensor: ¦0,", "parallel.tensor: must be at least 1, found 0"),
    ("{tensor: 1,", "{tensor: ¦65,", "parallel.tensor: must be at most 64, found 65"),
]  # fmt: skip

SHAPES = [
    ("norm: {source: model.norm.weight, shape: [hidden]}", "norm: {source: model.norm.weight, shape: ¦hidden}",
     "weights.norm.shape: expected a list, found 'hidden'"),
    ("norm: {source: model.norm.weight, shape: [hidden]}", "norm: {source: model.norm.weight, shape: [¦[hidden]]}",
     "weights.norm.shape[0]: expected a number or an expression, found a list"),
    ("shape: [q_lora, hidden]", "shape: [¦q_lor, hidden]", "blocks.mla.weights.q_a.shape[0]: unknown name 'q_lor'; did you mean 'q_lora'?"),
    ("shape: [q_lora, hidden]", "shape: ¦[q_lora, 2, 2, hidden]", "blocks.mla.weights.q_a.shape: takes 3 items at most, found 4"),
    ("shape: [q_lora, hidden]", "shape: ¦[]", "blocks.mla.weights.q_a.shape: needs 1 or more items, found 0"),
    ("shape: [q_lora, hidden]", "shape: ¦[q_lora - 128, hidden]", "blocks.mla.weights.q_a.shape: sizes must be positive, found [0, 256]"),
    ("shape: [heads * (nope + rope), q_lora]", "shape: ¦[heads * (nope + rope), heads]",
     "blocks.mla.weights.q_b.shape: only one axis may name a divided dim"),
    ("shape: [expert_width, hidden], dtype: int4", "shape: ¦[expert_width, hidden + 1], dtype: int4",
     "blocks.moe.weights.gate.shape: an int4 weight is a matrix whose input axis is a multiple of 32, found [128, 257]"),
    ("dtype: int4, count: experts", "dtype: int4, count: ¦-1", "blocks.moe.weights.gate.count: must be 0 or positive, found -1"),
    ("dtype: int4, count: experts", "dtype: int4, group: ¦0, count: experts", "blocks.moe.weights.gate.group: must be at least 1, found 0"),
    ('"mlp.experts.{expert}.gate_proj.weight"', "¦mlp.gate_proj.weight", "blocks.moe.weights.gate.source: a stacked weight has "
     "`count` and {expert} in its source, others have neither"),
    ("row: [kv_lora + rope]}", "row: [kv_lora + rope], window: ¦-1}", "blocks.mla.caches.latent.window: must be 0 (keep all) or "
     "positive, found -1"),
    ("dim: rope, theta", "dim: ¦31, theta", "rope.main.dim: the rotated elements must be even, found 31"),
]  # fmt: skip

OP_MISTAKES = [
    ("- {op: rms_norm, x: x", "- {op: ¦rms_nrm, x: x", "blocks.mla.ops[0].op: unknown op 'rms_nrm'; did you mean 'rms_norm'?"),
    ("- {op: rms_norm, x: x", "- {op: ¦zzz, x: x", f"blocks.mla.ops[0].op: unknown op 'zzz'; known: {OPS}"),
    ("- {op: rms_norm, x: x", "- {op: ¦[1], x: x", f"blocks.mla.ops[0].op: unknown op a list; known: {OPS}"),
    ("- {op: rms_norm, x: x", "- ¦{x: x", "blocks.mla.ops[0]: expected a mapping with the key 'op', found the keys x, weight, eps, y"),
    ("- {op: add, a: x, b: attention, y: x}", "- ¦add", "blocks.mla.ops[11]: expected a mapping with the key 'op', found 'add'"),
    ("- {op: embed,", "- {op: ¦embd,", "graph[0].op: unknown op 'embd'; did you mean 'embed'?"),
    ("- {op: embed, ids: ids, weight: embed, y: x}", "- ¦7", "graph[0]: expected a mapping with the key 'op' or 'layers', found 7"),
    ("weight: q_a,", "weight: ¦q_aa,", "blocks.mla.ops[1].weight: unknown weight 'q_aa'; did you mean 'q_a'?"),
    ("weight: q_a,", "weight: ¦7,", "blocks.mla.ops[1].weight: expected text, found 7"),
    ("b: attention", "b: ¦attenton", "blocks.mla.ops[11].b: unknown tensor 'attenton'; did you mean 'attention'?"),
    ("x: latent_row, cache: latent}", "x: latent_row, cache: ¦latnt}", "blocks.mla.ops[7].cache: unknown cache 'latnt'; did you "
     "mean 'latent'?"),
    ("weight: kv_b, rope: main", "weight: kv_b, rope: ¦man", "blocks.mla.ops[4].rope: unknown rope 'man'; did you mean 'main'?"),
    ("[mla, dense_mlp]", "[mla, ¦dens_mlp]", "graph[1].blocks[1]: unknown block 'dens_mlp'; did you mean 'dense_mlp'?"),
    ("[mla, dense_mlp]", "[mla, ¦7]", "graph[1].blocks[1]: expected text, found 7"),
    ('y: "q[heads, nope + rope]"', 'y: ¦"q[heads, nope]"', "blocks.mla.ops[3].y: the shape [8, 32] has 256 elements a row, the "
     "op writes 512"),
    ('y: "q[heads, nope + rope]"', 'y: ¦"q[heads"', "blocks.mla.ops[3].y: expected a name, or name[size, size], found 'q[heads'"),
    ("eps: inner_eps, y: qn", "eps: ¦iner_eps, y: qn", "blocks.mla.ops[2].eps: unknown name 'iner_eps'; did you mean 'inner_eps'?"),
    ("- {op: rms_norm, x: qa, weight: q_norm, eps: inner_eps", "- ¦{op: rms_norm, x: qa, weight: q_norm, eps: -1",
     "blocks.mla.ops[2]: rms_norm: eps must be positive, found -1.0"),
    ("- {op: linear, x: h, weight: q_a", "- ¦{op: linear, x: h, weight: q_norm", "blocks.mla.ops[1]: linear: these operands do not "
     "fit: x [256, 256], weight [128], y [256, 128]"),
    ("- {op: linear, x: qn, weight: q_b", "- ¦{op: linear, x: h, weight: q_b", "blocks.mla.ops[3]: linear: weight [512, 128] does "
     "not fit rows of 256 elements"),
    ("bias: bias, top_k: top_k", "bias: bias, top_k: ¦1.5", "blocks.moe.ops[1].top_k: expected a whole number, found 1.5"),
]  # fmt: skip

GRAPH = [
    ("layers: 1..7,", "layers: ¦1-7,", "graph[2].layers: expected first..last, such as 1..60, found '1-7'"),
    ("layers: 1..7,", "layers: ¦7,", "graph[2].layers: expected text, found 7"),
    ("layers: 1..7,", "layers: ¦1..70000,", "graph[2].layers: expected first..last, such as 1..60, found '1..70000'"),
    ("layers: 1..7,", "layers: ¦7..1,", "graph[2].layers: expected a range that starts at layer 1, after the one above, and counts "
     "up; found 7..1"),
    ("layers: 1..7,", "layers: ¦2..8,", "graph[2].layers: expected a range that starts at layer 1, after the one above, and counts "
     "up; found 2..8"),
    ("layers: 1..7,", "layers: ¦0..6,", "graph[2].layers: expected a range that starts at layer 1, after the one above, and counts "
     "up; found 0..6"),
    ("layers: 0..0,", "layers: ¦1..1,", "graph[1].layers: expected a range that starts at layer 0, and counts up; found 1..1"),
    ("layers: 0..0,", "layers: ¦-1..0,", "graph[1].layers: expected first..last, such as 1..60, found '-1..0'"),
    ('- {layers: 0..0, prefix: "model.layers.{layer}.", blocks: [mla, dense_mlp]}', "- ¦{layers: 0..0}",
     "graph[1]: the key 'blocks' is missing"),
    ("  - {op: linear, x: h, weight: head, dtype: fp32, y: logits}", "  - ¦{op: linear, x: h, weight: head, y: logits}",
     "graph[5]: logits are fp32 rows of 4096 (dtype: fp32), found bf16 rows of [4096]"),
    ("  - {op: select_rows, x: x, y: wanted}\n  - {op: rms_norm, x: wanted, weight: norm, eps: eps, y: h}\n  - {op",
     "  - {op: rms_norm, x: x, weight: norm, eps: eps, y: h}\n  - ¦{op",
     "graph[4]: select_rows must come before the logits, which few rows of a step need"),
    ("stream: x", "stream: ¦nothing", "stream: the residual stream has whole rows of 256, found no tensor 'nothing'"),
    ("stream: x", "stream: ¦qn", "stream: the residual stream has whole rows of 256, found rows of [128]"),
]  # fmt: skip

DECODE = [
    ("budget: 15", "budget: ¦64", "decode.tree.budget: must be at most 63, found 64"),
    ("budget: 15", "budget: ¦-1", "decode.tree.budget: must be at least 0, found -1"),
    ("budget: 15", "budget: ¦lots", "decode.tree.budget: expected a whole number or 'auto', found 'lots'"),
    ("width: auto", "width: ¦0", "decode.tree.width: width must be auto or 1..63, found 0"),
    ("width: auto", "width: ¦wide", "decode.tree.width: expected a whole number or 'auto', found 'wide'"),
    ("width: auto", "width: ¦1.5", "decode.tree.width: expected a whole number or 'auto', found 1.5"),
    ("policy: best_first", "policy: ¦bestfirst", "decode.tree.policy: expected 'best_first', found 'bestfirst'"),
    ("block_size: 8 ", "block_size: ¦1 ", "decode.block_size: must be at least 2, found 1"),
    ("block_size: 8 ", "block_size: ¦9 ", "decode.block_size: must be at most 8, the drafter's trained block, found 9"),
    ("sequences: 1", "sequences: ¦9", "decode.sequences: must be at most 8, as many blocks of 8 rows as fit a round, found 9"),
    ("loop: [draft, top_k, build_tree,", "loop: ¦[draft, build_tree, top_k,", f"decode.loop: the loop must be {FULL_LOOP} or "
     "['verify', 'accept', 'commit'], found ['draft', 'build_tree', 'top_k', 'verify', 'accept', 'commit']"),
    ("loop: [draft, top_k,", "loop: [draft, ¦topk,", "decode.loop[1]: expected 'draft', 'top_k', 'build_tree', 'verify', 'accept' "
     "or 'commit', found 'topk'; did you mean 'top_k'?"),
    ("loop: [draft, top_k, build_tree, verify, accept, commit]", "loop: ¦verify", "decode.loop: expected a list, found 'verify'"),
    ("ids: [3841, 3842]", "ids: [3841, ¦4096]", "decode.stop.ids[1]: a stop id must be 0..4095, found 4096"),
    ("ids: [3841, 3842]", "ids: [¦-1]", "decode.stop.ids[0]: a stop id must be 0..4095, found -1"),
    ("  drafter: dflash_tiny.yaml", "  drafter: ¦dflash_tny.yaml", "decode.drafter: cannot read dflash_tny.yaml: No such file or directory"),
    ("  drafter: dflash_tiny.yaml", "  drafter: ¦kimi_tiny.yaml", "decode.drafter: kimi_tiny.yaml is no drafter: its first keys should "
     "say `kind: drafter`"),
]  # fmt: skip

ALL = KEYS + VALUES + DIMS + SHAPES + OP_MISTAKES + GRAPH + DECODE


@pytest.mark.parametrize(("old", "new", "expected"), ALL, ids=[case[2][:60] for case in ALL])
def test_a_mistake_is_one_line_at_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert mistake(tmp_path, old, new) == expected


ELSEWHERE = [
    ("  eps: 1e-5", "  hidden: 1.0\n  eps: 1e-5", "  ¦hidden: 256", "dims.hidden: 'hidden' is also a constant; rename one of them"),
    ("    caches:\n      latent: {row: [kv_lora + rope]}\n", "",
     "cache: ¦latent}", "blocks.mla.ops[7].cache: unknown cache 'latent'; known here: none"),
    ("[mla, dense_mlp]", "[mla, mla, dense_mlp]", "      ¦latent: {row", "blocks.mla.caches.latent: another block of this layer has a cache "
     "'latent'; rename one"),
    ("y: logits}", "y: logit}", "  ¦- {op: embed", "graph: the graph must write a tensor named 'logits'"),
    ("  drafter: dflash_tiny.yaml\n", "", "  loop: ¦[", "decode.loop: the loop drafts, but decode.drafter names none; without one it is "
     "[verify, accept, commit]"),
    ("head: {source: lm_head.weight, shape: [vocab, hidden]}", "head: {source: lm_head.weight, shape: [vocab + 8, hidden]}",
     "¦{op: linear, x: h, weight: head", "graph[5]: logits are fp32 rows of 4096 (dtype: fp32), found fp32 rows of [4104]"),
    ("{source: model.embed_tokens.weight, shape: [vocab, hidden], replicate: true}",
     "{source: model.embed_tokens.weight, shape: [vocab, hidden]}",
     "¦{op: embed", "graph[0]: embed: an embedding table must be replicated on every rank (replicate: true)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "expected"), ELSEWHERE, ids=[case[3][:40] for case in ELSEWHERE])
def test_a_mistake_may_show_at_what_depends_on_it(
    tmp_path: Path, old: str, new: str, where: str, expected: str
) -> None:
    target = copy_models(tmp_path)
    edit(target, old, new)
    assert message(target) == f"{spot(where, target)}: {expected}"


@pytest.mark.parametrize("dim", ["vocab", "hidden"])
def test_a_target_names_its_vocabulary_and_width(tmp_path: Path, dim: str) -> None:
    target = copy_models(tmp_path)
    text = target.read_text().replace(f"  {dim}: ", f"  renamed_{dim}: ").replace("vocab]}", "renamed_vocab]}")
    target.write_text(
        text.replace("shared_width, renamed_vocab]", f"shared_width, {'renamed_' * (dim == 'vocab')}vocab]")
    )
    assert f"dims: the dim {dim!r} is missing" in message(target)


def test_ranks_must_divide_what_an_op_needs_whole(tmp_path: Path) -> None:
    target = copy_models(tmp_path)
    text = message(target, ranks=8, draft=False)
    assert text == (
        f"{spot('¦{op: expert_mlp', target)}: parallel.tensor: expert_mlp on 8 ranks: a rank's expert width 16 is not a multiple of the "
        "quantisation group 32; use fewer ranks"
    )
    assert check(target, ranks=4, draft=False).ranks == 4


@pytest.mark.parametrize("ranks", [0, -1, 65])
def test_a_number_of_ranks_that_no_host_has(tmp_path: Path, ranks: int) -> None:
    text = message(copy_models(tmp_path), ranks=ranks)
    assert text == f"the number of tensor-parallel ranks must be 1..64, found {ranks}"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert message(tmp_path / "none.yaml") == f"cannot read {tmp_path / 'none.yaml'}: No such file or directory"


def test_the_first_mistake_of_several_is_named(tmp_path: Path) -> None:
    target = copy_models(tmp_path)
    edit(target, "budget: 15", "budget: 99")
    place = edit(target, "  hidden: 256", "  hidden: ¦[256]")
    assert message(target).startswith(f"{target}:{place[0]}:{place[1]}: dims.hidden: ")


def test_the_shipped_models_are_right() -> None:
    for name in ("kimi_tiny", "kimi_k26"):
        check(MODELS / f"{name}.yaml")


def test_a_checkpoint_tensor_is_one_thing(tmp_path: Path) -> None:
    target = copy_models(tmp_path)
    at = edit(target, "q_norm: {source: self_attn.q_a_layernorm.weight", "q_norm: {source: ¦input_layernorm.weight")
    assert message(target) == (
        f"{target}:{at[0]}:{at[1]}: blocks.mla.weights.q_norm.source: model.layers.0.input_layernorm.weight is bf16 [128] "
        "undivided here and bf16 [256] undivided elsewhere in this file"
    )


@pytest.mark.parametrize("name", ["token", "chosen", "anchor", "path", "features", "layers"])
def test_any_name_may_stand_for_a_tensor(tmp_path: Path, name: str) -> None:
    target = copy_models(tmp_path)
    text = target.read_text().replace("y: wanted}", f"y: {name}}}").replace("x: wanted,", f"x: {name},")
    target.write_text(text.replace("y: x}", f"y: {name}2}}").replace(" x: x,", f" x: {name}2,").replace(" a: x,", f" a: {name}2,")
                      .replace("stream: x", f"stream: {name}2"))  # fmt: skip
    assert any(t.name.startswith(name) for t in build_step(load(target), "verify").tensors().values())


def test_a_tensor_name_has_no_dot(tmp_path: Path) -> None:
    assert (
        mistake(tmp_path, "y: wanted}", "y: ¦x.2}") == "graph[3].y: expected a name, or name[size, size], found 'x.2'"
    )
