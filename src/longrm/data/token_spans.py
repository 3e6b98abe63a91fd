"""Which tokens of a prompt hold the characters of its spans."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.types import Message, Span, Tool

MARK = "\ue000longrm\ue000"
"""Stands for a text that is sought in a rendering; of Unicode's private use, so that no text holds it."""


def span_tokens(
    tokenizer: Tokenizer,
    prompt: Sequence[Message],
    regions: Mapping[str, Sequence[Span]],
    tools: Sequence[Tool] = (),
) -> dict[str, list[int]]:
    """Finds the tokens of regions of a prompt, as indices into `Tokenizer.prompt_ids`, in order, each once.

    A token that holds a single character of a region is one of its tokens, so that it may belong to two.

    Raises:
        DataError: The message of a span has no plain text, or the chat template changes it beyond the white space
            around it.
    """
    opening = tokenizer.opening(prompt, tools)
    encoding = tokenizer.backend.encode(opening, add_special_tokens=False)
    begun = len(tokenizer.begun(list(encoding.ids))) - len(encoding.ids)
    starts, ends = [start for start, _ in encoding.offsets], [end for _, end in encoding.offsets]
    messages = {span.message for spans in regions.values() for span in spans}
    places = {number: _place(tokenizer, prompt, tools, number, opening) for number in messages}

    def tokens(span: Span) -> range:
        shown, cut = places[span.message]
        low, high = (min(max(edge - cut, 0) + shown.start, shown.stop) for edge in (span.start, span.end))
        return range(bisect_right(ends, low) + begun, bisect_left(starts, high) + begun if low < high else 0)

    return {
        name: sorted({token for span in spans for token in tokens(span)}) for name, spans in regions.items()
    }


def _place(
    tokenizer: Tokenizer, prompt: Sequence[Message], tools: Sequence[Tool], number: int, opening: str
) -> tuple[range, int]:
    """Where the text of a message stands in the rendered prompt, and how many characters were cut off before it."""
    text = prompt[number].get("content")
    if not isinstance(text, str):
        raise DataError(f"message {number} has no plain text in which a region could stand")
    marked = [*prompt[:number], {**prompt[number], "content": MARK}, *prompt[number + 1 :]]
    before, found, _ = tokenizer.opening(marked, tools).partition(MARK)
    for shown, cut in ((text, 0), (text.strip(), len(text) - len(text.lstrip()))):
        if found and opening.startswith(before) and opening.startswith(shown, len(before)):
            return range(len(before), len(before) + len(shown)), cut
    raise DataError(
        f"the chat template changes the text of message {number}: its regions cannot be found in it"
    )
