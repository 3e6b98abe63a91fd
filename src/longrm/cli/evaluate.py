"""`longrm evaluate`, and the output that it shares with `longrm probe` and `longrm runs merge`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.help import Command
from longrm.cli.options import (
    JUDGE_OPTIONS,
    JUDGING_OPTIONS,
    ON_BAD_ROW,
    RUN_OPTIONS,
    columns_option,
    resolve,
    setting,
)
from longrm.cli.terminal import (
    echo,
    print_facts,
    print_json,
    print_lines,
    print_next,
    print_table,
    shared_work,
)
from longrm.errors import RunError
from longrm.runs.logs import JUDGMENTS
from longrm.types import Outcome

if TYPE_CHECKING:  # numpy is not loaded for the help
    from longrm.evaluation.summary_schema import (
        CriteriaSummary,
        EvaluationSummary,
        PartAnswers,
        StepSummary,
    )
    from longrm.runs.records import Estimate

_MODEL_HELP = "Folder, Hub id, openai:URL#NAME or another kind."
_COMMON = {
    "Model": "--model --recorded --format --template --device",
    "Data": "--bench --columns --limit",
    "Run": "--out --config --set --json",
}


@click.command("evaluate", cls=Command, common=_COMMON)
@setting("--model", "model", _MODEL_HELP, metavar="MODEL")
@setting("--recorded", "recorded", "Recorded judgments to evaluate instead of a model.", metavar="PATH")
@setting("--bench", "bench", "Your data, or a benchmark from the list above.", metavar="PATH")
@JUDGE_OPTIONS
@setting(
    "--votes", "judging.votes", "Votes per order of a generative model that samples (default 1).", int, "N"
)
@setting("--on-bad-row", "source.on_bad_row", *ON_BAD_ROW)
@columns_option("source.columns")
@JUDGING_OPTIONS
@RUN_OPTIONS
def command(
    out: Path, config_file: Path | None, assignments: tuple[str, ...], as_json: bool, **flags: Any
) -> None:
    """Judge a benchmark and report accuracy by context length.

    \b
    longrm evaluate --model MODEL --bench probe --out runs/probe
    longrm evaluate --model MODEL --bench pairs.jsonl --out runs/mine
    longrm evaluate --recorded FILE --bench judgebench:FILE --out runs/judge

    \b
    Benchmarks: probe (generated contexts), the path of your preference data, and
    NAME:PATH with long-rewardbench, rewardbench, rewardbench-2, judgebench, ppe,
    rmb, rm-bench, judgelrm, memrewardbench, if-rewardbench, fc-rewardbench,
    long-form-rewardbench, plan-rewardbench, leval, squality, tau-bench and
    qa-feedback; of steps of agents, agentprocessbench, who-and-when and
    tau-bench-trajectories; of recorded labels of criteria, summhay.
    \f

    \b
    Models:
      FOLDER or OWNER/NAME@REVISION  a local model, or one of the Hub
      openai:URL#NAME                a model behind an OpenAI-compatible endpoint
      longrm:URL                     a model behind longrm serve
      likelihood:MODEL[#REFERENCE]   the likelihood of a response
      tokens:MODEL                   the probabilities of verdict tokens
      ensemble:mean-rank:A+B         several models; or ensemble:votes:A+B
      compress:MODEL                 a model that reads relevant chunks only
      baseline:NAME                  a heuristic without a model, such as longest
      simulated:RATE                 a simulated judge with this error rate

    Processes started by torchrun share the comparisons. docs/cli.md lists every setting for --set.
    """
    from longrm.evaluation.evaluate import Evaluation, run_evaluation

    settings = resolve(Evaluation, config_file, assignments, flags)
    with shared_work() as (group, report):
        summary = run_evaluation(settings, out, workers=group, progress=report)
    if group.is_main_process:
        print_result(summary, out, as_json=as_json)


def print_result(
    summary: "EvaluationSummary | StepSummary | CriteriaSummary", out: Path, *, as_json: bool
) -> None:
    """Prints the result of an evaluation, and the first comparison of each outcome without a verdict.

    Raises:
        RunError: Comparisons ended in errors, or a length, a depth or a task has no answer.
    """
    from longrm.evaluation.breakdown import empty_cells
    from longrm.evaluation.summary_schema import CriteriaSummary, StepSummary
    from longrm.runs.judgments import Judgments

    if isinstance(summary, StepSummary):
        _print_steps(summary, out, as_json=as_json)
        return
    if isinstance(summary, CriteriaSummary):
        _print_criteria(summary, out, as_json=as_json)
        return
    if as_json:
        print_json(summary.to_dict())
    else:
        print_evaluation(summary)
        echo(f"Saved to {out}")
    outcomes = summary.counts.outcomes
    missing = {outcome for outcome, count in outcomes.items() if count and outcome != Outcome.ANSWERED}
    for record in Judgments(out) if missing else ():
        if record.outcome in missing:
            missing.remove(record.outcome)
            echo(f"No verdict ({record.outcome}), first: '{record.id}': {record.detail}", err=True)

    problems = []
    if errors := outcomes[Outcome.ERROR]:
        total = summary.counts.comparisons
        problems.append(
            f"{errors} of {total} comparisons ended in errors (see {out / JUDGMENTS}){summary.retry}"
        )
    if empty := empty_cells(summary.missing):
        where = [f"no answer {name} ({part.reason})" for name, part in [*empty.items()][:4]]
        if len(empty) > 4:
            where.append(f"{len(empty) - 4} more")
        problems.append(f"the run is incomplete: {', '.join(where)}")
    if problems:
        raise RunError("; ".join(problems))
    if summary.shard is None:
        print_next("report", out, "--out", "report.html", err=as_json)
    else:
        print_next("runs", "merge", out, "SHARD", "--out", "RUN", err=as_json)


_STEP_COLUMNS = {"step_accuracy": "step accuracy", "first_error_accuracy": "first error", "auc": "AUC"}
"""The metrics of steps that tables show, with short titles."""


def _print_steps(summary: "StepSummary", out: Path, *, as_json: bool) -> None:
    """Prints the result of an evaluation of trajectories; `RunError` if some ended in errors."""
    from longrm.evaluation.read_run import Run
    from longrm.reading import short_name
    from longrm.reporting.formatting import MISSING, boundary_estimate, boundary_interval, steps_headline

    missing = {
        outcome for outcome, count in summary.outcomes.items() if count and outcome != Outcome.ANSWERED
    }
    if as_json:
        print_json(summary.to_dict())
    else:
        print_lines(f"{short_name(summary.model)} on {short_name(summary.bench)}: {steps_headline(summary)}")
        if summary.metrics:
            columns = [name for name in _STEP_COLUMNS if name in summary.metrics]
            for head, parts in (
                ("length", {"all": summary.metrics, **summary.by_length}),
                ("task", summary.by_task),
                ("rule", summary.baselines),
            ):
                rows = [
                    (part, *(percentage(one.get(name)) for name in columns)) for part, one in parts.items()
                ]
                # A part, such as a rule that only ranks, may have none of these metrics.
                rows = [row for row in rows if set(row[1:]) != {MISSING}]
                if rows:
                    print_table([head, *(f"{_STEP_COLUMNS[name]}, %" for name in columns)], rows)
        facts = [
            ("outcomes", ", ".join(f"{n} {o.replace('_', ' ')}" for o, n in summary.outcomes.items() if n))
        ]
        shown = {name: one for name, one in summary.metrics.items() if name not in _STEP_COLUMNS}
        facts += [(f"{name.replace('_', ' ')}, %", percentage(one)) for name, one in shown.items() if one.n]
        facts += [
            (f"success, {name.replace('_', ' ')}, %", percentage(one))
            for name, one in summary.success.items()
            if one.n
        ]
        if summary.threshold is not None:
            facts.append(("threshold of right steps", f"{summary.threshold:g}"))
        if summary.boundary is not None:
            where = f"{boundary_estimate(summary.boundary)} {boundary_interval(summary.boundary)}".rstrip()
            facts.append(("context boundary of pairs", where))
        if summary.cut.comparisons:
            facts.append(
                ("cut to fit", f"{summary.cut.comparisons:,} trajectories, {summary.cut.tokens:,} tokens")
            )
        if summary.sampled_from is not None:
            facts.append(("sample", f"of {summary.sampled_from:,} trajectories (--limit)"))
        facts += [("data", f"{what}: {count:,}") for what, count in summary.findings.items()]
        print_facts(facts)
        echo(f"Saved to {out}")
    for record in Run(out).trajectories if missing else ():
        if record.outcome in missing:
            missing.remove(record.outcome)
            echo(f"No scores ({record.outcome}), first: '{record.id}': {record.detail}", err=True)
    if errors := summary.outcomes.get(Outcome.ERROR):
        raise RunError(
            f"{errors} of {summary.trajectories} trajectories ended in errors; the same command retries them"
        )
    print_next("report", out, "--out", "report.html", err=as_json)


def _print_criteria(summary: "CriteriaSummary", out: Path, *, as_json: bool) -> None:
    """Prints the agreement of every judge with people, the judge that agrees most first."""
    from longrm.reading import short_name

    if as_json:
        print_json(summary.to_dict())
        return
    print_lines(
        f"{short_name(summary.model)} on {short_name(summary.bench)}: {summary.criteria:,} labels of criteria of "
        f"{summary.summaries:,} summaries, in {summary.groups:,} groups"
    )
    rows = [
        (
            name,
            coefficient(one.correlation, places=3),
            percentage(one.linking),
            f"{one.linking.n:,}",
            f"{one.unlabeled:,}",
        )
        for name, one in summary.ranked()
    ]
    print_table(["judge", "coverage, correlation", "same bullet, %", "n", "no label"], rows)
    echo(f"Saved to {out}")
    print_next("report", out, "--out", "report.html")


def percentage(estimate: "Estimate | None", *, interval: bool = True) -> str:
    """A metric as a percentage without its sign, with its 95% interval; a dash where it is undefined."""
    from longrm.reporting import formatting

    if estimate is None or estimate.value is None:
        return formatting.MISSING
    value = f"{100 * estimate.value:.1f}"
    if not interval or estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]{formatting.few(estimate.groups)}"


def coefficient(estimate: "Estimate", places: int = 2) -> str:
    """A coefficient of agreement from -1 to 1 with its 95% interval."""
    from functools import partial

    from longrm.reporting.formatting import decimal, interval

    write = partial(decimal, places=places)
    return f"{write(estimate.value)} {interval(estimate, write)}".strip()


def print_evaluation(summary: "EvaluationSummary") -> None:
    """Prints the headline, accuracy by length and by task, and everything else that was measured as facts."""
    from longrm.evaluation.metrics import PAIR_ACCURACY
    from longrm.evaluation.rules import RULES
    from longrm.reading import short_name
    from longrm.reporting.formatting import (
        few_note,
        headline,
        interval,
        measured_with,
        plural,
        points,
        published,
    )

    first = headline(summary)
    print_lines(f"{short_name(summary.model)} on {short_name(summary.bench)}: {first}")
    printed = [first]
    if summary.chance:
        metrics, missing, main = summary.metrics, summary.missing, summary.main_metric
        printed += _print_parts(
            "length",
            summary,
            {"all": metrics.overall, **metrics.by_length},
            {"all": missing.overall, **missing.by_length},
        )
        print_lines(f"95% intervals; chance is {100 * summary.chance[main]:.1f}%")
        if summary.measured is not None:
            print_lines(measured_with(summary.measured))
        if len(metrics.by_task) > 1:
            print_lines("By task")
            printed += _print_parts("task", summary, metrics.by_task, missing.by_task, metrics.macro.by_task)

    counts, position = summary.counts, summary.position
    outcomes = ", ".join(f"{n} {outcome.replace('_', ' ')}" for outcome, n in counts.outcomes.items() if n)
    trials = f", in {counts.trials.total} trials" if counts.trials.total != counts.comparisons else ""
    facts = [("outcomes", f"{outcomes}{trials}")]
    if (pairs := summary.metrics.pairs) is not None:  # among rankings
        alone = pairs.overall[PAIR_ACCURACY.name]
        facts.append(("pairs alone, %", f"{percentage(alone)}, n = {alone.n:,}"))
    if counts.sampled_from is not None:
        facts.append(("sample", f"of {counts.sampled_from:,} comparisons (--limit)"))
    if summary.shard is not None:
        facts.append(("shard", summary.shard))
    if counts.cut.comparisons:
        tokens = plural(counts.cut.tokens, "token")
        facts.append(("cut to fit", f"{plural(counts.cut.comparisons, 'context')}, {tokens}"))
    if position is not None:
        facts.append(("same verdict in every order, %", percentage(position.consistency)))
        facts.append(("prefers the first shown, %", percentage(position.first_wins)))
    if (gold := summary.gold_agreement) is not None:
        facts.append(("kappa with gold", coefficient(gold.kappa)))
    if (repeats := summary.repeats) is not None:
        alpha = f"alpha {coefficient(repeats.alpha)}"
        facts.append(("same verdict when repeated, %", f"{percentage(repeats.raw)}, {alpha}"))
    if (own := summary.self_preference) is not None:
        more = f"{points(own.difference.value)} {interval(own.difference, points)} points over gold"
        facts.append(("prefers its own family, %", f"{percentage(own.judge)}, {more}"))
    if (solving := summary.solve_to_judge) is not None:
        if solving.solved.n:
            facts.append(("solved by the judge itself, %", percentage(solving.solved)))
            facts.append(("solved but judged wrong, %", percentage(solving.gap)))
        else:
            facts.append(("solved by the judge itself", "not checked: no comparison has a gold `answer`"))
        ended = ", ".join(f"{n} {o.replace('_', ' ')}" for o, n in solving.outcomes.items() if n)
        facts.append(("own answers", ended))
    for name, rate in summary.failures:
        if rate and rate.value:
            facts.append((f"failure, {name.replace('_', ' ')}, %", percentage(rate)))
    if (checks := counts.context_check) and (checks["unanswered"] or checks["impossible"]):
        reasons = (
            f"{checks['unanswered']} not answered, {checks['impossible']} without a context to remove or swap"
        )
        facts.append(("context not checked", reasons))
    if (rule := summary.best_rule) is not None:
        gap = summary.baselines[rule].difference
        facts.append((f"over the rule {rule}", f"{points(gap.value)} {interval(gap, points)} points"))
        if unbeaten := [name for name, one in summary.baselines.items() if not one.beaten]:
            facts.append(("rules that the model does not beat", ", ".join(unbeaten)))
    for name, score in summary.rules.items():
        note = f" ({score.note})" if score.note else ""
        facts.append((RULES[name].title, f"{published(score.overall_percent)}{note}"))
    if counts.skipped_rows:
        facts.append(("data", f"rows that could not be read; left out: {counts.skipped_rows:,}"))
    findings = summary.audit.findings.values() if summary.audit else ()
    facts += [("data", f"{finding.what}: {finding.count:,}") for finding in findings if finding.count]
    if (boundary := summary.boundary) is not None:
        facts.append(("accuracy threshold of the boundary", f"{boundary.tau:.2f}"))
        if boundary.pairs_to_resolve is not None:
            facts.append(("pairs per length to be sure", f"about {boundary.pairs_to_resolve:,}"))
        if boundary.more_lengths and summary.measured:
            facts.append(
                ("lengths to narrow it", ", ".join(f"{length:,}" for length in boundary.more_lengths))
            )
    print_facts(facts)
    print_lines(few_note([*printed, *(value for _, value in facts)]))


def _print_parts(
    head: str,
    summary: "EvaluationSummary",
    parts: "Mapping[str, Mapping[str, Estimate]]",
    missing: "Mapping[str, PartAnswers | None]",
    mean: "Estimate | None" = None,
) -> list[str]:
    """Prints the main metric of each length or task, and perhaps its mean; returns the text of the cells."""
    name = summary.main_metric
    columns = [head, f"{name.replace('_', ' ')}, %", "n", "groups"]
    if summary.missing.overall:
        columns.append("answered")
    rows = []
    for part, measured in parts.items():
        estimate, gaps = measured[name], missing.get(part)
        answered = f"{gaps.answered} of {gaps.comparisons}" if gaps else "all"
        row = (part, percentage(estimate), str(estimate.n), str(estimate.groups), answered)
        rows.append(row[: len(columns)])
    if mean is not None:
        rows.append(("mean", percentage(mean), *[""] * (len(columns) - 2)))
    print_table(columns, rows)
    return [cell for row in rows for cell in row]
