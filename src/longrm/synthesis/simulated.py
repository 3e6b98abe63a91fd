"""A model that is asked without being there: it knows the gold answers, and errs at stated rates.

So every pipeline runs offline, and what an experiment must find is known beforehand. It reads the prompts that the
pipelines write and no others, told apart by their instructions.
"""

import hashlib
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

from longrm.answer_metrics import answer_metric
from longrm.clients import Completion, Request
from longrm.data.chunking import size_of, words
from longrm.errors import DataError
from longrm.reward_models.simulated import Rates
from longrm.rng import Draws
from longrm.synthesis.chunks import gold_of
from longrm.synthesis.comparing import ASKING, CLOSING
from longrm.synthesis.critical import ATTRIBUTION, SUFFICIENCY
from longrm.synthesis.documents import Document
from longrm.synthesis.domains import DOMAINS, Language
from longrm.synthesis.records import Candidate, Source
from longrm.synthesis.responses import Shown, prompt_of
from longrm.types import Outcome, text_of

Item = TypeVar("Item")

_ENOUGH = 0.6  # share of a gold answer's words that a text must hold to give it
_ASTRAY = 3  # points at least by which a wrong score is off
_BEFORE = 16  # earlier documents whose answers a lost writer may give
_QUOTE = 40  # words of a quotation at most
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s*|\n+")
_LABEL = re.compile(r"\s*\[\d+\] ")  # of a numbered passage
_NOT_QUOTED = re.compile(r"[\"“”「」\[\]]+")
_CLOSING = r"</({name}(?:-\d+)?)>\s*\Z"
_ANSWERING, _, _ = text_of(prompt_of(Shown((), ""))).rpartition("\n\nQuestion: ")
_ANSWERING = _ANSWERING.rpartition("\n\n")[2]

_ANALYSES: dict[Language, tuple[str, str, str, str]] = {
    "en": (
        'The text says: "{quote}"',
        "The response agrees with that.",
        "The response agrees with that in part.",
        "The response is not borne out by that.",
    ),
    "zh": ("原文写道：「{quote}」", "回复与此相符。", "回复与此部分相符。", "回复得不到原文的支持。"),
}
"""How a quotation is introduced, and what is said of a response that earns 8, 4 and fewer points."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one document.

    Attributes:
        place: Its place in the stream.
        document: Its id.
        question: What is asked.
        answer: The gold answer.
        metric: Which metric rates answers to it; empty for token F1.
        scores: By the digest of a candidate's text, its score; None where it has none.
        sentences: Digests of its text's different sentences.
    """

    place: int
    document: str
    question: str
    answer: str
    metric: str
    scores: dict[str, float | None]
    sentences: "array[int]"


