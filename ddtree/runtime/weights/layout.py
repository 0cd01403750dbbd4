"""Which checkpoint tensors a Weight stands for, and which part of each its rank holds."""

from __future__ import annotations

from typing import NamedTuple

from ddtree.errors import WeightsError
from ddtree.graph.tensor import DType, Weight
from ddtree.runtime.weights.header import Entry

WORD = 8  # INT4 columns in one packed 32-bit word
_STORED = {DType.BF16: "BF16", DType.FP32: "F32", DType.FP64: "F64", DType.INT32: "I32", DType.INT64: "I64"}


class Stored(NamedTuple):
    """One checkpoint tensor of a weight (of each of its experts).

    suffix  what follows the source name: empty, `_packed`, `_scale` or `_shape`
    dtypes  accepted safetensors dtypes
    shape   whole shape in the file
    part    the rank's part of it
    """

    suffix: str
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    part: tuple[slice, ...]


class Read(NamedTuple):
    """One tensor of one weight, found in the checkpoint: the unit of loading. `expert` is 0 for a single tensor."""

    weight: Weight
    stored: Stored
    expert: int
    entry: Entry


def sources(weight: Weight) -> list[str]:
    """Source names of the tensors that `weight` stacks, one for a single tensor."""
    if ("{expert}" in weight.source) != bool(weight.count):
        raise WeightsError(
            f"weight {weight.name!r}: expected {{expert}} in the name of stacked tensors and there only, "
            f"found count {weight.count} with {weight.source!r}; correct its source in the YAML"
        )
    if not weight.count:
        return [weight.source]
    return [weight.source.replace("{expert}", str(expert)) for expert in range(weight.count)]


def stored(weight: Weight) -> tuple[Stored, ...]:
    """The tensors that hold one (expert's) matrix of `weight`. WeightsError when its rank's part is not a whole one."""
    _check_split(weight)
    if weight.dtype is not DType.INT4:
        return (Stored("", (_STORED[weight.dtype],), weight.full, _part(weight, weight.full)),)
    if len(weight.full) != 2 or weight.group % WORD or weight.full[1] % weight.group:
        raise WeightsError(
            f"weight {weight.name!r}: expected an INT4 matrix [out, in] whose input axis is whole groups of "
            f"{weight.group} (a multiple of {WORD}), found {list(weight.full)}; correct its shape in the YAML"
        )
    out, width = weight.full
    packed, scale = (out, width // WORD), (out, width // weight.group)
    return (
        Stored("_packed", ("I32",), packed, _part(weight, packed)),
        Stored("_scale", ("BF16",), scale, _part(weight, scale)),
        Stored("_shape", ("I32", "I64"), (2,), (slice(None),)),
    )


def _part(weight: Weight, shape: tuple[int, ...]) -> tuple[slice, ...]:
    divided = weight.split if weight.shard.size > 1 else None
    return tuple(weight.shard.slice(n) if axis == divided else slice(None) for axis, n in enumerate(shape))


def _check_split(weight: Weight) -> None:
    """Refuse a division that would give ranks unequal parts, or an INT4 scale to two ranks."""
    if weight.split is None or weight.shard.size == 1:
        return
    size, axis = weight.shard.size, weight.split
    if not 0 <= axis < len(weight.full):
        raise WeightsError(f"weight {weight.name!r}: split axis {axis} does not exist in shape {list(weight.full)}")
    length = weight.full[axis]
    grouped = weight.dtype is DType.INT4 and axis == 1
    unit, what = (weight.group, f"whole groups of {weight.group} INT4 weights") if grouped else (1, "an equal part")
    if length % (size * unit):
        raise WeightsError(
            f"weight {weight.name!r}: each of {size} ranks needs {what} of axis {axis}, but {length} / {size} = "
            f"{length / size:g}; use a tensor-parallel size that divides {length // unit}"
        )
