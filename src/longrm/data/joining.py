"""The tokens of a prompt and of every response to it, equal to those of both as one text.

A tokenizer may merge the end of a prompt with the beginning of a response, such as line breaks. So no response to a
chat is tokenized alone: the prompt is tokenized once, and each response together with the text after the prompt's last
special token, because special tokens split a text before anything is merged. All responses share the tokens of the
prompt that none of them has changed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from os.path import commonprefix

from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.types import Message, Query, Response, Span, Tool

# Takes the place of a message's text in a rendering. It is in Unicode's private use area, so no text contains it.
_MARK = "\ue000longrm\ue000"
_PROBE = ({"role": "user", "content": "Question?"},)

# Characters of a rendered prompt up to which its ids are remembered.
_REMEMBERED = 2**20


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a prompt and of every response to it. Joined, they are the ids of the whole text.

    Attributes:
        prompt: The ids that all responses continue.
        responses: The ids that follow them, for every response.
        prompt_overlap: How many of each response's ids are from the end of the prompt, which not all responses share
            because one of them changes it. Empty if there are none. Negative for a step whose first tokens are at
            the end of `prompt`, because later steps continue them.
        salt: Prefixes are cached and shared only between prompts with the same salt.
        assistant_spans: For every response, the spans (first, one past the last) of its ids that the policy wrote, not
            for example the result of a tool. Empty if it wrote all ids after the overlap; None if the spans were not
            requested and some response has several turns.
        forks: After how many ids of the prompt each response begins; empty if all follow its end.
    """

    prompt: Sequence[int]
    responses: Sequence[Sequence[int]]
    prompt_overlap: Sequence[int] = ()
    salt: str = ""
    assistant_spans: Sequence[Sequence[Sequence[int]]] | None = ()
    forks: Sequence[int] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, up to the end of a response: the context that the model needs."""
        forks = self.forks or [len(self.prompt)] * len(self.responses)
        ends = (at + len(ids) for at, ids in zip(forks, self.responses, strict=True))
        return max(ends, default=len(self.prompt))

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all responses."""
        return len(self.prompt) + sum(map(len, self.responses))

    @property
    def completion_tokens(self) -> list[Sequence[int]]:
        """The positions of the tokens that each policy wrote, counted from the response's end: -1 is the last."""
        assert self.assistant_spans is not None, (
            "encode with `completion_tokens=True` for training and likelihoods"
        )
        places: list[Sequence[int]] = []
        runs_of_all = self.assistant_spans or [()] * len(self.responses)
        for ids, seam, runs in zip(self.responses, self._seams(), runs_of_all, strict=True):
            if runs:
                places.append([at - len(ids) for first, end in runs for at in range(max(first, seam), end)])
            else:
                places.append(range(seam - len(ids), 0))
        return places

    def parts(self) -> "list[Encoded]":
        """The same sequences as items whose responses all follow the end of the prompt."""
        if not self.forks:
            return [self]
        pairs = zip(self.forks, self.responses, strict=True)
        return [Encoded(self.prompt[:at], [ids], salt=self.salt) for at, ids in pairs]

    def only(self, places: Sequence[int]) -> "Encoded":
        """The prompt with some of the responses, in this order."""
        assert not self.forks, "steps of a trajectory are chosen before they are encoded"
        prompt_overlap = self._seams()
        responses = [self.responses[at] for at in places]
        spans = self.assistant_spans and [self.assistant_spans[at] for at in places]
        return Encoded(self.prompt, responses, [prompt_overlap[at] for at in places], self.salt, spans)

    def _seams(self) -> Sequence[int]:
        return self.prompt_overlap or [0] * len(self.responses)


@dataclass(frozen=True, slots=True)
class TokenQuery(Query):
    """A query with token ids in place of messages, from a client that rendered these itself.

    Attributes:
        encoded: The ids, for each of the query's responses, which are empty.
        split: Whether the ids before the responses are exactly the prompt.
    """

    encoded: Encoded = field(default_factory=lambda: Encoded((), ()))
    split: bool = True