class Knowledge:
    """The gold answers that simulated models know, filled by the stream of a run's inputs.

    Args:
        most: Documents that are remembered, the latest ones; it must exceed the inputs that are worked on together.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most, self._seen = most, 0
        self._latest: deque[Known] = deque()
        self._by_question: dict[str, list[Known]] = {}

    def watching(self, inputs: Iterable[Item]) -> Iterator[Item]:
        """Passes inputs on, and remembers those that are sources or documents."""
        for one in inputs:
            if isinstance(one, Source):
                self.see(one.document, one.candidates)
            elif isinstance(one, Document):
                self.see(one)
            yield one

    def see(self, document: Document, candidates: Sequence[Candidate] = ()) -> None:
        """Remembers a document, and forgets the one seen longest ago where there are too many."""
        scores = {_digest(candidate.text): candidate.score for candidate in candidates}
        known = Known(
            self._seen,
            document.id,
            document.question,
            document.answer,
            document.metric,
            scores,
            array("I", {*_sentences(document.text)}),
        )
        self._seen += 1
        self._latest.append(known)
        self._by_question.setdefault(known.question.strip(), []).append(known)
        if len(self._latest) > self._most:
            old = self._latest.popleft()
            left = self._by_question[old.question.strip()]
            left.remove(old)
            if not left:
                del self._by_question[old.question.strip()]

    def about(self, question: str, text: str, response: str = "") -> Known | None:
        """The document that a question is about.

        Of several it is one with this response, of these the one of which most is shown: so documents that come
        later, which batches decide on, change nothing, unless the right one's text is not shown at all.

        Args:
            question: What is asked.
            text: What is shown.
            response: What is judged, if anything is.
        """
        found = self._by_question.get(question.strip(), [])
        if len(found) > 1:
            found = [known for known in found if _digest(response) in known.scores] or found
        if len(found) > 1:
            shown = {*_sentences(text)}
            shares = [_share(known.sentences, shown) for known in found]
            most = max(shares)
            found = [known for known, share in zip(found, shares, strict=True) if share == most]
        if len(found) > 1:
            return max(found, key=lambda known: _held(known.question, known.answer, text))
        return found[0] if found else None

    def before(self, known: Known) -> list[str]:
        """Answers to other questions that came shortly before one; later ones, which batches decide on, never."""
        near = range(max(0, known.place - _BEFORE), known.place)
        first = self._latest[0].place
        answers = [self._latest[place - first].answer for place in near if place >= first]
        return [answer for answer in answers if answer.strip() and answer != known.answer]


class Simulated:
    """Answers what the pipelines ask (see `pipeline.Asked`).

    Scores: the true score is the candidate's own (0 to 1, as 0 to 10 points), else what the document's metric, or
    token F1, gives the response beside the gold answer; where there is neither a draw decides. With probability
    `rates.error_at` the length of the prompt, in words and marks, another one at least 3 points away is given, else
    with `disagreement` one a point beside; with `misformat` none. Answers: the gold answer if the shown passages hold
    its words, but for that error, else the answer to another question. Sufficiency and attribution go by the gold
    answer's words, without error.

    Every draw depends on the name, the seed and the prompt alone (above temperature 0, on the request's seed too): so
    models with other names err independently, and the same model anew on every prompt.

    Args:
        rates: How often it errs.
        name: Its name, which its errors depend on.
        seed: Of the run.
        knowledge: What it knows.
    """

    def __init__(self, rates: Rates, name: str, seed: int, knowledge: Knowledge) -> None:
        self.name = name
        self._rates, self._seed, self._knowledge = rates, seed, knowledge

    async def ask(self, prompts: Sequence[Request]) -> list[Completion]:
        """Answers every request alone, in the same order.

        Raises:
            DataError: A candidate's own score is not from 0 to 1.
        """
        return [self._answer(request) for request in prompts]

    def _answer(self, request: Request) -> Completion:
        text = text_of(request.messages)
        size = size_of(text)
        drawn = request.seed if request.temperature else ""
        draws = Draws("simulated model", self.name, self._seed, _digest(text), drawn)
        if text.endswith(SUFFICIENCY):
            said: str | None = _sufficiency(text)
        elif text.endswith(ATTRIBUTION):
            said = _attribution(text)
        elif (judging := _judging(text)) is not None:
            said = self._judgment(*judging, size, draws)
        elif (asked := _asked(text)) is not None:
            said = self._written(*asked, size, draws)
        else:
            return Completion(
                Outcome.ERROR,
                detail="a simulated model understands only what the synthesis itself asks, and not this prompt",
            )
        if said is None:
            return Completion(Outcome.ERROR, detail="a simulated model was not told of this question")
        return Completion(Outcome.ANSWERED, said, prompt_tokens=size, completion_tokens=size_of(said))

    def _judgment(
        self, language: Language, context: str, question: str, response: str, size: int, draws: Draws
    ) -> str | None:
        known = self._knowledge.about(question, context, response)
        if known is None:
            return None
        score = _true_score(known, response)
        astray, beside, mute, which = (draws.fraction() for _ in range(4))
        if score is None:
            score = draws.below(11)
        elif astray < self._rates.error_at(size, 2):
            score = draws.one([other for other in range(11) if abs(other - score) >= _ASTRAY])
        elif beside < self._rates.disagreement:
            score += 1 if score == 0 or (score < 10 and which < 0.5) else -1
        lead, good, fair, poor = _ANALYSES[language]
        quote = _quotation(context, known)
        opinion = good if score >= 8 else fair if score >= 4 else poor
        said = " ".join(filter(None, [lead.format(quote=quote) if quote else "", opinion]))
        return said if mute < self._rates.misformat else f"{said}\n\n[[{score}]]"

    def _written(self, shown: str, question: str, size: int, draws: Draws) -> str | None:
        known = self._knowledge.about(question, shown)
        if known is None:
            return None
        lost = _held(known.question, known.answer, shown) < _ENOUGH
        if known.answer.strip() and not lost and draws.fraction() >= self._rates.error_at(size, 2):
            return known.answer
        others = self._knowledge.before(known)
        return draws.one(others) if others else "The passages do not tell."


def _true_score(known: Known, response: str) -> int | None:
    """In points; None where nothing is known that tells."""
    share = known.scores.get(_digest(response))
    if share is not None and not 0 <= share <= 1:
        raise DataError(
            f"document '{known.document}': a simulated judge needs candidates' scores from 0 to 1, got {share}; "
            "scale the scores, or leave them out"
        )
    if share is None and known.answer.strip():
        share = answer_metric(known.metric or "token_f1")(response, known.answer)
    return None if share is None else round(10 * share)


def _asked(text: str) -> tuple[str, str] | None:
    """What is shown, and the question about it: as passages, or as a whole document."""
    for between in (f"\n\n{_ANSWERING}\n\nQuestion: ", f"{CLOSING}{ASKING}"):
        shown, found, question = text.rpartition(between)
        if found:
            return shown, question
    return None


def _judging(text: str) -> tuple[Language, str, str, str] | None:
    """Language, context, question and response of a domain's judging prompt."""
    for domain in DOMAINS.values():
        for language, wording in domain.wordings.items():
            given, _, request = text.rpartition(">\n\n")
            if request not in domain.texts():
                continue
            before, response = _last_block(f"{given}>", "response")
            head, found, _ = before.rpartition(f">\n\n{wording.task}\n\n")
            if found:
                rest, question = _last_block(f"{head}>", "question")
                return language, _last_block(rest, "context")[1], question, response
    return None


def _last_block(text: str, name: str) -> tuple[str, str]:
    """What stands before the block that ends a text, and what it holds; nothing where no such block does."""
    closing = re.search(_CLOSING.format(name=name), text)
    if closing is None:
        return text, ""
    before, _, inner = text[: closing.start()].rpartition(f"<{closing[1]}>\n")
    return before, inner.removesuffix("\n")


def _parted(text: str, task: str) -> tuple[str, str, str]:
    """Passages, question and answer of a prompt of `critical`."""
    before, answer = _last_block(text.removesuffix(task), "answer")
    before, question = _last_block(before, "question")
    return _last_block(before, "passages")[1], question, answer


def _sufficiency(text: str) -> str:
    passages, question, answer = _parted(text, SUFFICIENCY)
    enough = _held(question, answer, passages) >= _ENOUGH
    return "The passages give it.\n[[yes]]" if enough else "The passages do not give it.\n[[no]]"


def _attribution(text: str) -> str:
    passages, question, answer = _parted(text, ATTRIBUTION)
    holding = [
        number for number, passage in _numbered(passages) if _held(question, answer, passage) >= _ENOUGH
    ]
    return f"[[{', '.join(map(str, holding)) or 'none'}]]"


def _numbered(passages: str) -> Iterator[tuple[int, str]]:
    """Passages with their numbers, which rise by one: other numbers in brackets are text."""
    first = re.match(r"\[(\d+)\] ", passages)
    number = int(first[1]) if first else 0
    rest = passages[first.end() :] if first else ""
    while rest:
        passage, _, rest = rest.partition(f"\n\n[{number + 1}] ")
        yield number, passage
        number += 1


def _held(question: str, answer: str, text: str) -> float:
    """The share of a gold answer's words that a text holds."""
    return gold_of(question, answer, lambda word: 1.0).held(text) if answer.strip() else 0.0


def _quotation(context: str, known: Known) -> str:
    """The sentence of the context that holds most of the gold answer's words; empty where there is no context."""
    sentences = [(part.strip(), {*words(part)}) for part in _SENTENCE.split(context)]
    told = [(part, said) for part, said in sentences if said and part[0] != "<"]
    gold = {*words(known.answer)}
    best, _ = max(told, key=lambda sentence: len(gold & sentence[1]), default=("", gold))
    plain = " ".join(_NOT_QUOTED.sub("", best).split())
    return plain if size_of(plain) <= _QUOTE else " ".join(plain.split()[:_QUOTE])


def _share(sentences: Sequence[int], shown: set[int]) -> float:
    """The share of a text's sentences that are shown."""
    return sum(1 for one in sentences if one in shown) / len(sentences) if sentences else 0.0


def _sentences(text: str) -> Iterator[int]:
    """Digests of the sentences of a text, 4 bytes each; what a prompt puts before a sentence is no part of it."""
    for part in _SENTENCE.split(text):
        inner = _LABEL.sub("", part).strip()
        if inner:
            yield crc32(inner.encode(errors="surrogatepass"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode(errors="surrogatepass")).hexdigest()[:16]
