"""The page in headless Chromium: what is seen, what is reached, and what stays inert."""

import base64
import re
import shutil
import urllib.parse
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import longrm
from longrm.reporting import ReportSettings
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord

from .chromium import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(groups: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "report.html"
    longrm.report([], out, ReportSettings.read(groups))
    return out


OVERFLOW = "document.documentElement.scrollWidth"
STATUS = "document.querySelector('#viewer [role=status]').textContent"
ROWS = "[...document.querySelectorAll('#viewer .list tbody tr')].map(row => row.innerText)"
FIRST = "document.querySelector('#viewer .list tbody a').textContent"
SHOWN = "document.querySelector('#viewer').dataset.shown"
ARTICLE = "document.querySelector('#viewer article')"
READY = "document.querySelector('#viewer').dataset.ready"


def follow(page: Page, report: Path, fragment: str = "", **window: bool | int) -> None:
    """Opens a report at a fragment, and waits until the browser of comparisons shows it."""
    page.open("about:blank")  # another fragment alone would not load the page again
    page.open(report.resolve().as_uri() + fragment, **window)  # type: ignore[arg-type]
    page.until(READY)


def choose(page: Page, name: str, value: str) -> None:
    page.value(
        f"(() => {{ const s = document.querySelector('#viewer [name={name}]'); s.value = {value!r};"
        "s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def press(page: Page, button: str) -> None:
    page.value(f"document.querySelector('#viewer {button}').click()")


@pytest.mark.parametrize("width", [360, 768, 1280, 2560])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_without_problems(page: Page, report: Path, width: int, dark: bool) -> None:
    page.open(report, width=width, dark=dark)
    assert page.problems == []
    assert page.requests == [report.as_uri()]
    assert page.value(OVERFLOW) <= width
    widths = (
        "[...document.querySelectorAll('.plot')].filter(p => p.checkVisibility()).map(p => p.clientWidth)"
    )
    assert min(page.value(widths)) > 150
    shown = page.value(
        "[...document.querySelectorAll('.plot.wide, .plot.narrow')].map(p => p.checkVisibility())"
    )
    assert shown == ([False, True] if width < 700 else [True, False])
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_a_page_of_a_training_alone_has_no_problems(
    page: Page, synthetic: ModuleType, tmp_path: Path
) -> None:
    synthetic.write_training(tmp_path / "run", steps=30)
    longrm.report([tmp_path / "run"], tmp_path / "report.html")
    page.open(tmp_path / "report.html")
    assert page.problems == []


def test_the_list_filters_and_sorts_by_every_field(page: Page, report: Path) -> None:
    follow(page, report)
    assert page.value(STATUS) == "720 of 720 comparisons"
    counts = {
        ("length", "4096"): 120, ("depth", "0.0-0.2"): 144, ("responses", "4"): 240, ("task", "records"): 720,
        ("q", "edmund"): 24, ("q", "RECORDS-128-2-0001"): 1, ("q", "4096 0007"): 2, ("margin", "0"): 0,
    }  # fmt: skip
    for (name, value), count in counts.items():
        choose(page, name, value)
        expected = f"{count} of 720 comparisons" if count else "No comparison matches"
        assert page.value(STATUS) == expected, (name, value)
        choose(page, name, "")
    by_model = {}
    for verdict in ("right", "wrong"):
        choose(page, "model", "short")
        choose(page, "length", "4096")
        choose(page, "outcome", verdict)
        by_model[verdict] = int(page.value(STATUS).split()[0])
    assert sum(by_model.values()) == 80
    choose(page, "sort", "lowest")
    margins = (
        "[...document.querySelectorAll('.list tbody tr')]"
        ".map(row => Number(row.cells[5].querySelector('small').innerText.replace('−', '-')))"
    )
    found = page.value(margins)
    assert found == sorted(found)
    assert found[-1] < 0
    page.value("document.querySelector('#viewer form').reset()")
    page.until(f"{STATUS} === '720 of 720 comparisons'")
    choose(page, "models", "disagree")
    apart = int(page.value(STATUS).split()[0])
    choose(page, "models", "agree")
    assert apart + int(page.value(STATUS).split()[0]) == 720
    assert len(page.value(ROWS)) == 50
    press(page, ".more")
    assert len(page.value(ROWS)) == 100


def test_a_link_opens_a_comparison_among_those_it_chooses(page: Page, report: Path) -> None:
    follow(page, report, "#items?length=4096&responses=2&item=records-4096-2-0001&nonsense=1&task=none")
    assert page.until(SHOWN) == "records-4096-2-0001"
    assert page.value(STATUS) == "80 of 720 comparisons; number 2 is open"
    assert page.value("document.activeElement.tagName") == "ARTICLE"
    assert page.value(f"{ARTICLE}.getBoundingClientRect().top") < 300
    press(page, '[data-step="1"]')
    page.until(f"{SHOWN} === 'records-4096-2-0002'")
    page.value(f"{ARTICLE}.focus()")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    page.until(f"{SHOWN} === 'records-4096-2-0000'")
    assert page.value("document.querySelector('[data-step=\"-1\"]').disabled")
    link = page.value("location.hash")
    follow(page, report, link)
    assert page.until(SHOWN) == "records-4096-2-0000"
    assert page.value("location.hash") == link
    page.value("document.querySelectorAll('#viewer .list tbody a')[3].click()")
    page.until(f"{SHOWN} === 'records-4096-2-0003'")
    page.value("history.back()")
    page.until(f"{SHOWN} === 'records-4096-2-0000'")
    follow(page, report, "#items?item=elsewhere")
    assert "not in this report" in page.until(f"{ARTICLE}.innerText")


def test_numbers_and_figures_lead_to_their_comparisons(page: Page, report: Path) -> None:
    follow(page, report)
    links = page.value(
        "[...document.querySelectorAll('main a[href^=\"#items?\"]')].filter(a => !a.closest('#items'))"
        ".map(a => a.getAttribute('href'))"
    )
    assert len(links) > 100
    ours = page.value("[...document.querySelectorAll('.plot a')].map(a => a.getAttribute('href'))")
    assert {link.partition("?")[0] for link in ours} == {"#items"}
    assert len({urllib.parse.unquote(link) for link in ours}) == 4 * 6 + 4 * 6 * 5, (
        "every point and every cell"
    )
    for link, count in (("model=long&length=128", 80), ("model=short&length=4096&depth=0.4-0.6", 16)):
        assert f"#items?{link}" in links
        page.value(
            f"document.querySelector('main a[href=\"#items?{link}\"]')"
            ".dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
        )
        page.until(f"location.hash === '#items?{link}' && {STATUS} === '{count} of 720 comparisons'")
    assert page.problems == []


def test_the_context_folds_around_the_evidence(page: Page, report: Path) -> None:
    follow(page, report, "#items?item=records-4096-2-0000")
    page.until(SHOWN)
    text = f"{ARTICLE}.querySelector('.text').textContent"
    folded = page.value(text)
    assert (
        page.value(f"{ARTICLE}.querySelector('mark').textContent") == "The access code of Edmund is granite."
    )
    assert "characters …" in folded
    assert folded.endswith("Question: What is the access code of Edmund?")
    press(page, "article > button")
    assert page.value("document.activeElement.tagName") == "MARK"
    while page.value(f"Boolean({ARTICLE}.querySelector('button.gap'))"):
        label = page.value(f"{ARTICLE}.querySelector('button.gap').getAttribute('aria-label')")
        assert label.startswith("Show up to 50,000 of ")
        press(page, "button.gap")
    whole = page.value(text)
    assert len(whole) > 10 * len(folded)
    assert "…" not in whole
    assert page.value("document.activeElement.className") == "text all"


def test_models_are_shown_side_by_side_with_every_trial(
    page: Page, synthetic: ModuleType, tmp_path: Path
) -> None:
    records = synthetic.written(1, votes=2)
    synthetic.write_evaluation(tmp_path / "run", records, scale="verdict", kept=6)
    synthetic.write_evaluation(tmp_path / "other", synthetic.written(2, votes=2), scale="verdict", kept=0)
    longrm.report([tmp_path / "run", tmp_path / "other"], tmp_path / "report.html")
    for record, width in zip(records[:6], (400, *[1280] * 5), strict=True):
        follow(page, tmp_path / "report.html", f"#items?item={record.id}", width=width)
        page.until(SHOWN)
        assert page.problems == []
        assert page.value(OVERFLOW) <= width
        page.value(f"{ARTICLE}.querySelectorAll('details').forEach(d => d.open = true)")
        columns = page.value(
            f"[...{ARTICLE}.querySelectorAll('.model')]"
            ".map(model => [...model.querySelectorAll('.trials li')].map(trial => trial.innerText))"
        )
        assert [len(trials) for trials in columns] == [4, 4]
        for text, trial in zip(columns[0], record.trials, strict=True):
            assert text.startswith(f"shown: {trial.order[0] + 1}, {trial.order[1] + 1} · {trial.outcome}")
            assert trial.explanation.strip() in text
            assert ("2 attempts" in text) == (trial.attempts == 2)
            assert ("explanation contradicts verdict" in text) == bool(trial.contradicted)
        summary = page.value(f"{ARTICLE}.querySelector('.model').innerText")
        assert "in 2 orders" in summary
        assert ("tokens, middle" in summary) == (record.cut is not None)


@pytest.fixture(scope="module")
def why(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three models with attributions; the first one has no map to show."""
    runs = tmp_path_factory.mktemp("why")
    for name, shown in (("base", False), ("trained", True), ("last", True)):
        records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=1)
        synthetic.write_evaluation(runs / name, records, model=name, kept=2)
        synthetic.write_attribution(runs / f"why-{name}", runs / name, model=name, shown=shown)
    longrm.report(sorted(run for run in runs.iterdir()), runs / "report.html")
    return runs / "report.html"


SHADED = f"[...{ARTICLE}.querySelectorAll('mark.weighs')].filter(m => m.dataset.place)"
SHADES = f"{SHADED}.map(m => [m.className, m.firstChild.textContent.trim(), m.title]).filter(m => m[1])"


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1280, False), (1280, True)])
def test_sentences_are_shaded_listed_and_on_the_strip(page: Page, why: Path, width: int, dark: bool) -> None:
    follow(page, why, "#items?item=records-4096-2-0000", width=width, dark=dark)
    page.until(SHOWN)
    assert page.problems == []
    assert page.value(OVERFLOW) <= width
    shades = page.value(SHADES)
    assert len(shades) == 3
    assert shades[1] == ["weighs raises evidence", "The access code of Edmund is granite.", "+2.00"]
    assert shades[2][0::2] == ["weighs lowers", "−1.00"]
    colors = page.value(f"{SHADED}.map(m => getComputedStyle(m).backgroundColor)")
    strengths = {float(one.rstrip(")").split("/")[-1]) if "/" in one else 1.0 for one in colors}
    assert sorted(strengths) == pytest.approx([0.12, 0.5, 1.0], abs=0.01), "as strong as the weight"
    assert page.value(f"{ARTICLE}.querySelectorAll('.strip').length") == 2
    assert page.value(f"{ARTICLE}.querySelectorAll('.strip rect').length") == 2 * 3
    lists = page.value(
        f"[...{ARTICLE}.querySelectorAll('.model')].map(m => [...m.querySelectorAll('.ranked tbody tr')]"
        ".map(row => row.cells[1].firstChild.textContent))"
    )
    assert lists == [[], ["+2.00", "−1.00", "+0.25"], ["+2.00", "−1.00", "+0.25"]]
    columns = page.value(f"[...{ARTICLE}.querySelectorAll('.model')].map(m => m.innerText)")
    assert ["No map is shown: predicted & true differ." in text for text in columns] == [True, False, False]
    assert all("drop without random others" in text for text in columns)


def test_fields_and_buttons_have_names(page: Page, report: Path) -> None:
    follow(page, report, "#items?item=records-4096-2-0000")
    page.until(SHOWN)
    unnamed = page.value(
        "[...document.querySelectorAll('input, select, button, a')].filter(e => !e.closest('svg') && "
        "!(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).length"
    )
    assert unnamed == 0
    assert page.value("document.querySelector('#viewer [role=status]').getAttribute('aria-live')") == "polite"


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\0\u2028\u202eturned\u2066\x1b[31m"


def test_hostile_comparisons_are_inert(page: Page, synthetic: ModuleType, tmp_path: Path) -> None:
    long_line = HOSTILE + "x" * 10_000_000 + "FACT"
    synthetic.write_evaluation(
        tmp_path / "run",
        [
            replace(record, id=f"{HOSTILE}{number}", task=HOSTILE, explanation=HOSTILE, trials=())
            for number, record in enumerate(synthetic.judgments(synthetic.CURVES["long"], 1, groups=1))
        ],
        kept=0,
    )
    answers = tuple(({"role": HOSTILE, "content": HOSTILE + word},) for word in ("yes", "no"))
    with Log(tmp_path / "run/examples.jsonl", ExampleRecord) as log:
        log.append(ExampleRecord(f"{HOSTILE}0", ({"role": HOSTILE, "content": long_line},), answers))
    longrm.report([tmp_path / "run"], tmp_path / "report.html")
    page.open("about:blank")
    address = (tmp_path / "report.html").as_uri()
    page.open(f"{address}#items?item={urllib.parse.quote(HOSTILE)}0&q=%3Cimg", width=400)
    page.until(SHOWN)
    assert page.problems == []
    assert {request.partition("#")[0] for request in page.requests} == {address}
    assert page.value("document.querySelectorAll('img').length") == 0
    shown = page.value("document.querySelector('#viewer').textContent")
    for code in ("0000", "2028", "202E", "2066", "001B"):
        assert f"⟨U+{code}⟩" in shown
    assert "</script><script>alert(1)" in shown
    assert not re.search("[\0\u2028\u202e\u2066\x1b]", shown)
    assert page.value(OVERFLOW) <= 400
    press(page, "button.gap")
    page.until("document.querySelector('#viewer .text').textContent.length > 50000")
    assert page.value("document.querySelector('#viewer .text').textContent.length") < 60_000


def test_on_paper_the_first_page_is_full_and_no_table_is_cut(page: Page, report: Path) -> None:
    follow(page, report)
    page.send("Emulation.setEmulatedMedia", media="print")
    page.send("Emulation.setDeviceMetricsOverride", width=700, height=990, deviceScaleFactor=1, mobile=False)
    cut = page.value(
        "[...document.querySelectorAll('main .scroll')].filter(b => b.checkVisibility() && "
        "b.querySelector('table').getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"
    )
    page.send("Emulation.setEmulatedMedia", media="")
    assert cut == 0
    pdf = base64.b64decode(page.send("Page.printToPDF")["data"])
    streams = map(
        zlib.decompress, re.findall(rb"FlateDecode[^>]*>>\s*stream\r?\n(.*?)\r?\nendstream", pdf, re.S)
    )
    first = next(stream for stream in streams if b" Tm" in stream)
    placed = [float(y) for y in re.findall(rb" (-?[\d.]+) Tm", first)]
    assert max(placed) > 700, "page 1, of about 950 units, holds more than a title"
    assert page.value("document.querySelectorAll('main details[open]').length") == 0, "all is folded again"


def test_everything_but_the_browser_works_without_scripts(page: Page, report: Path) -> None:
    page.open(report, scripts=False)
    assert page.problems == []
    assert page.value("document.querySelector('#viewer').checkVisibility()") is False
    assert page.value("document.querySelectorAll('table').length") > 10
