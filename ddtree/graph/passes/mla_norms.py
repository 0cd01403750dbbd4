"""Fusion of the query latent's norm with the cache row's."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.op import Op
from ddtree.graph.ops import LatentWrite, MlaNorms, RmsNorm
from ddtree.graph.step_graph import StepGraph


def fuse_mla_norms(graph: StepGraph) -> StepGraph:
    """Every LatentWrite becomes one op with the last norm of plain rows between its input and itself, at the norm's place.

    The write moves up to the norm: it reads nothing that is computed after its input. It stays where it is when an op in
    between has to do with its cache.
    """
    ops: list[Op | None] = list(graph.ops)
    for i, op in enumerate(graph.ops):
        if not isinstance(op, LatentWrite):
            continue
        at = _norm(ops[:i], op)
        if at is None:
            continue
        norm = ops[at]
        assert isinstance(norm, RmsNorm)
        ops[at] = MlaNorms(
            x=norm.x, weight=norm.weight, y=norm.y, eps=norm.eps, latent=op.x, latent_weight=op.weight, cache=op.cache,
            rope=op.rope, latent_eps=op.eps, origin=norm.origin,
        )  # fmt: skip
        ops[i] = None
    return replace(graph, ops=tuple(op for op in ops if op is not None))


def _norm(before: list[Op | None], write: LatentWrite) -> int | None:
    """Where the norm stands that the write may join."""
    for at in range(len(before) - 1, -1, -1):
        op = before[at]
        if op is None:
            continue
        if isinstance(op, RmsNorm) and len(op.x.shape) == 2 and op.x.domain == write.x.domain:
            return at if any(write.x in earlier.writes() for earlier in before[:at] if earlier) else None
        if write.x in op.writes() or write.cache in op.caches():
            return None
    return None