def encode(
    tokenizer: Tokenizer,
    prompt: Sequence[Message],
    responses: Iterable[Sequence[Message]],
    tools: Sequence[Tool] = (),
    *,
    completion_tokens: bool = False,
) -> Encoded:
    """Encodes a prompt, with the tools that it offers, and its responses.

    With a chat template, prompt and response together are what transformers' `apply_chat_template` makes of the whole
    conversation. Without one they are the plain texts, tokenized apart, so that a last word is not glued to a first
    one, with BOS first and EOS last if the tokenizer has them.

    Args:
        tokenizer: Its chat template renders the messages.
        prompt: The messages that all responses answer.
        responses: Each of one message, or of the turns of a trajectory.
        tools: The tools that the prompt offers.
        completion_tokens: Whether to find the tokens of trajectories that the policy wrote, for
            `Encoded.completion_tokens`.

    Raises:
        DataError: A response is empty, the chat template cannot render the messages, or prompt and responses cannot be
            separated in its rendering.
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
    if not completion_tokens:
        return replace(encoded, assistant_spans=None)
    spans = [
        own_tokens(tokenizer, prompt, response, tools, len(ids)) if len(response) > 1 else []
        for response, ids in zip(several, encoded.responses, strict=True)
    ]
    return replace(encoded, assistant_spans=spans)


def encode_steps(tokenizer: Tokenizer, query: Query) -> list[Encoded]:
    """Encodes a trajectory up to each of its steps, as one item a step, so that `build_trees` makes a chain of them.

    Each item ends as if the conversation ended there. Its prompt is what the next item begins with, and its only
    response the rest: the tokens that close the turn. `completion_tokens` are those of the step's last message.
    """
    sequences: list[tuple[list[int], int]] = []  # the ids up to each step, and the first one that is its own
    for *before, turn in query.responses:
        item = encode(tokenizer, [*query.prompt, *before], [(turn,)], query.tools)
        ids = [*item.prompt, *item.responses[0]]
        own = len(item.prompt) + item._seams()[0]
        if sequences:  # parts of a solution are one message, which begins with the earlier ones
            own = max(own, min(common_prefix(sequences[-1][0], ids), len(ids) - 1))
        sequences.append((ids, own))
    items = []
    following = [*(ids for ids, _ in sequences[1:]), sequences[-1][0]]
    for (ids, own), after in zip(sequences, following, strict=True):
        shared = min(common_prefix(ids, after), len(ids) - 1)
        items.append(Encoded(ids[:shared], [ids[shared:]], [own - shared]))
    return items


def join_steps(items: Sequence[Encoded]) -> Encoded:
    """One item of the steps of a trajectory, as `encode_steps` returns them.

    Its prompt is what the last step continues. Each response forks from it where the step's own sequence does: at the
    tokens that close its turn, or earlier where a chat template renders old turns differently, such as without their
    thinking; such a step is read from there on.
    """
    prompt = items[-1].prompt
    forks, responses = [], []
    for item in items:
        ids = [*item.prompt, *item.responses[0]]
        forks.append(min(common_prefix(prompt, ids), len(ids) - 1))
        responses.append(ids[forks[-1] :])
    return Encoded(prompt, responses, forks=forks)


def encode_texts(tokenizer: Tokenizer, opening: str, texts: Sequence[str]) -> Encoded:
    """Encodes a prompt that a chat template rendered, and texts that continue it; nothing is added to them."""
    # Requests with one prompt mostly follow each other.
    begun = _opening_ids if len(opening) <= _REMEMBERED else _opening_ids.__wrapped__
    ids, kept, start = begun(tokenizer, opening)
    tails = [tokenizer.encode(opening[start:] + text) if text else [] for text in texts]
    return _joined(ids, kept, tails, [])


@lru_cache(maxsize=16)
def _opening_ids(tokenizer: Tokenizer, opening: str) -> tuple[list[int], int, int]:
    """The ids of a rendered prompt, and its `_last_boundary`; callers must not change the list."""
    ids = tokenizer.encode(opening)
    return ids, *_last_boundary(tokenizer, opening, ids)


def _joined(alone: list[int], kept: int | None, tails: Sequence[list[int]], end: list[int]) -> Encoded:
    """Joins the ids of a prompt alone, of which the first `kept` never change, with the ids that follow those."""
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


def token_ids(
    tokenizer: Tokenizer, tokens: Sequence[str], prompt: Sequence[Message] = _PROBE
) -> tuple[list[int], list[int]]:
    """The ids of a prompt up to the start of the answer, and the id of each token as that answer.

    A token that is several tokens or unknown to the tokenizer, or two with the same id, is a `DataError`.
    """
    # The template may write the same text before and after every answer, so the answers are what differs.
    item = encode(tokenizer, prompt, [({"role": "assistant", "content": token},) for token in tokens])
    own = [list(ids) for ids in item.responses]
    start = min(common_prefix(own[0], ids) for ids in own[1:])
    end = min(common_prefix(own[0][start:][::-1], ids[start:][::-1]) for ids in own[1:])
    answers = [tuple(ids[start : len(ids) - end]) for ids in own]
    known = all(len(ids) == 1 and ids[0] != tokenizer.unk_id for ids in answers)
    if not known or len(set(answers)) < len(answers):
        raise DataError(
            f"judge.tokens must be distinct tokens of the tokenizer, and {list(tokens)} have the ids "
            f"{[list(ids) for ids in answers]} at the start of the answer; choose others that judge.template asks for"
        )
    return [*item.prompt, *own[0][:start]], [ids[0] for ids in answers]


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
    """The tokens and the characters before the last token that splits the text; zeros if there is none."""
    boundaries = dict(_boundaries(tokenizer))
    for place in range(len(ids) - 1, 0, -1):
        content = boundaries.pop(ids[place], None)
        # If the text contains the token more often than the ids do, rindex may find another occurrence.
        if content is not None and text.count(content) == ids.count(ids[place]):
            return place, text.rindex(content)
    return 0, 0


@lru_cache(maxsize=16)
def _boundaries(tokenizer: Tokenizer) -> dict[int, str]:
    """The tokens that split every text that contains them: what precedes is encoded the same whatever follows.

    They are found in a text before anything is normalized or merged. None of them is part of another one, which a
    longer text could turn it into.
    """
    if tokenizer.backend.encode_special_tokens:
        return {}
    added = tokenizer.backend.get_added_tokens_decoder()
    raw = {
        identity: token
        for identity, token in added.items()
        if not token.normalized and identity != tokenizer.unk_id  # which may be any text
    }
    texts = "\x00".join(token.content for token in raw.values())
    return {
        identity: token.content
        for identity, token in raw.items()
        if not token.single_word
        and "\x00" not in token.content
        and texts.count(token.content) == 1
        # One that may overlap itself, such as two line breaks: its last occurrence depends on what follows.
        and not any(token.content.endswith(token.content[:end]) for end in range(1, len(token.content)))
    }


def _continuation(tokenizer: Tokenizer, opening: str, text: str) -> list[int]:
    """Encodes plain text that follows an opening, apart from it.

    SentencePiece-like tokenizers put a space before the first text they see, and some also after every special token. A
    continuation must have that space in the second case only: it is encoded after the special token that ends the
    opening, or else after a line break, and the ids of that are removed again.
    """
    first = tokenizer.encode("\na")[len(tokenizer.encode("\n")) :]
    if first == tokenizer.encode("a"):
        return tokenizer.encode(text)
    special = (token.content for token in tokenizer.backend.get_added_tokens_decoder().values())
    anchor = next((token for token in special if opening.endswith(token)), "\n")
    prefix, anchored = tokenizer.encode(anchor), tokenizer.encode(anchor + text)
    return anchored[len(prefix) :] if anchored[: len(prefix)] == prefix else tokenizer.encode(text)


def own_tokens(
    tokenizer: Tokenizer, prompt: Sequence[Message], response: Response, tools: Sequence[Tool], count: int
) -> list[tuple[int, int]]:
    """The runs of tokens within a trajectory that its policy wrote: the assistant's turns.

    A turn begins after the assistant's header, where a model would write it, and includes its closing text. A token
    with any character of a turn belongs to the turn. `count` is the number of the response's tokens, which are the last
    ones of the whole conversation; a run is (first, one past the last) of them.
    """
    if tokenizer.chat_template is None:
        raise DataError("a response of several turns needs a tokenizer with a chat template")
    whole = tokenizer.render([*prompt, *response], tools=tools)
    offsets = tokenizer.backend.encode(whole, add_special_tokens=False).offsets[-count:]
    runs: list[tuple[int, int]] = []
    for start, end in _turns(tokenizer, prompt, response, tools, whole):
        inside = [at for at, (low, high) in enumerate(offsets) if low < end and high > start]
        if inside:
            first = max(inside[0], runs[-1][1] if runs else 0)  # a token of two turns counts once
            runs.append((first, inside[-1] + 1))
    if not runs:
        raise DataError("the response has no turn of the assistant, so nothing in it can be learned")
    return runs


def _turns(
    tokenizer: Tokenizer, prompt: Sequence[Message], response: Response, tools: Sequence[Tool], whole: str
) -> Iterator[tuple[int, int]]:
    """The characters of the assistant's turns within the rendering of the whole conversation."""
    closing = tokenizer.closing()
    for at, message in enumerate(response):
        if message.get("role") != "assistant":
            continue
        before, after = [*prompt, *response[:at]], response[at + 1 :]
        opening, until = tokenizer.opening(before, tools), tokenizer.render([*before, message], tools=tools)
        end = -1
        if whole.startswith(opening) and whole.startswith(until):
            end = len(until)
        elif whole.startswith(opening):
            # Some templates render the last turn differently, as with an empty thought. Then look for the closing
            # text before the next message, which starts where a rendering with another text differs.
            marked = tokenizer.render(
                [*before, message, {**after[0], "content": _MARK}, *after[1:]], tools=tools
            )
            limit = len(commonprefix([whole, marked]))  # noqa: RUF071  # not paths
            found = whole.rfind(closing, len(opening), limit) if closing else -1
            end = found + len(closing) if found >= 0 else -1
        if end < 0:
            raise DataError(
                f"the chat template renders message {at + 1} of the response, or what precedes it, differently once "
                "more follows, so the policy's tokens cannot be found: put earlier turns into the prompt"
            )
        yield len(opening), end


