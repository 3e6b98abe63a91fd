"""The contents of `summary.json` as pydantic models, for every kind of run: they write it, read it and make its schema.

Shares and accuracies are fractions from 0 to 1. Parts by length are keyed by whole tokens, written in decimal.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
)

from longrm.errors import RunError
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1, known_metric
from longrm.evaluation.rules import RULES, rule_key
from longrm.reading import reading, short
from longrm.runs.folder import SCHEMA_VERSION, SUMMARY, read_json
from longrm.runs.records import Count, Estimate, PaddingCheck
from longrm.types import Outcome, Scale

BoundaryStatus = Literal["resolved", "unresolved", "below_range", "beyond_range", "rising", "not_monotone"]
CrossingSide = Literal["within_range", "below_range", "beyond_range", "undefined"]
DepthBin = Literal["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0"]
"""Bins of depth: 1 belongs to the last one; every other edge to the bin above it."""
DEPTH_BINS: tuple[DepthBin, ...] = get_args(DepthBin)
Link = Literal["logistic", "logistic, temperature fitted", "vote share"]
"""How a margin becomes a confidence."""
CheckResult = Literal["same", "changed", "unanswered", "impossible"]
CONTEXT_CHECKS: tuple[CheckResult, ...] = get_args(CheckResult)
"""The results of a context check that ran; see `ContextCheck`."""
PADDING_CHECKS: tuple[PaddingCheck, ...] = ("same", "gained", "lost", "unanswered", "impossible")
UnitShare = Annotated[FiniteFloat, Field(ge=0, le=1)]
Percent = FiniteFloat | None
Positive = Annotated[int, Field(ge=1)]
MetricName = Annotated[str, AfterValidator(known_metric)]
Metrics = dict[MetricName, Estimate]
ByLength = dict[str, Metrics]
ByDepth = dict[DepthBin, Metrics]


def depth_bin(depth: float) -> DepthBin:
    """The bin of a depth from 0 to 1."""
    return DEPTH_BINS[min(int(depth * len(DEPTH_BINS)), len(DEPTH_BINS) - 1)]


def main_metric(reported: Iterable[str]) -> str:
    """What accuracy means in a run with these metrics: top-1 if some comparison has more than two responses.

    Top-1 is reported only then; on pairs it equals pair accuracy.
    """
    return TOP1.name if TOP1.name in reported else PAIR_ACCURACY.name


class SummaryPart(BaseModel):
    """Base of everything in a summary. Fields that are None by default are not written while they are None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _without_absent_parts(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        optional = {name for name, field in type(self).model_fields.items() if field.default is None}
        return {
            key: value for key, value in handler(self).items() if value is not None or key not in optional
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON values that `summary.json` contains."""
        return self.model_dump(mode="json")


class TrialCounts(SummaryPart):
    """Number of trials (each order, and each vote within it), in all and by outcome."""

    total: Count
    outcomes: dict[Outcome, Count]


class CutCounts(SummaryPart):
    """Comparisons whose context was cut to fit, and the number of tokens cut."""

    comparisons: Count
    tokens: Count


class EvaluationCounts(SummaryPart):
    """Everything that an evaluation counts."""

    comparisons: Count  # number of comparisons
    groups: Count  # number of groups that they are from
    outcomes: dict[Outcome, Count]  # comparisons by outcome
    without_gold: Count  # comparisons whose gold does not rank any two responses differently
    trials: TrialCounts  # number of trials
    cut: CutCounts  # contexts that were cut to fit
    retried: Count  # trials that took more than one attempt
    # Comparisons by the result of the context check; null if it did not run
    context_check: dict[CheckResult, Count] | None
    padding_check: dict[PaddingCheck, Count] | None = (
        None  # the same of the padding check; absent if it did not run
    )
    skipped_rows: Count | None = None  # rows of the benchmark that could not be read, if it counts them
    # Size of the benchmark, if a stratified sample was taken (`source.limit`)
    sampled_from: Count | None = None


class MacroMeans(SummaryPart):
    """Unweighted means of main accuracy over tasks, and over lengths."""

    by_task: Estimate
    by_length: Estimate


class PairBreakdown(SummaryPart):
    """Metrics of the pairs alone, in a run that also has rankings."""

    overall: Metrics
    by_task: dict[str, Metrics]
    by_length: ByLength
    macro: MacroMeans


class MetricBreakdown(SummaryPart):
    """The metrics over everything, and in each part."""

    overall: Metrics
    by_length: ByLength
    by_depth: ByDepth
    by_length_and_depth: dict[str, ByDepth]
    by_task: dict[str, Metrics]
    by_subtype: dict[str, Metrics]
    by_task_and_length: dict[str, ByLength]
    macro: MacroMeans
    pairs: PairBreakdown | None


class PartAnswers(SummaryPart):
    """How much of an incompletely answered part of the comparisons was answered."""

    comparisons: Positive  # comparisons in the part
    answered: Count  # those that were answered
    outcomes: dict[Outcome, Positive]  # the others by outcome
    reason: str  # the same as text, with the error of the first comparison of each outcome


class MissingAnswers(SummaryPart):
    """The parts in which some comparison was not answered. Parts that are absent here were answered completely."""

    overall: PartAnswers | None = None
    by_length: dict[str, PartAnswers] = {}
    by_depth: dict[DepthBin, PartAnswers] = {}
    by_length_and_depth: dict[str, dict[DepthBin, PartAnswers]] = {}
    by_task: dict[str, PartAnswers] = {}
    by_subtype: dict[str, PartAnswers] = {}
    by_task_and_length: dict[str, dict[str, PartAnswers]] = {}


class AccuracyReadings(SummaryPart):
    """Main accuracy with missing answers counted as wrong, as chance, or left out; undefined without any answer."""

    strict: Estimate
    chance_credit: Estimate
    answered: Estimate


class FailureRates(SummaryPart):
    """Failure patterns of generative judges; null where they cannot be observed."""

    format_missed: Estimate | None  # share of trials with a text that has no verdict
    # Share of comparisons whose verdict stays the same without their context
    context_ignored: Estimate | None
    contradicted: Estimate | None  # share of explanations that argue for another verdict
    # Share of criteria that discriminate between responses and prefer another one than the verdict
    criteria_against: Estimate | None = None
    # Share of comparisons in which the worst response became the best when it was padded (`judging.padding_check`)
    padding_gained: Estimate | None = None


class PositionBias(SummaryPart):
    """Effect of the presented order, on comparisons that were judged in more than one."""

    # Share of comparisons, answered in every order, with the same best response in all of them
    consistency: Estimate
    first_wins: Estimate  # share of decided pair trials that prefer the response shown first; 0.5 is unbiased
    # Share of answered trials whose best response was shown there, by number of responses and place from 0
    by_place: dict[str, dict[str, Estimate]]
    single_order: Estimate  # accuracy of a single trial
    order_cancelled: Estimate  # accuracy of all orders together, on the same comparisons


class SolvedShares(SummaryPart):
    """Of the comparisons with a gold answer: what the judge solves itself, and what it still misjudges."""

    solved: Estimate  # share whose question the judge answers correctly
    gap: Estimate  # share that it solves but judges wrong; a tie counts half, as in accuracy


class SolveToJudge(SolvedShares):
    """The solve-to-judge gap (S2J, arXiv 2509.22099) of a judge that answers the question before it judges."""

    outcomes: dict[Outcome, Count]  # comparisons by the outcome of the judge's own answer
    by_length: dict[str, SolvedShares]


class LengthBias(SummaryPart):
    """Accuracy on gold pairs whose better response is longer, on those where it is shorter, and the difference."""

    better_longer: Estimate
    better_shorter: Estimate
    difference: Estimate


class Agreement(SummaryPart):
    """Agreement of two raters on pairs; a verdict is the response shown first, the second, or a tie."""

    raw: Estimate  # share of pairs with equal verdicts
    kappa: Estimate  # Cohen's kappa: 0 is chance, 1 full agreement; undefined if both always gave one verdict


class GoldAgreement(Agreement):
    """Agreement of the judge with gold; a pair without a verdict agrees with nothing."""

    by_length: dict[str, Agreement]


class RepeatAgreement(SummaryPart):
    """Agreement of trials of one comparison in the same presented order."""

    raw: Estimate  # share of equal verdicts among all pairs of such trials; n counts these
    alpha: Estimate  # Krippendorff's alpha (nominal); undefined if all verdicts are equal; n counts answered trials


class SelfPreference(SummaryPart):
    """How often responses of `judging.self_names` win pairs with others' responses; a tie counts half."""

    judge: Estimate  # share won by the verdicts, of answered pairs
    gold: Estimate  # share won by gold, on the same pairs
    difference: Estimate  # the judge's share minus gold's; above 0 it prefers its own family


class CalibratedError(SummaryPart):
    """Calibration error of a perfectly calibrated judge on a sample of this size: its mean and 95th percentile."""

    mean: UnitShare
    high: UnitShare


class CalibrationError(SummaryPart):
    """Expected calibration error. It has no interval: it is biased upwards, so a bootstrap would miss the truth."""

    value: UnitShare
    n: Positive
    if_calibrated: CalibratedError


class ConfidenceBin(SummaryPart):
    """The gold pairs with a confidence between two limits."""

    low: UnitShare
    high: UnitShare
    n: Positive
    confidence: UnitShare
    accuracy: UnitShare


class Calibration(SummaryPart):
    """Calibration of the margins of gold pairs."""

    link: Link  # how a margin becomes a confidence
    temperature: Annotated[FiniteFloat, Field(gt=0)]  # what margins are divided by
    ece: CalibrationError  # the expected calibration error
    # The maximum-likelihood temperature; for logits only
    temperature_fitted: Annotated[FiniteFloat, Field(gt=0)] | None
    ece_fitted: CalibrationError | None  # the error with that temperature
    bins: tuple[ConfidenceBin, ...]  # the non-empty bins of confidence


class VoteCurve(SummaryPart):
    """Main accuracy by number of votes."""

    at: dict[str, Estimate]


class BaselineComparison(SummaryPart):
    """A baseline's accuracy compared with the model's."""

    value: Estimate  # the baseline's accuracy
    difference: Estimate  # the model's accuracy minus the baseline's, on the same comparisons
    beaten: bool  # whether the interval of the difference is above 0
    reads_context: bool = False  # whether the baseline reads the context, not just the responses


class RecommendedSize(SummaryPart):
    """Number of comparisons that detects an accuracy difference of this size with this power."""

    difference: FiniteFloat
    power: UnitShare
    comparisons: Positive


class Crossing(SummaryPart):
    """Length in tokens at which the monotone fit crosses the threshold, with an interval.

    - The interval is that of a cluster bootstrap, widened where accuracy falls so fast that the place between two
      lengths is unknown: to all crossings between them of logistic curves that fit (95% likelihood interval).
    - Outside the measured lengths, `value`, `low` or `high` is null, and its `_place` names the side.
    - If the fit and the interval of some bucket are on different sides of the threshold, all three are undefined: the
      fit assumes a single fall through the threshold, and the curve has none or several.
    - If a bucket next to the crossing has too few outcomes, `value` is undefined, and `low` and `high` are the
      boundary's `at_least` and `below`.
    """

    value: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    value_place: CrossingSide
    low_place: CrossingSide
    high_place: CrossingSide


class AboveChanceReach(SummaryPart):
    """The longest bucket whose lower limit is above chance there and at every shorter one."""

    tokens: int | None  # that bucket; null where there is none
    smallest_n: Positive  # smallest n of any bucket
    depends_on_n: bool  # always true: the reach grows with n, so compare it only between runs with equal n


class ContextBoundary(SummaryPart):
    """The context boundary, with everything that must be reported together with it."""

    # Pair accuracy, or top-1 where every comparison has more than two responses
    metric: Literal["pair_accuracy", "top1"]
    chance: UnitShare  # its chance level
    tau: Annotated[FiniteFloat, Field(gt=0, lt=1)]  # the accuracy threshold
    # A rise through the threshold is resolved if one bucket's interval is below it and a longer bucket's is not. Then
    # the status is `not_monotone` if a fall is resolved, too, else `rising`. Without such a rise it is `beyond_range`
    # if `at_least` is the longest bucket, `below_range` if `below` is the shortest, `resolved` if they are neighbors
    # and the fit agrees, else `unresolved`.
    status: BoundaryStatus
    # Longest bucket whose lower limit reaches the threshold there and at every shorter one
    at_least: int | None
    # Shortest bucket whose upper limit is below it. Longer buckets may be above it again if the curve rises.
    below: int | None
    estimate: Crossing  # where the monotone fit crosses the threshold
    # Lengths that would narrow the interval of the estimate: accuracy falls within one step of the measured ones
    more_lengths: tuple[int, ...] = ()
    slope_per_doubling: Estimate  # change of the log-odds per doubling of length
    above_chance_reach: AboveChanceReach  # the longest length above chance, which depends on n
    # Number of independent outcomes that each bucket is worth, by length
    effective_n: dict[str, Annotated[FiniteFloat, Field(gt=0)]]
    # Comparisons per length that would resolve the unresolved lengths with 80% power, if their accuracies are as
    # measured. Null if no length is unresolved, one has too few outcomes or is exactly at the threshold, or the
    # crossing is undefined.
    pairs_to_resolve: Positive | None
    # What to report first: the boundary, or the slope if the median bucket has few effective outcomes
    headline: Literal["boundary", "slope"]
    groups: Count = 0  # the smallest number of groups of any length; 0 if unknown


class RuleScore(SummaryPart):
    """The result of a published rule, in percent; fields beyond these are the rule's own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    overall_percent: Percent  # its overall score
    left_out: Count  # comparisons that ended in an error
    note: str | None = None  # why there is no overall score

    @property
    def parts(self) -> dict[str, dict[str, Percent]]:
        """The scores of parts of the benchmark, by kind of part: `by_task_percent`, `by_section_percent`, ..."""
        extra = self.__pydantic_extra__ or {}
        return {
            key: part for key, part in extra.items() if key.startswith("by_") and key.endswith("_percent")
        }


class AuditedKind(SummaryPart):
    """One kind of problem in a benchmark: a description, how often it occurs, and ids of examples."""

    what: str
    count: Count
    examples: tuple[str, ...]


class AuditSummary(SummaryPart):
    """Problems of the benchmark, by kind."""

    comparisons: Count
    findings: dict[str, AuditedKind]


class MeasuredWith(SummaryPart):
    """The unit of a probe's lengths, and its contents."""

    tokenizer: str  # name of the model or tokenizer that lengths count in, "words" or "approximate"
    worlds: tuple[str, ...]  # the generated worlds
    depths: tuple[UnitShare | Literal["uniform"], ...]  # positions of the evidence, from 0 to 1, or "uniform"
    # Digest of its vocabulary: models of different names may share a tokenizer; null in runs of earlier versions
    tokenizer_digest: str | None = None

    @property
    def identity(self) -> str:
        """What distinguishes the tokenizer from others: its digest, or its name where that is unknown."""
        return self.tokenizer_digest or self.tokenizer


class EvaluationSummary(SummaryPart):
    """The summary of an evaluation. The results of published rules are extra fields, named by `rule_key`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, RuleScore]

    schema_version: int = SCHEMA_VERSION
    kind: Literal["evaluation"] = "evaluation"
    model: str  # the reward model's name
    bench: str  # the benchmark's name
    scale: Scale  # what a difference of two scores means
    # Whether no comparison ended in an error, and every length, every cell of a length and a depth, and every task
    # has an answer
    complete: bool
    counts: EvaluationCounts  # everything that was counted
    chance: dict[MetricName, FiniteFloat]  # the chance level of every reported metric
    metrics: MetricBreakdown  # the metrics over everything, and in each part
    outcome_rates: dict[Outcome, Estimate]  # share of all comparisons with each outcome
    failures: FailureRates  # the failure patterns of generative judges
    accuracy: AccuracyReadings  # main accuracy under three treatments of missing answers
    # Position bias; null if no comparison was judged in two orders, or none was answered
    position: PositionBias | None
    length_bias: LengthBias | None  # length bias; null if the lengths of responses are unknown
    ties: Estimate  # share of judged gold pairs that tie
    calibration: Calibration | None  # calibration; null if margins have no meaning
    votes: VoteCurve | None  # main accuracy by votes; null with a single vote, or if nothing was answered
    # The model compared with each baseline; empty if nothing was answered
    baselines: dict[str, BaselineComparison]
    beats_baselines: bool | None  # whether the model beats all baselines; null if none ran
    # Comparisons needed to compare with another judge; null if nothing is scored
    recommended: RecommendedSize | None
    boundary: ContextBoundary | None  # the context boundary; null if no answered comparison has a length
    missing: MissingAnswers = MissingAnswers()  # where, and why, comparisons were not answered
    audit: AuditSummary | None = None  # problems of the benchmark, if it was audited
    measured: MeasuredWith | None = None  # the unit of lengths and the contents of a probe
    # What the judge solves itself; absent if it does not answer before it judges
    solve_to_judge: SolveToJudge | None = None
    # Agreement with gold beyond chance; absent without pairs that have an answer and gold
    gold_agreement: GoldAgreement | None = None
    repeats: RepeatAgreement | None = None  # agreement of repeats; absent if no order has two answers
    # Preference for the judge's own family; absent without pairs of one of its responses and another's
    self_preference: SelfPreference | None = None
    # Which shard of the comparisons was judged, such as "2/4"; absent for all of them
    shard: str | None = None

    @property
    def retry(self) -> str:
        """The end of a message about errors: whether they are retried. A record has nothing to retry."""
        return "" if self.model.startswith("recorded:") else "; the same command retries them"

    @property
    def rules(self) -> dict[str, RuleScore]:
        """The results of published rules, by the names of `longrm.evaluation.rules.RULES`."""
        extra = self.__pydantic_extra__
        return {name: extra[rule_key(name)] for name in RULES if rule_key(name) in extra}

    @property
    def best_rule(self) -> str | None:
        """The baseline with the highest accuracy; None if none ran."""
        return max(self.baselines, key=lambda name: self.baselines[name].value.value or 0.0, default=None)

    @property
    def main_metric(self) -> str:
        """The metric that accuracy means in this run; see the function `main_metric`."""
        return main_metric(self.metrics.overall)

    @property
    def accuracies(self) -> dict[str, Estimate]:
        """The main metric: of everything ("all"), and by length."""
        parts = {"all": self.metrics.overall, **self.metrics.by_length}
        return {part: found[self.main_metric] for part, found in parts.items() if self.main_metric in found}


StepEstimates = dict[str, Estimate]


class StepSummary(SummaryPart):
    """The summary of an evaluation of trajectories; `longrm.evaluation.step_metrics` defines the metrics."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["step evaluation"] = "step evaluation"
    model: str  # the reward model's name
    bench: str  # the benchmark's name
    complete: bool  # whether no trajectory ended in an error
    trajectories: Count
    groups: Count  # tasks
    steps: Count  # steps with a label
    outcomes: dict[Outcome, Count]  # how the queries about trajectories ended
    cut: CutCounts  # trajectories of which messages were omitted, and their tokens
    findings: dict[str, Count]  # what the benchmark's reader found, by its description
    sampled_from: Count | None = None  # the number of all trajectories, where a limit samples them
    # The score above which a step is right; absent if scores are labels, or have no such zero
    threshold: FiniteFloat | None = None
    metrics: StepEstimates  # of all labeled steps; empty without labels
    by_task: dict[str, StepEstimates]
    by_length: dict[str, StepEstimates]  # by the length bucket of the whole trajectory
    by_tokens: dict[str, StepEstimates]  # by the bucket of the tokens up to the step
    by_position: dict[str, StepEstimates]  # by the fifth of the trajectory, from 1
    baselines: dict[str, StepEstimates]  # rules without a model, on the same steps
    boundary: ContextBoundary | None  # where the accuracy of pairs of a right and a wrong step falls to 75%
    success: StepEstimates  # of whole trajectories with a known outcome; empty without one

    @property
    def main_metric(self) -> str:
        """`step_accuracy`, or `auc` if scores have no threshold and only rank steps."""
        return "step_accuracy" if "step_accuracy" in self.metrics else "auc"

    @property
    def accuracies(self) -> dict[str, Estimate]:
        """The main metric: of everything ("all"), and by length of the trajectory."""
        parts = {"all": self.metrics, **self.by_length}
        return {part: found[self.main_metric] for part, found in parts.items() if self.main_metric in found}


class CriteriaAgreement(SummaryPart):
    """The agreement of one judge with people."""

    correlation: Estimate  # Pearson's correlation of coverage, over all criteria of all texts
    linking: Estimate  # share of the criteria for which both name a part of the text, and name the same one
    unlabeled: Count  # criteria that the judge did not label, which do not count


class CriteriaSummary(SummaryPart):
    """The summary of an evaluation of labels of criteria."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["criteria evaluation"] = "criteria evaluation"
    model: str  # the record
    bench: str  # the benchmark's name
    summaries: Count  # texts
    groups: Count  # sets of criteria, each shared by several texts
    criteria: Count  # labels of people: one for each criterion of each text
    judges: dict[str, CriteriaAgreement]

    def ranked(self) -> list[tuple[str, CriteriaAgreement]]:
        """The judges, the one that agrees most with people first."""
        return sorted(self.judges.items(), key=lambda one: one[1].correlation.value or 0.0, reverse=True)


class TrainingEvaluations(SummaryPart):
    """The metric of every evaluation during training, by step."""

    metric: MetricName  # which metric
    values: dict[str, FiniteFloat | None]  # its value at each step
    best: int | None  # the step with the best value, the first of equals


class TrainingSummary(SummaryPart):
    """The summary of a training."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["training"] = "training"
    objective: str  # the training objective
    steps: Positive  # optimizer steps
    tokens: Positive  # tokens that the model read, each shared prefix counted once
    window: Positive  # number of last steps that loss and accuracy are means over
    loss: FiniteFloat  # mean loss
    # Share of gold-ordered pairs in the right order; null where the objective has no pairs
    accuracy: UnitShare | None
    data: dict[str, Count]  # rows of the data: read, used, and dropped or marked by reason
    evaluations: TrainingEvaluations | None  # the metric of every evaluation; null if there was none
    model_step: Positive  # the step whose weights were saved
    # Of "grpo", means over the window: the reward, and the shares of judgments without a verdict (`unparsed`) and of
    # groups without an advantage (`constant_groups`)
    rollouts: dict[str, FiniteFloat] | None = None


class AttributionPart(SummaryPart):
    """Means over the attributions of some comparisons. Metrics of evidence cover those whose evidence is known."""

    shown: Estimate  # share of attributions that meet all thresholds
    lds: Estimate  # mean correlation of predicted and true scores on fresh prompts, from -1 to 1
    # Mean area under the ROC curve of evidence sentences against all others, by weight
    evidence_auc: Estimate
    evidence_recall: Estimate  # mean share of the k evidence sentences among the k largest weights
    evidence_share: Estimate  # mean share of all weight on the evidence


class AttributionSummary(SummaryPart):
    """The summary of an attribution."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["attribution"] = "attribution"
    model: str
    bench: str
    comparisons: Count  # comparisons to explain
    explained: Count  # those that were explained
    prompts: Count  # ablated prompts that were scored
    # Prompt tokens that were computed; those reused from earlier prompts are not counted
    tokens_computed: Count
    overall: AttributionPart
    by_length: dict[str, AttributionPart]
    by_depth: dict[DepthBin, AttributionPart]
    by_verdict: dict[Literal["right", "wrong"], AttributionPart]  # where gold is known


RunSummary = EvaluationSummary | StepSummary | CriteriaSummary | TrainingSummary | AttributionSummary
_SUMMARIES: TypeAdapter[RunSummary] = TypeAdapter(Annotated[RunSummary, Field(discriminator="kind")])


def parse_summary(values: Any) -> RunSummary:
    """The summary with these JSON values; raises pydantic's `ValidationError` where they do not fit."""
    return _SUMMARIES.validate_python(values)


def load_summary(folder: Path) -> RunSummary:
    """Reads the `summary.json` of a run folder; `RunError` if there is none, or it is damaged."""
    path = folder / SUMMARY
    values = read_json(path)
    if values.get("schema_version") != SCHEMA_VERSION:
        version = short(values.get("schema_version"))
        raise RunError(f"{path} has schema version {version}, not {SCHEMA_VERSION}; run it again")
    with reading(path, RunError):
        return parse_summary(values)


def read_summary(folder: Path) -> dict[str, Any]:
    """The JSON values of a valid `summary.json`; see `load_summary`."""
    return load_summary(folder).to_dict()


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of `summary.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://longrm.invalid/summary.schema.json",
        "title": "Summary of a run",
        "description": "Every share is a fraction. Buckets are keyed by whole tokens, written in decimal.",
        **_SUMMARIES.json_schema(),
    }
