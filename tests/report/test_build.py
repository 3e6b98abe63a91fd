"""The file as a whole: self-contained, escaped, complete, and faithful to its runs."""

import base64
import html.parser
import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longrm.evaluation.summaries import parse_summary
from longrm.report import build
from longrm.report.formatting import headline

VOID = {"meta", "img", "br", "hr", "input", "link"}


class Structure(html.parser.HTMLParser):
    """What a browser's parser would see: open elements, attributes, and the text of each table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.unclosed: list[str] = []
        self.headings: list[int] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.unclosed.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.unclosed and self.unclosed[-1] not in ("script", "style"):
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def loads(text: str) -> list[str]:
    """Everything in a page that would make a browser fetch something."""
    structure = Structure(text)
    fetched = [
        value
        for tag, name, value in structure.attributes
        if (name in ("src", "srcset", "data", "poster", "action") and not value.startswith("data:"))
        or (name in ("href", "xlink:href") and not value.startswith("#"))
    ]
    styles = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    styles += "".join(value for _, name, value in structure.attributes if name in ("style", "fill", "stroke"))
    return fetched + re.findall(r"@import|url\((?!#)", styles)


def chunk(text: str, number: int) -> str:
    found = re.search(rf'<script type="text/plain" id="chunk-{number}">([\w+/=]*)</script>', text)
    assert found
    return zlib.decompress(base64.b64decode(found[1])).decode()


def listed(text: str) -> dict[str, Any]:
    found = re.search(r'data-index="(\d+)"', text)
    assert found
    value: dict[str, Any] = json.loads(chunk(text, int(found[1])))
    return value


@pytest.fixture(scope="module")
def page(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report.html"
    build([demo], out)
    return out


@pytest.fixture(scope="module")
def families_page(two_families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("roads") / "report.html"
    build([two_families], out)
    return out


def test_nothing_is_loaded_and_the_check_sees_what_would_be(page: Path) -> None:
    text = page.read_text()
    assert loads(text) == []
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")  # a name, which nothing asks for
    assert "https://" not in text
    assert "default-src 'none'" in text
    for leak in (
        '<img src="https://x.example/a.png">',
        '<link rel="stylesheet" href="a.css">',
        "<style>@import 'a.css';</style>",
        '<p style="background: url(//x)"></p>',
    ):
        assert loads(text.replace("</body>", f"{leak}</body>")), leak


def test_the_demo_is_small_and_repeats_byte_for_byte(page: Path, demo: Path, tmp_path: Path) -> None:
    assert page.stat().st_size < 1_500_000
    build([demo], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize("made", ["page", "families_page"])
def test_markup_is_well_formed_and_accessible(made: str, request: pytest.FixtureRequest) -> None:
    structure = Structure(request.getfixturevalue(made).read_text())
    assert structure.unclosed == []
    ids = Counter(value for _, name, value in structure.attributes if name == "id")
    assert not [name for name, count in ids.items() if count > 1]
    assert structure.tags["caption"] == structure.tags["table"] > 10
    assert structure.tags["main"] == structure.tags["header"] == structure.tags["nav"] == 1
    drawn = [value for tag, name, value in structure.attributes if (tag, name) == ("div", "role")]
    described = [v for t, n, v in structure.attributes if (t, n) == ("div", "aria-label") and v]
    assert len(described) == len(drawn)
    scopes = sum(tag == "th" and name == "scope" for tag, name, _ in structure.attributes)
    assert scopes == structure.tags["th"]


def test_numbers_are_those_of_the_summary(page: Path, demo: Path) -> None:
    words = Structure(page.read_text()).words()
    summary = json.loads((demo / "summary.json").read_text())
    for stage in summary["stages"].values():
        for row in stage["metrics"]["by_length"].values():
            metric = row["pair_accuracy"]
            assert (
                f"{100 * metric['value']:.1f}% [{100 * metric['low']:.1f}, {100 * metric['high']:.1f}]"
                in words
            )
        for held in (stage["metrics"], stage["best_of_4"]["metrics"]):
            mean = held["macro"]["by_length"]
            assert f"{100 * mean['value']:.1f}% [{100 * mean['low']:.1f}, {100 * mean['high']:.1f}]" in words
    gap = summary["contrasts"]["long_vs_control"]["by_length"]["4096"]
    assert f"+{100 * gap['value']:.1f} [+{100 * gap['low']:.1f}, +{100 * gap['high']:.1f}]" in words
    assert (
        f"{summary['stages']['long']['best_of_4']['metrics']['by_length']['4096']['top1']['value']:.1%}"
        in words
    )


def test_figures_lie_beside_the_file_as_svg_and_png(page: Path) -> None:
    folder = page.with_name("report-figures")
    names = {path.stem for path in folder.glob("*.svg")}
    assert {"accuracy", "accuracy-narrow", "depth-0", "depth-3", "loss"} <= names
    assert {path.stem for path in folder.glob("*.png")} == names
    assert not list(folder.glob(".*"))
    for name in names:
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
        assert "var(--" not in (folder / f"{name}.svg").read_text()


def test_inline_figures_follow_the_theme(page: Path) -> None:
    drawn = re.findall(r'<div class="plot.*?</div>', page.read_text(), re.DOTALL)
    assert len(drawn) > 8
    for figure in drawn:
        assert "var(--" in figure
        assert not re.findall(r'(?:fill|stroke)="(?:#[0-9a-f]+|white|black)"', figure)


def test_hostile_text_stays_text(synthetic: ModuleType, tmp_path: Path) -> None:
    hostile = synthetic.HOSTILE
    records = synthetic.judgments(synthetic.CURVES["long"], 1)
    renamed = [
        replace(record, id=f"{hostile}-{number:04}", task=hostile, explanation=hostile)
        for number, record in enumerate(records)
    ]
    folder = tmp_path / "run <b>&'\""
    synthetic.write_evaluation(folder, renamed, model=hostile)
    out = tmp_path / "hostile.html"
    build([folder], out)
    text = out.read_text()
    structure = Structure(text)
    rows = listed(text)["items"]
    opened = {row["chunk"]: row for row in rows if row["chunk"] is not None}
    assert structure.tags["script"] == 1 + 1 + len(opened)
    assert structure.tags["img"] == structure.tags["b"] == 0
    assert "alert(1)" in structure.words()
    assert loads(text) == []
    assert rows[0]["task"] == hostile
    detail = json.loads(chunk(text, rows[0]["chunk"]))
    assert detail["judged"]["0"]["trials"][0]["explanation"] == hostile
    for path in out.with_name("hostile-figures").glob("*.svg"):
        ElementTree.parse(path)


def test_two_families_have_a_figure_and_tables_each(families_page: Path) -> None:
    words = Structure(families_page.read_text()).words()
    for family in ("Discriminative", "Generative"):
        assert f"{family} reward models. Pair accuracy against context length" in words
        assert f"{family} reward models. Context boundary, in tokens" in words
    names = {path.stem for path in families_page.with_name("report-figures").glob("*.svg")}
    assert {"accuracy", "accuracy-2", "accuracy-2-narrow", "loss", "loss-2"} <= names
    drawn = (families_page.with_name("report-figures") / "accuracy-2.svg").read_text()
    assert "judge: LOGO" in drawn
    assert "control" not in drawn


def test_every_section_of_a_demo_is_there(page: Path) -> None:
    text = page.read_text()
    structure = Structure(text)
    assert {"boundary", "overall", "depth", "differences", "best-of", "training", "items", "provenance"} <= {
        value for _, name, value in structure.attributes if name == "id"
    }
    words = structure.words()
    assert "unrelated context − chance" in words
    assert "longrm demo --out NEW_FOLDER --seed 0" in words
    assert "NaN" not in words
    assert "None" not in words
    assert structure.headings[0] == 1
    assert structure.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(structure.headings))


def test_evaluation_and_training_runs_are_mixed(synthetic: ModuleType, tmp_path: Path) -> None:
    summaries = {}
    for number, name in enumerate(("short", "long")):
        records = synthetic.judgments(synthetic.CURVES[name], number)
        summaries[name] = synthetic.write_evaluation(tmp_path / name, records, model=f"/models/{name}/final")
    synthetic.write_training(tmp_path / "trained", timed=False)
    build([tmp_path / "short", tmp_path / "long", tmp_path / "trained"], tmp_path / "mixed.html")
    words = Structure((tmp_path / "mixed.html").read_text()).words()
    for name, summary in summaries.items():  # one headline each
        assert f"{name} · final {headline(parse_summary(summary))}" in words
    assert "longrm train bradley-terry --config" in words
    for absent in ("positional extrapolation", "Best of four", "Tokens per second", "controls"):
        assert absent not in words
