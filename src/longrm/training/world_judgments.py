"""What a generative reward model learns to write about generated comparisons: facts, judgments, and preferences.

A judgment restates the record that decides and then gives its verdict: "Corimo: keeps bucket. [[A]]". Preferred
judgments are found as in LongRM's stage 2, by consensus of several judges, which are simulated here.
"""

from collections import Counter
from importlib.resources import files
from pathlib import Path

from longrm.data.joining import Encoded, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.judging import JudgingFormat, load_format
from longrm.rng import Rng
from longrm.training.settings import CompletionForm
from longrm.types import Comparison, Message, message_text, query_of, text_of

TEMPLATES = {
    form: Path(str(files("longrm") / "recipes" / "demo" / f"judge_{form}.jinja"))
    for form in ("pairwise", "pointwise")
}
"""The prompts of judges of generated worlds, in the vocabulary of the worlds."""

_JUDGES, _ERROR_RATE = 7, 0.15  # simulated judges of a comparison, and how often each of them errs
_MAX_REJECTED = 2  # as in LongRM's stage 2

_Judgment = tuple[str, str]  # the record that decides as a judge read it, and the verdict


class JudgmentWriter:
    """Turns comparisons of two responses into completions to learn, in a form that is drawn from the comparison's id.

    Every comparison has several simulated judges. Half of a judge's errors are in what it reads, half in the verdict
    alone.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        forms: tuple[CompletionForm, ...],
        *,
        judges: int = _JUDGES,
        error: float = _ERROR_RATE,
    ) -> None:
        if "[[" not in tokenizer.decode(tokenizer.encode("[[A]]")):
            raise ConfigError(
                "data.world.completions: the model's tokenizer has no tokens for verdicts such as [[A]]; use another "
                'model, or set model.new.tokenizer = "judge_words"'
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
        rng = Rng("written", row.id)
        form = rng.choice(self._forms)
        if form == "fact":
            fact = _record(row, row.best_first()[0])
            return encode(self._tokenizer, row.prompt, [({"role": "assistant", "content": fact},)])
        prompt, right, _ = self._query(row, form, rng)
        return self._encoded(prompt, [right])

    def preference(self, row: Comparison) -> Encoded | None:
        """The prompt, the consensus judgment, and judgments of the minority; None if all judges agree.

        Judgments with the same verdict form a cluster. The chosen judgment is the most frequent one of the largest
        cluster; the rejected ones are the most frequent of the others.
        """
        rng = Rng("written", row.id)
        prompt, right, misread = self._query(row, rng.choice(self._forms), rng)
        votes, verdicts = Counter[_Judgment](), Counter[str]()
        for _ in range(self._judges):
            drawn, vote = rng.fraction(), right
            if drawn < self._error / 2:
                vote = misread
            elif drawn < self._error:
                vote = (right[0], misread[1])  # reads the record correctly and gives the wrong verdict
            votes[vote] += 1
            verdicts[vote[1]] += 1
        consensus = verdicts.most_common(1)[0][0]
        ranked = [judgment for judgment, _ in votes.most_common()]
        chosen = next(judgment for judgment in ranked if judgment[1] == consensus)
        rejected = [judgment for judgment in ranked if judgment[1] != consensus][:_MAX_REJECTED]
        return self._encoded(prompt, [chosen, *rejected]) if rejected else None

    def _query(
        self, row: Comparison, form: CompletionForm, rng: Rng
    ) -> tuple[tuple[Message, ...], _Judgment, _Judgment]:
        """A prompt, the right judgment, and that of a judge who misreads the value of the record."""
        best, other = row.best_first()
        order = [best, other]
        rng.shuffle(order)
        if form == "pairwise":
            shown, right, wrong = order, "AB"[order.index(best)], "AB"[order.index(other)]
        else:
            assert form == "pointwise", form
            shown = order[:1]
            right, wrong = ("10", "0") if order[0] == best else ("0", "10")
        (prompt,) = self._formats[form].render(query_of(row, shown))
        return prompt, (_record(row, best), right), (_record(row, other), wrong)

    def _encoded(self, prompt: tuple[Message, ...], judgments: list[_Judgment]) -> Encoded:
        texts = [f"{record} [[{verdict}]]" for record, verdict in judgments]
        return encode(self._tokenizer, prompt, [({"role": "assistant", "content": text},) for text in texts])


def _record(row: Comparison, response: int) -> str:
    """The record that decides, with the value that a response names, its last word: "Corimo: keeps bucket."."""
    (span,) = row.evidence
    entity, verb, _ = message_text(row.prompt[span.message])[span.start : span.end].rstrip(".").split()[-3:]
    value = text_of(row.responses[response]).rstrip(".").split()[-1]
    return f"{entity}: {verb} {value}."
