"""Rollouts: the judgments that training by reinforcement samples, with their rewards and advantages.

Every judgment has a seed of its own, from the seed of the training, the step, the prompt and its number in the group.
The rollouts of a step are logged before the step uses them, so a killed run continues with the same ones.
"""

import copy
import logging
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import torch

from longrm.data.training_rows import Example
from longrm.errors import DataError, TrainingError
from longrm.modeling.adapters import without_adapter
from longrm.modeling.group_sampling import Continuation, GroupSampler, Sample
from longrm.modeling.loading import LanguageModel
from longrm.modeling.local_generator import end_tokens, written_text
from longrm.modeling.shapes import build_trees, within_budget
from longrm.modeling.shared_prefix import TransformersModel, check_embedded, pack, response_logprobs
from longrm.reward_models.verdict_rewards import VerdictReward, VerdictScore
from longrm.rng import seed_of
from longrm.runs.logs import ROLLOUTS, Log
from longrm.runs.progress import Progress
from longrm.runs.records import RolloutRecord
from longrm.training.batches import ExampleSource
from longrm.training.distributed import ALONE, DistributedContext
from longrm.training.objectives import GRPO
from longrm.training.sampling import Curriculum
from longrm.training.settings import RolloutSettings, TrainingSettings
from longrm.training.sources import FileSource

_logger = logging.getLogger(__name__)

_FOR_ONE_OF_TWO = {"A": True, "B": False, "A > B": True, "B > A": False}
_WINDOW = 10  # steps over which a metric must leave its range
_RANGES = {
    "first_share": (0.3, 0.7, "verdicts name the first response of a pair"),
    "unparsed": (-1.0, 0.3, "judgments have no verdict"),
}
"""Metrics that should stay in a range. One that has left it is warned of again once it has been 0.1 inside of it."""

Logprobs = list[list[float]]
"""Of every judgment of a prompt, one number for each token."""


class _Group(NamedTuple):
    prompt: int  # its number in the step
    samples: list[Sample]
    old: Logprobs
    reference: Logprobs


