"""Checkpoint to arrays: one rank's part of every weight, read in file order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ddtree.errors import WeightsError
from ddtree.graph.tensor import DType, Weight
from ddtree.runtime.weights.checkpoint import Checkpoint
from ddtree.runtime.weights.int4 import WORD, Int4
from ddtree.runtime.weights.layout import Read
from ddtree.runtime.weights.values import check_shape, check_values

Progress = Callable[[int, int], None]
# Norms, biases, routers and small matrices are searched for NaN and Inf; reading a larger matrix only for that would
# double the time of a load whose views are never copied.
CHECKED_ELEMENTS = 1 << 20


def load(
    weights: Iterable[Weight], checkpoint: Checkpoint, *, progress: Progress | None = None
) -> dict[str, np.ndarray | Int4]:
    """The part of every weight that its shard says, by weight name, read-only.

    BF16 and FP32 weights are C-contiguous arrays [count?, *part]: views of the mapped file where the part lies in it in one
    piece, copies otherwise. INT4 weights stay packed (`Int4`). Tensors are read in the order of the files, and `progress`
    is called after each with (bytes done, bytes in all) of the parts. Raises WeightsError for a weight that the files
    do not hold as described, before any data is read, and for NaN, Inf, or a `_shape` tensor that contradicts the YAML.
    """
    weights = list(dict.fromkeys(weights))
    names = [weight.name for weight in weights]
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise WeightsError(f"weight {repeated!r} is described twice in different ways; its name must be unique")
    reads = sorted(checkpoint.match(weights), key=lambda read: (read.entry.path, read.entry.start))
    parts = {weight.name: _Parts(weight) for weight in weights}
    done, total = 0, sum(weight.nbytes for weight in weights)
    for read in reads:
        done += parts[read.weight.name].add(read, checkpoint.view(read.entry))
        if progress:
            progress(done, total)
    return {name: part.finish() for name, part in parts.items()}


@dataclass
class _Parts:
    """The tensors of one weight as they come in, in any order; by suffix (`_packed`, `_scale`, or none)."""

    weight: Weight
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, read: Read, data: np.ndarray) -> int:
        """Take the rank's part of one tensor; returns its bytes."""
        suffix = read.stored.suffix
        if suffix == "_shape":
            check_shape(read, data)
            return 0
        part = data[read.stored.part]
        if part.size <= CHECKED_ELEMENTS or suffix == "_scale":
            check_values(read, part, [axis.start or 0 for axis in read.stored.part])
        if self.weight.count:
            if suffix not in self.arrays:
                self.arrays[suffix] = np.empty((self.weight.count, *part.shape), part.dtype)
            self.arrays[suffix][read.expert] = part
        else:
            # `require` copies nothing when the part is one aligned piece of the file.
            self.arrays[suffix] = np.require(part, requirements=["C", "A"])
        return part.nbytes

    def finish(self) -> np.ndarray | Int4:
        for array in self.arrays.values():
            array.flags.writeable = False
        if self.weight.dtype is DType.INT4:
            return Int4(self.arrays["_packed"].view(WORD), self.arrays["_scale"], self.weight.group)
        return self.arrays[""]
