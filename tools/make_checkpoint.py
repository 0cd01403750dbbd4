"""Write a synthetic checkpoint in the published layout of a model: shards, index, config.json, and the drafter's folder.

    python tools/make_checkpoint.py models/kimi_k26.yaml --out DIR [--layers 3] [--set dims.experts=16] [--headers]

One shard for each layer, one for everything else of the text model, then one for each tower that the YAML ignores: for the
published 61 layers that makes the published 64 files. DIR also gets the YAML of what was written, `target.yaml` (and
`drafter.yaml`), so that every command can be tried on it. `--headers` writes the headers of the whole checkpoint and leaves
the data to holes in sparse files: a full-size index costs a few MB.

Values are random bits between fixed exponents, so that gigabytes are made in seconds: matrices keep the size of what they
multiply, norms lie in [0.5, 1), the router's bias in +-[0.25, 0.5). They depend on the seed and the tensor's name alone.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ddtree.errors import DdtreeError, UsageError
from ddtree.graph import overrides, yaml_text
from ddtree.graph.build import DRAFT, Builder, steps_of
from ddtree.graph.model import Model, Source, load
from ddtree.graph.tensor import DType, Weight
from ddtree.graph.text_spec import TextSpec
from ddtree.runtime.load import expected_config
from ddtree.runtime.weights.checkpoint import INDEX, SINGLE, compile_rules
from ddtree.runtime.weights.layout import sources, stored

CHUNK = 1 << 23  # 64-bit words that are drawn at once
SIZES = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2}  # in the order in which safetensors puts dtypes
TOWERS = {  # tensors of other parts of the published checkpoint, which a text engine ignores
    "mm_projector": [f"mm_projector.{i}.weight" for i in range(6)],
    "vision_tower": [f"vision_tower.encoder.{i}.weight" for i in range(329)],
}
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class Bits:
    """Random words of a tensor: base | (random & mask), of `dtype` as NumPy spells it."""

    dtype: str
    base: int
    mask: int


@dataclass(frozen=True)
class Item:
    """One tensor of a file. `bits`: how its values are drawn, or the values themselves."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bits: Bits | tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * SIZES[self.dtype]

    def chunks(self, seed: int) -> Iterator[bytes | memoryview]:
        """Its data, piece by piece."""
        if isinstance(self.bits, tuple):
            yield np.array(self.bits, f"<i{SIZES[self.dtype]}").tobytes()
            return
        source = np.random.SFC64([seed, zlib.crc32(self.name.encode())])
        words = np.dtype(self.bits.dtype)
        for start in range(0, self.nbytes, 8 * CHUNK):
            count = min(8 * CHUNK, self.nbytes - start)
            values = source.random_raw(-(-count // 8)).view(words)
            values &= words.type(self.bits.mask)
            values |= words.type(self.bits.base)
            yield values.view(np.uint8)[:count].data


def float_bits(exponent: int, *, signed: bool) -> Bits:
    """BF16 values of magnitude 1 to 2 times 2^exponent."""
    return Bits("<u2", exponent + 127 << 7, 0x807F if signed else 0x7F)


def items_of(weight: Weight, prefix: str, shape_dtype: str = "I32") -> Iterator[Item]:
    """The file tensors of one undivided weight."""
    full, columns = weight.full, weight.full[-1]
    for source in sources(weight):
        for part in stored(weight):
            name, dtype = prefix + source + part.suffix, part.dtypes[0]
            bits: Bits | tuple[int, ...]
            if part.suffix == "_shape":
                bits, dtype = full, shape_dtype
            elif part.suffix == "_packed":
                bits = Bits("<u4", 0, 0xFFFFFFFF)
            elif part.suffix == "_scale":  # codes of -8..7 have a root mean square of 4.6
                bits = float_bits(round(log2(0.2 * columns**-0.5)), signed=False)
            elif weight.dtype is DType.FP32:
                bits = Bits("<u4", 125 << 23, 0x807FFFFF)
            elif len(full) == 1:
                bits = float_bits(-1, signed=False)
            else:
                bits = float_bits(0 if "embed" in name else round(log2(0.9 * columns**-0.5)), signed=True)
            yield Item(name, dtype, part.shape, bits)


def write_file(path: Path, items: Iterable[Item], seed: int, *, headers: bool = False) -> int:
    """Write one safetensors file, tensors by dtype and name as its library does; returns the bytes of data."""
    order = list(SIZES)
    ordered = sorted(items, key=lambda item: (order.index(item.dtype), item.name))
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for item in ordered:
        table[item.name] = {
            "dtype": item.dtype, "shape": list(item.shape), "data_offsets": [end, end + item.nbytes]
        }  # fmt: skip
        end += item.nbytes
    raw = json.dumps(table, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        if headers:
            file.truncate(8 + len(raw) + end)
        else:
            _write_data(file, ordered, seed)
    return end


def _write_data(file: BinaryIO, items: Iterable[Item], seed: int) -> None:
    for item in items:
        for chunk in item.chunks(seed):
            file.write(chunk)


def shards_of(items: Iterable[Item], ignore: Sequence[str]) -> list[list[Item]]:
    """Items by file: layers in order, the rest of the text model, then each tower whose names an ignore rule covers."""
    layers: dict[int, list[Item]] = {}
    rest: list[Item] = []
    for item in items:
        found = LAYER.search(item.name)
        (layers.setdefault(int(found[1]), []) if found else rest).append(item)
    rules = compile_rules(ignore)
    towers = [
        [Item(name, "BF16", (64,), float_bits(0, signed=True)) for name in names]
        for names in TOWERS.values()
        if all(any(rule.fullmatch(name) for rule in rules) for name in names)
    ]
    return [*(layers[n] for n in sorted(layers)), rest, *towers]


def write_folder(
    folder: Path, source: Source[Any], weights: Iterable[Weight], *, seed: int = 0, sharded: bool = True,
    headers: bool = False, shape_dtype: str = "I32",
) -> int:  # fmt: skip
    """Write the checkpoint of one YAML file with its config.json; returns the bytes of data."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = source.spec.checkpoint
    items = {item.name: item for w in weights for item in items_of(w, spec.prefix, shape_dtype)}.values()
    config = {key: value for key, (value, _) in expected_config(source).items()}
    (folder / "config.json").write_text(json.dumps(nested(config), indent=1))
    if not sharded:
        return write_file(folder / SINGLE, items, seed, headers=headers)
    shards = shards_of(items, spec.ignore)
    total, weight_map = 0, {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):06}.safetensors"
        total += write_file(folder / name, shard, seed, headers=headers)
        weight_map.update(dict.fromkeys((item.name for item in shard), name))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    return total


def nested(flat: dict[str, object]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return tree


def cut(data: dict[str, Any], layers: int, section: str = "graph") -> None:
    """Keep the first `layers` layers of a YAML's section."""
    kept = []
    for item in data[section]:
        if "layers" in item:
            first, last = map(int, item["layers"].split(".."))
            if first >= layers:
                continue
            item = {**item, "layers": f"{first}..{min(last, layers - 1)}"}
        kept.append(item)
    data[section] = kept


def target_yaml(path: Path, settings: Sequence[str], layers: int | None) -> dict[str, Any]:
    """A target's YAML with other sizes, and its weights folder named as it will lie beside it."""
    doc = yaml_text.read(path)
    for setting in settings:
        overrides.apply(doc, setting)
    data: dict[str, Any] = doc.data
    if layers is not None:
        cut(data, layers)
        config = data["checkpoint"].get("config", {})
        for key in config:
            if key.endswith("num_hidden_layers"):
                config[key] = layers
    data["checkpoint"]["weights"] = "target"
    stop = data["decode"].get("stop", {})
    if "ids" in stop:
        stop["ids"] = [i for i in stop["ids"] if i < data["dims"]["vocab"]]
    return data


def drafter_yaml(path: Path, settings: Sequence[str], target: dict[str, Any]) -> dict[str, Any]:
    """A drafter's YAML that fits the target: its hidden size, vocabulary and depth."""
    doc = yaml_text.read(path)
    for setting in settings:
        overrides.apply(doc, setting)
    data: dict[str, Any] = doc.data
    depth = 1 + max(int(item["layers"].split("..")[1]) for item in target["graph"] if "layers" in item)
    taps = [layer for layer in data["taps"]["layers"] if layer < depth - 1] or [0]
    data["dims"].update(hidden=target["dims"]["hidden"], taps=len(taps))
    data["taps"].update(layers=taps, vocab=target["dims"]["vocab"], depth=depth)
    data["mask_id"] = min(data["mask_id"], target["dims"]["vocab"] - 1)
    data["checkpoint"]["weights"] = "drafter"
    return data


def undivided(model: Model) -> dict[str, Weight]:
    """Every weight of every step, whole."""
    builder = Builder(model)
    return {n: replace(w) for step in steps_of(model) for n, w in builder.build(step).weights().items()}


def copy_text(path: Path, spec: TextSpec, out: Path, weights: Path) -> None:
    """Copy the chat template, and the tokenizer's file from the folder that the YAML names, where they are there."""
    weights.mkdir(parents=True, exist_ok=True)
    given: Any = yaml_text.read(path).data
    known = path.parent / given["checkpoint"]["weights"]
    pairs = [(known / spec.tokenizer.ranks, weights / spec.tokenizer.ranks)]
    if spec.chat and spec.chat.template_file:
        pairs.append((path.parent / spec.chat.template_file, out / spec.chat.template_file))
    for source, copy in pairs:
        if source.is_file():
            shutil.copyfile(source, copy)


def make(
    path: Path, out: Path, *, settings: Sequence[str] = (), draft_settings: Sequence[str] = (), layers: int | None = None,
    seed: int = 0, headers: bool = False, shape_dtype: str = "I32",
) -> Model:  # fmt: skip
    """Write target.yaml, drafter.yaml and their checkpoints into `out`; returns the model that they describe."""
    out.mkdir(parents=True, exist_ok=True)
    data = target_yaml(path, settings, layers)
    if data["decode"].get("drafter"):
        named = data["decode"]["drafter"]
        data["decode"]["drafter"] = "drafter.yaml"
        drafter = drafter_yaml(path.parent / named, draft_settings, data)
        (out / "drafter.yaml").write_text(json.dumps(drafter, indent=1, ensure_ascii=False), encoding="utf-8")
    (out / "target.yaml").write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")
    model = load(out / "target.yaml")
    copy_text(path, model.target.spec.text, out, model.target.weights_folder)
    weights = undivided(model)
    options: dict[str, Any] = {"seed": seed, "headers": headers, "shape_dtype": shape_dtype}
    mine = [w for name, w in weights.items() if not name.startswith(DRAFT)]
    write_folder(model.target.weights_folder, model.target, mine, **options)
    if model.drafter:
        theirs = [w for name, w in weights.items() if name.startswith(DRAFT)]
        write_folder(model.drafter.weights_folder, model.drafter, theirs, sharded=False, **options)
    return model


def main() -> int:
    """Parse, write, and say what was written."""
    p = argparse.ArgumentParser(description="Write a synthetic checkpoint in the layout of a model.")
    p.add_argument("model", type=Path, help="YAML of the target")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="where target/, drafter/ and the YAML go")
    p.add_argument("--layers", type=int, metavar="N", help="layers of the target (default: the YAML's)")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value of the target")
    p.add_argument("--draft-set", action="append", default=[], metavar="KEY=VALUE", help="override one of the drafter")
    p.add_argument("--headers", action="store_true", help="headers alone, data as holes of sparse files")
    p.add_argument("--shape-dtype", choices=("I32", "I64"), default="I32", help="dtype of weight_shape tensors")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    try:
        if args.layers is not None and args.layers < 2:
            raise UsageError(f"--layers must be at least 2, found {args.layers}")
        make(args.model, args.out, settings=args.set, draft_settings=args.draft_set, layers=args.layers,
             seed=args.seed, headers=args.headers, shape_dtype=args.shape_dtype)  # fmt: skip
    except DdtreeError as e:
        print(f"make_checkpoint: error: {e}", file=sys.stderr)
        return e.exit_code
    sizes = {
        folder.name: sum(f.stat().st_size for f in folder.iterdir()) for folder in args.out.iterdir() if folder.is_dir()
    }
    for name, size in sorted(sizes.items()):
        print(f"{args.out / name}: {size / 1e9:.3f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
