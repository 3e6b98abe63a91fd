"""The tokens of a prompt and of every response to it, equal to those of both as one text.

A tokenizer may merge what ends a prompt with what begins a response: a line break with those that follow it. So no
response to a chat is tokenized alone. The prompt is tokenized once; each response is tokenized together with what
follows the last special token of the prompt, which splits every text. All responses share the tokens
that no response has changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from longrm.data.own_turns import given_tokens
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.types import Message, Query, Tool


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a prompt and of every response to it; one after the other they are those of the whole text.

    Attributes:
        prompt: The ids that all responses continue.
        responses: The ids that follow them, for every response.
        seams: How many of these ids still are the prompt's alone, for every response: where another response
            changed them, they are no part of what all share. Empty where there are none.
        salt: Whose the prompt is: it is read once, and kept, for those of the same salt alone.
        given: Runs of these ids that the policy of a response was given, such as the result of a tool, for every
            response. Empty where there are none; None where nobody has asked, and some response has several turns.
    """

    prompt: Sequence[int]
    responses: Sequence[Sequence[int]]
    seams: Sequence[int] = ()
    salt: str = ""
    given: Sequence[Sequence[Sequence[int]]] | None = ()

    @property
    def longest(self) -> int:
        """Tokens of the prompt and its longest response: what the model must be able to read."""
        return len(self.prompt) + max(map(len, self.responses))

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all responses."""
        return len(self.prompt) + sum(map(len, self.responses))

    @property
    def written(self) -> list[Sequence[int]]:
        """The places of the tokens that each policy wrote, counted from the response's end: -1 is the last one."""
        assert self.given is not None, (
            "what is trained on, or scored by its likelihood, is asked for with `written`"
        )
        given = self.given or [()] * len(self.responses)
        return [
            _between(seam, len(own), runs)
            for own, seam, runs in zip(self.responses, self._seams(), given, strict=True)
        ]

    def only(self, places: Sequence[int]) -> "Encoded":
        """The prompt with some of the responses, in the order of their places."""
        seams = self._seams()
        responses = [self.responses[at] for at in places]
        given = self.given and [self.given[at] for at in places]
        return Encoded(self.prompt, responses, [seams[at] for at in places], self.salt, given)

    def _seams(self) -> Sequence[int]:
        return self.seams or [0] * len(self.responses)


def _between(seam: int, end: int, runs: Sequence[Sequence[int]]) -> Sequence[int]:
    """The places from a seam to an end, counted from that, but for those in runs, which are in order."""
    if not runs:
        return range(seam - end, 0)
    places: list[int] = []
    for start, stop in (*runs, (end, end)):
        places += range(seam - end, start - end)
        seam = max(seam, stop)
    return places


@dataclass(frozen=True, slots=True)
class TokenQuery(Query):
    """A query whose token ids are given, by a client that rendered its messages itself; it holds no messages.

    Attributes:
        encoded: The ids, for every one of the query's responses, which are empty.
        split: Whether it is known where the responses begin: what stands before them is the whole prompt.
    """

    encoded: Encoded = field(default_factory=lambda: Encoded((), ()))
    split: bool = True


def encode(
    tokenizer: Tokenizer,
    prompt: Sequence[Message],
    responses: Iterable[Sequence[Message]],
    tools: Sequence[Tool] = (),
    *,
    written: bool = False,
) -> Encoded:
    """Encodes a prompt, with the tools that it offers, and its responses.

    With a chat template, prompt and response together are what transformers' `apply_chat_template` makes of the whole
    conversation. Without one they are the plain texts, tokenized apart, so that no last word is glued to a first one;
    BOS comes first and EOS last where the tokenizer has them.

    Args:
        tokenizer: Its chat template renders them.
        prompt: What all responses answer.
        responses: Each of one message, or of the turns of a trajectory.
        tools: The tools that the prompt offers.
        written: Whether to find what the policies of trajectories wrote, for `Encoded.written`.

    Raises:
        DataError: A response is empty, the chat template cannot render the messages or renders the prompt in another
            way once a response follows, no token of the prompt is the same before all responses, or it cannot be told
            which tokens the policy of a trajectory wrote.
    """
    several = [tuple(response) for response in responses]
    opening, texts = tokenizer.continuations(prompt, several, tools)
    if tokenizer.chat_template is not None:
        encoded = encode_texts(tokenizer, opening, texts)
    else:
        tails = [_continuation(tokenizer, opening, text) for text in texts]
        encoded = _joined(tokenizer.begun(tokenizer.encode(opening)), None, tails, tokenizer.ending())
    if all(len(response) == 1 for response in several):
        return encoded
    return replace(
        encoded,
        given=[
            given_tokens(tokenizer, prompt, response, tools, len(own)) if len(response) > 1 else []
            for response, own in zip(several, encoded.responses, strict=True)
        ]
        if written
        else None,
    )


