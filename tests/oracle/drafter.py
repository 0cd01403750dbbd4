"""A DFlash drafter in plain PyTorch, written from its description and sharing no code with the engine.

One forward pass recomputes everything: no caches, explicit masks, fp64. Source: DFlash (arXiv 2602.06036).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu

from tests.fixtures.pair import DrafterShape


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def amplitude(rule: Mapping[str, Any]) -> float:
    """Factor on cos and sin: the explicit one, else the ratio of YaRN's two gains."""
    if isinstance(rule.get("amplitude"), int | float):
        return float(rule["amplitude"])
    if rule["kind"] == "plain":
        return 1.0

    def gain(m: float) -> float:
        return 0.1 * m * math.log(rule["factor"]) + 1.0

    return gain(rule["mscale"]) / gain(rule["mscale_all_dim"])


def frequencies(rule: Mapping[str, Any], dim: int) -> Tensor:
    """Radians per position of each pair [dim / 2]: YaRN leaves fast pairs alone and slows slow ones by the factor."""
    plain = torch.tensor([rule["theta"] ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    if rule["kind"] == "plain":
        return plain

    def pair(turns: float) -> float:
        return dim * math.log(rule["original"] / (2 * math.pi * turns)) / (2 * math.log(rule["theta"]))

    low, high = max(math.floor(pair(rule["beta_fast"])), 0), min(math.ceil(pair(rule["beta_slow"])), dim - 1)
    slow = torch.tensor([min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(dim // 2)])
    return plain * (1 - slow) + plain / rule["factor"] * slow


def rotate(x: Tensor, position: Tensor, rule: Mapping[str, Any]) -> Tensor:
    """Rotate [rows, heads, dim]; pair i is elements i and i + dim / 2."""
    angle = (position[:, None] * frequencies(rule, x.shape[-1]))[:, None]
    cos, sin = amplitude(rule) * torch.cos(angle), amplitude(rule) * torch.sin(angle)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def visible(query: Tensor, key: Tensor, window: int, causal: bool) -> Tensor:
    """Which keys each query sees [queries, keys], from absolute positions; window 0 is none."""
    distance = query[:, None] - key[None]
    seen = torch.ones(distance.shape, dtype=torch.bool)
    if window:
        seen &= distance.abs() < window
    return seen & (distance >= 0) if causal else seen


class Drafter:
    """A drafter's weights, and the embedding and head that it borrows from its target.

    embed, head  [vocab, hidden] fp32
    """

    def __init__(self, folder: Path, shape: DrafterShape, embed: Tensor, head: Tensor) -> None:
        self.w = {name: t.double() for name, t in load_file(folder / "model.safetensors").items()}
        self.shape, self.embed, self.head = shape, embed.double(), head.double()

    def logits(self, features: Tensor, anchor: int, layers: Sequence[tuple[int, bool]] | None = None) -> Tensor:
        """Draft logits [block - 1, vocab] after positions 0..n-1 with features [n, taps * hidden] and the anchor at n.

        layers  windows and causality in place of the shape's
        """
        shape, w = self.shape, self.w
        context = norm(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], shape.eps)
        x = self.embed[[anchor] + [shape.mask_id] * (shape.block - 1)]
        for i, (window, causal) in enumerate(layers or shape.layers):
            x = x + self._attention(f"layers.{i}.", x, context, window, causal)
            u = norm(x, w[f"layers.{i}.post_attention_layernorm.weight"], shape.eps)
            gate, up, down = (w[f"layers.{i}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            x = x + (silu(u @ gate.T) * (u @ up.T)) @ down.T
        return norm(x, w["norm.weight"], shape.eps)[1:] @ self.head.T

    def _attention(self, layer: str, x: Tensor, context: Tensor, window: int, causal: bool) -> Tensor:
        shape = self.shape
        wq, wk, wv, wo = (self.w[f"{layer}self_attn.{name}_proj.weight"] for name in "qkvo")
        q_norm, k_norm = (self.w[f"{layer}self_attn.{name}_norm.weight"] for name in "qk")
        u = norm(x, self.w[layer + "input_layernorm.weight"], shape.eps)
        rows = torch.cat([context, u])  # only block rows pass the layer's input norm
        key_at = torch.arange(len(rows))
        query_at = key_at[len(context) :]
        q = norm((u @ wq.T).view(-1, shape.heads, shape.head), q_norm, shape.eps)
        k = norm((rows @ wk.T).view(-1, shape.kv_heads, shape.head), k_norm, shape.eps)
        q, k = rotate(q, query_at, shape.rotation), rotate(k, key_at, shape.rotation)
        v = (rows @ wv.T).view(-1, shape.kv_heads, shape.head)
        k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * shape.head**-0.5
        scores = scores.masked_fill(~visible(query_at, key_at, window, causal), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1) @ wo.T
