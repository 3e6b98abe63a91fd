"""Chat templates rendered as transformers renders them, without importing it.

A model's template is a program in its folder. As in transformers it runs in jinja2's immutable sandbox and sees plain
data only; its time and memory are not limited. Load models that you trust.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from longrm.errors import DataError, ModelError, first_line
from longrm.types import Message, Tool, message_text

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""The names under which policies hand over their reasoning; templates read the first, some the second."""


def render_messages(
    template: str,
    messages: Sequence[Message],
    *,
    special_tokens: Mapping[str, str],
    add_generation_prompt: bool = False,
    tools: Sequence[Tool] = (),
) -> str:
    """Renders messages with a chat template, equal to transformers' `apply_chat_template(tokenize=False)`.

    Content that is a list of texts is joined for a template that reads texts alone, which transformers leaves to fail.

    Args:
        template: The jinja2 source.
        messages: One at least.
        special_tokens: Names such as `bos_token` and their texts, visible to the template.
        add_generation_prompt: Whether to end with the header of the assistant's turn.
        tools: The tools that the prompt offers; of none, templates see none.

    Raises:
        ModelError: The template is not valid jinja2.
        DataError: The template refuses the messages, or there are none.
    """
    if not messages:
        raise DataError("there is no message to render: pass at least one")
    if any(map(_has_texts, messages)) and _reads_texts_alone(template, tuple(special_tokens.items())):
        messages = [{**one, "content": message_text(one)} if _has_texts(one) else one for one in messages]
    return _render(template, messages, special_tokens, add_generation_prompt, tools)


def _render(
    template: str,
    messages: Sequence[Message],
    special_tokens: Mapping[str, str],
    add_generation_prompt: bool = False,
    tools: Sequence[Tool] = (),
) -> str:
    compiled = compile_template(template)
    try:
        return compiled.render(
            messages=[_as_template_message(message) for message in messages],
            tools=_plain(list(tools)) or None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **special_tokens,
        )
    except Exception as error:  # a template may raise anything
        reason = " ".join(str(error).split())
        raise DataError(f"the chat template cannot render these messages: {reason}") from error


@lru_cache
def continues_generation_prompt(template: str, special_tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a prompt rendered with the generation prompt is how prompt and answer together begin.

    Templates of reasoning models may end the generation prompt with an opened thought that the full rendering
    drops: there the prompt must end before the assistant's header. This is decided once for a template, not
    for every response, so that all responses to a prompt share one prefix.
    """
    user, assistant = {"role": "user", "content": "Question?"}, {"role": "assistant", "content": "Answer."}
    special = dict(special_tokens)
    try:
        opened = render_messages(template, [user], special_tokens=special, add_generation_prompt=True)
        return render_messages(template, [user, assistant], special_tokens=special).startswith(opened)
    except DataError:
        return True  # a template that wants other roles is judged by its real messages


def _has_texts(message: Message) -> bool:
    """Whether the content is a list of texts and nothing else."""
    content = message.get("content")
    return isinstance(content, list | tuple) and all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    )


@lru_cache
def _reads_texts_alone(template: str, special_tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether a template writes a question that is a text, and writes something else where it is a list of texts."""
    question = "Question?"

    def written(content: Any) -> str:
        try:
            return _render(template, [{"role": "user", "content": content}], dict(special_tokens))
        except DataError:
            return ""

    plain = written(question)
    return question in plain and plain != written([{"type": "text", "text": question}])


@lru_cache(maxsize=16)
def compile_template(template: str) -> jinja2.Template:
    """Compiles a chat template with the extensions, filters and globals that transformers gives it.

    Raises:
        ModelError: It is not valid jinja2.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda pattern: datetime.now().strftime(pattern),
        dict=_Dict(),
        namespace=_Namespace,
    )
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"the chat template is not valid jinja2 (line {error.lineno}: {error.message})"
        ) from error
    except Exception as error:  # Python compiles what jinja2 makes of it: nested too deeply, a NUL, ...
        raise ModelError(f"the chat template cannot be compiled: {first_line(error)}") from error


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote; only the text inside matters here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute of type set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """The `dict` that templates may call: the type itself would open its attributes to them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """jinja2's namespace without private attributes, which lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may say `namespace(self=1)`
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the private name {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which no language model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _as_template_message(message: Message) -> dict[str, Any]:
    """Drops absent fields (templates would print "None"); offers reasoning under the names that they read."""
    plain = {key: _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING_FIELDS if name in plain), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """Rebuilds a value of JSON types; anything else becomes its type's name, without methods to call."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return f"<{type(value).__name__}>"