def encode_texts(tokenizer: Tokenizer, opening: str, texts: Sequence[str]) -> Encoded:
    """Encodes a prompt that a chat template rendered, and texts that continue it; nothing is added to them.

    Raises:
        DataError: A text has no token, or no token of the prompt is the same before all of them.
    """
    ids = tokenizer.encode(opening)
    kept, start = _last_boundary(tokenizer, opening, ids)
    tails = [tokenizer.encode(opening[start:] + text) if text else [] for text in texts]
    return _joined(ids, kept, tails, [])


def _joined(alone: list[int], kept: int | None, tails: Sequence[list[int]], end: list[int]) -> Encoded:
    """Puts together the ids of a prompt alone, of which `kept` stay whatever follows, and those that follow them."""
    kept = len(alone) if kept is None else kept
    rest, tails = alone[kept:], [tail + end for tail in tails]
    if not all(tails):
        raise DataError("the response has no token: give it some content")
    same = [min(common_prefix(rest, tail), len(tail) - 1) for tail in tails]
    shared = min(same, default=len(rest))
    if not kept + shared:
        raise DataError("the prompt has no token that all responses share: give it some content")
    return Encoded(
        alone[: kept + shared], [tail[shared:] for tail in tails], [length - shared for length in same]
    )


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """The number of leading tokens that two sequences share, by bisection over slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _last_boundary(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> tuple[int, int]:
    """Counts tokens and characters before the last token that splits the text; 0 where none does."""
    boundaries = dict(_boundaries(tokenizer))
    for place in range(len(ids) - 1, 0, -1):
        content = boundaries.pop(ids[place], None)
        # Were the token written more often than it was found, the last one written would not be the last one found.
        if content is not None and text.count(content) == ids.count(ids[place]):
            return place, text.rindex(content)
    return 0, 0


def _continuation(tokenizer: Tokenizer, opening: str, text: str) -> list[int]:
    """Encodes plain text that follows an opening, apart from it.

    SentencePiece-like tokenizers put a space before whatever they see first, and some after every special
    token. A continuation must have it in the second case only: it is encoded after the special token that
    ends the opening, or else after a line break, whose tokens are then taken off.
    """
    first = tokenizer.encode("\na")[len(tokenizer.encode("\n")) :]
    if first == tokenizer.encode("a"):
        return tokenizer.encode(text)
    special = (token.content for token in tokenizer.backend.get_added_tokens_decoder().values())
    anchor = next((token for token in special if opening.endswith(token)), "\n")
    prefix, anchored = tokenizer.encode(anchor), tokenizer.encode(anchor + text)
    return anchored[len(prefix) :] if anchored[: len(prefix)] == prefix else tokenizer.encode(text)


@lru_cache(maxsize=16)
def _boundaries(tokenizer: Tokenizer) -> dict[int, str]:
    """Returns the tokens that split every text which holds them: what precedes is encoded whatever follows.

    Such tokens are found in a text before anything is normalized or merged. None of them is a piece of another one,
    which a text that goes on could turn it into.
    """
    if tokenizer.backend.encode_special_tokens:
        return {}
    added = tokenizer.backend.get_added_tokens_decoder()
    unknown = tokenizer.unk_id  # which stands for any text
    raw = {
        identity: token for identity, token in added.items() if not token.normalized and identity != unknown
    }
    texts = "\x00".join(token.content for token in raw.values())
    return {
        identity: token.content
        for identity, token in raw.items()
        if not token.single_word
        and "\x00" not in token.content
        and texts.count(token.content) == 1
        # One that may overlap itself, such as two line breaks, is not the last where it is written last.
        and not any(token.content.endswith(token.content[:end]) for end in range(1, len(token.content)))
    }
