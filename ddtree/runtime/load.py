"""From a model to a decoder on the CPU: weights, caches and one executor per step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.errors import UsageError, WeightsError
from ddtree.graph.build import DRAFT, Limits, build_ranks, steps_of
from ddtree.graph.expression import ExpressionError, evaluate, names_in
from ddtree.graph.model import Model, Source
from ddtree.graph.numerics import Precision
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.schema import MAX_BUDGET
from ddtree.graph.step_graph import StepGraph, StepName
from ddtree.graph.tensor import Cache, Weight
from ddtree.graph.yaml_text import Path_
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.costs import measured_steps, written
from ddtree.runtime.decoder import Decoder, SlotMemory, StepExecutor
from ddtree.runtime.kv import PAGE
from ddtree.runtime.numpy_executor import NumpyExecutor, NumpyRank, make_caches
from ddtree.runtime.weights import Checkpoint, check_config, load

Progress = Callable[[str, int, int], None]  # what is loaded, bytes done, bytes in all


@dataclass(frozen=True)
class Folders:
    """Where the checkpoints are."""

    target: Path
    draft: Path | None


def folders(model: Model, weights: Path | None, draft_weights: Path | None) -> Folders:
    """The folders given, or those that the YAML files name."""
    draft = draft_weights or (model.drafter.weights_folder if model.drafter else None)
    return Folders(weights or model.target.weights_folder, draft)


def _referred(source: Source[Any], reference: str, path: Path_) -> tuple[object, Path_]:
    """The value that `$key.path[index]` names in the same file, and where it stands."""
    parts = [int(p) if p.isdigit() else p for p in re.findall(r"[A-Za-z_]\w*|\d+", reference)]
    value: Any = source.doc.data
    try:
        for part in parts:
            value = value[part]
    except (KeyError, IndexError, TypeError):
        raise source.doc.error(path, f"{reference} names nothing in this file") from None
    return value, tuple(parts)


def expected_config(source: Source[Any]) -> dict[str, tuple[object, Path_]]:
    """The YAML's `checkpoint.config`: by dotted key the value and the path of the YAML value behind it.

    `$path` stands for the value at that path of the file, so that the engine's own values are compared and no copies. A
    text that is no expression over the file's names stands for itself.
    """

    def value(given: object) -> object:
        if isinstance(given, list):
            return [value(item) for item in given]
        if isinstance(given, str):
            try:
                if names_in(given) <= source.names.keys():
                    return evaluate(given, source.names)
            except ExpressionError:
                pass
        return given

    table: dict[str, tuple[object, Path_]] = {}
    for key, given in source.spec.checkpoint.config.items():
        at: Path_ = ("checkpoint", "config", key)
        if isinstance(given, str) and given.startswith("$"):
            given, at = _referred(source, given, at)
        table[key] = value(given), at
    return table


def open_checkpoint(source: Source[Any], folder: Path, weights: list[Weight]) -> Checkpoint:
    """Open a checkpoint, compare its config.json with the YAML and every tensor with the graph's weights."""
    spec = source.spec.checkpoint
    if not folder.is_dir():
        raise WeightsError(
            f"there is no folder {folder}; give the checkpoint's folder with --weights or --draft-weights"
        )
    if spec.config:
        expected = expected_config(source)
        values = {key: wanted for key, (wanted, _) in expected.items()}
        check_config(folder / "config.json", values, lambda key: str(source.doc.mark(expected[key][1])))
    checkpoint = Checkpoint.open(folder, prefix=spec.prefix, ignore=spec.ignore)
    checkpoint.check(weights)
    return checkpoint


def silent(*_: object) -> None:
    """No progress."""


def read_weights(
    model: Model, where: Folders, weights: dict[str, Weight], progress: Progress = silent
) -> dict[str, Any]:
    """Every weight's part as it stands in the checkpoints (BF16, FP32 or Int4), by name; all tensors are checked first."""
    parts = [("weights", model.target, where.target, [w for n, w in weights.items() if not n.startswith(DRAFT)])]
    if model.drafter and where.draft:
        parts.append(("drafter", model.drafter, where.draft, [w for n, w in weights.items() if n.startswith(DRAFT)]))  # type: ignore[arg-type]
    arrays: dict[str, Any] = {}
    for what, source, folder, mine in parts:
        if mine:
            checkpoint = open_checkpoint(source, folder, mine)
            arrays.update(load(mine, checkpoint, progress=lambda done, total, what=what: progress(what, done, total)))  # type: ignore[misc]
    return arrays


def cpu_decoder(
    model: Model,
    where: Folders,
    *,
    precision: Precision = Precision.FP32,
    trace: AcceptTrace | None = None,
    progress: Progress = silent,
) -> Decoder:
    """A decoder whose steps are NumPy references, all ranks in this process; `trace` forces accepted lengths."""
    graphs: dict[StepName, list[StepGraph]] = {step: build_ranks(model, step) for step in steps_of(model)}
    sequences, pages = model.target.spec.decode.sequences, kv_pages(model)
    ranks = []
    for rank in range(model.ranks):
        weights: dict[str, Weight] = {}
        caches: dict[str, Cache] = {}
        for step in graphs.values():
            weights.update(step[rank].weights())
            caches.update(step[rank].caches())
        ranks.append(NumpyRank(read_weights(model, where, weights, progress), make_caches(caches, pages, sequences)))
    decoder = make_decoder(
        model, {step: NumpyExecutor(g, ranks, precision) for step, g in graphs.items()}, [c for rank in ranks for c in rank.caches.values()],
        trace=trace,
    )  # fmt: skip
    if decoder.limits.auto:
        decoder.use(written(model, "cpu") or measured_steps(decoder))
    return decoder


def make_decoder(
    model: Model,
    steps: Mapping[StepName, StepExecutor],
    caches: Sequence[SlotMemory],
    kind: Callable[..., Decoder] = Decoder,
    *,
    trace: AcceptTrace | None = None,
) -> Decoder:
    """The decoder of a model on given executors. Raises UsageError for a `trace` where nothing is drafted."""
    spec = model.target.spec
    if trace and "draft" not in steps:
        raise UsageError("accepted lengths can only be forced where a drafter makes trees; this model has none")
    decoder = kind(
        Limits.of(model),
        steps,
        caches,
        budget=MAX_BUDGET if spec.decode.tree.budget == "auto" else spec.decode.tree.budget,
        mask_id=model.drafter.spec.mask_id if model.drafter else 0,
        vocab=int(model.target.names["vocab"]),
        context=spec.context,
    )
    decoder.trace = trace
    return decoder


def kv_pages(model: Model) -> int:
    """Pages that all sequences of a model need at full length, overshoot of the last round included."""
    return model.target.spec.decode.sequences * -(-(model.target.spec.context + MAX_ROWS) // PAGE)
