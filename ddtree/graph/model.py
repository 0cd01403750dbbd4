"""A model as loaded from YAML: validated text, evaluated dimensions, and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import pydantic

from ddtree.errors import UsageError
from ddtree.graph import overrides, yaml_text
from ddtree.graph.expression import Expression, ExpressionError, Number, evaluate_int, names_in
from ddtree.graph.mistake import explain, near
from ddtree.graph.rope import Rope, Yarn
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.schema import MAX_RANKS, DrafterSpec, Layers, ModelSpec, RopeSpec
from ddtree.graph.yaml_text import Document, Path_

S = TypeVar("S", ModelSpec, DrafterSpec)


@dataclass
class Source(Generic[S]):
    """One YAML file: its text with marks, its validated spec, and its dimensions as numbers.

    names  dims and constants by name       split  names whose value the ranks divide, directly or through an expression
    """

    doc: Document
    spec: S
    names: dict[str, Number]
    split: set[str]
    ropes: dict[str, Rope]

    @property
    def folder(self) -> Path:
        """Folder of the YAML file."""
        return Path(self.doc.file).parent

    @property
    def weights_folder(self) -> Path:
        """Folder of the checkpoint that the YAML names."""
        return self.folder / self.spec.checkpoint.weights

    def number(self, expression: Expression, path: Path_) -> int:
        """Whole value of an expression; a SpecError names `path`."""
        try:
            return evaluate_int(expression, self.names)
        except ExpressionError as e:
            raise self.doc.error(path, str(e)) from None


@dataclass
class Model:
    """A target and, unless it decodes without one, its drafter. `notes` says what `--set` changed."""

    target: Source[ModelSpec]
    drafter: Source[DrafterSpec] | None
    notes: list[str]

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks."""
        return self.target.spec.parallel.tensor


def _names(doc: Document, spec: ModelSpec | DrafterSpec) -> tuple[dict[str, Number], set[str]]:
    names: dict[str, Number] = dict(spec.constants)
    split = set(spec.parallel.split)
    for name, expression in spec.dims.items():
        path = ("dims", name)
        if name in spec.constants:
            raise doc.error(path, f"{name!r} is also a constant; rename one of them", key=True)
        try:
            later = sorted(names_in(expression) & (spec.dims.keys() - names.keys()))
            if later:
                raise ExpressionError(f"a dim may name only dims above it, found {later[0]!r}")
            names[name] = evaluate_int(expression, names)
        except ExpressionError as e:
            raise doc.error(path, str(e)) from None
        if names[name] < 1:
            raise doc.error(path, f"a dim must be positive, found {names[name]}")
        if names_in(expression) & split:
            split.add(name)
    for i, name in enumerate(spec.parallel.split):
        if name not in spec.dims:
            known = near(name, spec.dims, otherwise=f"; known: {', '.join(spec.dims)}")
            raise doc.error(("parallel", "split", i), f"unknown dim {name!r}{known}")
        if names[name] % spec.parallel.tensor:
            raise doc.error(
                ("parallel", "split", i), f"{name} = {names[name]} does not divide by {spec.parallel.tensor} ranks"
            )
    return names, split


def _rope(name: str, spec: RopeSpec, dim: int) -> Rope:
    yarn = Yarn(spec.factor, spec.original, spec.beta_fast, spec.beta_slow, spec.mscale, spec.mscale_all_dim)
    amplitude = None if isinstance(spec.amplitude, str) else spec.amplitude
    return Rope(name, dim, spec.theta, spec.layout, yarn if spec.kind == "yarn" else None, amplitude, spec.softmax_gain)


def _source(doc: Document, root: type[S]) -> Source[S]:
    try:
        spec = root.model_validate(doc.data)
    except pydantic.ValidationError as e:
        raise explain(doc, root, e) from None
    names, split = _names(doc, spec)
    source = Source(doc, spec, names, split, {})
    for name, rope in spec.rope.items():
        dim = source.number(rope.dim, ("rope", name, "dim"))
        if dim < 2 or dim % 2:
            raise doc.error(("rope", name, "dim"), f"the rotated elements must be even, found {dim}")
        source.ropes[name] = _rope(name, rope, dim)
    for section in ("graph", "features"):
        _check_layers(doc, section, getattr(spec, section, []))
    return source


def _check_layers(doc: Document, section: str, items: Sequence[object]) -> None:
    """The ranges of a section follow one another from layer 0."""
    expected = 0
    for i, item in enumerate(items):
        if not isinstance(item, Layers):
            continue
        first, last = item.span
        if first != expected or last < first:
            wanted = f"expected a range that starts at layer {expected}" + (", after the one above" if expected else "")
            raise doc.error((section, i, "layers"), f"{wanted}, and counts up; found {item.layers}")
        expected = last + 1