def span_tokens(
    tokenizer: Tokenizer,
    prompt: Sequence[Message],
    regions: Mapping[str, Sequence[Span]],
    tools: Sequence[Tool] = (),
) -> dict[str, list[int]]:
    """The tokens of regions of a prompt, as sorted indices into `Tokenizer.prompt_ids`.

    A token with a single character of a region is one of its tokens, so a token may belong to two regions. `DataError`
    if the message of a span has no plain text, or the chat template changes more of it than the white space around it.
    """
    opening = tokenizer.opening(prompt, tools)
    encoding = tokenizer.backend.encode(opening, add_special_tokens=False)
    begun = len(tokenizer.begun(list(encoding.ids))) - len(encoding.ids)  # 1 if BOS was put in front
    starts, ends = [start for start, _ in encoding.offsets], [end for _, end in encoding.offsets]
    messages = {span.message for spans in regions.values() for span in spans}
    places = {number: _message_place(tokenizer, prompt, tools, number, opening) for number in messages}

    def tokens(span: Span) -> range:
        shown, cut = places[span.message]
        low, high = (min(max(edge - cut, 0) + shown.start, shown.stop) for edge in (span.start, span.end))
        return range(bisect_right(ends, low) + begun, bisect_left(starts, high) + begun if low < high else 0)

    return {
        name: sorted({token for span in spans for token in tokens(span)}) for name, spans in regions.items()
    }


def _message_place(
    tokenizer: Tokenizer, prompt: Sequence[Message], tools: Sequence[Tool], number: int, opening: str
) -> tuple[range, int]:
    """The characters of a message's text in the rendered prompt, and how many were stripped from its start."""
    text = prompt[number].get("content")
    if not isinstance(text, str):
        raise DataError(f"message {number} has no plain text in which a region could be")
    marked = [*prompt[:number], {**prompt[number], "content": _MARK}, *prompt[number + 1 :]]
    before, found, _ = tokenizer.opening(marked, tools).partition(_MARK)
    for shown, cut in ((text, 0), (text.strip(), len(text) - len(text.lstrip()))):
        if found and opening.startswith(before) and opening.startswith(shown, len(before)):
            return range(len(before), len(before) + len(shown)), cut
    raise DataError(
        f"the chat template changes the text of message {number}: its regions cannot be found in it"
    )
