"""Scores by the rules of published benchmarks."""

from collections import Counter
from collections.abc import Sequence

from longrm.evaluation.rules import RULES
from longrm.report.formatting import count, published
from longrm.report.load import Model
from longrm.report.tables import Cell, Row, Section, Table

_RANKS = "by_rank_percent"


def rules(models: Sequence[Model]) -> Section | None:
    """Left out where no rule was applied."""
    names = [name for name in RULES if any(name in model.summary.rules for model in models)]
    if not names:
        return None
    tables, errors = [], []
    for name in names:
        scored = [(model, model.summary.rules[name]) for model in models if name in model.summary.rules]
        # Parts in the order of the scores: easy comes before normal and hard.
        parts = dict.fromkeys(
            (key, part)
            for key in RULES[name].parts
            for _, score in scored
            for part in score.parts.get(key, ())
        )
        rows = []
        for model, score in scored:
            values = [score.overall_percent, *(score.parts.get(key, {}).get(part) for key, part in parts)]
            cells = [Cell(published(value)) for value in values]
            cells[0] = Cell(cells[0].text, score.note)
            rows.append(Row(model.label, cells, model.style))
        heads = [f"best of {part}" if key == _RANKS else part for key, part in parts]
        tables.append(Table(RULES[name].title, ["model", "overall", *heads], rows))
    for model in models:
        errs = [error for score in model.summary.rules.values() for error in score.errs]
        rows = []
        for why, number in sorted(Counter(error.why for error in errs).items()):
            first = ", ".join([error.id for error in errs if error.why == why][:10])
            rows.append(Row(why.replace("_", " "), [Cell(count(number)), Cell(first)]))
        if rows:
            caption = f"{model.label}: comparisons that the release's scoring gets wrong"
            errors.append(Table(caption, ["why", "comparisons", "first ids"], rows))
    explanations = " ".join(f"{RULES[name].title}: {RULES[name].explanation}" for name in names)
    return Section(
        "Published scoring rules",
        "Published rules",
        f"Compare these numbers with published ones only, not with others on this page. {explanations}",
        tables=tables,
        folded=errors,
        fold="Errors of the release's scoring",
    )
