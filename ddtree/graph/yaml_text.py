"""YAML text to plain data, remembering where each key and value stands.

YAML 1.2's core schema: `1e-5` is a float, `on` and `no` are strings, `010` is ten, `12:30` is a string. Duplicate keys
and aliases are mistakes: the first hides a value silently, the second can expand a small file without bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ddtree.errors import SpecError

Path_ = tuple[str | int, ...]  # keys and indexes from the root to a value
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass
class Document:
    """A parsed YAML file: its data and the mark of every value and key, by path."""

    file: str
    data: dict[str, object]
    values: dict[Path_, Mark] = field(default_factory=dict)
    keys: dict[Path_, Mark] = field(default_factory=dict)

    def mark(self, path: Path_, *, key: bool = False) -> Mark:
        """The mark of the value (or the key) at `path`, or of its nearest ancestor that stands in the file."""
        for table in (self.keys, self.values) if key else (self.values, self.keys):
            if path in table:
                return table[path]
        return self.mark(path[:-1], key=key) if path else Mark(self.file, 1, 1)

    def error(self, path: Path_, message: str, *, key: bool = False) -> SpecError:
        """A SpecError that names the file, line and column of `path`."""
        at = self.mark(path, key=key)
        return SpecError(message, file=at.file, line=at.line, column=at.column, path=dotted(path))


def dotted(path: Path_) -> str:
    """`("blocks", "moe", 2, "op")` as people write it: `blocks.moe[2].op`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class _Loader(yaml.SafeLoader):
    """SafeLoader's scanner and parser with the scalar rules of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


_FIRST = list("-+.0123456789")
for tag, pattern, first in [
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _FIRST),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", _FIRST),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
]:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)


def _scalar(node: yaml.ScalarNode) -> object:
    text, tag = node.value, node.tag.rpartition(":")[2]
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if tag == "float":
        return float(
            text.replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf").lower().replace(".nan", "nan")
        )
    return None if tag == "null" else text


def _build(node: yaml.Node, path: Path_, doc: Document) -> object:
    doc.values[path] = Mark(doc.file, node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.ScalarNode):
        if node.tag.rpartition(":")[2] not in ("bool", "int", "float", "null", "str"):
            raise doc.error(path, f"the tag {node.tag!r} is not supported; write a plain value")
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, i), doc) for i, item in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    table: dict[str, object] = {}
    for key_node, value_node in node.value:
        mark = Mark(doc.file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            raise SpecError(
                "a key must be a plain name", file=doc.file, line=mark.line, column=mark.column, path=dotted(path)
            )
        key = key_node.value
        if key in table:
            first = doc.keys[(*path, key)]
            raise SpecError(
                f"duplicate key {key!r}, first written in line {first.line}; remove one of them",
                file=doc.file, line=mark.line, column=mark.column, path=dotted((*path, key)),
            )  # fmt: skip
        doc.keys[(*path, key)] = mark
        table[key] = _build(value_node, (*path, key), doc)
    return table


def parse(text: str, file: str) -> Document:
    """Parse YAML `text`; `file` is the name used in messages. Raises SpecError with line and column."""
    try:
        loader = _Loader(text)
        event_marks = [e for e in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(e, yaml.AliasEvent)]
        if event_marks:
            at = event_marks[0].start_mark
            raise SpecError(
                "aliases (*name) are not supported; write the value out",
                file=file,
                line=at.line + 1,
                column=at.column + 1,
            )
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as e:
        where = e.problem_mark or e.context_mark
        line, column = (where.line + 1, where.column + 1) if where else (1, 1)
        raise SpecError(f"not YAML: {e.problem or e.context}", file=file, line=line, column=column) from None
    except (yaml.YAMLError, RecursionError) as e:
        raise SpecError(
            f"not YAML: {str(e).splitlines()[0] if str(e) else 'nested too deeply'}", file=file, line=1, column=1
        ) from None
    doc = Document(file, {})
    if not isinstance(node, yaml.MappingNode):
        raise SpecError("expected a mapping of keys to values, found none", file=file, line=1, column=1)
    try:
        data = _build(node, (), doc)
    except RecursionError:
        raise SpecError("not YAML: nested too deeply", file=file, line=1, column=1) from None
    assert isinstance(data, dict)
    doc.data = data
    return doc


def read(path: Path) -> Document:
    """Read and parse a YAML file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(
                f"the file is larger than {MAX_BYTES >> 20} MiB; a model description is not",
                file=path,
                line=1,
                column=1,
            )
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise SpecError(f"cannot read the file: {e.strerror}", file=path, line=1, column=1) from None
    except UnicodeDecodeError as e:
        raise SpecError(f"the file is not UTF-8 (byte {e.start})", file=path, line=1, column=1) from None
    return parse(text, str(path))
