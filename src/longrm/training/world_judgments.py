"""What a generative reward model learns to write about generated comparisons: facts, judgments, and preferences.

A judgment restates the record that decides and then gives its verdict: "Corimo: keeps bucket. [[A]]". Preferred
judgments are found as in LongRM's stage 2, by consensus of several judges; here these are simulated.
"""

from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import assert_never

from longrm.data.joining import Encoded, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.judging import JudgingFormat, load_format
from longrm.rng import Draws
from longrm.training.data_settings import CompletionForm
from longrm.types import Comparison, Message, message_text, query_of, text_of

TEMPLATES = {
    form: Path(str(files("longrm") / "recipes" / "demo" / f"judge_{form}.jinja"))
    for form in ("pairwise", "pointwise")
}
"""The prompts of judges of generated worlds, in the words of the worlds."""

_Judgment = tuple[str, str]
"""The record that decides as it was read, and the verdict."""

_REJECTED = 2  # at most, as in LongRM's stage 2


class JudgmentWriter:
    """Turns comparisons of two responses into completions to learn.

    Args:
        forms: The forms of completions; the one of a comparison is drawn from its id.
        judges: Simulated judges that vote on every comparison.
        error: How often one of them errs: half of the time in what it reads, half in the verdict alone.

    Raises:
        ConfigError: The tokenizer has no tokens for verdicts.
    """

    def __init__(
        self, tokenizer: Tokenizer, forms: tuple[CompletionForm, ...], *, judges: int, error: float
    ) -> None:
        if "[[" not in tokenizer.decode(tokenizer.encode("[[A]]")):
            raise ConfigError(
                "data.world.completions: the model's tokenizer has no tokens for verdicts such as [[A]]; start "
                'from a model that has, or set model.new.tokenizer = "judge_words"'
            )
        self._tokenizer = tokenizer
        self._forms = forms
        self._judges = judges
        self._error = error
        self._formats: dict[str, JudgingFormat] = {
            name: load_format(name, template=template) for name, template in TEMPLATES.items()
        }

    def demonstration(self, row: Comparison) -> Encoded:
        """The prompt, and the right completion."""
        draws = Draws("written", row.id)
        form = draws.one(self._forms)
        if form == "fact":
            return self._encoded(row.prompt, [_record(row, _value(row, row.best_first()[0]))])
        prompt, right, _ = self._query(row, form, draws)
        return self._encoded(prompt, [_written(right)])

    def preference(self, row: Comparison) -> Encoded | None:
        """The prompt, the judgment that most judges agree on, and what a minority wrote; None where all agree.

        The judgments of each verdict form a cluster. The chosen judgment is the most frequent one of the largest
        cluster; the rejected ones are the most frequent of the others, two at most.
        """
        draws = Draws("written", row.id)
        prompt, right, misread = self._query(row, draws.one(self._forms), draws)
        votes = Counter[_Judgment]()
        for _ in range(self._judges):
            drawn, vote = draws.fraction(), right
            if drawn < self._error / 2:
                vote = misread
            elif drawn < self._error:
                vote = (right[0], misread[1])
            votes[vote] += 1
        clusters = Counter[str]()
        for (_, verdict), count in votes.items():
            clusters[verdict] += count
        verdict = clusters.most_common(1)[0][0]
        ranked = [judgment for judgment, _ in votes.most_common()]
        chosen = next(judgment for judgment in ranked if judgment[1] == verdict)
        rejected = [judgment for judgment in ranked if judgment[1] != verdict][:_REJECTED]
        return self._encoded(prompt, list(map(_written, [chosen, *rejected]))) if rejected else None

    def _query(
        self, row: Comparison, form: CompletionForm, draws: Draws
    ) -> tuple[tuple[Message, ...], _Judgment, _Judgment]:
        """A prompt, the right judgment, and that of a judge who mistakes the value of the record."""
        best, other = row.best_first()
        order = [best, other]
        draws.shuffle(order)
        match form:
            case "pairwise":
                shown, (right, wrong) = order, ("AB"[order.index(index)] for index in (best, other))
            case "pointwise":
                shown, (right, wrong) = order[:1], ("10", "0") if order[0] == best else ("0", "10")
            case "fact":
                raise AssertionError("a fact has no query")
            case unknown:
                assert_never(unknown)
        (prompt,) = self._formats[form].render(query_of(row, shown))
        records = [_record(row, _value(row, index)) for index in (best, other)]
        return prompt, (records[0], right), (records[1], wrong)

    def _encoded(self, prompt: tuple[Message, ...], texts: list[str]) -> Encoded:
        responses = [({"role": "assistant", "content": text},) for text in texts]
        return encode(self._tokenizer, prompt, responses)


def _written(judgment: _Judgment) -> str:
    record, verdict = judgment
    return f"{record} [[{verdict}]]"


def _record(row: Comparison, value: str) -> str:
    """The record that decides as a note of it, with a value: "Corimo: keeps bucket."."""
    (span,) = row.evidence
    entity, verb, _ = message_text(row.prompt[span.message])[span.start : span.end].rstrip(".").split()[-3:]
    return f"{entity}: {verb} {value}."


def _value(row: Comparison, response: int) -> str:
    """The value that a response names, its last word."""
    return text_of(row.responses[response]).rstrip(".").split()[-1]
