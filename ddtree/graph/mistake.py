"""A mistake in a YAML file as one line: where it stands, what was expected there, what was found."""

from __future__ import annotations

import re
import types
import typing
from difflib import get_close_matches
from typing import Any

import pydantic

from ddtree.errors import SpecError
from ddtree.graph.op_schema import OP_CLASSES, OUTPUT_PATTERN, REFERENCE_PATTERN
from ddtree.graph.schema import LAYERS_PATTERN, NAME_PATTERN, ROWS_PATTERN
from ddtree.graph.strict import MisplacedError
from ddtree.graph.yaml_text import Document, Path_, shown

MANY = 8  # names; longer lists of valid ones are left out where the nearest is named
Problem = Any  # pydantic_core.ErrorDetails
Place = tuple[Path_, bool]  # a path, and whether the key itself is meant

_EXPECTED = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "string_type": "text",
    "bool_type": "true or false", "list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping",
    "finite_number": "a finite number", "none_required": "null",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}", "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}", "less_than": "must be below {lt}",
    "too_short": "needs {min_length} or more items, found {actual_length}",
    "too_long": "takes {max_length} items at most, found {actual_length}",
}  # fmt: skip
_PATTERNS = {
    NAME_PATTERN: "a name has letters, digits and _ and does not start with a digit",
    LAYERS_PATTERN: "expected first..last, such as 1..60",
    ROWS_PATTERN: "expected a number of rows, 1..64",
    REFERENCE_PATTERN: "expected the name of something made or declared above",
    OUTPUT_PATTERN: "expected a name, or name[size, size]",
}


def explain(doc: Document, root: type[pydantic.BaseModel], error: pydantic.ValidationError) -> SpecError:
    """What `root` found wrong with `doc.data`: the first mistake in the file, absent keys after the others."""
    places: dict[Place, list[Problem]] = {}
    for problem in error.errors(include_url=False):
        places.setdefault(_place(doc.data, problem), []).append(problem)

    def order(place: Place) -> tuple[bool, int, int]:
        mark = doc.mark(place[0], key=place[1])
        return places[place][0]["type"] == "missing", mark.line, mark.column

    path, key = min(places, key=order)
    value = path[-1] if key else _at(doc.data, path)
    return doc.error(path, _message(doc, root, path, places[path, key], value), key=key)


def _place(data: Any, problem: Problem) -> Place:
    """The path of a problem: its location without the names of union members, which are no keys."""
    path: Path_ = ()
    for part in problem["loc"]:
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if inside:
            path, data = (*path, part), data[part]
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, MisplacedError):
        path = (*path, *cause.path)
    if problem["type"] == "union_tag_invalid":
        path = (*path, "op")
    return path, problem["type"] == "extra_forbidden" or problem["loc"][-1:] == ("[key]",)


def _at(data: Any, path: Path_) -> Any:
    for part in path:
        data = data[part]
    return data


def near(name: object, known: typing.Iterable[str], *, otherwise: str = "") -> str:
    """`; did you mean ...?` with the name of `known` that is most like `name`, or `otherwise` when none is."""
    close = get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def _message(doc: Document, root: Any, path: Path_, problems: list[Problem], value: Any) -> str:
    problem = next((p for p in problems if p["type"] not in (*_EXPECTED, "literal_error")), problems[0])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys(root, doc.data, path[:-1])
        return "unknown key" + near(path[-1], known, otherwise=f"; valid keys: {', '.join(known)}")
    if kind == "missing":
        return f"the key {problem['loc'][-1]!r} is missing"
    if kind == "union_tag_invalid":
        return f"unknown op {shown(value)}" + near(value, OP_CLASSES, otherwise=f"; known: {', '.join(OP_CLASSES)}")
    if kind == "union_tag_not_found":
        keys = "the key 'op' or 'layers'" if "layers" in str(context.get("discriminator")) else "the key 'op'"
        found = f"the keys {', '.join(value)}" if isinstance(value, dict) and value else shown(value)
        return f"expected a mapping with {keys}, found {found}"
    if kind == "value_error":
        text = str(context["error"])
        told = "found" in text or isinstance(value, dict) or isinstance(context["error"], MisplacedError)
        return text if told else f"{text}, found {shown(value)}"
    if kind in _BOUNDS:
        text = _BOUNDS[kind].format(**context)
        return text if "found" in text else f"{text}, found {shown(value)}"
    if kind == "string_pattern_mismatch":
        return f"{_PATTERNS.get(context['pattern'], 'the text does not fit')}, found {shown(value)}"
    return _wrong_type(problems, value)


def _wrong_type(problems: list[Problem], value: Any) -> str:
    """One sentence for all members of a union that refused the value."""
    wanted: list[str] = []
    options: list[str] = []
    for problem in problems:
        if problem["type"] == "literal_error":
            expected = problem["ctx"]["expected"]
            options += re.findall(r"'([^']*)'", expected)
        else:
            expected = _EXPECTED.get(problem["type"], problem["msg"])
        wanted.append(expected)
    number = next((w for w in wanted if w in ("a number", "a finite number")), None)
    if number and "text" in wanted:  # how an Expression refuses
        wanted = [number, "an expression", *(w for w in wanted if w not in ("a whole number", number, "text"))]
    hint = near(value, options) if len(options) > 1 else ""
    if hint and len(options) > MANY:
        return f"unknown name {shown(value)}{hint}"
    return f"expected {' or '.join(dict.fromkeys(wanted))}, found {shown(value)}{hint}"


def _keys(root: Any, data: Any, path: Path_) -> list[str]:
    """The keys that YAML may write at `path`, which holds a mapping with a fixed set of keys."""
    at = _member(root, data)
    for part in path:
        data = data[part]
        if isinstance(at, type) and issubclass(at, pydantic.BaseModel):
            hint = next(f.annotation for n, f in at.model_fields.items() if part in (n, f.alias))
        else:
            hint = typing.get_args(at)[-1]  # a list's or a mapping's values
        at = _member(hint, data)
    return [f.alias or n for n, f in at.model_fields.items()]


def _member(hint: Any, value: Any) -> Any:
    """The alternative of a type that `value` means: a model for a mapping, a list for a list."""
    if typing.get_origin(hint) is typing.Annotated:
        return _member(typing.get_args(hint)[0], value)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = [_member(option, value) for option in typing.get_args(hint)]
    return next((m for m in members if _fits(m, value)), members[0])


def _fits(member: Any, value: Any) -> bool:
    if isinstance(member, type) and issubclass(member, pydantic.BaseModel):
        if not isinstance(value, dict):
            return False
        op = member.model_fields.get("op")
        return ("op" in value) == (op is not None) and (op is None or value["op"] in typing.get_args(op.annotation))
    container = typing.get_origin(member)
    return container in (dict, list) and isinstance(value, container)
