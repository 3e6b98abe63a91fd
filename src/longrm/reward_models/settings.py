"""Settings of a reward model, and of a judge: a model that is asked for its verdict in words."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from longrm.clients import Completion
from longrm.clients.remote_settings import Remote
from longrm.config import OPERATIONAL, Config
from longrm.types import Comparison


class ModelSettings(Config):
    """How a reward model of any kind is loaded, and what it reads.

    Attributes:
        device: The device of a local model as torch names it, such as "cpu" or "cuda:1"; "auto" is a GPU if there is
            one.
        dtype: The type of its weights; "auto" is that of the checkpoint. A scalar head is always float32.
        max_length: The most tokens of prompt and answer together; by default the model's context window.
        cut: What to cut of a context that does not fit: its "middle", "left" (the beginning) or "right" (the end).
            "refuse" cuts nothing; the outcome is then too_long.
        label_weights: For a model with several labels: the weight of each in the score, by its name in the config's
            `id2label`. The default weight is 0.
        likelihood: How `likelihood:MODEL` reduces the log-probabilities of a response's tokens: "sum", or "mean", which
            does not favor short responses.
        compress_tokens: The most words and punctuation marks of a context that `compress:MODEL` keeps.
    """

    device: Annotated[str, OPERATIONAL] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_length: int | None = Field(None, ge=1)
    cut: Literal["middle", "left", "right", "refuse"] = "refuse"
    label_weights: Mapping[str, float] | None = None
    likelihood: Literal["sum", "mean"] = "sum"
    compress_tokens: int = Field(1024, ge=1)


class JudgeSettings(Config):
    """How a language model is asked for its judgment.

    Attributes:
        name: A published judge, which is asked and answers in its own form: one of `JUDGES`, such as "nemotron-genrm".
            All but that one need `template`, a file with their prompt.
        format: What a generative reward model is asked for: "pairwise" (which of two is better), "listwise" (a ranking)
            or "pointwise" (0 to 10 for each response alone). By default pairwise for two responses, else listwise.
            For trajectories "steps" (labels of all steps in one answer, the default there) or "each-step" (one step at
            a time).
        template: A jinja2 file with a prompt of your own; by default the format's.
        verdict: A regular expression with one group that finds the verdict your template asks for.
        tokens: The tokens that your template asks for, whose probabilities `tokens:MODEL` reads: one for each response
            in presented order or, pointwise, the one for the response and the one against it.
        solve: Whether a generative reward model first answers the question itself, before it sees the responses, and
            then judges them in the same conversation (S2J, arXiv 2509.22099).
        retries: How often the model is asked again if its answer contains no verdict.
        temperature: 0 decodes greedily; votes need more.
        seed: Seeds the sampling.
        max_tokens: The most tokens an answer may have.
        rubrics: Judge by one criterion at a time; the score is the weighted mean. "item" uses the `rubrics` of each
            row; a file has the same criteria for all rows, one per line (`criterion`, and optionally `weight`).
        group: How a judge that compares responses scores a group of N. "listwise" shows it all of them at once. The
            others compare two at a time, in both orders, and score by Bradley-Terry strengths: "round-robin" all pairs,
            N (N - 1) verdicts, "anchor" each response with one of them, 2 (N - 1) verdicts.
    """

    name: str | None = None
    format: Literal["pairwise", "listwise", "pointwise", "steps", "each-step"] | None = None
    template: str | None = None
    verdict: str | None = None
    tokens: tuple[str, ...] | None = None
    solve: bool = False
    retries: int = Field(1, ge=0)
    temperature: float = Field(0.0, ge=0)
    seed: int = Field(0, ge=0)
    max_tokens: int = Field(1024, ge=1)
    rubrics: str | None = None
    group: Literal["listwise", "round-robin", "anchor"] = "listwise"

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        for other in ("format", "verdict", "tokens", "solve"):
            if self.name is not None and getattr(self, other):
                raise ValueError(f"judge.{other} does not apply with judge.name, which has its own form")
        return self


DEFAULT_MODEL, DEFAULT_JUDGE = ModelSettings(), JudgeSettings()


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of `longrm.load` except the name."""

    model_args: ModelSettings
    judge: JudgeSettings
    remote: Remote
    gold: Iterable[Comparison]
    on_usage: Callable[[Completion], None] | None
