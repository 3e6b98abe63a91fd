"""Reinforcement on verdicts: rewards, what may go wrong with them, and judgments that were sampled."""

from collections.abc import Callable, Sequence
from itertools import cycle
from statistics import fmean
from typing import NamedTuple

import altair as alt

from longrm.reading import visible
from longrm.reporting.charts import Figure, Rows, binned, chart_of, encodings, held_out, svg_of
from longrm.reporting.formatting import Style, count, decimal, judgment_facts, percent, without_middle
from longrm.reporting.load import ReportData, Training
from longrm.reporting.tables import Cell, Passage, Row, Section, Table
from longrm.runs.logs import ROLLOUTS, Log
from longrm.runs.records import RolloutHead, RolloutRecord, StepRecord

_WINDOW = 20  # steps that a column of the table is a mean over, at most


class _Measure(NamedTuple):
    name: str  # in steps.jsonl
    title: str
    write: Callable[[float | None], str]
    figure: str = ""  # that draws its curve, if one does
    dash: tuple[int, ...] = (1, 0)


_TERM_DASHES = ((7, 3), (2, 3), (9, 3, 2, 3), (4, 2), (12, 3), (1, 4))
_REWARD = _Measure("reward", "reward", decimal, "Reward and its terms")
_OTHERS = (
    _Measure("first_share", "verdicts for the first response", percent, "Shares"),
    _Measure("unparsed", "without a verdict", percent, "Shares", (7, 3)),
    _Measure("constant_groups", "groups without an advantage", percent, "Shares", (2, 3)),
    _Measure("replaced_groups", "groups replaced", percent, "Shares", (9, 3, 2, 3)),
    _Measure("judgment_tokens", "tokens of a judgment", lambda value: decimal(value, 1), "Judgment length"),
    _Measure("entropy", "entropy of a token, nats", lambda value: decimal(value, 3), "Entropy"),
    _Measure("clipped", "clipped tokens", percent),
    _Measure("kl", "divergence from the start", lambda value: decimal(value, 4)),
)


_TERMS = {
    "reward": "a rising reward does not prove better judging; an evaluation on other contexts does",
    "verdicts for the first response": "of pairs, in either order; 50% without position bias",
    "groups without an advantage": "their judgments have no gradient: only differences within a group teach anything",
}


def rollouts(data: ReportData) -> Section | None:
    """None without a training by reinforcement."""
    runs = [run for run in data.trained if run.summary.objective == "grpo"]
    if not runs:
        return None
    return Section(
        "Rollouts",
        tables=[_table(run, named=len(runs) > 1) for run in runs],
        figures=_figures(runs),
        terms=_TERMS,
        passages=[passage for run in runs for passage in _passages(run, named=len(runs) > 1)],
    )


def _measures(run: Training) -> list[_Measure]:
    """What the steps of a run have logged, with the weights of the reward's terms."""
    terms = [
        _Measure(
            "accuracy" if name == "correct" else name, f"{name} × {weight:g}", decimal, _REWARD.figure, dash
        )
        for (name, weight), dash in zip(
            run.run.settings["rollouts"]["reward_weights"].items(), cycle(_TERM_DASHES)
        )
    ]
    return [
        measure
        for measure in (_REWARD, *terms, *_OTHERS)
        if any(_value(step, measure) is not None for step in run.steps)
    ]


def _value(step: StepRecord, measure: _Measure) -> float | None:
    return step.accuracy if measure.name == "accuracy" else step.losses.get(measure.name)


def _style(run: Training, measure: _Measure) -> Style | None:
    return run.style._replace(dash=measure.dash) if measure.figure else None


def _table(run: Training, *, named: bool) -> Table:
    """Means over the first, the middle and the last steps."""
    steps = run.steps
    size = max(1, min(_WINDOW, len(steps) // 3))
    middle = (len(steps) - size) // 2
    starts = dict.fromkeys((0, middle, len(steps) - size))
    parts = [steps[start : start + size] for start in starts]
    rows = []
    for measure in _measures(run):
        known = [[value for step in part if (value := _value(step, measure)) is not None] for part in parts]
        cells = [Cell(measure.write(fmean(values) if values else None)) for values in known]
        rows.append(Row(measure.title, cells, _style(run, measure)))
    heads = ["–".join(dict.fromkeys(count(step.step) for step in (part[0], part[-1]))) for part in parts]
    settings = run.run.settings["rollouts"]
    most = count(settings["max_completion_length"])
    sampled = f"{settings['num_generations']} judgments of each prompt, at most {most} tokens"
    caption = f"{run.label}: means over steps; {sampled}" if named else f"Means over steps; {sampled}"
    return Table(caption, ["steps", *heads], rows)


def _figures(runs: Sequence[Training]) -> list[Figure]:
    """Curves against the step; the table shows which is which. The last ones are of evaluations during training."""
    last = max((step.step for run in runs for step in run.steps), default=1)
    scale = alt.Scale(domain=[0, last], nice=False)
    x = alt.X("step:Q", title="step", scale=scale, axis=alt.Axis(grid=False, tickCount=4, format="~s"))
    found = []
    for title in dict.fromkeys(measure.figure for measure in (_REWARD, *_OTHERS) if measure.figure):
        rows: Rows = []
        styles: list[Style] = []
        ends = []
        for run, measure in [(own, one) for own in runs for one in _measures(own) if one.figure == title]:
            points = binned([(step.step, _value(step, measure)) for step in run.steps])
            rows += [{"step": step, "value": mean, "curve": str(len(styles))} for step, mean in points]
            styles.append(run.style._replace(dash=measure.dash))
            begun, ended = (measure.write(mean) for _, mean in (points[0], points[-1]))
            ends.append(f"{run.label}, {measure.title}: {begun} to {ended}")
        if rows:
            color, dash, _ = encodings(styles)
            axis = alt.Axis(format=".0%" if title == "Shares" else "~f", tickCount=5)
            y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True), axis=axis)
            chart = chart_of(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=color, strokeDash=dash)
            name = f"rollouts-{title.split()[0].lower()}"
            text = f"Line chart against the training step. {'; '.join(ends)}."
            found.append(Figure(name, title, text, svg_of(chart, 230, 160)))
    metrics = dict.fromkeys(metric for run in runs if (metric := run.held_out_metric))
    return found + [held_out(runs, metric, x, "-rollouts") for metric in metrics]


def _passages(run: Training, *, named: bool) -> list[Passage]:
    """Judgments of the first, the middle and the last rollouts; the log may be larger than memory."""
    log = run.run.path / ROLLOUTS
    chosen: dict[
        int, tuple[int, bool]
    ] = {}  # by step: the byte of its record, and whether its rewards differ
    for offset, group in Log(log, RolloutHead).with_offsets():
        differ = len(set(group.rewards)) > 1
        if group.step not in chosen or (differ and not chosen[group.step][1]):
            chosen[group.step] = (offset, differ)
    if not chosen:
        return []
    steps = sorted(chosen)
    shown = dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1]))
    found = []
    for record in Log(log, RolloutRecord).at(chosen[step][0] for step in shown):
        best = record.rewards.index(max(record.rewards))
        worst = record.rewards.index(min(record.rewards))
        pair = (best, worst) if best != worst else (0, 1)
        texts = [(judgment_facts(record, index), without_middle(record.texts[index])) for index in pair]
        step = f"{run.label}, step" if named else "Step"
        title = f"{step} {count(record.step)}: gold {record.gold}, {record.id}"
        found.append(Passage(visible(title), texts))
    return found
