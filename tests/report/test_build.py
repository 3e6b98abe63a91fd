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
from click.testing import CliRunner

import longrm
from longrm.cli.commands import cli
from longrm.errors import RunError
from longrm.evaluation.compare import ComparedPart, compare
from longrm.evaluation.summary_schema import parse_summary
from longrm.reporting import ReportSettings
from longrm.reporting.formatting import boundary_estimate, boundary_interval, headline, points
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
def page(groups: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report.html"
    longrm.report([], out, ReportSettings.read(groups))
    return out


@pytest.fixture(scope="module")
def two_groups(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    groups = synthetic.write_groups(folder, synthetic.CURVES | synthetic.JUDGES)
    longrm.report([], folder / "report.html", ReportSettings.read(groups))
    return folder / "report.html"


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


def test_equal_runs_give_equal_bytes(page: Path, groups: Path, tmp_path: Path) -> None:
    assert page.stat().st_size < 1_500_000
    out = str(tmp_path / "report.html")
    assert CliRunner().invoke(cli, ["report", "--config", str(groups), "--out", out]).exit_code == 0
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize("name", ["page", "two_groups"])
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


def test_numbers_are_those_of_the_summaries(page: Path, groups: Path) -> None:
    def share(estimate: dict[str, float]) -> str:
        return "{:.1f}% [{:.1f}, {:.1f}]".format(*(100 * estimate[key] for key in ("value", "low", "high")))

    shown = words(page.read_text())
    for exam, metric in (("scalar_models", "pair_accuracy"), ("best_of_4", "top1")):
        for summary in groups.parent.glob(f"*/{exam}/summary.json"):
            metrics = json.loads(summary.read_text())["metrics"]
            for row in metrics["by_length"].values():
                assert share(row[metric]) in shown
            assert share(metrics["macro"]["by_length"]) in shown


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
    longrm.report([folder], out)
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


def test_groups_have_a_figure_and_tables_each_and_one_color_a_label(two_groups: Path) -> None:
    text = two_groups.read_text()
    for title in ("scalar models", "judges"):
        assert f"{title}. Pair accuracy against context length" in words(text)
        assert f"{title}. Pair accuracy by length in tokens" in tables(text)
    brief = tables(text)["best of 4. Top-1 by length in tokens"]
    assert brief.keys() == {
        *(f"{name}, best of 4" for name in ("untrained", "short", "control", "long")),
        "chance",
    }
    folder = two_groups.with_name("report-figures")
    names = {path.stem for path in folder.glob("*.svg")}
    assert {"accuracy", "accuracy-2", "accuracy-2-narrow", "loss"} <= names
    assert "loss-2" not in names, "there is one group of trainings"
    judges = (folder / "accuracy-2.svg").read_text()
    assert "judge: long" in judges
    assert "control" not in judges


def test_a_group_in_brief_is_in_few_sections(page: Path) -> None:
    text = page.read_text()
    assert {"accuracy", "differences", "boundary", "overall", "depth", "brief", "training"} <= anchors(text)
    assert {"items-title", "definitions", "provenance"} <= anchors(text)
    found = tables(text)
    in_brief = {caption for caption, rows in found.items() if "long, best of 4" in rows}
    assert in_brief == {"best of 4. Top-1 by length in tokens", "Outcome of every comparison"}
    assert "long, best of 4" in found["best of 4. All lengths together"]["top-1"]
    shown = words(text)
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
    longrm.report([tmp_path / "short", tmp_path / "long", tmp_path / "trained"], tmp_path / "mixed.html")
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
    longrm.report([tmp_path / "long"], tmp_path / "alone.html")
    alone = words((tmp_path / "alone.html").read_text())
    assert f"long · final: {headline(parse_summary(summaries['long']))}." in alone
    assert "short · final: a sample (--limit) of 1,200 comparisons" in shown
    assert "short · final: shard 2/4 only" in shown
    assert "long · final: a sample" not in shown
    assert "long · final: shard" not in shown
    assert "longrm train bradley-terry --config" in shown
    assert "Further evaluations" not in shown


def test_runs_without_a_common_comparison_are_listed(synthetic: ModuleType, tmp_path: Path) -> None:
    for name, responses in (("pairs", 2), ("fours", 4)):
        records = synthetic.judgments(synthetic.CURVES["short"], 1, responses=responses)
        synthetic.write_evaluation(tmp_path / name, records)
    longrm.report([tmp_path / "pairs", tmp_path / "fours"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert finding_of(text).startswith("Context boundary in tokens: pairs · tiny ≈")
    assert "differences" not in anchors(text)


def test_contrasts_are_in_the_headline_and_the_tables(page: Path, groups: Path) -> None:
    text, found = page.read_text(), tables(page.read_text())

    def written(part: ComparedPart) -> str:
        value, low, high = (points(getattr(part.difference, key)) for key in ("value", "low", "high"))
        return f"{value} [{low}, {high}]"

    captions = []
    for exam, metric in (("scalar_models", "Pair accuracy"), ("best_of_4", "Top-1")):
        for other in ("control", "short"):
            gap = compare(groups.parent / other / exam, groups.parent / "long" / exam)
            names = [name + (", best of 4" if exam == "best_of_4" else "") for name in ("long", other)]
            caption = f"{metric} of {' minus '.join(names)}, difference in points, with 95% intervals"
            assert found[caption]["4,096"]["difference"] == written(gap.by_length["4096"])
            assert found[caption]["all"]["difference"] == written(gap.overall)
            captions.append(caption)
    gap = compare(groups.parent / "control/scalar_models", groups.parent / "long/scalar_models")
    assert finding_of(text).startswith(
        f"long minus control: pair accuracy {written(gap.overall)} points on the same 480 comparisons, "
        f"{written(gap.by_length['4096'])} points at 4,096 tokens. Context boundary in tokens: untrained "
    )
    folded = lxml.html.document_fromstring(text).xpath(
        "//section[@aria-labelledby='differences']/details//caption"
    )
    assert [one.text_content() for one in folded] == captions[1::2], (
        "the first contrast of each group is open"
    )
    page_ = lxml.html.document_fromstring(text)
    assert page_.xpath("//p[@class='notice']")[0].text_content() == "Read this first."
    models = page_.xpath("//section[1]//dl/dt")
    assert [model.text_content() for model in models] == ["untrained", "short", "control", "long"]


def test_a_training_shows_its_evaluations(synthetic: ModuleType, tmp_path: Path) -> None:
    folders = tmp_path / "evaluated", tmp_path / "plain"
    synthetic.write_training(folders[0], held_out={50: 0.7, 100: 0.95, 150: 0.8, 200: 0.9})
    synthetic.write_training(folders[1])
    longrm.report(folders, tmp_path / "report.html")
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
    best_of = found["best of 4. All lengths together"]
    assert len(best_of["top-1"]) == 5
    assert best_of["comparisons"]["chance"] == ""
    assert found["All metrics, with 95% intervals, and chance levels"].keys() >= {"untrained", "chance"}


def test_folders_that_are_not_finished_runs_are_errors(synthetic: ModuleType, tmp_path: Path) -> None:
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
        ([tmp_path / "broken"], r"judgments\.jsonl, line"),
    ):
        with pytest.raises(RunError, match=named):
            longrm.report(folders, out)
    assert not out.exists()
    assert not out.with_name("report-figures").exists()
