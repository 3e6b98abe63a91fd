"""Draws `docs/training_speed.svg` from `results/train_step_grid.jsonl`: a training step beside separate sequences."""

import json
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "results/train_step_grid.jsonl", HERE.parent / "docs/training_speed.svg"
PANEL = (180, 200)  # width and height in pixels
MEASURED, IDEAL = "measured", "saved work alone"


def rows_of(lines: list[str]) -> list[dict[str, Any]]:
    """Two rows, the measured speedup and the ideal one, of every result against separate sequences."""
    return [
        {
            "prompt": result["prompt"],
            "K": result["rejected"],
            "tokens": f"{result['response']} tokens",
            "speedup": result[name],
            "kind": kind,
        }
        for result in map(json.loads, lines)
        for name, kind in (("speedup", MEASURED), ("ideal", IDEAL))
    ]


def panel(rows: list[dict[str, Any]], prompt: int, top: float) -> alt.LayerChart:
    """Speedup over K for one length of the prompt."""
    own = alt.Data(values=[row for row in rows if row["prompt"] == prompt])
    base = alt.Chart(own).encode(
        x=alt.X("K:O", title="rejected responses K", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("speedup:Q", title="times faster", scale=alt.Scale(domain=[0, top])),
        color=alt.Color(
            "tokens:N", title="response", sort=None, scale=alt.Scale(range=["#1f5fa8", "#c2571a"])
        ),
    )
    dash = alt.StrokeDash("kind:N", title="", sort=[MEASURED, IDEAL], scale=alt.Scale(range=[[1, 0], [4, 3]]))
    lines = base.mark_line().encode(strokeDash=dash)
    dots = base.mark_point(filled=True, size=45).transform_filter(f"datum.kind === '{MEASURED}'")
    return alt.layer(lines, dots).properties(
        title=f"prompt of {prompt:,} tokens", width=PANEL[0], height=PANEL[1]
    )


def main() -> None:
    rows = rows_of(RESULTS.read_text(encoding="utf-8").splitlines())
    top = 1 + max(row["speedup"] for row in rows)
    chart = alt.hconcat(*(panel(rows, prompt, top) for prompt in sorted({row["prompt"] for row in rows})))
    styled = chart.configure(background="#ffffff", font="sans-serif").configure_title(fontSize=12)
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    FIGURE.write_text(vl_convert.vegalite_to_svg(styled.to_dict(), vl_version=version), encoding="utf-8")


if __name__ == "__main__":
    main()
