"""Phrases that readers stumble over in pages, help texts and messages; the length and the titles of pages."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from longrm.config import keys_of
from longrm.training.other_names import OTHER_NAMES

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"tells|(is|are|was|were) told|(tell|told) .{0,20}apart": "reports, prints, shows; is distinguishable",
    r"(longrm|command|message|page|report|line|log|summary|program|error|help|card|it) says": "reports, shows",
    r"stands? (twice|in|there|at)|(above|below) stands?|stood": "appears twice, is in",
    r"(lies?|lay) (in|on|at|there)": "is in, is stored in",
    r"beside": "with, next to, compared with",
    r"go(es)? by": "uses, depends on",
    r"(is|are|was|were) of(?! kind)|(by|of|with) what": "uses, has, depends on, which",
    r"(leave|leaves|left|leaving) (\S+ )?away|take another": "omit, choose another",
    r"whoever|nobody|somebody('s)?|anybody|one's own": "users, callers, a third party's, your",
    r"what (is|are) (too long|none)|what became of|what it holds": "over-long inputs, invalid, outcome, contents",
    r"made(-| )rows|made(-| )up": "synthetic rows",
    r"the (better|worse) one|the better,|the worse,": "chosen, rejected",
    r"in figures|which there (is|are) (not|none)|have a say|makes? room|shall": "plain words",
    r"mend(s|ed|ing)?|faults?": "fix, bug, error",
    r"holds (an?|no|several|the|all)": "contains, has",
    r"(counts?|scores?|weighs?|judged|treated) alike|by itself|likelier": "equally, similarly; separately; more likely",
}
"""Regular expressions, and the words to use."""
PATTERNS = {instead: re.compile(rf"\b({phrase})(?!\w)", re.IGNORECASE) for phrase, instead in INSTEAD.items()}
PAGES = (
    *(f"{folder}/**/*.md" for folder in (".github", "docs", "perf", "experiments", "examples", "plugins")),
    "*.md",
)
GENERATED = "worlds/"
"""Files of src/longrm with the sentences of generated contexts, which are data: every published number is on them."""
QUOTED = {"docs/worlds.md": ("Of what did", "Somebody pointed", "Whoever writes", "of whoever")}
"""Generated texts that a page quotes."""
MOST_WORDS = 22_000
"""Of all pages in `docs/` except `cli.md` and `coming_from_trl.md`, which are generated."""


def phrases_in(text: str) -> list[str]:
    text = " ".join(text.split())
    return [f"'{hit.group()}': {instead}" for instead, one in PATTERNS.items() for hit in one.finditer(text)]


def pages() -> Iterator[tuple[str, str]]:
    """The documentation; docs/cli.md has all help texts and the docstrings of the settings."""
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        for quoted in QUOTED.get(name, ()):
            text = text.replace(quoted, "")
        yield name, text


def messages() -> Iterator[tuple[str, str]]:
    """The strings of the package, prompts included, except docstrings."""
    for path in sorted((ROOT / "src/longrm").rglob("*.py")):
        name = path.relative_to(ROOT / "src/longrm").as_posix()
        if name.startswith(GENERATED):
            continue
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                yield f"{name}:{node.lineno}", node.value
    for path in sorted((ROOT / "src/longrm/synthesis/domains").glob("*.toml")):
        yield path.name, path.read_text()


def test_pages_and_messages_are_in_plain_words():
    found = [f"{place}: {phrase}" for place, text in [*pages(), *messages()] for phrase in phrases_in(text)]
    assert not found, "\n" + "\n".join(found)


def test_a_phrase_is_found():
    assert phrases_in("The column\nstands twice.") == ["'stands twice': appears twice, is in"]
    assert len(phrases_in("Whoever leaves it away is told by what.")) == 4
    assert not phrases_in("A default of kind 'x' appears in the log.")
    assert any(place == "docs/cli.md" for place, _ in pages())
    assert any("retries them" in text for _, text in messages())


def test_the_documentation_stays_short():
    words = {
        path: len(path.read_text().split())
        for path in ROOT.glob("docs/**/*.md")
        if path.name not in ("cli.md", "coming_from_trl.md")
    }
    assert sum(words.values()) <= MOST_WORDS, words


def test_no_title_is_a_part_of_another():
    """'Make data' and 'Make training data' would be two pages between which a reader guesses."""
    titles = {
        path.relative_to(ROOT).as_posix(): re.search(r"^# (.+)$", path.read_text(), re.MULTILINE)[1]
        for path in [*ROOT.glob("docs/**/*.md"), ROOT / "perf/README.md", ROOT / "experiments/README.md"]
        if path.name != "index.md"
    }
    words = {
        name: {word.rstrip("s").removesuffix("ing") for word in re.findall(r"\w{3,}", title.lower())}
        - {"the"}
        for name, title in titles.items()
    }
    alike = [(one, other) for one in words for other in words if one != other and words[one] <= words[other]]
    assert not alike


def wrong_keys(text: str, known: set[str]) -> list[str]:
    """The dotted keys in a text that begin with a group of settings and are no setting."""
    groups = {key.partition(".")[0] for key in known if "." in key}
    dotted = re.findall(r"(?<![\w./-])[a-z_]+(?:\.[a-z_]+)+(?![\w/(-])", text)
    files = (".json", ".jsonl", ".safetensors")
    keys = [key.removeprefix("evaluation.settings.") for key in dotted if not key.endswith(files)]
    return [key for key in keys if key.partition(".")[0] in groups and key not in known]


def test_every_setting_that_a_message_names_exists():
    settings = runpy.run_path(str(ROOT / "docs/cli_page.py"))["SETTINGS"].values()
    known = {key for one in settings for key in keys_of(one)}
    assert wrong_keys("set data.cache, data.path or model.x.y; runs/data.json", known) == [
        "data.cache",
        "model.x.y",
    ]
    seen = [text for _, text in messages()]
    assert sum(text.count("optimizer.") for text in seen) > 5
    kernel = {f"memory.{name}" for name in ("max", "current", "stat", "limit_in_bytes", "usage_in_bytes")}
    others = {"model.set_attn_implementation", *kernel, *OTHER_NAMES}  # those have former names, too
    assert not {key for text in seen for key in wrong_keys(text, known)} - others
