"""A simulated model: it knows the gold answers, and errs at given rates.

Every recipe can thus run offline, and what an experiment should find is known beforehand. It reads the task and parts
of a request, and its random draws depend on the words of the prompt.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from longrm.benchmarks.answer_metrics import answer_metric
from longrm.clients import Completion, Request
from longrm.data.chunking import approximate_tokens, words_of
from longrm.errors import DataError
from longrm.reward_models.simulated import ErrorRates
from longrm.rng import Rng
from longrm.synthesis.chunks import gold_words
from longrm.synthesis.documents import Document
from longrm.synthesis.domains import Language
from longrm.synthesis.models import TaskRequest
from longrm.types import Outcome, text_of

Watched = TypeVar("Watched")

_COVERAGE = 0.6  # share of a gold answer's words that a text must contain to give it
_MIN_ERROR = 3  # points by which a wrong score is off, at least
_EARLIER = 16  # earlier documents whose answers a writer without evidence may give
_MAX_QUOTE = 40  # words
_MIN_SENTENCE = 5  # words of a sentence that is asked about
_SPLIT = re.compile(r"(?<=[.!?。！？])\s*|\n+")
_NOT_QUOTED = re.compile(r"[\"“”「」\[\]]+")

_ANALYSES: dict[Language, tuple[str, str, str, str]] = {
    "en": (
        'The text says: "{quote}"',
        "The response agrees with that.",
        "The response agrees with that in part.",
        "The response is not supported by that.",
    ),
    "zh": ("原文写道：「{quote}」", "回复与此相符。", "回复与此部分相符。", "回复得不到原文的支持。"),
}
"""How a quotation is introduced, and a comment on a response with at least 8 points, at least 4, and fewer."""

_SENTENCE = re.compile(r"[^\s.!?。！？][^.!?。！？\n]*[.!?。！？]")
_LAST_WORD = re.compile(r"(\w+)\W*$")
_GAP = 'Which word ends the sentence that begins "{}"?'
_GAP_PATTERN = re.compile(re.escape(_GAP).replace(r"\{\}", "(.+)"))
_SAYS, _OMITS = 'The response says "{}".', 'The response does not say "{}".'
_CLAIM = 'Response {} says "{}", which response {} does not say.'
_CLAIM_PATTERN = re.compile(r'Response ([AB]) says "(\w+)", which response [AB] does not say\.')
_CRITERION = re.compile(r'The response (says|does not say) "(.+)"\.')


class GoldAnswers:
    """The gold answers that simulated models know, filled from the stream of a run's inputs.

    Only the latest `most` documents are remembered, more than the inputs in progress together, without their texts.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most, self._seen = most, 0
        self._documents: dict[str, tuple[int, Document]] = {}  # with their positions, the latest last

    def watching(self, inputs: Iterable[Watched]) -> Iterator[Watched]:
        """Passes inputs on, and remembers the documents among them."""
        for one in inputs:
            if isinstance(one, Document):
                self._documents[one.id] = self._seen, replace(one, text="")
                self._seen += 1
                if len(self._documents) > self._most:
                    del self._documents[next(iter(self._documents))]
            yield one

    def get(self, identity: str) -> Document | None:
        """The document with an id."""
        return self._documents.get(identity, (0, None))[1]

    def before(self, document: Document) -> list[str]:
        """Answers to other questions from shortly before a document; later ones would depend on the batch size."""
        end = self._documents[document.id][0]
        near = [one.answer for position, one in self._documents.values() if end - _EARLIER <= position < end]
        return [answer for answer in near if answer.strip() and answer != document.answer]


