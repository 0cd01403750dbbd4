"""A checkpoint with the index and headers of a 595 GB model (sparse files, no data) opens and checks in seconds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ddtree.errors import WeightsError
from ddtree.graph.build import DRAFT, Builder, build_step, steps_of
from ddtree.graph.model import load
from ddtree.graph.tensor import DType, Weight
from ddtree.runtime.weights import Checkpoint

PREFIX, HIDDEN, WIDTH, LAYERS, EXPERTS = "language_model.", 7168, 2048, 61, 384
SIZES = {"BF16": 2, "F32": 4, "I32": 4}
Table = dict[str, tuple[str, list[int]]]


def layer_weights(layer: int) -> list[Weight]:
    base = f"model.layers.{layer}."
    dense = {
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,), "self_attn.q_a_layernorm": (1536,),
        "self_attn.kv_a_layernorm": (512,), "self_attn.q_a_proj": (1536, HIDDEN), "self_attn.q_b_proj": (12288, 1536),
        "self_attn.kv_a_proj_with_mqa": (576, HIDDEN), "self_attn.kv_b_proj": (16384, 512), "self_attn.o_proj": (HIDDEN, 8192),
    }  # fmt: skip
    mlp, width = ("mlp", 18432) if layer == 0 else ("mlp.shared_experts", WIDTH)
    dense |= {
        f"{mlp}.gate_proj": (width, HIDDEN),
        f"{mlp}.up_proj": (width, HIDDEN),
        f"{mlp}.down_proj": (HIDDEN, width),
    }
    if layer == 0:
        return [Weight(base + name, f"{base}{name}.weight", shape) for name, shape in dense.items()]
    dense["mlp.gate"] = (EXPERTS, HIDDEN)
    weights = [Weight(base + name, f"{base}{name}.weight", shape) for name, shape in dense.items()]
    weights.append(Weight(f"{base}bias", f"{base}mlp.gate.e_score_correction_bias", (EXPERTS,), DType.FP32))
    for kind, full in {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}.items():
        source = f"{base}mlp.experts.{{expert}}.{kind}_proj.weight"
        weights.append(Weight(base + kind, source, full, DType.INT4, count=EXPERTS))
    return weights


def last_weights() -> list[Weight]:
    head = [Weight(name, f"{name}.weight", (163840, HIDDEN)) for name in ("model.embed_tokens", "lm_head")]
    return [*head, Weight("norm", "model.norm.weight", (HIDDEN,))]


def tensors(weights: list[Weight]) -> Table:
    """The checkpoint's tensors, written out independently of the loader."""
    table: Table = {}
    for weight in weights:
        for expert in range(max(weight.count, 1)):
            name = PREFIX + weight.source.replace("{expert}", str(expert))
            if weight.dtype is DType.INT4:
                out, width = weight.full
                table[f"{name}_packed"] = ("I32", [out, width // 8])
                table[f"{name}_scale"] = ("BF16", [out, width // 32])
                table[f"{name}_shape"] = ("I32", [2])
            else:
                table[name] = ("F32" if weight.dtype is DType.FP32 else "BF16", list(weight.full))
    return table


def write_headers(path: Path, table: Table) -> None:
    header, cursor = {}, 0
    for name, (dtype, shape) in table.items():
        size = SIZES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [cursor, cursor + size]}
        cursor += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + cursor)


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Weight]]:
    folder = tmp_path_factory.mktemp("full")
    groups = [layer_weights(layer) for layer in range(LAYERS)] + [last_weights()]
    shards = [tensors(group) for group in groups]
    shards.append({f"mm_projector.{i}": ("BF16", [1152]) for i in range(6)})
    shards.append({f"vision_tower.encoder.{i}": ("BF16", [1152]) for i in range(329)})
    weight_map = {}
    for number, table in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):06}.safetensors"
        write_headers(folder / file, table)
        weight_map.update(dict.fromkeys(table, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder, [weight for group in groups for weight in group]


def test_index_and_headers_in_three_seconds(full_size: tuple[Path, list[Weight]]) -> None:
    folder, weights = full_size
    start = time.process_time()  # of this process: other tests may share the cores
    checkpoint = Checkpoint.open(folder, prefix=PREFIX, ignore=["vision_tower.*", "mm_projector.*"])
    opened = time.process_time() - start
    reads = checkpoint.check(weights)
    checked = time.process_time() - start - opened
    print(f"open {opened:.2f} s, check {checked:.2f} s")
    assert len(checkpoint.entries) == 208_550
    assert len(reads) == 208_215
    assert sum(read.entry.nbytes for read in reads) > 590e9
    assert opened < 3
    assert checked < 3


def test_the_shipped_yaml_describes_it_exactly(full_size: tuple[Path, list[Weight]]) -> None:
    folder, _ = full_size
    model = load(Path(__file__).parents[2] / "models" / "kimi_k26.yaml")
    builder = Builder(model)
    graphs = [build_step(model, step, 3, builder) for step in steps_of(model)]
    weights = [w for g in graphs for name, w in g.weights().items() if not name.startswith(DRAFT)]
    spec = model.target.spec.checkpoint
    start = time.process_time()
    reads = Checkpoint.open(folder, prefix=spec.prefix, ignore=spec.ignore).check(dict.fromkeys(weights))
    assert time.process_time() - start < 3
    assert len({read.entry.name for read in reads}) == len(reads) == 208_215
    parts = [
        (read.entry.shape, read.stored.part)
        for read in reads
        if read.entry.name.endswith("experts.9.down_proj.weight_packed")
    ]
    assert parts[0] == ((HIDDEN, 256), (slice(None), slice(96, 128)))  # rank 3 of 8: 32 words of each row


def test_a_misspelt_name_among_200000_finds_its_neighbour(full_size: tuple[Path, list[Weight]]) -> None:
    folder, weights = full_size
    checkpoint = Checkpoint.open(folder, prefix=PREFIX, ignore=["mm_projector.*"])
    misspelt = Weight("norm", "model.norms.weight", (HIDDEN,))
    with pytest.raises(WeightsError, match=r"nearest is 'language_model\.model\.norm\.weight'"):
        checkpoint.match([misspelt])
    with pytest.raises(WeightsError, match=r"nearest is 'language_model\.model\.layers\.7\.self_attn\.o_proj\.weight'"):
        checkpoint.match([Weight("o", "model.layers.7.self_attn.oproj.weight", (HIDDEN, 8192))])
    with pytest.raises(WeightsError, match=r"vision_tower\.encoder\.0' .* \(328 more tensors unknown"):
        checkpoint.check(weights)
