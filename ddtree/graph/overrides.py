"""`--set KEY=VALUE`: change one value of a YAML file from the command line."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ddtree.errors import SpecError, UsageError
from ddtree.graph.yaml_text import Document, Path_, Setting, dotted, parse_value, shown


def apply(doc: Document, setting: str) -> str:
    """Apply one `KEY=VALUE` to the document's data; KEY is any suffix of a key path that fits one key only.

    Returns a line that says what was overridden and where. The value is read as YAML; its type is checked by the schema,
    like every other value, and a mistake in it is reported as one of the setting. Raises UsageError.
    """
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not key:
        raise UsageError(f"--set wants KEY=VALUE, found {setting!r}")
    path = _find(doc, key)
    try:
        value, inside = parse_value(text, "--set")
    except SpecError as e:
        raise UsageError(f"--set {setting}: {e.message}") from None
    holder: Any = doc.data
    for part in path[:-1]:
        holder = holder[part]
    old, at = holder[path[-1]], doc.mark(path)
    before = doc.settings.get(path)
    note = f"{dotted(path)} = {text} overrides {f'--set {before.text}' if before else shown(old)} in {at}"
    holder[path[-1]] = value
    _forget(doc, path)
    doc.keys.update({(*path, *p): at for p in inside.keys})
    doc.settings[path] = Setting(setting, before.old if before else old)
    return note


def _forget(doc: Document, path: Path_) -> None:
    """Drop what stands below `path`: it is no longer there."""
    for table in (doc.keys, doc.values, doc.settings):
        for below in [p for p in table if len(p) > len(path) and p[: len(path)] == path]:
            del table[below]


def _find(doc: Document, key: str) -> Path_:
    """The one path whose dotted form ends with `key`."""
    known = {dotted(p): p for p in doc.keys}
    if key in known:
        return known[key]
    fits = [name for name in known if name.endswith("." + key)]
    if len(fits) == 1:
        return known[fits[0]]
    if fits:
        raise UsageError(f"--set {key}: {len(fits)} keys end so: {', '.join(sorted(fits)[:6])}; write more of the path")
    near = get_close_matches(key, [*known, *{n.rpartition(".")[2] for n in known}], n=1)
    raise UsageError(f"--set {key}: {doc.file} has no such key" + (f"; did you mean {near[0]!r}?" if near else ""))