class SimulatedModel:
    """Does the tasks of all recipes (an `AsyncModel`).

    - Scores: the candidate's own score (0 to 1, as points), else what the document's metric, or token F1, gives the
      response compared with the gold answer, else a drawn one. With probability `rates.error_at` the prompt's length in
      approximate tokens it is at least 3 points off, else with `disagreement` one; with `misformat` it is missing.
    - Answers: the gold answer if the text shown contains its words, except at the error rate; else that to another
      question.
    - Questions, criteria and rationales: see `write_question`, `write_criteria` and `write_rationale`; it answers,
      compares and verifies by these.
    - Sufficiency and attribution: looks for the gold answer's words, without error.

    Every draw depends only on the name, the seed and the prompt (above temperature 0, on the request's seed too):
    models with different names err independently, and one model errs anew on every prompt.
    """

    def __init__(self, rates: ErrorRates, name: str, seed: int, answers: GoldAnswers) -> None:
        self.name = name
        self._rates, self._seed, self._answers = rates, seed, answers

    async def ask(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers every request on its own, in the same order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        if not isinstance(request, TaskRequest) or not request.task:
            return Completion(Outcome.ERROR, detail="a simulated model does only the tasks of synthesis")
        text = text_of(request.messages)
        size = approximate_tokens(text)
        digest = hashlib.sha256(text.strip().encode(errors="surrogatepass")).hexdigest()[:16]
        seed = request.seed if request.temperature else ""
        rng = Rng("simulated model", self.name, self._seed, digest, seed)
        written = self._write(request.task, request.parts, size, rng)
        if written is None:
            return Completion(Outcome.ERROR, detail="a simulated model does not know this document")
        tokens = approximate_tokens(written)
        return Completion(Outcome.ANSWERED, written, prompt_tokens=size, completion_tokens=tokens)

    def _write(self, task: str, parts: Mapping[str, Any], size: int, rng: Rng) -> str | None:
        rates, error = self._rates, self._rates.error_at(size, 2)
        match task:
            case "sufficiency":
                enough = _coverage(parts["question"], parts["answer"], parts["passages"]) >= _COVERAGE
                return "The passages give it.\n[[yes]]" if enough else "The passages do not give it.\n[[no]]"
            case "attribution":
                found = [
                    str(number)
                    for number, passage in parts["passages"]
                    if _coverage(parts["question"], parts["answer"], passage) >= _COVERAGE
                ]
                return f"[[{', '.join(found) or 'none'}]]"
            case "question":
                wrong, readable = rng.fraction() < error, rng.fraction() >= rates.misformat
                return write_question(parts["passage"], rng, wrong_evidence=wrong, readable=readable)
            case "criteria":
                readable = rng.fraction() >= rates.misformat
                return write_criteria(
                    parts["better"], parts["worse"], parts["most"], rng, error=error, readable=readable
                )
            case "compare":
                return compare_by(parts["criterion"], parts["first"], parts["second"])
            case "checklist":
                return write_checklist(parts["prompt"], parts["most"], rng, error, rates)
            case "rationale":
                return write_rationale(parts["first"], parts["second"], parts["letter"], rng, error, rates)
            case "verify":
                return verify(parts["analysis"], parts["first"], parts["second"])
            case "judge":
                return self._judgment(parts, error, rng)
            case "answer":
                return self._response(parts, error, rng)
            case _:
                raise AssertionError(f"unknown task {task}")

    def _judgment(self, parts: Mapping[str, Any], error: float, rng: Rng) -> str | None:
        document = self._answers.get(parts["document"])
        if document is None:
            return None
        score = _true_score(document, parts["response"])
        # Always four draws, so that one rate does not change where another strikes.
        errs, disagrees, misformats, direction = (rng.fraction() for _ in range(4))
        if score is None:
            score = rng.below(11)
        elif errs < error:
            score = rng.choice([other for other in range(11) if abs(other - score) >= _MIN_ERROR])
        elif disagrees < self._rates.disagreement:
            score += 1 if score == 0 or (score < 10 and direction < 0.5) else -1
        lead, good, fair, poor = _ANALYSES[parts["language"]]
        quote = _quotation(parts["context"], document.answer)
        opinion = good if score >= 8 else fair if score >= 4 else poor
        analysis = " ".join(filter(None, [lead.format(quote=quote) if quote else "", opinion]))
        return analysis if misformats < self._rates.misformat else f"{analysis}\n\n[[{score}]]"

    def _response(self, parts: Mapping[str, Any], error: float, rng: Rng) -> str | None:
        document, shown = self._answers.get(parts.get("document", "")), parts["shown"]
        if document is None:
            return fill_gap(parts["question"], shown)
        held = _coverage(document.question, document.answer, shown) >= _COVERAGE
        if held and rng.fraction() >= error:
            return document.answer
        others = self._answers.before(document)
        return rng.choice(others) if others else "The passages do not tell."


def write_question(passage: str, rng: Rng, *, wrong_evidence: bool, readable: bool) -> str:
    """Asks for the last word of a drawn sentence of the passage, with the sentence as evidence.

    Wrong evidence is a sentence that is not in the passage; an unreadable reply lacks the label of the evidence.
    """
    found = [part for part in _SENTENCE.findall(passage) if len(words_of(part)) >= _MIN_SENTENCE]
    if not found:
        return "There is nothing to ask about."
    sentence = rng.choice(found)
    last = _LAST_WORD.search(sentence)
    assert last is not None, "a sentence has words"
    beginning = " ".join(sentence[: last.start()].split())
    evidence = f"{beginning} quite another sentence." if wrong_evidence else " ".join(sentence.split())
    label = "Evidence: " if readable else ""
    return f"Question: {_GAP.format(beginning)}\nAnswer: {last[1]}\n{label}{evidence}"


def fill_gap(question: str, shown: str) -> str | None:
    """The answer to a question of `write_question` from the text shown; None for any other question."""
    match = _GAP_PATTERN.fullmatch(question.strip())
    if match is None:
        return None
    beginning = r"\s+".join(map(re.escape, match[1].split()))
    found = re.search(rf"{beginning}\s*(\w+)", shown)
    return found[1] if found else "unknown"


def write_criteria(better: str, worse: str, most: int, rng: Rng, *, error: float, readable: bool) -> str:
    """Asks for drawn words that only the better response contains; if it has none, for the absence of the worse one's.

    With probability `error` a criterion is faulty: it asks for a word of the worse response, so that the worse one or
    both meet it. An unreadable reply lacks the label of its lines.
    """
    good, bad = dict.fromkeys(words_of(better)), dict.fromkeys(words_of(worse))
    sound = [_SAYS.format(word) for word in good if word not in bad]
    sound = sound or [_OMITS.format(word) for word in bad if word not in good]
    from_sound, from_faulty = rng.order(sound), rng.order([_SAYS.format(word) for word in bad])
    drawn = [
        next(from_faulty if rng.fraction() < error else from_sound, "") for _ in range(min(most, len(sound)))
    ]
    label = "Criterion: " if readable else ""
    return "\n".join(f"{label}{criterion}" for criterion in drawn if criterion) or "There is no difference."


def compare_by(criterion: str, first: str, second: str) -> str | None:
    """The verdict on two responses by a criterion of `write_criteria`; None for any other criterion."""
    match = _CRITERION.fullmatch(criterion)
    if match is None:
        return None
    meets = [(match[2] in words_of(response)) is (match[1] == "says") for response in (first, second)]
    letter = "C" if meets[0] == meets[1] else "A" if meets[0] else "B"
    return f"The word was looked up in both.\n\n[[{letter}]]"


def write_checklist(prompt: str, most: int, rng: Rng, error: float, rates: ErrorRates) -> str:
    """Demands that a response says drawn words of the prompt, in 20 times as many words as the prompt has.

    With probability `error` a criterion is faulty: no word of the prompt. An unreadable reply lacks its labels.
    """
    words = sorted({*words_of(prompt)})
    drawn = [word if rng.fraction() >= error else f"not{word}" for word in rng.order(words)][:most]
    readable = rng.fraction() >= rates.misformat
    label = "Criterion: " if readable else ""
    length = [f"Words: {20 * len(words_of(prompt))}"] if readable else []
    return "\n".join([*length, *(f"{label}{_SAYS.format(word)}" for word in drawn)])


def write_rationale(first: str, second: str, letter: str, rng: Rng, error: float, rates: ErrorRates) -> str:
    """Names a drawn word that the response with this letter has and the other lacks.

    With probability `error` the claim is false: the word is one that only the other response has. At the misformat rate
    the verdict is missing.
    """
    own, other = ({*words_of(text)} for text in ((first, second) if letter == "A" else (second, first)))
    sound, faulty = sorted(own - other), sorted(other - own)
    wrong, readable = rng.fraction() < error, rng.fraction() >= rates.misformat
    drawn = (faulty if wrong else sound) or sound or faulty
    if not drawn:
        return "There is no difference."
    claim = _CLAIM.format(letter, rng.choice(drawn), "BA"["AB".index(letter)])
    return f"{claim}\n\n[[{letter}]]" if readable else claim


def verify(analysis: str, first: str, second: str) -> str | None:
    """The verdict with an analysis of `write_rationale`: its response if the claim holds; None for any other."""
    match = _CLAIM_PATTERN.fullmatch(analysis.strip())
    if match is None:
        return None
    named, other = (first, second) if match[1] == "A" else (second, first)
    holds = match[2] in words_of(named) and match[2] not in words_of(other)
    return f"The word was looked up in both.\n\n[[{match[1] if holds else 'C'}]]"


def _true_score(document: Document, response: str) -> int | None:
    """In points; None if nothing determines it."""
    scores = [one.score for one in document.candidates if one.text.strip() == response.strip()]
    share = scores[-1] if scores else None
    if share is not None and not 0 <= share <= 1:
        raise DataError(
            f"document '{document.id}': a simulated judge needs candidates' scores from 0 to 1, got {share}; scale the "
            "scores, or omit them"
        )
    if share is None and document.answer.strip():
        share = answer_metric(document.metric or "token_f1")(response, document.answer)
    return None if share is None else round(10 * share)


def _coverage(question: str, answer: str, text: str) -> float:
    """The share of a gold answer's words that a text contains."""
    return gold_words(question, answer, lambda word: 1.0).coverage(text) if answer.strip() else 0.0


def _quotation(context: str, answer: str) -> str:
    """The sentence of the context with most of the gold answer's words; empty if there is no context."""
    parts = [(part.strip(), {*words_of(part)}) for part in _SPLIT.split(context)]
    quotable = [(part, words) for part, words in parts if words and part[0] != "<"]  # not the tags
    gold = {*words_of(answer)}
    best, _ = max(quotable, key=lambda one: len(gold & one[1]), default=("", gold))
    plain = " ".join(_NOT_QUOTED.sub("", best).split())
    return plain if approximate_tokens(plain) <= _MAX_QUOTE else " ".join(plain.split()[:_MAX_QUOTE])
