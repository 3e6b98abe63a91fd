"""The user's own prompts and verdict patterns."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from longrm.errors import ConfigError, DataError
from longrm.judging import load_format

VERDICT = r"^Better: (A|B|tie|\d)$"


@pytest.fixture
def template(tmp_path):
    def write(text, name="pairwise", verdict=None):
        file = tmp_path / "prompt.jinja"
        file.write_text(text)
        return load_format(name, template=file, verdict=verdict)

    return write


def test_a_file_becomes_the_only_message(template, query):
    judging = template(
        "Text: {{ context }}\nQ: {{ question }}\n{% for text in responses %}\n{{ loop.index }}) {{ text }}\n"
        "{% endfor %}\nWhich?\n"
    )
    ((message,),) = judging.render(query("Marlow.", "<b>Tamsin & Co.</b>"))
    assert message == {
        "role": "user",
        "content": "Text: Marlow has the copper key.\nQ: Who has the key?\n1) Marlow.\n2) <b>Tamsin & Co.</b>\nWhich?",
    }
    ((message,),) = template("{{ conversation }} {{ responses|length }}").render(query("Marlow.", "Tamsin."))
    assert message["content"] == (
        '<turn role="user">\nMarlow has the copper key.\n\nWho has the key?\n</turn> 2'
    )


def test_a_template_of_the_package_has_the_name_that_recipes_use(query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "instruct_judge/judge.jinja"
    ((message,),) = load_format("pairwise", template=Path(name)).render(query("Marlow.", "Tamsin."))
    assert "Response A: Marlow.\nResponse B: Tamsin.\n" in message["content"]
    (tmp_path / "instruct_judge").mkdir()
    (tmp_path / name).write_text("Own: {{ responses|length }}")
    ((message,),) = load_format("pairwise", template=Path(name)).render(query("Marlow.", "Tamsin."))
    assert message["content"] == "Own: 2"
    with pytest.raises(ConfigError, match="instruct_judge/jude.jinja: cannot be read"):
        load_format("pairwise", template=Path("instruct_judge/jude.jinja"))


def test_pointwise_templates_see_one_response(template, query):
    judging = template("{{ question }} {{ response }}", "pointwise")
    assert [message["content"] for (message,) in judging.render(query("Marlow.", "Tamsin."))] == [
        "Who has the key? Marlow.",
        "Who has the key? Tamsin.",
    ]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("pairwise", "x\n{% if %}{{ responses }}", "line 2"),
        ("pairwise", "{{ responses|nosuch }}", "nosuch"),
        ("pointwise", "{{ responses }}", "'response'"),
        ("pairwise", "{{ responses }} {{ gold }}", "'gold'"),
        ("pairwise", "Who wins?", "'responses'"),
    ],
)
def test_a_bad_template_is_refused_before_any_work(template, name, text, named):
    with pytest.raises(ConfigError, match=rf"prompt\.jinja.*{named}"):
        template(text, name)


@pytest.mark.parametrize(
    "text",
    [
        "{{ responses[5] }}",
        "{{ responses.__class__.__mro__ }}{{ responses }}",
        "{{ responses.append('x') }}",
        "{% include 'x' %}{{ responses }}",
    ],
)
def test_templates_run_in_a_sandbox(template, query, text):
    with pytest.raises(ConfigError, match=r"prompt\.jinja"):
        template(text).render(query("Marlow.", "Tamsin."))


@pytest.mark.parametrize(
    ("name", "unknown"), [("context", {"context": ()}), ("question", {"question": None})]
)
def test_an_unknown_span_is_an_error(template, query, name, unknown):
    judging = template(f"{{{{ {name} }}}} {{{{ responses }}}}")
    asked = query("Marlow.", "Tamsin.")
    assert judging.render(asked)
    with pytest.raises(DataError, match=f"'c1'.*'{name}'"):
        judging.render(replace(asked, **unknown))
    assert template("{{ conversation }} {{ responses }}").render(replace(asked, **unknown))


@pytest.mark.parametrize("verdict", ["Better: [AB]", "(Better): (A|B)", "Better: (A"])
def test_a_bad_pattern_is_refused(verdict):
    with pytest.raises(ConfigError, match=re.escape(verdict)):
        load_format("pairwise", verdict=verdict)


@pytest.mark.parametrize(
    ("found", "points"),
    [("A", (1, 0)), ("1", (1, 0)), ("2", (0, 1)), ("tie", (0.5, 0.5)), ("3", None)],
)
def test_matches_of_a_pattern_are_verdicts(template, query, found, points):
    judging = template("{{ responses }}", verdict=VERDICT)
    asked = query("Marlow.", "Tamsin.")
    verdict = judging.parse(f"<think>\nBetter: A\n</think>\nBetter: B\nOr rather\nBetter: {found}\n", asked)
    assert (verdict and verdict.values) == points
    assert judging.parse("[[A]]", asked) is None  # the pattern replaces the format's own form
    assert "[[A]]" not in judging.reminder
    assert template("{{ responses }}").parse("[[B]]", asked).values == (0.0, 1.0), "a template alone does not"


def test_patterns_find_rankings_and_scores(query):
    ranked = load_format("listwise", verdict=r"<order>(.*)</order>")
    assert ranked.parse("<order>3, 1, 2</order>", query("x", "y", "z")).ranking == (2, 0, 1)
    assert ranked.parse("<order>CAB</order>", query("x", "y", "z")).ranking == (2, 0, 1)
    assert ranked.parse("<order>0, 1, 2</order>", query("x", "y", "z")) is None
    scored = load_format("pointwise", verdict=r'"score": ([\d.]+)')
    assert scored.parse('{"why": "so", "score": 7.5}', query("x")).values == (7.5,)
    assert scored.parse('{"why": "so", "score": 75}', query("x")) is None
