"""Templates of others, which are programs: they see plain data, change nothing, and come to an end.

jinja2's immutable sandbox keeps a template from what it must not see. Here its time and its texts are bounded, too: a
loop of loops, a macro that calls itself twice, or a text that is doubled again and again stops with one line.
"""

import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from jinja2 import Template, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from longrm.errors import ModelError

SECONDS = 4.0
"""Seconds of processor time for one rendering; a conversation of a million tokens takes less than one."""

_LONGEST = 100_000_000  # characters of a text
_MOST = 5_000_000  # entries of a list
_WIDEST = 100_000  # characters to which a text is padded
_BITS = 100_000  # of a whole number

_WIDE = re.compile(r"\d{6,}|\*")
_NESTED = re.compile(r"\{[^{}]*:[^{}]*\{")
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "tojson")
_end: ContextVar[float] = ContextVar("_end")


def render(template: Template, **variables: Any) -> str:
    """Renders a template of a `BoundedEnvironment`.

    Raises:
        ModelError: It works too long, or makes too much.
        Exception: Whatever else somebody's program may raise.
    """
    token = _end.set(time.thread_time() + SECONDS)
    pieces, length = [], 0
    try:
        for piece in template.generate(**variables):
            length += len(piece)
            _check_length(length, _LONGEST)
            pieces.append(piece)
    finally:
        _end.reset(token)
    return "".join(pieces)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Makes templates that `render` can bound."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in {*_PADDING, "format", "replace", "join"} & self.filters.keys():
            self.filters[name] = guarded_filter(name, self.filters[name])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Makes every turn of a loop and every call of a macro check the time, and every `~` the length."""
        tree = super()._parse(source, name, filename)
        loops: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *tree.find_all(nodes.For),
            *tree.find_all(nodes.Macro),
            *tree.find_all(nodes.CallBlock),
        ]
        for loop in loops:
            turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(turn).set_lineno(loop.lineno))
            if isinstance(loop, nodes.For) and loop.test is not None:
                loop.test = nodes.And(turn, loop.test).set_lineno(loop.lineno)
        _replace_joins(tree)
        return tree

    def turn(self) -> bool:
        """Checks the time; returns true, so that it can be part of a condition."""
        if time.thread_time() > _end.get():
            raise ModelError(
                f"it works for more than {SECONDS:g} seconds on one conversation, perhaps without end"
            )
        return True

    def joined(self, *parts: Any) -> str:
        """Joins the operands of `~`."""
        texts = [str(part) for part in parts]
        _check_length(sum(map(len, texts)), _LONGEST)
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes what is not too large."""
        match operator:
            case "+" if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                _check_length(len(left) + len(right), _LONGEST if isinstance(left, str) else _MOST)
            case "*" if isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple):
                held, times = (right, left) if isinstance(left, int) else (left, right)
                if isinstance(times, int):
                    _check_length(len(held) * times, _LONGEST if isinstance(held, str) else _MOST)
            case "*" | "**" if isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
                _check_length(bits, _BITS)
            case "%" if isinstance(left, str):
                _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls what makes no more of a text than is held."""
        # jinja2 wraps `format`, which is another program in a text.
        held, name = getattr(getattr(obj, "__wrapped__", obj), "__self__", None), getattr(obj, "__name__", "")
        if isinstance(held, str):
            _check_call(name, held, *args, *kwargs.values())
        return super().call(context, obj, *args, **kwargs)


def guarded_filter(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that makes no more of its value than is held."""
    passed = getattr(work, "jinja_pass_arg", None)  # whether the environment comes before the value

    def guarded(*args: Any, **kwargs: Any) -> Any:
        value, *others = args[1:] if passed else args
        _check_call(name, value, *others, *kwargs.values())
        return work(*args, **kwargs)

    if passed:
        guarded.jinja_pass_arg = passed  # type: ignore[attr-defined]  # where jinja2 looks for it
    return guarded


def _check_call(name: str, value: Any, *args: Any) -> None:
    """Refuses too large a result of a text's method, or of a filter, before it is computed."""
    if name in _PADDING:
        _check_length(max((arg for arg in args if isinstance(arg, int)), default=0), _WIDEST)
    elif name in ("format", "format_map") and isinstance(value, str):
        _check_format(value)
    elif name == "replace" and len(args) >= 2:
        _check_length(str(value).count(str(args[0])) * len(str(args[1])), _LONGEST)
    elif name == "join":
        glue, items = (
            (value, args[0]) if isinstance(value, str) and args else (args[0] if args else "", value)
        )
        if isinstance(items, list | tuple | str):
            texts = sum(len(item) for item in items if isinstance(item, str))
            _check_length(len(items) * len(str(glue)) + texts, _LONGEST)


def _check_format(text: str) -> None:
    if "%" in text or "{" in text:
        widths = re.findall(r"%[^a-zA-Z%]*|\{[^{}]*\}", text)
        given_apart = _NESTED.search(text.replace("{{", "").replace("}}", ""))
        if given_apart or any(_WIDE.search(width) for width in widths):
            raise ModelError("it pads a text to a width that may be without end")


def _check_length(length: int, most: int) -> None:
    if length > most:
        raise ModelError(f"it makes something of more than {most:,} characters, entries or bits")


def _replace_joins(node: nodes.Node) -> None:
    """Puts `joined` in the place of every `~` below a node."""

    def replaced(value: Any) -> Any:
        if isinstance(value, nodes.Node):
            _replace_joins(value)
        if not isinstance(value, nodes.Concat):
            return value
        joined = nodes.EnvironmentAttribute("joined")
        return nodes.Call(joined, value.nodes, [], None, None).set_lineno(value.lineno)

    for field, value in node.iter_fields():
        setattr(node, field, [*map(replaced, value)] if isinstance(value, list) else replaced(value))
