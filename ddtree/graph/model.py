"""A model as loaded from YAML: validated text, evaluated dimensions, and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

import pydantic

from ddtree.errors import SpecError
from ddtree.graph import overrides, yaml_text
from ddtree.graph.expression import Expression, ExpressionError, Number, evaluate_int, names_in
from ddtree.graph.rope import Rope, Yarn
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.schema import DrafterSpec, ModelSpec, RopeSpec
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


def _nearest(name: str, model: Any) -> str:
    known = [f.alias or n for n, f in getattr(model, "model_fields", {}).items()]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; valid keys: {', '.join(known)}" if known else ""


def _model_at(root: type[pydantic.BaseModel], loc: Path_) -> Any:
    """The pydantic model that holds the key at the end of `loc`, as far as annotations tell."""
    from ddtree.graph.op_schema import OP_CLASSES, OpNode  # the union's members carry the fields of each op

    at: Any = root
    for part in loc[:-1]:
        if isinstance(part, str) and part in OP_CLASSES:
            members = OpNode.__origin__.__args__  # type: ignore[attr-defined]
            at = next(m for m in members if m.__name__ == OP_CLASSES[part].__name__)
            continue
        fields = getattr(at, "model_fields", {})
        field = next((f for n, f in fields.items() if part in (n, f.alias)), None)
        if field is not None:
            at = field.annotation
        while not hasattr(at, "model_fields") and getattr(at, "__args__", None):
            inner = [a for a in at.__args__ if hasattr(a, "model_fields") or getattr(a, "__args__", None)]
            if not inner:
                break
            at = inner[-1]
            if field is not None and not isinstance(part, int) and hasattr(at, "model_fields"):
                break
    return at


def _explain(doc: Document, root: type[pydantic.BaseModel], error: pydantic.ValidationError) -> SpecError:
    """The first pydantic error as one line with file, line and column."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda p: (p["type"] == "missing", -len(p["loc"])))
    path: Path_ = ()
    data: Any = doc.data
    for part in first["loc"]:  # drop the names of union members, which are no keys
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path, data = (*path, part), data[part]  # type: ignore[index]
    kind, last = first["type"], first["loc"][-1] if first["loc"] else ""
    if kind == "extra_forbidden":
        return doc.error(path, f"unknown key{_nearest(str(last), _model_at(root, tuple(first['loc'])))}", key=True)
    if kind == "missing":
        return doc.error(path, f"the key {last!r} is missing")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        known = str(first.get("ctx", {}).get("expected_tags", "")).replace("'", "").split(", ")
        found = data.get("op") if isinstance(data, dict) else None
        near = get_close_matches(str(found), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known ops: {', '.join(known)}"
        at = (*path, "op") if isinstance(data, dict) and "op" in data else path
        return doc.error(at, (f"unknown op {found!r}" if found is not None else "an op needs the key 'op'") + hint)
    message = first["msg"].removeprefix("Value error, ")
    given = data if not isinstance(data, dict | list) else f"a {'mapping' if isinstance(data, dict) else 'list'}"
    return doc.error(path, f"{message[0].lower()}{message[1:]}" + ("" if "found" in message else f", found {given!r}"))


def _names(doc: Document, spec: ModelSpec | DrafterSpec) -> tuple[dict[str, Number], set[str]]:
    names: dict[str, Number] = dict(spec.constants)
    split = set(spec.parallel.split)
    for name, expression in spec.dims.items():
        path = ("dims", name)
        if name in spec.constants:
            raise doc.error(path, f"{name!r} is also a constant; rename one of them", key=True)
        try:
            names[name] = evaluate_int(expression, names)
        except ExpressionError as e:
            raise doc.error(path, str(e)) from None
        if names[name] < 1:
            raise doc.error(path, f"a dim must be positive, found {names[name]}")
        if names_in(expression) & split:
            split.add(name)
    for i, name in enumerate(spec.parallel.split):
        if name not in spec.dims:
            raise doc.error(("parallel", "split", i), f"unknown dim {name!r}; known: {', '.join(spec.dims)}")
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
        raise _explain(doc, root, e) from None
    names, split = _names(doc, spec)
    source = Source(doc, spec, names, split, {})
    for name, rope in spec.rope.items():
        dim = source.number(rope.dim, ("rope", name, "dim"))
        if dim < 2 or dim % 2:
            raise doc.error(("rope", name, "dim"), f"the rotated elements must be even, found {dim}")
        source.ropes[name] = _rope(name, rope, dim)
    return source


def load(path: Path, settings: Sequence[str] = (), *, ranks: int | None = None, draft: bool = True) -> Model:
    """Load a target's YAML, its `--set` settings and its drafter. `ranks` replaces parallel.tensor of both files;
    `draft=False` leaves the drafter out and decodes one token per round.

    Raises SpecError (file, line, column) or UsageError.
    """
    doc = yaml_text.read(path)
    if doc.data.get("kind") == "drafter":
        raise doc.error(("kind",), "this file describes a drafter; give the YAML of the target that names it")
    notes = [overrides.apply(doc, setting) for setting in settings]
    _set_ranks(doc, ranks)
    target = _source(doc, ModelSpec)
    drafter = None
    if not draft:
        alone = {"drafter": None, "loop": ["verify", "accept", "commit"]}
        target = replace(target, spec=target.spec.model_copy(update={"decode": target.spec.decode.model_copy(update=alone)}))
    if target.spec.decode.drafter is not None:
        other = target.folder / target.spec.decode.drafter
        if not other.is_file():
            raise doc.error(("decode", "drafter"), f"there is no file {other}")
        draft_doc = yaml_text.read(other)
        _set_ranks(draft_doc, target.spec.parallel.tensor)
        drafter = _source(draft_doc, DrafterSpec)
    model = Model(target, drafter, notes)
    _check(model)
    return model


def _set_ranks(doc: Document, ranks: int | None) -> None:
    if ranks is not None:
        parallel = doc.data.setdefault("parallel", {})
        if isinstance(parallel, dict):
            parallel["tensor"] = ranks


def _check(model: Model) -> None:
    """What must hold between the keys of a file and between a target and its drafter."""
    target, drafter, decode = model.target, model.drafter, model.target.spec.decode
    vocab = int(target.names.get("vocab", 0))
    for i, stop in enumerate(decode.stop.ids):
        if not 0 <= stop < vocab:
            raise target.doc.error(("decode", "stop", "ids", i), f"a stop id must be 0..{vocab - 1}, found {stop}")
    if drafter is None:
        if decode.loop[0] == "draft":
            raise target.doc.error(("decode", "loop"), "the loop drafts, but decode.drafter names none")
        return
    if decode.block_size > drafter.spec.block_size:
        raise target.doc.error(
            ("decode", "block_size"),
            f"at most {drafter.spec.block_size}, the drafter's trained block, found {decode.block_size}",
        )
    most = MAX_ROWS // drafter.spec.block_size
    if decode.sequences > most:
        raise target.doc.error(
            ("decode", "sequences"),
            f"at most {most} blocks of {drafter.spec.block_size} rows fit a round, found {decode.sequences}",
        )
    depth = sum(last - first + 1 for first, last in layer_ranges(target.spec))
    taps = drafter.spec.taps
    for key, mine in (("hidden", int(target.names.get("hidden", 0))), ("vocab", vocab), ("depth", depth)):
        theirs = drafter.number(getattr(taps, key), ("taps", key))
        if theirs != mine:
            raise drafter.doc.error(
                ("taps", key), f"the drafter expects a target with {key} {theirs}, {target.doc.file} has {mine}"
            )
    for i, layer in enumerate(taps.layers):
        if not 0 <= layer < depth - 1:
            raise drafter.doc.error(("taps", "layers", i), f"a tap must be 0..{depth - 2}, found {layer}")
    if not drafter.spec.mask_id < vocab:
        raise drafter.doc.error(("mask_id",), f"must be 0..{vocab - 1}, found {drafter.spec.mask_id}")


def layer_ranges(spec: ModelSpec | DrafterSpec) -> list[tuple[int, int]]:
    """First and last layer of every range of the graph."""
    from ddtree.graph.schema import Layers

    pairs = [item.layers.split("..") for item in spec.graph if isinstance(item, Layers)]
    return [(int(first), int(last)) for first, last in pairs]
