"""Formats whose verdict is one token: nothing is written and nothing is parsed, for its probability is read.

SWE-RM reads the logits of YES and NO so, and vLLM serves a language model so as a classifier (`classifier_from_token`,
`from_2_way_softmax`).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase as LETTERS

from longrm.errors import ConfigError, nearest
from longrm.judging.format import JudgingFormat
from longrm.judging.listwise import Listwise
from longrm.judging.pairwise import Pairwise
from longrm.judging.pointwise import Pointwise
from longrm.judging.prompts import CRITERIA, ONE_CRITERION
from longrm.judging.templates import Template


class TokenFormat(JudgingFormat):
    """A format that asks for one of some tokens.

    Attributes:
        tokens: Those that are asked for: one for each response in presented order or, where a response is judged
            alone, the one that is for it and the one against.
    """

    tokens: tuple[str, ...]

    def scores(self, logprobs: Sequence[Sequence[float]], responses: int) -> tuple[float, ...]:
        """The scores of so many responses, whose differences are log-odds.

        Args:
            logprobs: For every prompt, the log-probability of every token as the first of the answer.
            responses: How many responses there are.

        Returns:
            Judged alone, the log-odds of the token for a response against the other one. Else the log-probability
            of each response's token among those of all of them.
        """
        if self.alone:
            return tuple(yes - no for yes, no in logprobs)
        (row,) = logprobs
        shown = row[:responses]
        highest = max(shown)
        if not math.isfinite(highest):
            return tuple(shown)
        total = highest + math.log(sum(math.exp(value - highest) for value in shown))
        return tuple(value - total for value in shown)

    def spoken(self, row: Sequence[float]) -> str:
        """The probabilities that were read, in words: where they are small, the model would say something else."""
        return ", ".join(
            f"P({token}) = {math.exp(value):.4f}" for token, value in zip(self.tokens, row, strict=False)
        )


class TokenPairwise(TokenFormat, Pairwise):
    """Asks which of two responses is better, A or B."""

    request = "Answer with one letter and nothing else: A if response A is better, B if response B is better."
    tokens = ("A", "B")


class TokenListwise(TokenFormat, Listwise):
    """Asks which of 2 to 26 responses is the best, by its letter."""

    instruction = (
        "Above stands what the models were given; below stand several responses to its last turn, each named by a "
        "letter. Decide which is the best: the most faithful one or, among equally faithful ones, the most helpful "
        "one.\n\n" + CRITERIA
    )
    by_criterion = (
        "Above stands what the models were given; below stand several responses to its last turn, each named by a "
        "letter. Decide which is the best by one criterion.\n\n" + ONE_CRITERION
    )
    request = "Answer with one letter and nothing else: that of the best response."
    tokens = tuple(LETTERS)


class TokenPointwise(TokenFormat, Pointwise):
    """Asks whether one response is good, Yes or No."""

    instruction = (
        "Above stands what a model was given; below stands its response to the last turn. Decide whether the response "
        "is good: faithful in all that matters, and an answer to the question.\n\n" + CRITERIA
    )
    by_criterion = (
        "Above stands what a model was given; below stands its response to the last turn. Decide whether the response "
        "is good by one criterion, which it meets or does not.\n\n" + ONE_CRITERION
    )
    request = "Answer with one word and nothing else: Yes if the response is good, No if it is not."
    tokens = ("Yes", "No")


TOKEN_FORMATS: dict[str, type[TokenFormat]] = {
    kind.name: kind for kind in (TokenPairwise, TokenListwise, TokenPointwise)
}
"""The registry of formats that are answered by one token; they have the names of those that are answered in words."""


def load_token_format(
    name: str, *, template: Path | None = None, tokens: Sequence[str] | None = None
) -> TokenFormat:
    """Makes a format, with the user's own prompt and tokens where they are given.

    Args:
        name: One of `TOKEN_FORMATS`.
        template: A jinja2 file that becomes the one user's message of every prompt: see `templates.Template`.
        tokens: What it asks for; see `TokenFormat.tokens`.

    Raises:
        ConfigError: An unknown name, a template that cannot be used, or tokens that are none, too few or the same.
    """
    if name not in TOKEN_FORMATS:
        raise ConfigError(f"no judging format '{name}'; {nearest(name, TOKEN_FORMATS)}")
    kind = TOKEN_FORMATS[name]
    made = kind(None if template is None else Template(template, alone=kind.alone))
    if tokens is not None:
        if template is None:
            raise ConfigError("judge.tokens needs judge.template, a prompt of your own that asks for them")
        _check_tokens(tokens, exactly=None if kind is TokenListwise else 2)
        made.tokens = tuple(tokens)
    return made


def _check_tokens(tokens: Sequence[str], *, exactly: int | None) -> None:
    if not all(token.strip() for token in tokens) or len({token.strip() for token in tokens}) < len(tokens):
        raise ConfigError(f"judge.tokens needs tokens that differ and are no blanks, got {list(tokens)}")
    if len(tokens) < 2 or (exactly is not None and len(tokens) != exactly):
        raise ConfigError(f"judge.tokens needs {exactly or 'at least 2'} tokens, got {len(tokens)}")
