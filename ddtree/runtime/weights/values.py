"""Values that no checkpoint may hold: NaN, Inf, and a `_shape` tensor that contradicts the YAML."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ddtree.errors import WeightsError
from ddtree.runtime.weights.int4 import bad_scale, first_magnitude_above
from ddtree.runtime.weights.layout import Read


def check_shape(read: Read, data: np.ndarray) -> None:
    """Compare a `_shape` tensor with the weight. Raises WeightsError."""
    if tuple(int(n) for n in data) != read.weight.full:
        raise WeightsError(
            f"{read.entry.path}: tensor {read.entry.name!r}: expected the values {list(read.weight.full)} of weight "
            f"{read.weight.name!r}, found {data.tolist()}; correct the weight's shape in the YAML or download the shard again"
        )


def check_values(read: Read, part: np.ndarray, origin: Sequence[int]) -> None:
    """Refuse scales and floats that would turn into NaN logits later; integers pass. Raises WeightsError.

    part    what was read of the tensor      origin  where in the tensor its first element stands
    """
    if read.stored.suffix == "_scale":
        place, want = bad_scale(part), "finite scales"
    elif part.dtype.kind in "iu":
        return
    else:
        place, want = _first_not_finite(part), "finite values"
    if place is not None:
        at = [start + i for start, i in zip(origin, place, strict=True)]
        raise WeightsError(
            f"{read.entry.path}: tensor {read.entry.name!r}: expected {want}, found {part[place]} at {at}; "
            "the file is damaged: download the shard again"
        )


def _first_not_finite(part: np.ndarray) -> tuple[int, ...] | None:
    if part.dtype == ml_dtypes.bfloat16:  # by its exponent bits: several times faster than ml_dtypes' isfinite
        return first_magnitude_above(part, 0x7F7F)
    return None if np.isfinite(part).all() else tuple(int(i) for i in np.argwhere(~np.isfinite(part))[0])
