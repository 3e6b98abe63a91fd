"""Draws figures from the results of `perf/` and `experiments/`: `figure.py training_speed` or `figure.py real_model`.

Each is drawn for light and for dark pages.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

DOCS = Path(__file__).parent
PANEL = (180, 200)  # width and height in pixels
MEASURED, IDEAL = "measured", "saved work alone"

UNLOCK = {
    "likelihood": "nothing",
    "likelihood-short": "short",
    "likelihood-control": "short, again",
    "likelihood-long": "short, then long",
}
COLORS = ("#4c84c4", "#d9822b", "#8f8f8f", "#3d9970")


def training_speed() -> alt.HConcatChart:
    """A training step compared with separate sequences, over K, for each prompt length."""
    rows = speed_rows(_lines("perf/results/train_step_grid.jsonl"))
    top = 1 + max(row["speedup"] for row in rows)
    return alt.hconcat(
        *(_speed_panel(rows, prompt, top) for prompt in sorted({row["prompt"] for row in rows}))
    )


def speed_rows(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Two rows, the measured speedup and the ideal one, of every result against separate sequences."""
    return [
        {
            "prompt": result["prompt"],
            "K": result["rejected"],
            "tokens": f"{result['response']} tokens",
            "speedup": result[name],
            "kind": kind,
        }
        for result in lines
        for name, kind in (("speedup", MEASURED), ("ideal", IDEAL))
    ]


def _speed_panel(rows: Sequence[Mapping[str, Any]], prompt: int, top: float) -> alt.LayerChart:
    own = alt.Data(values=[row for row in rows if row["prompt"] == prompt])
    base = alt.Chart(own).encode(
        x=alt.X("K:O", title="rejected responses K", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("speedup:Q", title="times faster", scale=alt.Scale(domain=[0, top])),
        color=alt.Color("tokens:N", title="response", sort=None, scale=alt.Scale(range=list(COLORS[:2]))),
    )
    dash = alt.StrokeDash("kind:N", title="", sort=[MEASURED, IDEAL], scale=alt.Scale(range=[[1, 0], [4, 3]]))
    lines = base.mark_line().encode(strokeDash=dash)
    dots = base.mark_point(filled=True, size=45).transform_filter(f"datum.kind === '{MEASURED}'")
    return alt.layer(lines, dots).properties(
        title=f"prompt of {prompt:,} tokens", width=PANEL[0], height=PANEL[1]
    )


def real_model() -> alt.HConcatChart:
    """Pair accuracy of the real model by length, as published and after every training."""
    rows = accuracy_rows(_lines("experiments/results/real_contrasts.jsonl"), UNLOCK, ("trained",))
    return alt.hconcat(_accuracy_panel(rows, UNLOCK, "prose worlds, judged by likelihood", "trained on"))


def accuracy_rows(
    lines: Iterable[Mapping[str, Any]], arms: Mapping[str, str], probes: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for every arm and length, with limits in percent; arms are side by side, so that none hides another."""
    places = {arm: 1 + 0.04 * (number - (len(arms) - 1) / 2) for number, arm in enumerate(arms)}
    return [
        {
            "arm": arms[line["arm"]],
            "length": int(length),
            "place": int(length) * places[line["arm"]],
            **{limit: 100 * found[limit] for limit in ("value", "low", "high")},
        }
        for line in lines
        if line["by"] == "length" and "accuracy" in line and line["probe"] in probes
        if line["arm"] in arms
        for length, found in line["accuracy"].items()
    ]


def _accuracy_panel(
    rows: Sequence[Mapping[str, Any]], arms: Mapping[str, str], title: str, legend: str
) -> alt.LayerChart:
    lengths = sorted({row["length"] for row in rows})
    base = alt.Chart(alt.Data(values=list(rows))).encode(
        x=alt.X(
            "place:Q",
            title="tokens of the context",
            scale=alt.Scale(type="log", base=2, domain=[lengths[0] * 0.85, lengths[-1] * 1.18], nice=False),
            axis=alt.Axis(values=lengths, labelAngle=0, labelExpr="format(datum.value, ',')", grid=False),
        ),
        color=alt.Color(
            "arm:N",
            title=legend,
            scale=alt.Scale(domain=list(arms.values()), range=list(COLORS[: len(arms)])),
            legend=alt.Legend(symbolOpacity=1),
        ),
    )
    percent = alt.Scale(domain=[0, 100])
    accuracy = alt.Y("value:Q", title="pair accuracy, %", scale=percent)
    limits = alt.Y("low:Q", title="pair accuracy, %", scale=percent)
    bars = base.mark_rule(opacity=0.45, strokeWidth=2).encode(y=limits, y2="high:Q")
    lines = base.mark_line(point=alt.OverlayMarkDef(size=45)).encode(y=accuracy)
    chance = alt.Chart(alt.Data(values=[{"value": 50}])).mark_rule(strokeDash=[2, 3], color="#888888")
    return alt.layer(chance.encode(y="value:Q"), bars, lines).properties(title=title, width=330, height=240)


def _lines(file: str) -> Iterable[dict[str, Any]]:
    return map(json.loads, (DOCS.parent / file).read_text(encoding="utf-8").splitlines())


FIGURES: Mapping[str, Callable[[], alt.HConcatChart]] = {
    "training_speed": training_speed,
    "real_model": real_model,
}
PAGES = {"": ("#ffffff", "#24292f", "#d8dce0"), "-dark": ("#0d1117", "#d5dae0", "#30363d")}
"""What is added to the file's name, and the colours of page, text and lines."""


def draw(name: str) -> list[Path]:
    """Draws a figure on every kind of page; returns the files."""
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    files = []
    for suffix, (page, text, line) in PAGES.items():
        chart = (
            FIGURES[name]()
            .configure(
                background=page, font="sans-serif", padding={"left": 5, "top": 5, "bottom": 5, "right": 25}
            )
            .configure_title(fontSize=12, color=text)
            .configure_axis(
                labelColor=text, titleColor=text, gridColor=line, domainColor=line, tickColor=line
            )
            .configure_legend(labelColor=text, titleColor=text)
            .configure_view(stroke=line)
        )
        files.append(DOCS / f"{name}{suffix}.svg")
        files[-1].write_text(
            vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=version), encoding="utf-8"
        )
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=list(FIGURES))
    for file in draw(parser.parse_args().figure):
        print(file)


if __name__ == "__main__":
    main()
