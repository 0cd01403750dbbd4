"""YAML text to plain data, remembering where each key and value stands.

YAML 1.2's core schema: `1e-5` is a float, `on` and `no` are strings, `010` is ten, `12:30` is a string. Duplicate keys,
aliases and tags are mistakes: the first hides a value silently, the second can expand a small file without bound, the
third asks for types that a model description does not have. Depth is bounded, since PyYAML's time grows with its square.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ddtree.errors import SpecError

Path_ = tuple[str | int, ...]  # keys and indexes from the root to a value
MAX_BYTES = 1 << 20
MAX_DEPTH = 32  # nested lists and mappings
MAX_DIGITS = 100  # characters of a number


@dataclass(frozen=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def error(self, message: str, path: Path_ = ()) -> SpecError:
        """A SpecError at this place."""
        return SpecError(message, file=self.file, line=self.line, column=self.column, path=dotted(path))


@dataclass(frozen=True)
class Setting:
    """A value that a command line put in the place of a file's: the `KEY=VALUE` as given, and what it replaced."""

    text: str
    old: object


@dataclass
class Document:
    """A parsed YAML file: its data and the mark of every value and key, by path; `settings` are values from elsewhere."""

    file: str
    data: dict[str, object]
    values: dict[Path_, Mark] = field(default_factory=dict)
    keys: dict[Path_, Mark] = field(default_factory=dict)
    settings: dict[Path_, Setting] = field(default_factory=dict)

    def mark(self, path: Path_, *, key: bool = False) -> Mark:
        """The mark of the value (or the key) at `path`, or of its nearest ancestor that stands in the file."""
        for table in (self.keys, self.values) if key else (self.values, self.keys):
            if path in table:
                return table[path]
        return self.mark(path[:-1], key=key) if path else Mark(self.file, 1, 1)

    def error(self, path: Path_, message: str, *, key: bool = False) -> SpecError:
        """A SpecError that names the file, line and column of `path`, or the `--set` that put the value there."""
        at = self.mark(path, key=key)
        given = max((p for p in self.settings if path[: len(p)] == p), key=len, default=None)
        if given is None:
            inside = [s.text for p, s in self.settings.items() if path and p[: len(path)] == path]
            return at.error(message + (f" (with --set {' --set '.join(inside)})" if inside else ""), path)
        setting = self.settings[given]
        return SpecError(f"--set {setting.text}: {dotted(path)}: {message} (overrides {shown(setting.old)} in {at})")

    def error_at(self, mark: str, message: str) -> SpecError:
        """A SpecError at the value whose mark reads `mark`, as the `origin` of an op does."""
        path = next((p for p, m in self.values.items() if str(m) == mark), ())
        return self.error(path, message)


def dotted(path: Path_) -> str:
    """`("blocks", "moe", 2, "op")` as people write it: `blocks.moe[2].op`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def shown(value: object) -> str:
    """A value as a message shows it: short, and as YAML writes it."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else repr(value)
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Loader(yaml.SafeLoader):
    """SafeLoader's scanner and parser with the scalar rules of YAML 1.2 and without aliases, tags and deep nesting."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        mistake = ""
        if isinstance(event, yaml.AliasEvent):
            mistake = "aliases (*name) are not supported; write the value out"
        elif getattr(event, "tag", None) is not None:
            mistake = f"tags ({event.tag}) are not supported; write a plain value"
        elif self.depth > MAX_DEPTH:
            mistake = f"nested deeper than {MAX_DEPTH} levels"
        if mistake:
            raise _mark(self.name, event.start_mark).error(mistake)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_FIRST = list("-+.0123456789")
for tag, pattern, first in [
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _FIRST),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", _FIRST),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
]:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)


def _mark(file: str, mark: yaml.Mark | None) -> Mark:
    return Mark(file, mark.line + 1, mark.column + 1) if mark else Mark(file, 1, 1)


def _mark_at(file: str, text: str) -> Mark:
    """The place that follows `text`."""
    return Mark(file, text.count("\n") + 1, len(text) - text.rfind("\n"))


def _scalar(node: yaml.ScalarNode, path: Path_, doc: Document) -> object:
    text, tag = node.value, node.tag.rpartition(":")[2]
    if tag in ("int", "float") and len(text) > MAX_DIGITS:
        raise doc.error(path, f"a number of {len(text)} characters is too long")
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if tag == "float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return None if tag == "null" else text


def _build(node: yaml.Node, path: Path_, doc: Document) -> object:
    doc.values[path] = _mark(doc.file, node.start_mark)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, path, doc)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, i), doc) for i, item in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    table: dict[str, object] = {}
    for key_node, value_node in node.value:
        mark = _mark(doc.file, key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            raise mark.error("a key must be a plain name", path)
        key = key_node.value
        if key in table:
            first = doc.keys[(*path, key)]
            raise mark.error(
                f"duplicate key {key!r}, first written in line {first.line}; remove one of them", (*path, key)
            )
        doc.keys[(*path, key)] = mark
        table[key] = _build(value_node, (*path, key), doc)
    return table


def _compose(text: str, file: str) -> yaml.Node | None:
    """The node tree of the only document of `text`, None when it is empty."""
    try:
        loader = _Loader(text)
        loader.name = file
        return loader.get_single_node()
    except yaml.reader.ReaderError as e:
        at = _mark_at(file, text[: e.position])
        raise at.error(f"not YAML: the character U+{int(e.character):04X} is not allowed") from None
    except yaml.MarkedYAMLError as e:
        problem = f"{e.context}, {e.problem}" if (e.problem or "").startswith("but ") else e.problem or e.context
        raise _mark(file, e.problem_mark or e.context_mark).error(f"not YAML: {problem}") from None


def parse(text: str, file: str) -> Document:
    """Parse YAML `text`, a mapping; `file` is the name used in messages. Raises SpecError with line and column."""
    node, doc = _compose(text, file), Document(file, {})
    if not isinstance(node, yaml.MappingNode):
        found = {"SequenceNode": "a list", "ScalarNode": "a single value"}.get(type(node).__name__, "an empty file")
        raise Mark(file, 1, 1).error(f"expected a mapping of keys to values, found {found}")
    data = _build(node, (), doc)
    assert isinstance(data, dict)
    doc.data = data
    return doc


def parse_value(text: str, name: str) -> tuple[object, Document]:
    """Parse one YAML value of any kind; the Document holds the marks inside it. Raises SpecError."""
    node, doc = _compose(text, name), Document(name, {})
    return (None if node is None else _build(node, (), doc)), doc


def read(path: Path) -> Document:
    """Read and parse a YAML file. Raises SpecError, and OSError when there is no such file."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Mark(str(path), 1, 1).error(f"the file is larger than {MAX_BYTES >> 20} MiB; a model description is not")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        at = _mark_at(str(path), data[: e.start].decode("utf-8"))
        raise at.error(f"the file is not UTF-8 (byte 0x{data[e.start]:02x})") from None
    return parse(text, str(path))
