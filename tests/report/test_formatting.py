"""Numbers as text."""

from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import pytest

from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import MeasuredWith, parse_summary
from longrm.reporting import formatting
from longrm.reporting.charts import HEAT_STEPS, Figure, heat_step, spread
from longrm.reporting.formatting import COLORS
from longrm.runs.records import Estimate
from longrm.types import Outcome


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (formatting.percent(0.9734), "97.3%"),
        (formatting.percent(None), "–"),
        (formatting.points(-0.0312), "−3.1"),
        (formatting.points(0.5), "+50.0"),
        (formatting.points(-0.0001), "0.0"),
        (formatting.decimal(-0.634), "−0.63"),
        (formatting.count(4096), "4,096"),
        (formatting.count(370.6), "371"),
        (formatting.short_length(131072), "128K"),
        (formatting.short_length(1500), "1,500"),
        (formatting.seconds(51.26), "51.3 s"),
        (formatting.seconds(300), "5.0 min"),
        (formatting.seconds(9000), "2.5 h"),
        (formatting.published(62.2857), "62.29%"),
        (formatting.published(None), "–"),
        (formatting.plural(1, "pair"), "1 pair"),
        (formatting.plural(1200, "pair"), "1,200 pairs"),
        (formatting.listed([]), ""),
        (formatting.listed(["a"]), "a"),
        (formatting.listed(["a", "b", "c"]), "a, b and c"),
        (formatting.interval(Estimate(0.5, 0.25, 1.0, 10, 10)), "[25.0, 100.0]"),
        (formatting.interval(Estimate(0.5, 0.25, 1.0, 90, 9)), "[25.0, 100.0]†"),
        (formatting.interval(Estimate(None, None, None, 0, 0)), ""),
    ],
)
def test_numbers(written: str, expected: str) -> None:
    assert written == expected


def test_a_boundary_outside_the_lengths_says_on_which_side(synthetic: ModuleType) -> None:
    boundary = synthetic.boundary
    assert formatting.boundary_estimate(boundary("beyond_range", 4096, None, None)) == "> 4,096"
    assert formatting.boundary_estimate(boundary("below_range", None, 128, None)) == "< 128"
    assert formatting.boundary_interval(boundary("below_range", None, 128, None)) == ""
    half = boundary("unresolved", 128, None, 900.0)
    half = half.model_copy(
        update={"estimate": half.estimate.model_copy(update={"high": None, "high_place": "beyond_range"})}
    )
    assert formatting.boundary_estimate(half) == "≈ 900"
    assert formatting.boundary_interval(half) == "[870, > 4,096]"
    none = boundary("rising", None, 128, None)
    assert (formatting.boundary_estimate(none), formatting.boundary_interval(none)) == ("–", "")


def test_the_boundary_of_a_headline(synthetic: ModuleType) -> None:
    boundary = synthetic.boundary
    expected = {
        "context boundary ≈ 370 tokens [340, 410] (above 75% at 256, below at 512)": boundary(
            "resolved", 256, 512, 370.0
        ),
        "context boundary ≈ 370 tokens [340, 410] (at 256 tokens, accuracy may be above or below 75%)": boundary(
            "unresolved", 128, 512, 370.0
        ),
        "context boundary ≈ 370 tokens [340, 410] (at 512 to 4,096 tokens, accuracy may be above or below 75%)": (
            boundary("unresolved", 256, None, 370.0)
        ),
        "context boundary > 4,096 tokens (beyond range)": boundary("beyond_range", 4096, None, None),
        "context boundary < 128 tokens (below range)": boundary("below_range", None, 128, None),
        "context boundary none: rises": boundary("rising", None, 128, None),
    }
    assert [formatting.boundary_text(one) for one in expected.values()] == [*expected]


def test_a_headline_has_accuracy_chance_and_missing_answers(synthetic: ModuleType) -> None:
    records = [
        synthetic.answered(f"{n}", (1.0, 0.0) if n < 75 else (0.0, 1.0), group=f"{n}") for n in range(119)
    ]
    records.append(replace(synthetic.answered("119", group="119"), outcome=Outcome.TOO_LONG, scores=()))
    summary = parse_summary(summarize(records, model="judge", bench="probe", resamples=100).to_dict())
    estimate = summary.accuracy.strict
    accuracy = f"{formatting.percent(estimate.value)} {formatting.interval(estimate)}"
    assert formatting.headline(summary) == (
        f"pair accuracy {accuracy} on 120 comparisons, chance 50.0%; 1 of 120 not answered"
    )


