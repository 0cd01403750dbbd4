"""Safetensors files written by hand, so that a test can break any byte of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ddtree.runtime.weights.int4 import pack

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int32": "I32", "uint32": "I32", "int64": "I64"}


def bf16(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)


def describe(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The header object of `tensors`, laid out in their order."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    cursor = 0
    for name, array in tensors.items():
        table[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [cursor, cursor + array.nbytes],
        }
        cursor += array.nbytes
    return table


def file_bytes(header: Mapping[str, Any] | bytes, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


def data_of(tensors: Mapping[str, np.ndarray]) -> bytes:
    return b"".join(array.tobytes() for array in tensors.values())


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    path.write_bytes(file_bytes(describe(tensors), data_of(tensors)))


def write_sharded(folder: Path, *shards: Mapping[str, np.ndarray]) -> None:
    """Shards `a.safetensors`, `b.safetensors`, ... with their index."""
    weight_map = {}
    for letter, tensors in zip("abcdef", shards, strict=False):
        write(folder / f"{letter}.safetensors", tensors)
        weight_map.update(dict.fromkeys(tensors, f"{letter}.safetensors"))
    write_index(folder, weight_map)


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def int4_tensors(name: str, rng: np.random.Generator, out: int, width: int, group: int = 32) -> dict[str, np.ndarray]:
    """The three tensors of a random INT4 matrix."""
    return {
        f"{name}_packed": pack(rng.integers(-8, 8, (out, width))).view(np.int32),
        f"{name}_scale": bf16(rng.uniform(0.001, 0.1, (out, width // group))),
        f"{name}_shape": np.array([out, width], np.int32),
    }
