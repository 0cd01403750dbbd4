"""Tool declarations: JSON schemas written as TypeScript types, the form in which some models expect their tools."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_INDENT = "  "
_NAMED = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_LISTED = _NAMED | {"object": "{}", "array": "Array<any>"}
_CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


def typescript_declaration(tools: Iterable[dict[str, Any]]) -> str:
    """The tools of type `function` as one TypeScript namespace; "" when there are none.

        # Tools

        ## functions
        namespace functions {
        // Get the weather
        type get_weather = (_: {
          // City name
          city: string,
          unit?: "c" | "f"
        }) => any;
        }

    tools  objects as in the OpenAI API: `{"type": "function", "function": {"name", "description", "parameters"}}`

    Raises ValueError for a schema that has no such form (unknown `$ref`, no type, enum values of another type).
    """
    functions = [_function(tool["function"]) for tool in tools if tool.get("type") == "function"]
    if not functions:
        return ""
    body = "\n".join(functions)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{body}\n}}\n"


def _function(function: dict[str, Any]) -> str:
    types = _Types()
    schema = function.get("parameters") or {}
    parameters = types.object(schema, "")
    interfaces = []
    if types.refers_to_itself:
        # `{"$ref": "#"}` needs a name for the whole; its fields keep the schema's order.
        required = schema.get("required", [])
        fields = [types.field(name, part, name in required, _INDENT) for name, part in schema["properties"].items()]
        interfaces.append("interface parameters {\n" + ",\n".join(fields) + "\n}")
        parameters = "parameters"
    for name, definition in list(types.definitions.items()):
        interfaces.append(
            _comment(definition.get("description", ""), "") + f"interface {name} {types.of(definition, '')}"
        )
    head = "".join(interface + "\n" for interface in interfaces) + _comment(function.get("description") or "", "")
    return f"{head}type {function['name']} = (_: {parameters}) => any;"


class _Types:
    """Types of one function's schemas. `definitions` holds the `$defs` met so far, by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self.refers_to_itself = False

    def of(self, schema: Any, indent: str) -> str:
        """The type of a schema; `indent` is that of the line on which it begins."""
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if not isinstance(schema, dict):
            raise ValueError(f"a schema is an object or a boolean, found {schema!r}")
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join(self.of(part, indent) for part in schema["anyOf"])
        if "enum" in schema:
            return _enum(schema)
        kind = schema.get("type", "any" if not schema else None)
        if isinstance(kind, list):
            return " | ".join(_LISTED[_known(part)] for part in kind)
        if kind == "object":
            return self.object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        if not isinstance(kind, str):
            raise ValueError(f"a schema without a type: {schema!r}")
        return _NAMED.get(kind, kind)

    def object(self, schema: dict[str, Any], indent: str) -> str:
        """The type of an object: required fields first, both groups sorted by name."""
        self.definitions |= schema.get("$defs") or {}
        required = schema.get("required", [])
        properties = sorted(schema.get("properties", {}).items(), key=lambda item: (item[0] not in required, item[0]))
        fields = [self.field(name, part, name in required, indent + _INDENT) for name, part in properties]
        extra = schema.get("additionalProperties")
        if extra is not None:
            value = ("any" if extra else "never") if isinstance(extra, bool) else self.of(extra, indent + _INDENT)
            fields.append(f"{indent}{_INDENT}[k: string]: {value}")
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"

    def field(self, name: str, schema: Any, required: bool, indent: str) -> str:
        """One field with its comments: description, constraints, default."""
        comments = _comments(schema, indent)
        default = schema.get("default") if isinstance(schema, dict) else None
        if default is not None:
            # Numbers and booleans as Python writes them: `True`, which is what models were trained on.
            written = repr(default) if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
            comments += f"{indent}// Default: {written}\n"
        return f"{comments}{indent}{name}{'' if required else '?'}: {self.of(schema, indent)}"

    def _array(self, schema: dict[str, Any], indent: str) -> str:
        items = schema.get("items") or {}
        inner = indent + _INDENT
        if comments := _comments(items, inner):
            return f"Array<\n{comments}{inner}{self.of(items, inner)}\n{indent}>"
        return f"Array<{self.of(items, indent)}>"

    def _reference(self, target: str) -> str:
        if target == "#":
            self.refers_to_itself = True
            return "parameters"
        name = target.removeprefix("#/$defs/")
        if name == target or name not in self.definitions:
            raise ValueError(f"$ref to {target!r}, which is not one of $defs")
        return name


def _known(kind: Any) -> str:
    if kind not in _LISTED:
        raise ValueError(f"unknown type {kind!r}")
    return str(kind)


def _enum(schema: dict[str, Any]) -> str:
    values = schema["enum"]
    declared = schema.get("type")
    if isinstance(declared, list):
        named = [part for part in declared if part != "null"] or declared
        if len(named) != 1:
            raise ValueError(f"an enum of several types: {declared!r}")
        declared = named[0]
    expected = _PYTHON_TYPES.get(declared, object) if declared else object
    if wrong := [value for value in values if value is not None and not isinstance(value, expected)]:
        raise ValueError(f"enum value {wrong[0]!r} is no {declared}")
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)


def _comments(schema: Any, indent: str) -> str:
    if not isinstance(schema, dict):
        return ""
    plain = not schema.keys() & {"$ref", "anyOf", "enum"} and isinstance(schema.get("type"), str)
    keys = _CONSTRAINTS.get(schema["type"], ()) if plain else ()
    constraints = ", ".join(f"{key}: {schema[key]}" for key in sorted(keys) if key in schema)
    return _comment(schema.get("description", ""), indent) + (f"{indent}// {constraints}\n" if constraints else "")


def _comment(text: str, indent: str) -> str:
    if not text:
        return ""
    return "".join(f"{indent}// {line}\n" if line else "\n" for line in text.split("\n"))