@pytest.mark.parametrize(("right", "beaten"), [(60, True), (118, False)])
def test_a_headline_names_the_best_rule_and_whether_the_model_beats_it(
    synthetic: ModuleType, right: int, beaten: bool
) -> None:
    def rules(n: int) -> dict[str, tuple[float, ...]]:
        return {"longest": (0.0, 1.0), "overlap": (1.0, 0.0) if n < right else (0.0, 1.0)}

    records = [
        replace(
            synthetic.answered(f"{n}", (1.0, 0.0) if n < 110 else (0.0, 1.0), group=f"{n}"),
            baselines=rules(n),
        )
        for n in range(120)
    ]
    summary = parse_summary(summarize(records, model="judge", bench="probe", resamples=100).to_dict())
    assert summary.best_rule == "overlap"
    headline = formatting.headline(summary)
    assert f"the best rule without a model has {100 * right / 120:.1f}% (overlap)" in headline
    assert ("does not beat it" in headline) == (not beaten)


@pytest.mark.parametrize(
    ("tokenizer", "unit"),
    [
        ("words", "tokens (one per word)"),
        ("owner/name@main", "tokens of owner/name@main"),
        ("/data/models/mine/model", "tokens of mine/model"),
        ("x" * 50 + "/" + "y" * 50, f"tokens of {'x' * 20}…{'y' * 20}"),
    ],
)
def test_the_unit_of_lengths(tokenizer: str, unit: str) -> None:
    measured = MeasuredWith(tokenizer=tokenizer, worlds=("records",), depths=(0.0, "uniform"))
    assert formatting.token_unit(measured) == unit
    assert formatting.shared_unit([measured, measured]) == unit
    assert formatting.shared_unit([measured, None]) == "tokens"
    assert (
        formatting.measured_with(measured)
        == f"Lengths in {unit}; world records; evidence at depth 0 and anywhere."
    )


def test_models_with_one_tokenizer_have_one_unit_of_length() -> None:
    def measured(name: str, digest: str | None) -> MeasuredWith:
        return MeasuredWith(tokenizer=name, worlds=("records",), depths=("uniform",), tokenizer_digest=digest)

    alike = [measured("runs/short/model", "a1"), measured("runs/long/model", "a1")]
    assert formatting.shared_unit(alike) == "tokens"
    assert formatting.measured_with(*alike) == "Lengths in tokens; world records; evidence anywhere."
    for other in (measured("runs/long/model", "b2"), measured("runs/long/model", None)):
        assert formatting.shared_unit([alike[0], other]) == "tokens of each run's own tokenizer"


def test_a_value_and_a_difference_with_their_intervals() -> None:
    share, tau = (formatting.metric_of(name) for name in ("pair_accuracy", "kendall_tau"))
    estimate = Estimate(0.125, -0.05, 0.25, 90, 30)
    assert formatting.difference_text(estimate, share) == "+12.5 [−5.0, +25.0] points"
    assert formatting.difference_text(estimate, tau) == "0.12 [−0.05, 0.25]"
    assert formatting.estimate_text(estimate, share) == "12.5% [−5.0, 25.0]"
    assert formatting.estimate_text(Estimate(None, None, None, 0, 0), share) == "–"
    assert [formatting.p_value(p) for p in (0.00009, 0.0001, 1.0)] == ["< 0.0001", "0.0001", "1.0000"]


# --- Colors: distinguishable by everyone, readable in light and dark ---


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_contrast(theme: int) -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for text, grounds in {
        "ink": ("paper", "page", "notice", "mark", *(f"heat-{step}" for step in range(HEAT_STEPS))),
        "muted": ("paper", "page"),
        "accent": ("paper", "page"),
        "good": ("paper",),
        "bad": ("paper",),
    }.items():
        for ground in grounds:
            assert contrast(COLORS[text][theme], COLORS[ground][theme]) >= 4.5, (text, ground)
    for number in range(8):
        assert contrast(COLORS[f"stage-{number}"][theme], COLORS["paper"][theme]) >= 3


def test_light_colors_are_distinct_so_that_figures_can_be_recolored() -> None:
    assert len({light for light, _ in COLORS.values()}) == len(COLORS)
    drawn = Figure("", "", "", '<g fill="#ffffff" stroke="#0070b0">')
    assert drawn.inline == '<g fill="var(--paper)" stroke="var(--stage-3)">'


def test_heat_steps_turn_at_the_threshold() -> None:
    values = [0.0, 0.5, 0.6, 0.7, 0.7499, 0.75, 0.84, 0.95, 1.0]
    assert [heat_step(value, 0.5, 0.75) for value in values] == [0, 0, 1, 2, 2, 3, 4, 5, 5]


def test_labels_are_moved_apart_in_their_order_and_stay_in_the_plot() -> None:
    placed = spread([0.99, 0.5, 0.505, 1.0], 0.05)
    in_order = [placed[index] for index in (1, 2, 0, 3)]
    assert all(above - below >= 0.05 - 1e-9 for below, above in pairwise(in_order))
    assert in_order[0] == 0.5
    assert in_order[-1] == 1.0
