"""A Jinja environment for chat templates: no code of the host, bounded output and time."""

from __future__ import annotations

import json
import threading
from time import monotonic
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from ddtree.errors import UsageError
from ddtree.graph.text_spec import RenderLimits

# What chat templates use. The other filters are left out: some make long strings out of short ones (center, indent).
_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "join", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select"),
    *("selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper"),
)
_PADDING = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"})


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja for templates that come with a model.

    Templates cannot reach Python's internals or change their data (Jinja's sandbox), and neither multiply nor pad
    strings. `render` bounds output and time; the clock is read at every attribute, item, call and piece of output.
    Whitespace control, `tojson` and `raise_exception` follow the convention of published chat templates; `break` and
    `continue` do not exist.
    """

    intercepted_binops = frozenset({"*", "**", "%"})  # also keeps the compiler from evaluating them

    def __init__(self, limits: RenderLimits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        self.filters = {name: self.filters[name] for name in _FILTERS} | {"tojson": _to_json}
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals["raise_exception"] = _raise_exception
        self._limits = limits
        self._clock = threading.local()  # one environment serves several threads

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """The template's output; UsageError when it is longer or takes longer than the limits allow."""
        self._clock.end = monotonic() + self._limits.seconds
        pieces: list[str] = []
        length = 0
        for piece in template.generate(variables):
            self._check_clock()
            length += len(piece)
            if length > self._limits.characters:
                raise UsageError(f"the chat's prompt is longer than {self._limits.characters} characters")
            pieces.append(piece)
        return "".join(pieces)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute` of a template."""
        self._check_clock()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]` of a template."""
        self._check_clock()
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`obj(...)` of a template."""
        self._check_clock()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left operator right` for the intercepted operators: small numbers only."""
        if operator == "**" or not all(isinstance(value, int | float) for value in (left, right)):
            raise SecurityError(f"operator {operator} is not allowed on these operands in a chat template")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read the attribute."""
        return attr not in _PADDING and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Keeps Jinja from offering its own `str.format`, which can pad; `is_safe_attribute` refuses the method."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuses an unsafe attribute at once, where Jinja would print nothing."""
        raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__} is not allowed in a chat template")

    def _check_clock(self) -> None:
        # Filters in constant expressions run while the template is compiled, before any clock is set.
        if monotonic() > getattr(self._clock, "end", float("inf")):
            raise UsageError(f"the chat template ran for more than {self._limits.seconds:g} s")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter. Escapes would hide protected characters, so none are made."""
    if ensure_ascii or (indent or 0) > 8:
        raise SecurityError("tojson in a chat template takes neither ensure_ascii=true nor indent above 8")
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise UsageError(f"the chat template refuses the messages: {message}")