def load(path: Path, settings: Sequence[str] = (), *, ranks: int | None = None, draft: bool = True) -> Model:
    """Load a target's YAML, its `--set` settings and its drafter. `ranks` replaces parallel.tensor of both files;
    `draft=False` leaves the drafter out and decodes one token per round.

    Raises SpecError (file, line, column) or UsageError.
    """
    try:
        doc = yaml_text.read(path)
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from None
    if doc.data.get("kind") == "drafter":
        raise doc.error(("kind",), "this file describes a drafter; give the YAML of the target that names it")
    notes = [overrides.apply(doc, setting) for setting in settings]
    _set_ranks(doc, ranks)
    target = _source(doc, ModelSpec)
    if not draft:
        alone = {"drafter": None, "loop": ["verify", "accept", "commit"]}
        decode = target.spec.decode.model_copy(update=alone)
        target = replace(target, spec=target.spec.model_copy(update={"decode": decode}))
    model = Model(target, _drafter(target), notes)
    _check(model)
    return model


def _drafter(target: Source[ModelSpec]) -> Source[DrafterSpec] | None:
    """The drafter that a target names."""
    name, at = target.spec.decode.drafter, ("decode", "drafter")
    if name is None:
        return None
    file = target.folder / name
    try:
        doc = yaml_text.read(file)
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        reason = e.strerror if isinstance(e, OSError) else e
        raise target.doc.error(at, f"cannot read {file}: {reason}") from None
    if doc.data.get("kind") != "drafter":
        raise target.doc.error(at, f"{file} is no drafter: its first keys should say `kind: drafter`")
    _set_ranks(doc, target.spec.parallel.tensor)
    return _source(doc, DrafterSpec)


def _set_ranks(doc: Document, ranks: int | None) -> None:
    if ranks is not None:
        if not 1 <= ranks <= MAX_RANKS:
            raise UsageError(f"the number of tensor-parallel ranks must be 1..{MAX_RANKS}, found {ranks}")
        parallel = doc.data.setdefault("parallel", {})
        if isinstance(parallel, dict):
            parallel["tensor"] = ranks


def _check(model: Model) -> None:
    """What must hold between the keys of a file and between a target and its drafter."""
    target, drafter, decode = model.target, model.drafter, model.target.spec.decode
    for dim in ("vocab", "hidden"):
        if dim not in target.spec.dims:
            raise target.doc.error(("dims",), f"the dim {dim!r} is missing")
    vocab = int(target.names["vocab"])
    for i, stop in enumerate(decode.stop.ids):
        if not 0 <= stop < vocab:
            raise target.doc.error(("decode", "stop", "ids", i), f"a stop id must be 0..{vocab - 1}, found {stop}")
    if drafter is not None:
        _check_block(target, drafter)
        _check_fit(target, drafter)
    elif decode.loop[0] == "draft":
        raise target.doc.error(
            ("decode", "loop"),
            "the loop drafts, but decode.drafter names none; without one it is [verify, accept, commit]",
        )


def _check_block(target: Source[ModelSpec], drafter: Source[DrafterSpec]) -> None:
    """What the loop asks of the drafter's block."""
    decode, block = target.spec.decode, drafter.spec.block_size
    if decode.block_size > block:
        raise target.doc.error(
            ("decode", "block_size"),
            f"must be at most {block}, the drafter's trained block, found {decode.block_size}",
        )
    most = MAX_ROWS // block
    if decode.sequences > most:
        raise target.doc.error(
            ("decode", "sequences"),
            f"must be at most {most}, as many blocks of {block} rows as fit a round, found {decode.sequences}",
        )


def _check_fit(target: Source[ModelSpec], drafter: Source[DrafterSpec]) -> None:
    """The drafter was made for this target."""
    taps, doc = drafter.spec.taps, drafter.doc
    vocab, hidden = int(target.names["vocab"]), int(target.names["hidden"])
    depth = max((item.span[1] + 1 for item in target.spec.graph if isinstance(item, Layers)), default=0)
    for key, mine in (("hidden", hidden), ("vocab", vocab), ("depth", depth)):
        theirs = drafter.number(getattr(taps, key), ("taps", key))
        if theirs != mine:
            raise doc.error(
                ("taps", key), f"the drafter expects a target with {key} {theirs}, {target.doc.file} has {mine}"
            )
    for i, layer in enumerate(taps.layers):
        if not 0 <= layer < depth - 1:
            raise doc.error(("taps", "layers", i), f"a tap must be 0..{depth - 2}, found {layer}")
    if not drafter.spec.mask_id < vocab:
        raise doc.error(("mask_id",), f"must be 0..{vocab - 1}, found {drafter.spec.mask_id}")
