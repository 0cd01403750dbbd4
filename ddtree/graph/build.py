"""From a loaded model to step graphs: expand layers and blocks, place the decode loop's ops, then run the passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ddtree.graph.mistake import near
from ddtree.graph.model import Model, Source
from ddtree.graph.op import Op
from ddtree.graph.ops import (
    LOOP_OPS,
    Accept,
    BuildTree,
    CacheCommit,
    ConcatTaps,
    GatherRows,
    Sample,
    SelectRows,
    Stop,
    TopK,
)
from ddtree.graph.passes.fuse import FUSIONS
from ddtree.graph.passes.memory import plan_memory
from ddtree.graph.passes.shard import shard
from ddtree.graph.passes.verify import verify, verify_ranks
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.schema import MAX_BUDGET, Layers
from ddtree.graph.scope import Scope, output_name
from ddtree.graph.step_graph import StepGraph, StepName
from ddtree.graph.tensor import Cache, DType, Shard, Tensor, Weight
from ddtree.graph.yaml_text import Path_

DRAFT = "draft."  # prefix of everything that belongs to the drafter
LOOP_NAMES = {  # tensors that the loop's ops exchange; one of these names in a YAML file gets a number behind it
    "ids", "anchor", "budget", "temperature", "top_k", "top_p", "seed", "remaining", "token", "candidate", "chosen", "features",
    "committed_features", *(name for cls in LOOP_OPS for name in cls.outputs if name != "y"),
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Sizes that fix the shapes of every step.

    sequences  sequence slots of a round       prefill   rows of a prefill step
    depths     drafted slots that are used     block     slots of the drafter's trained block, 0 without a drafter
    nodes      room for a tree, root included  width     candidates per drafted slot
    auto       whether each round chooses the size of its trees
    """

    sequences: int
    prefill: int
    depths: int
    block: int
    nodes: int
    width: int
    auto: bool = False

    @staticmethod
    def of(model: Model) -> Limits:
        """The limits that a model's YAML sets."""
        decode = model.target.spec.decode
        vocab, auto = int(model.target.names["vocab"]), decode.tree.budget == "auto"
        budget = MAX_BUDGET if decode.tree.budget == "auto" else decode.tree.budget
        width = budget if decode.tree.width == "auto" else decode.tree.width
        drafting = model.drafter is not None and decode.loop[0] == "draft"
        return Limits(
            decode.sequences,
            decode.prefill_rows,
            decode.block_size - 1 if drafting else 0,
            model.drafter.spec.block_size if model.drafter and drafting else 0,
            budget + 1 if drafting else 1,
            max(1, min(width, vocab)),
            auto and drafting,
        )

    @property
    def pending(self) -> int:
        """Committed rows of one sequence that may wait for the drafter to take them into its context."""
        return min(16, MAX_ROWS // self.sequences)


class Builder:
    """Expands the YAML of a model into the ops of its steps. `verify_rows` is the row capacity of the verify step."""

    def __init__(self, model: Model, verify_rows: int = MAX_ROWS) -> None:
        self.model, self.limits = model, Limits.of(model)
        self.sources: dict[str, Weight] = {}
        self.drafter = model.drafter if self.limits.block else None
        self.context = (
            model.target.spec.context + MAX_ROWS
        )  # the last round may commit past the limit; that text is cut
        self.rows = {
            "prefill": self.limits.prefill,
            "draft": self.limits.sequences * self.limits.block,
            "verify": verify_rows,
            "commit": min(MAX_ROWS, self.limits.sequences * (self.limits.depths + 1)),
            "store": self.limits.sequences,
            "context": self.limits.sequences * self.limits.pending,
        }

    def build(self, step: StepName) -> StepGraph:
        """The undivided graph of one step."""
        makers = {"prefill": self._prefill, "draft": self._draft, "verify": self._verify, "commit": self._commit}
        return {**makers, "store": self._store, "context": self._context}[step]()

    def _scope(self, source: Source[Any], space: str, tensors: dict[str, Tensor], wanted: int = 0) -> Scope:
        scope = Scope(
            source,
            self.context,
            space,
            tensors=tensors,
            wanted=wanted,
            used=dict.fromkeys(LOOP_NAMES, 1),
            sources=self.sources,
        )
        for name, spec in source.spec.weights.items():
            scope.add_weight(name, spec, "", ("weights", name))
        return scope

    def _expand(
        self, scope: Scope, section: str, *, keep_rows: bool = True, taps: Sequence[int] = ()
    ) -> tuple[list[Op], list[Tensor]]:
        """Ops of one section of the file, and the residual stream after each tapped layer."""
        spec = scope.source.spec
        ops: list[Op] = []
        tapped: dict[int, Tensor] = {}
        for i, item in enumerate(getattr(spec, section)):
            path: Path_ = (section, i)
            if not isinstance(item, Layers):
                self._append(ops, scope, item, path, keep_rows)
                continue
            first, last = item.span
            for layer in range(first, last + 1):
                self._layer(ops, scope, item, layer, path, keep_rows)
                if layer in taps:
                    tapped[layer] = self._tap(scope)
        return ops, [tapped[layer] for layer in taps]

    def _tap(self, scope: Scope) -> Tensor:
        """The residual stream, as it is now."""
        name, hidden = scope.source.spec.stream, int(self.model.target.names["hidden"])
        tap = scope.tensors.get(name)
        if tap is None or tap.shape[1:] != (hidden,) or tap.split is not None:
            found = f"rows of {list(tap.shape[1:])}" if tap else f"no tensor {name!r}"
            raise scope.source.doc.error(("stream",), f"the residual stream has whole rows of {hidden}, found {found}")
        return tap

    @staticmethod
    def _logits(scope: Scope, ops: list[Op], vocab: int) -> Tensor:
        """The tensor that a graph leaves for the choice of tokens."""
        doc, logits = scope.source.doc, scope.tensors.get("logits")
        if logits is None:
            raise doc.error(("graph",), "the graph must write a tensor named 'logits'")
        origin = next(op.origin for op in reversed(ops) if logits in op.writes())
        if logits.dtype is not DType.FP32 or logits.shape[1:] != (vocab,):
            found = f"{logits.dtype.value} rows of {list(logits.shape[1:])}"
            raise doc.error_at(origin, f"logits are fp32 rows of {vocab} (dtype: fp32), found {found}")
        if scope.wanted and logits.domain != "wanted":
            raise doc.error_at(origin, "select_rows must come before the logits, which few rows of a step need")
        return logits

    def _layer(self, ops: list[Op], scope: Scope, item: Layers, layer: int, path: Path_, keep_rows: bool) -> None:
        spec, doc = scope.source.spec, scope.source.doc
        values = {
            name: v if isinstance(v, bool) else scope.number(v, (*path, "values", name)) for name, v in item.values.items()
        }  # fmt: skip
        inner = scope.child(f"layers.{layer}.", {**values, "layer": layer})
        prefix = item.prefix.replace("{layer}", str(layer))
        for j, name in enumerate(item.blocks):
            if name not in spec.blocks:
                known = near(name, spec.blocks, otherwise=f"; known: {', '.join(spec.blocks)}")
                raise doc.error((*path, "blocks", j), f"unknown block {name!r}{known}")
            block, at = spec.blocks[name], ("blocks", name)
            for key, weight in block.weights.items():
                inner.add_weight(key, weight, prefix, (*at, "weights", key))
            for key, cache in block.caches.items():
                inner.add_cache(key, cache, (*at, "caches", key))
            for k, node in enumerate(block.ops):
                self._append(ops, inner, node, (*at, "ops", k), keep_rows)

    @staticmethod
    def _append(ops: list[Op], scope: Scope, node: Any, path: Path_, keep_rows: bool) -> None:
        op = scope.make(node, path)
        if isinstance(op, SelectRows) and keep_rows:  # every row is wanted: the name stands for x itself
            scope.tensors[output_name(node.y)] = op.x
            return
        ops.append(op)

    def _target(self, step: StepName, *, keep_rows: bool) -> tuple[list[Op], dict[str, Tensor], dict[str, Tensor]]:
        """The target's forward pass: ops, inputs and outputs."""
        ids = Tensor("ids", (self.rows[step],), DType.INT32, domain="rows")
        scope = self._scope(self.model.target, "", {"ids": ids}, 0 if keep_rows else self.limits.sequences)
        taps = self.drafter.spec.taps.layers if self.drafter else []
        ops, tapped = self._expand(scope, "graph", keep_rows=keep_rows, taps=taps)
        outputs = {"logits": self._logits(scope, ops, int(self.model.target.names["vocab"]))}
        if tapped:
            ops.append(self._loop(ConcatTaps, taps=tuple(tapped), y="features"))
            outputs["features"] = ops[-1].writes()[0]
        return ops, {"ids": ids}, outputs

    def _loop(self, cls: type[Op], **fields: Any) -> Op:
        """An op of the decode loop: outputs are given by name and get their shapes from the op's rule."""
        names = {name: fields.pop(name, name) for name in cls.outputs}
        first = next((v for v in fields.values() if isinstance(v, Tensor)), None) or next(
            (v[0] for v in fields.values() if isinstance(v, tuple) and v and isinstance(v[0], Tensor)), None
        )
        inferred = cls.infer(**fields)
        outputs = {
            name: Tensor(names[name], t.shape, t.dtype, t.split, t.domain or (first.domain if first else "rows"))
            for name, t in inferred.items()
        }  # fmt: skip
        return cls(**fields, **outputs, origin=str(self.model.target.doc.mark(("decode", "loop"), key=True)))

    def _request(self) -> dict[str, Tensor]:
        """Per-sequence sampling parameters."""
        types = {"temperature": DType.FP32, "top_k": DType.INT32, "top_p": DType.FP32, "seed": DType.INT64}
        return {
            name: Tensor(name, (self.limits.sequences,), dtype, domain="sequences") for name, dtype in types.items()
        }

    def _per_sequence(self, name: str) -> Tensor:
        return Tensor(name, (self.limits.sequences,), DType.INT32, domain="sequences")

    def _context_ops(self, features: Tensor) -> list[Op]:
        """The drafter's context rows of newly committed positions."""
        assert self.drafter is not None
        return self._expand(self._scope(self.drafter, DRAFT, {"features": features}), "features")[0]

    def _features(self, rows: int) -> Tensor:
        """The target's features as the drafter receives them."""
        assert self.drafter is not None
        width = len(self.drafter.spec.taps.layers) * int(self.model.target.names["hidden"])
        return Tensor("features", (rows, width), domain="source")

    def _check_context(self, draft: list[Op]) -> None:
        """What the block reads of a cache is what the features wrote."""
        assert self.drafter is not None
        context = self._context_ops(replace(self._features(self.rows["commit"]), domain="rows"))
        written = {cache.name: cache for op in context for cache in op.caches()}
        for op in draft:
            for cache in op.caches():
                if written.get(cache.name) != cache:
                    how = "otherwise (row or window)" if cache.name in written else "nowhere"
                    name = cache.name.removeprefix(DRAFT)
                    raise self.drafter.doc.error_at(
                        op.origin, f"the block reads cache {name}, which `features` declares {how}"
                    )

    def _prefill(self) -> StepGraph:
        ops, inputs, outputs = self._target("prefill", keep_rows=False)
        request = self._request()
        ops.append(self._loop(Sample, logits=outputs["logits"], token="token", **request))
        outputs["token"] = ops[-1].writes()[0]
        if self.drafter:
            ops += self._context_ops(outputs["features"])
        return StepGraph(
            "prefill", tuple(ops), {**inputs, **request}, outputs, self.rows["prefill"], tree=False, decode=False
        )

    def _draft(self) -> StepGraph:
        assert self.drafter is not None
        ids = Tensor("ids", (self.rows["draft"],), DType.INT32, domain="rows")
        scope = self._scope(self.drafter, DRAFT, {"ids": ids}, self.limits.sequences * self.limits.depths)
        shared = self._scope(self.model.target, "", {})
        scope.weights.update({f"target.{name}": weight for name, weight in shared.weights.items()})
        ops, _ = self._expand(scope, "graph", keep_rows=False)
        self._check_context(ops)
        logits = self._logits(scope, ops, int(self.model.target.names["vocab"]))
        ops.append(self._loop(TopK, logits=logits, k=self.limits.width, log_prob="log_prob", token="candidate"))
        log_prob, token = ops[-1].writes()
        anchor, budget = self._per_sequence("anchor"), self._per_sequence("budget")
        tree = self._loop(
            BuildTree,
            anchor=anchor,
            budget=budget,
            log_prob=log_prob,
            token=token,
            depths=self.limits.depths,
            nodes=self.limits.nodes,
        )
        outputs = {"log_prob": log_prob, "candidate": token, **{t.name: t for t in tree.writes()}}
        inputs = {"ids": ids, "anchor": anchor, "budget": budget}
        return StepGraph("draft", (*ops, tree), inputs, outputs, self.rows["draft"], tree=False, decode=True)

    @cached_property
    def _verified(self) -> tuple[list[Op], dict[str, Tensor], dict[str, Tensor]]:
        """The target's forward pass over tree rows; the commit step needs its caches."""
        return self._target("verify", keep_rows=True)

    def _verify(self) -> StepGraph:
        forward, inputs, outputs = self._verified
        ops, outputs = list(forward), dict(outputs)
        request, remaining = self._request(), self._per_sequence("remaining")
        ops.append(self._loop(Sample, logits=outputs["logits"], token="chosen", **request))
        outputs["chosen"] = ops[-1].writes()[0]
        walk = self._loop(
            Accept,
            ids=inputs["ids"],
            chosen=outputs["chosen"],
            depths=self.limits.depths,
            sequences=self.limits.sequences,
        )
        end = self._loop(
            Stop, emitted=walk.emitted, length=walk.length, remaining=remaining, ids=tuple(self.model.target.spec.decode.stop.ids)  # type: ignore[attr-defined]
        )  # fmt: skip
        outputs.update({t.name: t for t in (*walk.writes(), *end.writes())})
        inputs = {**inputs, **request, "remaining": remaining}
        return StepGraph("verify", (*ops, walk, end), inputs, outputs, self.rows["verify"], tree=True, decode=True)

    def _commits(self) -> tuple[list[Op], dict[str, Tensor]]:
        """Accepted rows from scratch to pages, and the inputs that say which they are."""
        path = Tensor("path", (self.limits.sequences, self.limits.depths + 1), DType.INT32, domain="sequences")
        length = self._per_sequence("length")
        caches = (
            StepGraph("verify", tuple(self._verified[0]), {}, {}, MAX_ROWS, tree=True, decode=True).caches().values()
        )
        kinds: dict[Any, list[Cache]] = {}
        for cache in caches:
            kinds.setdefault((cache.row, cache.dtype, cache.window), []).append(cache)
        ops = [self._loop(CacheCommit, path=path, length=length, layers=tuple(layers)) for layers in kinds.values()]
        return ops, {"path": path, "length": length}

    def _taken_in(self, rows: int) -> tuple[list[Op], dict[str, Tensor]]:
        """Features of committed rows to the drafter's context."""
        features = self._features(MAX_ROWS)
        gather = self._loop(GatherRows, x=features, rows=rows, y="committed_features")
        return [gather, *self._context_ops(gather.writes()[0])], {"features": features}

    def _commit(self) -> StepGraph:
        ops, inputs = self._commits()
        if self.drafter:
            taken, features = self._taken_in(self.rows["commit"])
            ops, inputs = ops + taken, inputs | features
        return StepGraph("commit", tuple(ops), inputs, {}, self.rows["commit"], tree=False, decode=True)

    def _store(self) -> StepGraph:
        """The commit of a round without a draft: one row a sequence, whose features the drafter takes in later."""
        ops, inputs = self._commits()
        return StepGraph("store", tuple(ops), inputs, {}, self.rows["store"], tree=False, decode=True)

    def _context(self) -> StepGraph:
        """What the drafter takes in of rounds without a draft, in one batch."""
        ops, inputs = self._taken_in(self.rows["context"])
        return StepGraph("context", tuple(ops), inputs, {}, self.rows["context"], tree=False, decode=True)


def steps_of(model: Model) -> tuple[StepName, ...]:
    """The steps of a model's loop: without a drafter there is nothing to draft. Where rounds choose their size, some do
    not draft either; those end with `store`, and `context` precedes the next draft."""
    limits = Limits.of(model)
    if not limits.block:
        return "prefill", "verify", "commit"
    return ("prefill", "draft", "verify", "commit", *(("store", "context") if limits.auto else ()))


def build_step(model: Model, step: StepName, rank: int = 0, builder: Builder | None = None) -> StepGraph:
    """The graph of one step for one rank, after all passes, each checked. One `builder` may serve several calls."""
    graph = (builder or Builder(model)).build(step)
    verify(graph, "build")
    graph = shard(graph, Shard(model.ranks, rank))
    verify(graph, "shard")
    for name, fuse in FUSIONS.items():
        if getattr(model.target.spec.passes, name):
            graph = fuse(graph)
            verify(graph, name)
    graph = plan_memory(graph)
    verify(graph, "memory")
    return graph


def build_ranks(model: Model, step: StepName) -> list[StepGraph]:
    """The graphs of all ranks."""
    builder = Builder(model)
    graphs = [build_step(model, step, rank, builder) for rank in range(model.ranks)]
    verify_ranks(graphs)
    return graphs
