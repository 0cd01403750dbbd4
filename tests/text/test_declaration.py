"""Tools as TypeScript types, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from ddtree.runtime.text.declaration import typescript_declaration


def declare(parameters: dict[str, Any] | None, **function: Any) -> str:
    """The declaration of one function, without the frame around it."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, **function}}
    head, tail = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    text = typescript_declaration([tool])
    assert text.startswith(head) and text.endswith(tail)
    return text.removeprefix(head).removesuffix(tail)


def field(schema: Any, **parameters: Any) -> str:
    """The lines of one optional field `x`."""
    text = declare({"type": "object", "properties": {"x": schema}, **parameters})
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


def test_the_whole_frame() -> None:
    weather = {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["c", "f"]},
                "city": {"type": "string", "description": "City name"},
            },
            "required": ["city"],
        },
    }
    now = {"name": "now"}
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": weather},
        {"type": "web"},
        {"type": "function", "function": now},
    ]
    assert typescript_declaration(tools) == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        '// Get the weather\ntype get_weather = (_: {\n  // City name\n  city: string,\n  unit?: "c" | "f"\n}) => any;\n'
        "type now = (_: {}) => any;\n}\n"
    )
    assert typescript_declaration([{"type": "web"}]) == ""


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "x?: string"),
        ({"type": "integer"}, "x?: number"),
        ({"type": "boolean"}, "x?: boolean"),
        ({"type": "null"}, "x?: null"),
        ({}, "x?: any"),
        (True, "x?: any"),
        (False, "x?: null"),
        ({"enum": ["a", 1, None, True]}, 'x?: "a" | 1 | None | True'),
        ({"type": ["string", "null"], "enum": ["a", None]}, 'x?: "a" | None'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x?: number | null"),
        (
            {"type": ["string", "number", "integer", "boolean", "null", "object", "array"]},
            "x?: string | number | number | boolean | null | {} | Array<any>",
        ),
        ({"type": "object"}, "x?: {}"),
        ({"type": "array"}, "x?: Array<any>"),
        ({"type": "array", "items": {"type": "integer"}}, "x?: Array<number>"),
        (
            {"type": "array", "items": {"type": "string", "description": "One"}},
            "x?: Array<\n    // One\n    string\n  >",
        ),
        ({"type": "object", "additionalProperties": True}, "x?: {\n    [k: string]: any\n  }"),
        ({"type": "object", "additionalProperties": False}, "x?: {\n    [k: string]: never\n  }"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "x?: {\n    [k: string]: number\n  }"),
        (
            {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]},
            "x?: {\n    b: string,\n    a?: any\n  }",
        ),
    ],
)
def test_types(schema: Any, written: str) -> None:
    assert field(schema) == f"  {written}"


@pytest.mark.parametrize(
    ("schema", "comments"),
    [
        ({"type": "string", "description": "one\n\ntwo"}, "  // one\n\n  // two\n"),
        (
            {"type": "string", "pattern": "^a", "minLength": 1, "maxLength": 9},
            "  // maxLength: 9, minLength: 1, pattern: ^a\n",
        ),
        ({"type": "integer", "minimum": 0, "maximum": 2, "minLength": 1}, "  // maximum: 2, minimum: 0\n"),
        ({"type": "array", "minItems": 1, "maxItems": 2}, "  // maxItems: 2, minItems: 1\n"),
        ({"type": "string", "default": "a"}, '  // Default: "a"\n'),
        ({"type": "boolean", "default": True}, "  // Default: True\n"),
        ({"type": "number", "default": 0.5}, "  // Default: 0.5\n"),
        ({"type": "array", "default": ["é"]}, '  // Default: ["é"]\n'),
        (
            {"type": "integer", "description": "n", "minimum": 1, "default": 3},
            "  // n\n  // minimum: 1\n  // Default: 3\n",
        ),
        ({"enum": [1], "description": "choice"}, "  // choice\n"),
    ],
)
def test_comments(schema: dict[str, Any], comments: str) -> None:
    assert field(schema).startswith(f"{comments}  x?: ")


def test_required_fields_come_first_and_both_groups_are_sorted() -> None:
    properties = {name: {"type": "string"} for name in "dcba"}
    text = declare({"type": "object", "properties": properties, "required": ["d", "b"]})
    assert text == "type f = (_: {\n  b: string,\n  d: string,\n  a?: string,\n  c?: string\n}) => any;"


def test_definitions_become_interfaces() -> None:
    schema = {
        "type": "object",
        "$defs": {"Point": {"type": "object", "description": "A place", "properties": {"x": {"type": "number"}}}},
        "properties": {"at": {"$ref": "#/$defs/Point"}},
    }
    assert declare(schema, description="Draw") == (
        "// A place\ninterface Point {\n  x?: number\n}\n// Draw\ntype f = (_: {\n  at?: Point\n}) => any;"
    )


def test_a_schema_that_contains_itself_gets_a_name() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "a": {"type": "string"}}, "required": ["a"]}
    assert (
        declare(schema)
        == "interface parameters {\n  next?: parameters,\n  a: string\n}\ntype f = (_: parameters) => any;"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/None"},
        {"$ref": "https://example.com/schema"},
        {"description": "no type"},
        {"type": ["string", "date"]},
        {"type": {"a": 1}},
        {"type": "string", "enum": [1]},
        {"type": ["string", "integer"], "enum": [1]},
        3,
    ],
)
def test_what_has_no_such_form_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError):
        field(schema)
