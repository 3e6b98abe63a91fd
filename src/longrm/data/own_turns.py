"""Which tokens of a trajectory its policy wrote: the turns of the assistant, and not what tools or users answered."""

from collections.abc import Iterator, Sequence
from os.path import commonprefix

from longrm.data.token_spans import MARK
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.types import Message, Response, Tool


def given_tokens(
    tokenizer: Tokenizer, prompt: Sequence[Message], response: Response, tools: Sequence[Tool], count: int
) -> list[tuple[int, int]]:
    """Finds the tokens that a policy was given within its response: what stands between the turns of the assistant.

    A turn begins where a model would write it, behind the assistant's header, and ends with what closes it, as a
    response of one turn does. What holds a character of a turn is a token of it.

    Args:
        tokenizer: It must have a chat template, which tells the turns apart.
        prompt: What comes before the response.
        response: Several turns.
        tools: The tools that the prompt offers.
        count: How many tokens the response has: those of the whole conversation behind what others share.

    Returns:
        Runs of indices into these tokens, each its first one and one past its last, in order.

    Raises:
        DataError: The assistant has no turn in the response, or it cannot be told where each of them stands.
    """
    if not any(message.get("role") == "assistant" for message in response):
        raise DataError("the response has no turn of the assistant, so nothing in it can be learned")
    if tokenizer.chat_template is None:
        raise DataError(
            "a response of several turns needs a tokenizer with a chat template, which tells them apart"
        )
    whole = tokenizer.render([*prompt, *response], tools=tools)
    offsets = tokenizer.backend.encode(whole, add_special_tokens=False).offsets[-count:]
    runs: list[tuple[int, int]] = []
    behind = 0
    for start, end in _turns(tokenizer, prompt, response, tools, whole):
        inside = [at for at, (low, high) in enumerate(offsets) if low < end and high > start]
        first = inside[0] if inside else behind
        runs.append((behind, first))
        behind = inside[-1] + 1 if inside else behind
    return [run for run in (*runs, (behind, count)) if run[0] < run[1]]


def _turns(
    tokenizer: Tokenizer, prompt: Sequence[Message], response: Response, tools: Sequence[Tool], whole: str
) -> Iterator[tuple[int, int]]:
    """The characters of the assistant's turns within the whole rendering."""
    closing = tokenizer.closing()
    for at, message in enumerate(response):
        if message.get("role") != "assistant":
            continue
        before, after = [*prompt, *response[:at]], response[at + 1 :]
        opening, until = tokenizer.opening(before, tools), tokenizer.render([*before, message], tools=tools)
        if not whole.startswith(opening):
            raise DataError(_unlike(at))
        if whole.startswith(until):
            yield len(opening), len(until)
            continue
        # Some templates write the last turn in a way of its own, as with an empty thought: what closes a turn is
        # then sought before the text of the next one.
        marked = tokenizer.render([*before, message, {**after[0], "content": MARK}, *after[1:]], tools=tools)
        limit = len(commonprefix([whole, marked]))  # noqa: RUF071  # they are no paths
        end = whole.rfind(closing, len(opening), limit) if closing else -1
        if end < 0:
            raise DataError(_unlike(at))
        yield len(opening), end + len(closing)


def _unlike(at: int) -> str:
    return (
        f"the chat template writes what comes before and in message {at + 1} of the response in another way once more "
        "follows, so it cannot be told which tokens the policy wrote: put earlier turns into the prompt"
    )
