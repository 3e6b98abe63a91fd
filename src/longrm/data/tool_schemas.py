"""The tools that a prompt offers, in the forms in which data and clients give them."""

from collections.abc import Mapping
from typing import Any

from longrm.data.fields import to_json_types
from longrm.reading import FieldError, parse_json, short
from longrm.types import Tool


def tools_of(value: Any, field: str = "tools") -> tuple[Tool, ...]:
    """Reads tools: a list, or the JSON text of one, as tables hold it.

    Each is `{"type": "function", "function": {...}}`, or the schema of a function alone, which is put into that form.
    Null and an empty text are no tools.

    Raises:
        FieldError: It is no list of such, or a schema has no name.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as fault:
            raise FieldError(field, f"needs a list of tools as JSON: {fault}") from None
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"needs a list of tools, got {short(value)}")
    return tuple(_tool(to_json_types(item), f"{field}[{index}]") for index, item in enumerate(value))


def _tool(given: Any, field: str) -> Tool:
    if isinstance(given, Mapping) and "name" in given and "function" not in given:
        given = {"type": "function", "function": given}
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise FieldError(
            field,
            "needs a tool such as {'type': 'function', 'function': {'name': ..., 'parameters': {...}}}, "
            f"got {short(given)}",
        )
    tool: Tool = given
    return tool
