"""Root-mean-square normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import Array, Numerics
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor, Weight


def rms_norm(x: Array, weight: Array, eps: float, num: Numerics) -> Array:
    """RMSNorm over the last axis, with the two roundings that RmsNorm describes."""
    mean_square = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True)
    return num.store(num.store(x * (1 / np.sqrt(mean_square + np.float32(eps)))) * weight)


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Op):
    """Normalise by the root mean square over the last axis and scale by a learned weight.

        y = x / sqrt(mean(x**2) + eps) * weight        (Zhang & Sennrich, 2019)

    x       [rows, ..., width] bf16
    weight  [width] bf16
    y       as x
    eps     added to the mean square; positive

    The normalised value is rounded to bf16 before the weight is applied, and the product once more, as transformers does.
    """

    x: Tensor
    weight: Weight
    y: Tensor
    eps: float
    template = "rms_norm"

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return {"y": Tensor("", x.shape, split=x.split)}

    def check(self) -> None:
        """eps > 0 and one weight per element of the last axis, which is whole on every rank."""
        self.require(self.eps > 0, f"eps must be positive, found {self.eps}")
        self.require(
            self.weight.shape == self.x.shape[-1:],
            f"weight {self.weight.shape} does not fit rows of {self.x.shape[1:]}",
        )
        self.require(self.x.split != len(self.x.shape) - 1, "the normalised axis must not be divided among ranks")

    def reference(self, run: Run, *, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """See the formula above."""
        return rms_norm(x, weight, self.eps, run.num)

    def cost(self, load: Load) -> Cost:
        """One pass over x and y."""
        return Cost(
            weights=self.weight.nbytes,
            read=row_traffic(load, self.x),
            write=row_traffic(load, self.y),
            flops=4 * load.rows * self.x.width,
        )