@dataclass(slots=True)
class RolloutSource:
    """Judge prompts of another source, with judgments of the model in training as their responses.

    `batch` must be called for one step after the other: a step samples with the weights that the steps before it left.
    """

    prompts: ExampleSource
    objective: GRPO
    language_model: LanguageModel
    settings: TrainingSettings
    folder: Path  # of the log
    _: KW_ONLY
    curriculum: Curriculum | None
    context: DistributedContext = ALONE
    progress: Progress
    _reward: VerdictReward = field(init=False)
    _start: TransformersModel | None = field(init=False)  # a copy of the weights at the start, if needed
    _logged: dict[int, list[RolloutRecord]] | None = field(default=None, init=False)  # by step
    _examples: list[Example] = field(default_factory=list, init=False)
    _recent: deque[dict[str, float]] = field(init=False)  # metrics of the last steps
    _warned: set[str] = field(default_factory=set, init=False)  # metrics that are out of range now

    def __post_init__(self) -> None:
        self._reward = self._rollouts.reward()
        self._recent = deque(maxlen=_WINDOW)
        self.objective.rollouts = self._rollouts
        if isinstance(self.prompts, FileSource):  # a row without a gold verdict stops before any work
            rows = self.prompts.judge_rows()
            self._reward.judge(rows, [""] * len(rows), [0] * len(rows))
            self._warn_of_single_orders(self.prompts)
        copied = self._diverges and self.settings.model.lora is None
        self._start = copy.deepcopy(self.language_model.model).requires_grad_(False) if copied else None

    @property
    def _rollouts(self) -> RolloutSettings:
        assert self.settings.rollouts is not None, "settings of GRPO have rollouts"
        return self.settings.rollouts

    def _warn_of_single_orders(self, source: FileSource) -> None:
        if self._rollouts.group_by == "comparison":
            ordered = [row for row in source.examples() if len((row.judge or {})["order"]) > 1]
            single = [key for key, count in Counter(map(group_of, ordered)).items() if count == 1]
            if single:
                _logger.warning(
                    "rollouts.group_by: %d pairs or lists have one order only among the rows; each is its own group",
                    len(single),
                )

    @property
    def _diverges(self) -> bool:
        """Whether the loss has a divergence from the weights at the start."""
        return bool(self.objective.options["beta"])

    def batch(self, step: int, length: int | None) -> list[Example]:
        """The prompts of a step, counted from 0, with their judgments; `num_iterations` steps have the same ones."""
        first = step - step % self._rollouts.num_iterations
        if step > first and self._examples:
            return self._examples
        found, kept, metrics = self._batches(first)
        self.objective.groups = {record.id: record for _, record in found}
        self.objective.step_metrics = metrics
        self._warn(first, metrics)
        self._examples = [
            prompt.with_judgments(record.tokens) for prompt, record in (found[at] for at in kept)
        ]
        return self._examples

    def _batches(self, first: int) -> tuple[list[tuple[Example, RolloutRecord]], list[int], dict[str, float]]:
        """All prompts that were sampled for a step, the places of those that it learns from, and its metrics.

        Groups without an advantage are replaced by others of further batches, as long as there are some.
        """
        rollouts = self._rollouts
        # The length is that of the first step; the curriculum may have gone on since. The number of the batch is not
        # that of the step, or rows between would never be read. Further batches are those of the same place in later
        # epochs; no training on a world has as many steps as their distance there.
        length = self.curriculum.length(first) if self.curriculum else None
        number = first // rollouts.num_iterations
        distance = self.prompts.steps(1) if isinstance(self.prompts, FileSource) else 2**20
        found: list[tuple[Example, RolloutRecord]] = []
        groups: list[list[int]] = []
        wanted = useful = 0
        for further in range(rollouts.max_num_gen_batches):
            known = {prompt.id for prompt, _ in found}
            batch = self.prompts.batch(number + further * distance, length)
            prompts = [prompt for prompt in batch if prompt.id not in known]
            wanted = wanted or len(prompts)
            new = [[len(found) + at for at in group] for group in groups_of(prompts, rollouts)]
            found += zip(prompts, self._records(first, prompts), strict=True)
            learned = [any(any(found[at][1].advantages) for at in group) for group in new]
            groups[useful:useful] = [group for group, own in zip(new, learned, strict=True) if own]
            groups += [group for group, own in zip(new, learned, strict=True) if not own]
            useful += sum(learned)
            if sum(map(len, groups[:useful])) >= wanted:
                break
        kept: list[int] = []
        for group in groups:  # first those with an advantage
            kept += group if len(kept) + len(group) <= wanted else ()
        metrics = rollout_metrics([record for _, record in found], [*self._reward.weights])
        if rollouts.max_num_gen_batches > 1:
            begun = [group for group in groups if group[0] < wanted]  # those of the first batch
            metrics["replaced_groups"] = fmean(group[0] not in kept for group in begun)
        return found, sorted(kept), metrics

    def _warn(self, first: int, metrics: dict[str, float]) -> None:
        """Warns once when the mean of a metric over the last steps leaves its range."""
        self._recent.append(metrics)
        for name, (low, high, meaning) in _RANGES.items():
            values = [own[name] for own in self._recent if name in own]
            if len(values) < _WINDOW:
                continue
            mean = fmean(values)
            if low + 0.1 <= mean <= high - 0.1:
                self._warned.discard(name)
            elif not low <= mean <= high and name not in self._warned:
                self._warned.add(name)
                _logger.warning(
                    "steps %d to %d: %.0f%% of %s", first + 2 - _WINDOW, first + 1, 100 * mean, meaning
                )

    def _records(self, first: int, prompts: Sequence[Example]) -> list[RolloutRecord]:
        """The judgments of a batch of a step, from the log if the run was killed after they were written."""
        if self._logged is None:
            self._logged = {}
            for record in Log(self.folder / ROLLOUTS, RolloutRecord):
                if record.step > first:
                    self._logged.setdefault(record.step, []).append(record)
        logged = self._logged.pop(first + 1, [])
        if rest := logged[len(prompts) :]:  # of further batches
            self._logged[first + 1] = rest
        logged = logged[: len(prompts)]
        if len(logged) == len(prompts):
            return logged
        records = [*logged, *self._sample(first, prompts)[len(logged) :]]  # in the order of the prompts
        with Log(self.folder / ROLLOUTS, RolloutRecord) as log:
            log.append(*records[len(logged) :])
        return records

    def _sample(self, first: int, prompts: Sequence[Example]) -> list[RolloutRecord]:
        rollouts, rank, size = self._rollouts, self.context.dp_rank, self.context.dp_size
        # Prompts that begin alike are neighbors, and read from where they part. Both orders are read by one process.
        groups: dict[Hashable, list[int]] = {}
        for at in sorted(range(len(prompts)), key=lambda index: list(prompts[index].tokens.prompt)):
            groups.setdefault(group_of(prompts[at]), []).append(at)
        shares = [*groups.values()][rank * len(groups) // size : (rank + 1) * len(groups) // size]
        own = [at for share in shares for at in share]
        model = self.language_model.model
        model.eval()
        drawn = self._with_logprobs(
            prompts, list(zip(own, self._draw(first, [prompts[at] for at in own]), strict=True))
        )
        model.train()
        sampled = sorted(self.context.gather(drawn))

        tokenizer = self.language_model.tokenizer
        texts = [
            written_text(
                tokenizer,
                tokenizer.decode(prompt.tokens.prompt[-64:]),  # a chat template opens a thought at the end
                sample.tokens[: len(sample.tokens) - sample.ended],
            )
            for prompt, group in zip(prompts, sampled, strict=True)
            for sample in group.samples
        ]
        # The id of a comparison, with its file if there are several: each file has ids of its own.
        rows = [
            {**(prompt.judge or {}), "id": prompt.id.rpartition("#")[0]}
            for prompt in prompts
            for _ in range(rollouts.num_generations)
        ]
        counts = [len(sample.tokens) for group in sampled for sample in group.samples]
        flat = iter(zip(texts, self._reward.judge(rows, texts, counts), strict=True))
        judged = [[next(flat) for _ in group.samples] for group in sampled]
        scores = [[score for _, score in scored] for scored in judged]
        weights = advantages_of_batch(prompts, scores, rollouts)
        records = []
        for prompt, group, scored, weight in zip(prompts, sampled, judged, weights, strict=True):
            records.append(
                RolloutRecord(
                    step=first + 1,
                    id=prompt.id,
                    gold=str((prompt.judge or {})["gold"]),
                    length=len(prompt.tokens.prompt),
                    tokens=tuple(sample.tokens for sample in group.samples),
                    texts=tuple(text for text, _ in scored),
                    outcomes=tuple(str(score.outcome) for _, score in scored),
                    rewards=tuple(score.reward for _, score in scored),
                    advantages=tuple(weight),
                    terms=tuple(score.terms for _, score in scored),
                    verdicts=tuple(score.verdict for _, score in scored),
                    entropies=tuple(sample.entropy for sample in group.samples),
                    old_logprobs=tuple(map(tuple, group.old)),
                    reference_logprobs=tuple(map(tuple, group.reference)),
                )
            )
        return records

    def _draw(self, first: int, prompts: Sequence[Example]) -> list[list[Sample]]:
        """Samples the judgments of every prompt; both orders of a pair are read and written together."""
        rollouts = self._rollouts
        sampler = GroupSampler(self.language_model.model, end_tokens(self.language_model))
        limit = int(self.language_model.model.config.max_position_embeddings)
        groups: dict[Hashable, dict[str, Example]] = {}
        for prompt in prompts:
            check_embedded(prompt.tokens.prompt, self.language_model.model)
            room = limit - rollouts.max_completion_length
            if len(prompt.tokens.prompt) > room:
                raise DataError(
                    f"'{prompt.id}' has {len(prompt.tokens.prompt)} tokens, and the context window of {limit} leaves "
                    f"{room} with rollouts.max_completion_length = {limit - room}"
                )
            groups.setdefault(group_of(prompt), {})[prompt.id] = prompt
        drawn: dict[str, list[Sample]] = {}
        for own in groups.values():
            continuations = [
                Continuation(
                    prompt.tokens.prompt,
                    rollouts.max_completion_length,
                    seed_of("rollout", self.settings.seed, first, prompt.id, number),
                    rollouts.temperature,
                    rollouts.top_p,
                )
                for prompt in own.values()
                for number in range(rollouts.num_generations)
            ]
            samples = iter(sampler.write(continuations))
            for name in own:
                drawn[name] = [next(samples) for _ in range(rollouts.num_generations)]
                if broken := [sample for sample in drawn[name] if not sample.finite]:
                    raise TrainingError(
                        f"step {first + 1}: cannot sample judgments of '{name}': the logits of token "
                        f"{len(broken[0].tokens) + 1} are not finite; try a lower optimizer.learning_rate"
                    )
            self.progress("sampling", len(drawn), len(prompts))
        return [drawn[prompt.id] for prompt in prompts]

    def _with_logprobs(
        self, prompts: Sequence[Example], drawn: Sequence[tuple[int, list[Sample]]]
    ) -> list[_Group]:
        """Adds the log-probabilities that the loss compares with."""
        model = self.language_model.model
        examples = [
            prompts[index].with_judgments([sample.tokens for sample in samples]) for index, samples in drawn
        ]
        nothing: list[Logprobs] = [[]] * len(examples)
        old, reference = nothing, nothing
        if self._rollouts.num_iterations > 1:
            old = self._logprobs(model, examples)
        if self._diverges and self._start is not None:
            reference = self._logprobs(self._start, examples)
        elif self._diverges:
            with without_adapter(model):
                reference = self._logprobs(model, examples)
        return [_Group(*entry) for entry in zip(*zip(*drawn, strict=True), old, reference, strict=True)]

    @torch.inference_mode()
    def _logprobs(self, model: TransformersModel, examples: Sequence[Example]) -> list[Logprobs]:
        """The log-probabilities of every judgment's tokens, by example."""
        # Within the budget what prompts share is counted once: both orders of a comparison are one tree.
        budget = self.settings.memory.max_tokens_per_microbatch
        written = iter(own for example in examples for own in example.tokens.completion_tokens)
        values = iter(
            [
                value.tolist()
                for trees in within_budget(
                    build_trees([example.tokens for example in examples], budget), budget
                )
                for value in response_logprobs(
                    model,
                    pack(trees).to(model.device),
                    [next(written) for tree in trees for _ in tree.shape.leaves],
                    self._rollouts.temperature,
                )
            ]
        )
        return [[next(values) for _ in example.tokens.responses] for example in examples]


def group_of(prompt: Example) -> Hashable:
    """What all orders of a pair or a list have in common; a pointwise prompt, which has no order, is alone."""
    judge = prompt.judge or {}
    return prompt.id.rpartition("#")[0], judge["format"], tuple(sorted(judge["order"]))


def groups_of(prompts: Sequence[Example], rollouts: RolloutSettings) -> list[list[int]]:
    """The places of the prompts of every group."""
    groups: dict[Hashable, list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(group_of(prompt) if rollouts.group_by == "comparison" else index, []).append(index)
    return [*groups.values()]


def advantages_of_batch(
    prompts: Sequence[Example], scores: Sequence[Sequence[VerdictScore]], rollouts: RolloutSettings
) -> list[list[float]]:
    """The advantages of the judgments of every prompt of a batch."""
    found: dict[int, list[float]] = {}
    for indices in groups_of(prompts, rollouts):
        own = [scores[index] for index in indices]
        if rollouts.advantage_estimator == "rft":
            weights = rejection_sampling(own)
        else:
            scale = rollouts.scale_rewards == "group"
            flat = iter(advantages([one.reward for of in own for one in of], scale=scale))
            weights = [[next(flat) for _ in of] for of in own]
        found |= zip(indices, weights, strict=True)
    return [found[index] for index in range(len(prompts))]


def rejection_sampling(scores: Sequence[Sequence[VerdictScore]]) -> list[list[float]]:
    """Weights of the judgments of a group, by prompt: the best right ones are imitated (RFT, Yuan et al. 2023).

    Sampled by the model in training, this is the online RFT of DeepSeekMath (Shao et al. 2024, section 5.2). Of the
    right judgments of a prompt, those with the highest reward count: an odd form that was sampled once would be learned
    with the largest gradient. A group in which a prompt has no right judgment has no weight, and neither has one
    without a wrong judgment, of which nothing is left to learn. Otherwise the judgments of every prompt have a mean
    weight of 1, so that with one prompt for each order A and B are learned equally often, whichever is written more.
    """
    right = [[one.terms.get("correct") == 1.0 for one in own] for own in scores]
    if not all(map(any, right)) or all(map(all, right)):
        return [[0.0] * len(own) for own in scores]
    weights = []
    for own, correct in zip(scores, right, strict=True):
        most = max(one.reward for one, found in zip(own, correct, strict=True) if found)
        best = [found and one.reward == most for one, found in zip(own, correct, strict=True)]
        weights.append([len(own) / sum(best) * one for one in best])
    return weights


def advantages(rewards: Sequence[float], *, scale: bool) -> list[float]:
    """Rewards of a group less their mean, by default divided by their standard deviation (GRPO, Shao et al. 2024).

    As in TRL, the deviation is the unbiased one plus 1e-4. Without a difference between rewards all are exactly 0.
    """
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    mean, deviation = fmean(rewards), stdev(rewards) + 1e-4 if scale else 1.0
    return [(reward - mean) / deviation for reward in rewards]


def rollout_metrics(records: Sequence[RolloutRecord], names: Sequence[str]) -> dict[str, float]:
    """What a step logs about its judgments: means over judgments, except for `constant_groups`, over prompts.

    `accuracy` is the term "correct"; a term is a mean over the judgments to which it applies, and `omitted_NAME` counts
    the others, if there are any. `first_share` is that of verdicts for the first response among those for one of two.
    """
    count = sum(len(record.terms) for record in records)
    terms: dict[str, list[float]] = {}
    for record in records:
        for own in record.terms:
            for name, value in own.items():
                terms.setdefault(name, []).append(value)
    metrics = {
        "reward": fmean(reward for record in records for reward in record.rewards),
        **{name: fmean(values) for name, values in terms.items()},
        **{
            f"omitted_{name}": float(count - len(terms.get(name, ())))
            for name in names
            if len(terms.get(name, ())) < count
        },
        "unparsed": fmean(outcome == "unparsed" for record in records for outcome in record.outcomes),
        "constant_groups": fmean(not any(record.advantages) for record in records),
        "entropy": fmean(entropy for record in records for entropy in record.entropies),
        "judgment_tokens": fmean(len(tokens) for record in records for tokens in record.tokens),
    }
    # "A", listwise "A > B"; a list of more responses has no verdict of this form.
    firsts = [
        _FOR_ONE_OF_TWO[verdict]
        for record in records
        for verdict in record.verdicts
        if verdict in _FOR_ONE_OF_TWO
    ]
    if firsts:
        metrics["first_share"] = fmean(firsts)
    if "correct" in metrics:
        metrics["accuracy"] = metrics.pop("correct")
    return metrics
