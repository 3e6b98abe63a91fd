"""The HTML file: self-contained, escaped, complete, and with the numbers of its runs."""

import html.parser
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import lxml.html
import pytest

from longrm.errors import RunError
from longrm.evaluation.compare import compare
from longrm.evaluation.summary_schema import parse_summary
from longrm.report import build
from longrm.report.formatting import boundary_estimate, boundary_interval, headline, points
from longrm.runs.folder import RunFolder

from .pages import Browser, anchors, tables, words

VOID = {"meta", "img", "br", "hr", "input", "link"}


class Structure(html.parser.HTMLParser):
    """Checks that elements are closed in order; lists tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[int] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))


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


def finding_of(text: str) -> str:
    """The first sentences of a page."""
    return str(lxml.html.document_fromstring(text).xpath("//p[@class='finding']")[0].text_content())


@pytest.fixture(scope="module")
def page(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report.html"
    build([demo], out)
    return out


@pytest.fixture(scope="module")
def families_page(two_families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("families") / "report.html"
    build([two_families], out)
    return out


def test_nothing_is_loaded(page: Path) -> None:
    text = page.read_text()
    assert loads(text) == []
    assert "https://" not in text
    assert "default-src 'none'" in text
    for leak in (  # negative control
        '<img src="https://x.example/a.png">',
        '<link rel="stylesheet" href="a.css">',
        "<style>@import 'a.css';</style>",
        '<p style="background: url(//x)"></p>',
    ):
        assert loads(text.replace("</body>", f"{leak}</body>")), leak


def test_equal_runs_give_equal_bytes(page: Path, demo: Path, tmp_path: Path) -> None:
    assert page.stat().st_size < 1_500_000
    build([demo], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize("name", ["page", "families_page"])
def test_markup_is_well_formed_and_accessible(name: str, request: pytest.FixtureRequest) -> None:
    structure = Structure(request.getfixturevalue(name).read_text())
    ids = Counter(value for _, name, value in structure.attributes if name == "id")
    assert max(ids.values()) == 1
    assert structure.tags["caption"] == structure.tags["table"] > 10
    assert structure.tags["main"] == structure.tags["header"] == structure.tags["nav"] == 1
    boxes = [name for tag, name, value in structure.attributes if tag == "div" and value]
    assert boxes.count("aria-label") == boxes.count("role")
    scopes = sum(tag == "th" and name == "scope" for tag, name, _ in structure.attributes)
    assert scopes == structure.tags["th"]
    assert structure.headings[0] == 1
    assert structure.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(structure.headings))


def test_numbers_are_those_of_the_summary(page: Path, demo: Path) -> None:
    def share(estimate: dict[str, float]) -> str:
        return "{:.1f}% [{:.1f}, {:.1f}]".format(*(100 * estimate[key] for key in ("value", "low", "high")))

    shown = words(page.read_text())
    summary = json.loads((demo / "summary.json").read_text())
    for stage in summary["stages"].values():
        for row in stage["metrics"]["by_length"].values():
            assert share(row["pair_accuracy"]) in shown
        for row in stage["best_of_4"]["metrics"]["by_length"].values():
            assert share(row["top1"]) in shown
        for part in (stage, stage["best_of_4"]):
            assert share(part["metrics"]["macro"]["by_length"]) in shown
    gap = summary["contrasts"]["long_vs_control"]["by_length"]["4096"]
    assert f"+{100 * gap['value']:.1f} [+{100 * gap['low']:.1f}, +{100 * gap['high']:.1f}]" in shown


def test_figures_are_written_as_svg_and_png_and_follow_the_theme_inside_the_page(page: Path) -> None:
    folder = page.with_name("report-figures")
    names = {path.stem for path in folder.glob("*.svg")}
    assert {"accuracy", "accuracy-narrow", "depth-0", "depth-3", "loss"} <= names
    assert {path.stem for path in folder.glob("*.png")} == names
    for name in names:
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
        assert "var(--" not in (folder / f"{name}.svg").read_text()
    inline = re.findall(r'<div class="plot.*?</div>', page.read_text(), re.DOTALL)
    assert len(inline) > 8
    for figure in inline:
        assert "var(--" in figure
        assert not re.findall(r'(?:fill|stroke)="(?:#[0-9a-f]+|white|black)"', figure)


def test_hostile_text_stays_text(synthetic: ModuleType, tmp_path: Path) -> None:
    hostile = synthetic.HOSTILE
    records = synthetic.judgments(synthetic.CURVES["long"], 1)
    renamed = [
        replace(record, id=f"{hostile}-{number:04}", task=hostile, explanation=hostile)
        for number, record in enumerate(records)
    ]
    folder = tmp_path / "run <b>\x1b&'\""
    synthetic.write_evaluation(folder, renamed, model=hostile)
    out = tmp_path / "hostile.html"
    build([folder], out)
    text = out.read_text()
    structure, browser = Structure(text), Browser.of_page(text)
    assert structure.tags["script"] == 1 + 1 + len({one["chunk"] for one in browser.rows.values()} - {None})
    assert structure.tags["img"] == structure.tags["b"] == 0
    assert "alert(1)" in words(text)
    assert loads(text) == []
    key, row = next(iter(browser.rows.items()))
    assert row["task"] == hostile
    assert browser.detail(key)["judged"]["0"]["trials"][0]["explanation"] == hostile
    for path in out.with_name("hostile-figures").glob("*.svg"):
        ElementTree.parse(path)


def test_two_families_have_a_figure_and_tables_each(families_page: Path) -> None:
    shown = words(families_page.read_text())
    for family in ("Discriminative", "Generative"):
        assert f"{family} reward models. Pair accuracy against context length" in shown
    folder = families_page.with_name("report-figures")
    names = {path.stem for path in folder.glob("*.svg")}
    assert {"accuracy", "accuracy-2", "accuracy-2-narrow", "loss", "loss-2"} <= names
    generative = (folder / "accuracy-2.svg").read_text()
    assert "judge: LOGO" in generative
    assert "control" not in generative


def test_a_demo_has_every_section(page: Path, demo: Path) -> None:
    text = page.read_text()
    assert {
        "accuracy",
        "boundary",
        "overall",
        "depth",
        "differences",
        "best-of",
        "training",
        "items-title",
        "definitions",
        "provenance",
    } <= anchors(text)
    shown = words(text)
    summary = json.loads((demo / "summary.json").read_text())
    contrasts = tables(text)["Paired differences in percentage points by length, with 95% intervals"]
    assert contrasts.keys() == {"long − control", "long − control, best of 4"}
    for length, gap in summary["contrasts"]["long_vs_control"]["by_length"].items():
        value, low, high = (points(gap[key]) for key in ("value", "low", "high"))
        assert contrasts["long − control"][f"{int(length):,}"] == f"{value} [{low}, {high}]"
    controls = tables(text)["Controls in percentage points, with 95% intervals"]
    assert controls["unrelated context − chance"] == {
        "points": "+0.6 [−2.9, +4.0]",
        "pairs": "1,024 128 contexts",
        "reading": "at chance, as expected",
    }
    assert "longrm demo --out NEW_FOLDER --seed 0" in shown
    assert re.search(r"[\d,]+ were judged\. [\d,]+ of them open with their texts", shown)
    assert "NaN" not in shown
    assert "None" not in shown


def test_terms_lead_to_their_definitions(page: Path) -> None:
    body = lxml.html.document_fromstring(page.read_text())
    defined = {"#" + term.get("id"): term for term in body.xpath("//dl[@class='terms']/dt")}
    used = body.xpath("//a[@class='term']")
    for link in used:
        term = defined[link.get("href")]
        assert link.text_content() == term.text_content()
        assert link.get("title") == term.getnext().text_content()
    assert {"slope", "chance", "control"} <= {link.text_content() for link in used}


def test_evaluation_and_training_runs_are_mixed(synthetic: ModuleType, tmp_path: Path) -> None:
    summaries = {}
    for number, name in enumerate(("short", "long")):
        records = synthetic.judgments(synthetic.CURVES[name], number)
        part = {"added": {"shard": "2/4"}, "counted": {"sampled_from": 1200}} if name == "short" else {}
        summaries[name] = synthetic.write_evaluation(
            tmp_path / name, records, model=f"/models/{name}/final", **part
        )
    synthetic.write_training(tmp_path / "trained", timed=False)
    build([tmp_path / "short", tmp_path / "long", tmp_path / "trained"], tmp_path / "mixed.html")
    shown = words((tmp_path / "mixed.html").read_text())
    gaps = [compare(tmp_path / "short", tmp_path / "long")]
    gaps = [gaps[0].overall, gaps[0].by_length["4096"]]
    overall, longest = (
        f"{points(gap.difference.value)} [{points(gap.difference.low)}, {points(gap.difference.high)}] points"
        for gap in gaps
    )
    finding = f"long · final minus short · final: pair accuracy {overall} on the same 480 comparisons, "
    finding += f"{longest} at 4,096 tokens. Context boundary in tokens:"
    for name, summary in summaries.items():
        boundary = parse_summary(summary).boundary
        assert boundary
        place = f"{boundary_estimate(boundary)} {boundary_interval(boundary)}".strip()
        unclear = {"short": " (some lengths unclear)", "long": ""}[name]
        finding += f" {name} · final {place}{unclear};"
    assert f"{finding[:-1]}." in shown
    assert "≈" in finding
    table = tables((tmp_path / "mixed.html").read_text())[
        "Pair accuracy of long · final minus short · final, difference in points, with 95% intervals"
    ]
    assert list(table) == ["all", *(f"{length:,}" for length in synthetic.LENGTHS)]
    assert (table["all"]["difference"], table["4,096"]["difference"]) == (
        overall.removesuffix(" points"),
        longest.removesuffix(" points"),
    )
    assert table["4,096"]["n"] == "80"
    build([tmp_path / "long"], tmp_path / "alone.html")
    alone = words((tmp_path / "alone.html").read_text())
    assert f"long · final: {headline(parse_summary(summaries['long']))}." in alone
    assert "short · final: a sample (--limit) of 1,200 comparisons" in shown
    assert "short · final: shard 2/4 only" in shown
    assert "long · final: a sample" not in shown
    assert "long · final: shard" not in shown
    assert "longrm train bradley-terry --config" in shown
    for absent in ("An illustration", "Best of 4", "Contrast and controls"):
        assert absent not in shown


def test_runs_without_a_common_comparison_are_listed(synthetic: ModuleType, tmp_path: Path) -> None:
    for name, responses in (("pairs", 2), ("fours", 4)):
        records = synthetic.judgments(synthetic.CURVES["short"], 1, responses=responses)
        synthetic.write_evaluation(tmp_path / name, records)
    build([tmp_path / "pairs", tmp_path / "fours"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert finding_of(text).startswith("Context boundary in tokens: pairs · tiny ≈")
    assert "differences" not in anchors(text)


def test_a_demo_begins_with_what_long_training_gains_and_where_it_loses(page: Path, demo: Path) -> None:
    text, summary = page.read_text(), json.loads((demo / "summary.json").read_text())
    long, control = (
        f"{100 * summary['stages'][name]['metrics']['by_length']['4096']['pair_accuracy']['value']:.1f}%"
        for name in ("long", "control")
    )
    gap = summary["contrasts"]["long_vs_control"]["by_length"]["4096"]
    value, low, high = (points(gap[key]) for key in ("value", "low", "high"))
    finding = finding_of(text)
    assert finding.startswith(
        f"At 4,096 tokens long is right in {long} of the pairs and control in {control}: "
        f"{value} [{low}, {high}] points. "
        "Context boundary in tokens: short ≈"
    )
    assert "untrained" not in finding, "it is at chance"
    notices = [
        one.text_content() for one in lxml.html.document_fromstring(text).xpath("//p[@class='notice']")
    ]
    assert summary["notes"]["trade_off"] in notices[:2]
    stages = lxml.html.document_fromstring(text).xpath("//section[1]//dl/dt")
    assert [stage.text_content() for stage in stages] == ["untrained", "short", "control", "long"]


def test_a_training_shows_its_evaluations(synthetic: ModuleType, tmp_path: Path) -> None:
    folders = tmp_path / "evaluated", tmp_path / "plain"
    synthetic.write_training(folders[0], held_out={50: 0.7, 100: 0.95, 150: 0.8, 200: 0.9})
    synthetic.write_training(folders[1])
    build(folders, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    shown = {}
    for step in (50, 100, 150, 200):
        summary = json.loads((folders[0] / f"evaluations/{step}/summary.json").read_text())
        found = summary["metrics"]["overall"]["pair_accuracy"]
        shown[step] = "{:.1f}% [{:.1f}, {:.1f}]".format(
            *(100 * found[key] for key in ("value", "low", "high"))
        )
    assert finding_of(text) == (
        f"evaluated: 200 steps; held-out pair accuracy {shown[50]} after step 50, {shown[100]} after step 100 (best), "
        f"{shown[200]} after step 200. plain: 200 steps, no evaluation."
    )
    table = tables(text)["Held-out pair accuracy during training, with 95% intervals"]
    assert {int(step): row["evaluated"] for step, row in table.items()} == shown
    drawn = (tmp_path / "report-figures/held-out-pair-accuracy.svg").read_text()
    assert drawn.count('aria-roledescription="point"') == 4


def test_many_metrics_of_few_models_are_rows(page: Path) -> None:
    found = tables(page.read_text())
    best_of = found["Best of 4, all lengths together"]
    assert best_of["top-1"].keys() == {"untrained", "short", "control", "long", "chance"}
    assert best_of["comparisons"]["chance"] == ""
    assert found["All metrics, with 95% intervals, and chance levels"].keys() >= {"untrained", "chance"}


def test_folders_that_are_not_finished_runs_are_errors(
    synthetic: ModuleType, demo: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    records = synthetic.judgments(synthetic.CURVES["long"], 1)
    synthetic.write_evaluation(tmp_path / "half", records, finished=False)
    with RunFolder(tmp_path / "other", "score", synthetic.Settings()):
        pass
    synthetic.write_evaluation(tmp_path / "broken", records)
    with (tmp_path / "broken/judgments.jsonl").open("a") as judgments:
        judgments.write("{\n{}\n")
    for folders, named in (
        ([tmp_path / "missing"], "missing"),
        ([], "run folder"),
        ([tmp_path / "half"], r"longrm evaluate --config \S+half/config\.toml --out \S+half$"),
        ([tmp_path / "other"], "'score'"),
        ([demo, demo / "training" / "long"], str(demo)),
        ([tmp_path / "broken"], r"judgments\.jsonl, line"),
    ):
        with pytest.raises(RunError, match=named):
            build(folders, out)
    assert not out.exists()
    assert not out.with_name("report-figures").exists()
