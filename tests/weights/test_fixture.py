"""The shipped fixture models, described by hand: every tensor named, values equal to an independent reading of the bytes."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ddtree.errors import WeightsError
from ddtree.graph.tensor import DType, Shard, Weight
from ddtree.runtime.weights import Checkpoint, Int4, check_config, load

MODELS = Path(__file__).parents[2] / "models"
HIDDEN, LATENT, WIDE, WIDTH, VOCAB, EXPERTS = 256, 128, 768, 128, 4096, 16
LAYERS = range(8)
WHOLE = Shard()


def attention(layer: int, shard: Shard) -> list[Weight]:
    base = f"model.layers.{layer}."
    rows: dict[str, tuple[tuple[int, ...], int | None]] = {
        "input_layernorm": ((HIDDEN,), None),
        "post_attention_layernorm": ((HIDDEN,), None),
        "self_attn.q_a_proj": ((LATENT, HIDDEN), None),
        "self_attn.q_a_layernorm": ((LATENT,), None),
        "self_attn.q_b_proj": ((512, LATENT), 0),
        "self_attn.kv_a_proj_with_mqa": ((160, HIDDEN), None),
        "self_attn.kv_a_layernorm": ((LATENT,), None),
        "self_attn.kv_b_proj": ((512, LATENT), 0),
        "self_attn.o_proj": ((HIDDEN, 256), 1),
    }
    return [
        Weight(base + name, f"{base}{name}.weight", shape, split=split, shard=shard)
        for name, (shape, split) in rows.items()
    ]


def mlp(base: str, width: int, shard: Shard, dtype: DType = DType.BF16, count: int = 0) -> list[Weight]:
    up, down = (width, HIDDEN), (HIDDEN, width)
    return [
        Weight(base + name, f"{base}.{name}_proj.weight", shape, dtype, split=split, count=count, shard=shard)
        for name, shape, split in (("gate", up, 0), ("up", up, 0), ("down", down, 1))
    ]


def target(shard: Shard = WHOLE) -> list[Weight]:
    weights = [
        Weight("embed", "model.embed_tokens.weight", (VOCAB, HIDDEN)),
        Weight("norm", "model.norm.weight", (HIDDEN,)),
        Weight("head", "lm_head.weight", (VOCAB, HIDDEN), split=0, shard=shard),
    ]
    for layer in LAYERS:
        base = f"model.layers.{layer}.mlp"
        weights += attention(layer, shard)
        if layer == 0:
            weights += mlp(base, WIDE, shard)
            continue
        weights += mlp(f"{base}.experts.{{expert}}", WIDTH, shard, DType.INT4, EXPERTS)
        weights += mlp(f"{base}.shared_experts", WIDTH, shard)
        weights.append(Weight(f"{base}.gate", f"{base}.gate.weight", (EXPERTS, HIDDEN)))
        weights.append(Weight(f"{base}.bias", f"{base}.gate.e_score_correction_bias", (EXPERTS,), DType.FP32))
    return weights


def raw_tensor(name: str) -> tuple[bytes, list[int]]:
    """Bytes and shape of a tensor, found without the code under test."""
    index = json.loads((MODELS / "kimi_tiny/model.safetensors.index.json").read_text())
    raw = (MODELS / "kimi_tiny" / index["weight_map"][name]).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + length])[name]
    begin, end = entry["data_offsets"]
    return raw[8 + length + begin : 8 + length + end], entry["shape"]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(MODELS / "kimi_tiny", prefix="language_model.")


def test_every_tensor_is_described(checkpoint: Checkpoint) -> None:
    reads = checkpoint.check(target())
    assert {read.entry.name for read in reads} == checkpoint.entries.keys()
    loaded = load(target(), checkpoint)
    assert sum(value.nbytes for value in loaded.values()) == sum(weight.nbytes for weight in target())


def test_unpacked_experts_equal_a_loop_over_bits(checkpoint: Checkpoint) -> None:
    for layer, expert, kind, (rows, columns) in ((1, 3, "gate", (WIDTH, HIDDEN)), (7, 15, "down", (HIDDEN, WIDTH))):
        base = f"model.layers.{layer}.mlp.experts.{{expert}}"
        weight = next(w for w in target() if w.source == f"{base}.{kind}_proj.weight")
        stack = load([weight], checkpoint)[weight.name]
        assert isinstance(stack, Int4)
        name = f"language_model.model.layers.{layer}.mlp.experts.{expert}.{kind}_proj.weight"
        packed, _ = raw_tensor(f"{name}_packed")
        scales = np.frombuffer(raw_tensor(f"{name}_scale")[0], ml_dtypes.bfloat16).reshape(rows, columns // 32)
        want = np.empty((rows, columns), ml_dtypes.bfloat16)
        for o in range(rows):
            for k in range(columns):
                bit = 4 * (o * columns + k)
                q = (packed[bit // 8] >> bit % 8 & 15) - 8
                want[o, k] = ml_dtypes.bfloat16(q * float(scales[o, k // 32]))
        np.testing.assert_array_equal(stack[expert].dequantise(ml_dtypes.bfloat16), want)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_are_the_whole(checkpoint: Checkpoint, size: int) -> None:
    whole = load(target(), checkpoint)
    ranks = [load(target(Shard(size, rank)), checkpoint) for rank in range(size)]
    for weight in target(Shard(size)):
        parts = [rank[weight.name] for rank in ranks]
        value = whole[weight.name]
        if weight.shard.size == 1 or weight.split is None:
            assert all(part.nbytes == value.nbytes for part in parts)
        elif isinstance(value, Int4):
            axis = weight.split + bool(weight.count)
            np.testing.assert_array_equal(np.concatenate([part.packed for part in parts], axis), value.packed)
            np.testing.assert_array_equal(np.concatenate([part.scale for part in parts], axis), value.scale)
        else:
            np.testing.assert_array_equal(np.concatenate(parts, weight.split), value)


def test_expert_width_of_four_groups_cannot_serve_eight_ranks(checkpoint: Checkpoint) -> None:
    with pytest.raises(
        WeightsError, match=r"each of 8 ranks needs whole groups of 32 INT4 weights of axis 1, but 128 / 8 = 16"
    ):
        checkpoint.check(target(Shard(8)))


def test_wrong_prefix_shows_the_right_name() -> None:
    with pytest.raises(
        WeightsError, match=r"'model.embed_tokens.weight' .* nearest is 'language_model.model.embed_tokens.weight'"
    ):
        Checkpoint.open(MODELS / "kimi_tiny").check(target())


def test_drafter_config() -> None:
    path = MODELS / "kimi_tiny_dflash/config.json"
    expected = {
        "block_size": 8,
        "dflash_config.target_layer_ids": (1, 3, 5),
        "sliding_window": 256,
        "rope_scaling": None,
    }
    check_config(path, expected, lambda key: f"dflash_tiny.yaml:1:1 ({key})", optional={"is_causal"})
    with pytest.raises(WeightsError, match=r"dflash_tiny.yaml:9:5 gives block_size = 16, found 8"):
        check_config(path, {"block_size": 16}, lambda _: "dflash_tiny.yaml:9:5")
