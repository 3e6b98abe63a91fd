"""Published judges by name: how they are asked, and which answers have a verdict."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from longrm.cli.commands import cli
from longrm.errors import ConfigError, DataError
from longrm.judging import JUDGES, load_format, load_judge, prompt_provenance
from longrm.reward_models import JudgeSettings, load
from longrm.types import Outcome

from ..clients import conftest as peer

server = peer.server

A, B = (1.0, 0.0), (0.0, 1.0)
PANDALM = Path(__file__).parents[3] / "shared" / "data" / "judgelrm" / "results_judgelrm3b.json"

# An example of a verdict in a sentence, as the prompts of some judges have; a judge may repeat the line.
EXAMPLES = {
    "judgelrm": "Write scores, for example <answer>3</answer><answer>5</answer>",
    "rm-r1": "End with <answer>[[A]]</answer> or <answer>[[B]]</answer>.",
    "skywork-critic": "Write [[B]] if B wins.",
    "selene": "Finish with the line **Result:** B",
    "selene-absolute": "Finish with the line **Result:** 4",
    "prometheus-2": "Finish with the line [RESULT] B",
    "prometheus-2-absolute": "Finish with the line [RESULT] 4",
    "con-j": 'Answer like {"why": "...", "更好的回答": 1}',
}
VERDICTS = [
    ("rm-r1", "<eval>A quotes [[B]].</eval>\n\n<answer>[[A]]</answer>", A),
    ("rm-r1", "<think>Surely <answer>[[A]]</answer></think><answer>[[B]]</answer>", B),
    ("judgelrm", "A thought.</think>\n<answer> 9 </answer><answer> 8.5 </answer><|im_end|>", (9.0, 8.5)),
    ("judgelrm", "<answer>3</answer>\n<answer>7</answer>", (3.0, 7.0)),
    ("skywork-critic", "[[B]]", B),
    ("selene", "**Reasoning:** A is wrong.\n\n**Result:** B", B),
    ("selene", "**Reasoning:** A is right.\n\n**Result:**\nA", A),
    ("selene-absolute", "**Reasoning:** Fine.\n\n**Result:** 4", (7.5,)),
    ("prometheus-2", "Feedback: B invents a key. [RESULT] A", A),
    ("prometheus-2", "It is so. [RESULT] Response B.", B),
    ("prometheus-2-absolute", "It is so. [RESULT] 4/5", (7.5,)),
    ("con-j", '{"原因": "回答1错误。",\n "更好的回答": 2}', B),
    ("con-j", '```json\n{"原因": "好", "更好的回答": "1"}\n```', A),
    ("con-j", '{"更好的回答": 1, "原因": "回答1', A),
    ("nemotron-genrm", '<think>{"score_1": 1}</think>{"score_1": 4, "score_2": 2, "ranking": 1}', (4.0, 2.0)),
    ("nemotron-genrm", '```json\n{\n "score_1": 3,\n "score_2": 3,\n "ranking": 5\n}\n```', (1.5, 4.5)),
    (
        "nemotron-genrm",
        "[The Begin of Analysis on Response 1]\nGood.\n[The End of Analysis on Response 1]\n"
        "[The Begin of Individual Scores]\n\\boxed{2, 4} \n[The End of Individual Scores]\n"
        "[The Begin of Ranking Score]\n\\boxed{6} \n[The End of Ranking Score]",
        (2.0, 4.0),
    ),
]
NO_VERDICTS = [
    ("rm-r1", "<answer>[[A]]</answer> or <answer>[[B]]</answer>"),
    ("rm-r1", "<answer>[[A/B]]</answer>"),
    ("rm-r1", "<think>Surely <answer>[[A]]</answer>"),
    ("rm-r1", "I take [[A]]."),
    ("judgelrm", "<answer>9</answer>"),
    ("judgelrm", "<answer>9</answer><answer>11</answer>"),
    ("judgelrm", "<answer>9</answer><answer>8"),
    ("skywork-critic", "[[A]] or [[B]]"),
    ("skywork-critic", "[[C]]"),
    ("selene", "**Result:** <A or B>"),
    ("selene", "**Result:** A is good, but B is better"),
    ("selene-absolute", "**Result:** 4.5"),
    ("selene-absolute", "**Result:** 6"),
    ("prometheus-2", '[RESULT] (Either "A" or "B")'),
    ("prometheus-2", "Response A is better."),
    ("prometheus-2-absolute", "[RESULT] (an integer number between 1 and 5)"),
    ("prometheus-2-absolute", "[RESULT] 45"),
    ("con-j", '{"原因": "好", "更好的回答": 12}'),
    ("con-j", '{"原因": "好", "更好的回答": 3}'),
    ("con-j", '{"原因": "更好的回答 1"}'),
    ("nemotron-genrm", '{"score_1": 4, "score_2": 2}'),
    ("nemotron-genrm", '{"score_1": 4, "score_2": 2, "ranking": 7}'),
    ("nemotron-genrm", '{"score_1": 4, "score_2": 2, "ranking": true}'),
    ("nemotron-genrm", '{"score_1": 4, "score_2": 2, "ranking": 1'),
    ("nemotron-genrm", "[The Begin of Individual Scores]\n\\boxed{2, 4}\n[The End of Individual Scores]"),
    ("nemotron-genrm", "\\boxed{2, 4} and \\boxed{6}"),
]


@pytest.fixture(scope="session")
def judges(tmp_path_factory):
    """Every judge, with a template of ours where it needs one."""
    folder, made = tmp_path_factory.mktemp("judges"), {}
    for name, judge in JUDGES.items():
        file = folder / f"{name}.jinja"
        shown = "{{ response }}" if judge.pointwise else "{{ responses[0] }} or {{ responses[1] }}"
        file.write_text(f"{{{{ prompt }}}} {shown}\n{EXAMPLES.get(name)}\n")
        made |= load_judge(name, str(file) if judge.needs_template else None)
    return made


@pytest.mark.parametrize(("name", "text", "values"), VERDICTS)
def test_an_answer_in_a_judges_form_is_parsed(judges, query, name, text, values):
    verdict = judges[name].parse(text, query("x", "y"))
    assert (verdict.values, verdict.ranking) == (values, ())


@pytest.mark.parametrize(("name", "text"), NO_VERDICTS)
def test_what_only_resembles_a_verdict_is_none(judges, query, name, text):
    assert judges[name].parse(text, query("x", "y")) is None


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_repeated_example_of_the_prompt_is_not_a_verdict(judges, query, name):
    judge, asked = judges[name], query("x", "y")
    assert judge.pattern.search(EXAMPLES[name]), "the example must be able to mislead"
    assert judge.parse(f"I must do this:\n{EXAMPLES[name]}\n", asked) is None
    text, values = next((text, values) for of, text, values in VERDICTS if of == name)
    assert judge.parse(f"{EXAMPLES[name]}\n{text}", asked).values == values


PIECES = st.sampled_from(
    ["<answer>", "</answer>", "[[A]]", "9", "\n", "[RESULT]", " A", " 4", "**Result:**", "{", "}", '"', ": 1",
     '"更好的回答"', '"score_1": 3,', '"score_2": 9,', '"ranking": 1e999', "[The Begin of Ranking Score]",
     "\\boxed{", "[The Begin of Individual Scores]", "1.2.3", ",", "<think>", "</think>"]
)  # fmt: skip


@given(text=st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join))
@example("[The Begin of Individual Scores]\\boxed{1.2.3, 4}[The Begin of Ranking Score]\\boxed{..}")
def test_any_text_has_a_verdict_in_range_or_none(judges, query, text):
    for judge in judges.values():
        verdict = judge.parse(text, query("x", "y"))
        if verdict is not None:
            assert len(verdict.values) == (1 if judge.pointwise else 2)
            assert all(-2 <= value <= 10 for value in verdict.values)


def test_equal_scores_of_nemotron_are_decided_by_the_ranking(judges, query):
    def judged(first, second, ranking):
        text = json.dumps({"score_1": first, "score_2": second, "ranking": ranking})
        return judges["nemotron-genrm"].parse(text, query("x", "y"))

    assert judged(4, 4, 2).values == (5.5, 2.5)  # NeMo Gym's simple_tiebreaker: 4 + 3.5 - 2, and 4 - 3.5 + 2
    assert judged(4, 3, 6).values == (4.0, 3.0)
    assert [judged(*one).contradicted for one in ((4, 3, 6), (4, 3, 2), (4, 4, 2))] == [True, False, False]


def test_the_published_agreement_of_judgelrm_follows_from_its_texts(judges, query):
    if not PANDALM.is_file():
        pytest.skip("JudgeLRM is not in ../shared/data")
    right, rows = 0, json.loads(PANDALM.read_text())
    for row in rows:
        ((label, count),) = Counter(row[f"annotator{number}"] for number in (1, 2, 3)).most_common(1)
        verdict = judges["judgelrm"].parse(row["output"], query("x", "y"))
        first, second = verdict.values if verdict else (0, 0)
        right += ("1" if first > second else "2" if first < second else "0") == str(label if count > 1 else 0)
    assert round(100 * right / len(rows), 2) == 77.68


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "rm-r1"}, "judge.template"),
        ({"name": "nemotron-genrm", "template": "any.jinja"}, "judge.template"),
        ({"name": "nemotron"}, "nemotron-genrm"),
        ({"name": "nemotron-genrm", "format": "pairwise"}, "judge.format"),
        ({"name": "nemotron-genrm", "verdict": "(A)"}, "judge.verdict"),
        ({"name": "nemotron-genrm", "solve": True}, "judge.solve"),
        ({"name": "nemotron-genrm", "rubrics": "item"}, "judge.rubrics|criterion"),
    ],
)
def test_a_setting_that_does_not_apply_is_an_error(server, settings, named):
    with pytest.raises(ConfigError, match=named):
        load(f"openai:{server.url}#tiny", judge=settings)


@pytest.mark.parametrize("model", ["tokens:openai:{}#tiny", "baseline:longest"])
def test_only_a_model_that_writes_has_a_form(server, model):
    with pytest.raises(ConfigError, match=r"judge\.name"):
        load(model.format(server.url), judge={"name": "nemotron-genrm"})


@pytest.mark.parametrize("name", JUDGES)
def test_a_source_is_pinned(name):
    assert JUDGES[name].name == name
    assert " at " in JUDGES[name].source


# ---- Behind an endpoint ----


def answer(seen, number):
    """The score of a response is the number in it, and the ranking agrees."""
    responses = {one["role"]: one["content"] for one in seen.body["messages"] if "response" in one["role"]}
    first, second = (int(responses[f"response_{place}"]) for place in (1, 2))
    ranking = 2 if first >= second else 5  # of equal scores the first shown: position bias
    return peer.said(json.dumps({"score_1": first, "score_2": second, "ranking": ranking}))


def test_nemotron_reads_the_conversation_and_a_role_for_each_response(server, query):
    server.script = answer
    model = load(f"openai:{server.url}#genrm", judge={"name": "nemotron-genrm"})
    assert (model.scale, model.sees_order, model.by_criterion) == ("points", True, False)
    asked = query("4", "2")
    (trial,) = model.judge_in_all_orders([asked])
    assert trial.scores == (4.0, 2.0)
    (same,) = model.judge_in_all_orders([query("3", "3")])
    assert same.scores[0] == same.scores[1], "both orders cancel the position bias"
    question = {"role": "user", "content": "Marlow has the copper key.\n\nWho has the key?"}
    shown = [
        [question, {"role": "response_1", "content": one}, {"role": "response_2", "content": other}]
        for one, other in (("2", "4"), ("4", "2"))
    ]
    assert sorted((seen.body["messages"] for seen in server.seen[:2]), key=str) == sorted(shown, key=str)


def test_nemotron_refuses_what_its_chat_template_cannot_show(judges, query):
    judge, asked = judges["nemotron-genrm"], query("x", "y")
    tool = {"type": "function", "function": {"name": "search"}}
    called = {"role": "assistant", "content": "", "tool_calls": [tool]}
    for wrong in (
        query("x", "y", "z"),
        replace(asked, tools=(tool,)),
        replace(asked, prompt=(*asked.prompt, called, *asked.prompt)),
        replace(asked, prompt=(*asked.prompt, {"role": "tool", "content": "x"}, *asked.prompt)),
        replace(asked, prompt=(*asked.prompt, {"role": "assistant", "content": "x"})),
    ):
        with pytest.raises(DataError, match="'c1'"):
            judge.render(wrong)


@pytest.mark.parametrize(("temperature", "requests"), [(0.0, 1), (0.7, 3)])
def test_a_judge_is_only_sampled_again(server, query, temperature, requests):
    server.script = lambda seen, number: peer.said("I cannot say.")
    settings = JudgeSettings(name="nemotron-genrm", retries=2, temperature=temperature)
    (judgment,) = load(f"openai:{server.url}#genrm", judge=settings).judge([query("4", "2")])
    assert (judgment.outcome, judgment.attempts, len(server.seen)) == (Outcome.UNPARSED, requests, requests)
    assert len({json.dumps(seen.body["messages"]) for seen in server.seen}) == 1
    assert len({seen.body.get("seed") for seen in server.seen}) == requests


def test_a_template_may_set_a_system_message(server, query, tmp_path):
    file = tmp_path / "judge.jinja"
    file.write_text(
        "{% set system %}\nYou judge.\n{% endset %}\n"
        "[Question]\n{{ prompt }}\n\n[1]\n{{ responses[0] }}\n\n[2]\n{{ responses[1] }}\n"
    )
    server.script = lambda seen, number: peer.said("Fine.</think><answer>7</answer><answer>9</answer>")
    model = load(f"openai:{server.url}#judgelrm", judge={"name": "judgelrm", "template": str(file)})
    asked = query("Marlow.", "Tamsin.")
    (judgment,) = model.judge([asked])
    assert judgment.scores == (7.0, 9.0)
    system, user = server.seen[0].body["messages"]
    assert system == {"role": "system", "content": "You judge."}
    assert user["content"] == (
        "[Question]\nMarlow has the copper key.\n\nWho has the key?\n\n[1]\nMarlow.\n\n[2]\nTamsin."
    )
    before = prompt_provenance(load_judge("judgelrm", str(file)))
    file.write_text(file.read_text().replace("You judge.", "You judge well."))
    assert model.provenance == before != prompt_provenance(load_judge("judgelrm", str(file)))


@pytest.mark.parametrize(
    ("start", "system"),
    [("", []), ('{% set system = "" %}', [""]), ("{% set system %} x\n{% endset %}", ["x"])],
)
def test_an_empty_system_message_is_one(query, tmp_path, start, system):
    file = tmp_path / "judge.jinja"
    file.write_text(f"{start}{{{{ prompt }}}} {{{{ responses }}}}")
    (*before, last) = load_judge("con-j", str(file))["con-j"].render(query("x", "y"))[0]
    assert [(one["role"], one["content"]) for one in before] == [("system", text) for text in system]
    assert last["role"] == "user"


def test_a_system_message_is_not_dropped_by_solving(query, tmp_path):
    file = tmp_path / "judge.jinja"
    file.write_text("{% set system %}Judge.{% endset %}{{ prompt }}{{ solve }}{{ responses }}")
    judge = load_format("pairwise", template=file)
    assert [one["role"] for one in judge.render(query("x", "y"))[0]] == ["system", "user"]
    with pytest.raises(ConfigError, match="system"):
        judge.render_turns(query("x", "y"))


def test_a_rating_from_1_to_5_is_one_of_0_to_10(server, query, tmp_path):
    file = tmp_path / "judge.jinja"
    file.write_text("{{ prompt }} {{ response }}")
    server.script = lambda seen, number: peer.said(f"Fine. [RESULT] {seen.text[-1]}")
    model = load(f"openai:{server.url}#x", judge={"name": "prometheus-2-absolute", "template": str(file)})
    assert (model.sees_order, model.scale, model.by_criterion) == (False, "points", True)
    (judgment,) = model.judge([query("1", "2", "5")])
    assert judgment.scores == (0.0, 2.5, 10.0)


def test_the_command_line_knows_judges_by_name(server, tmp_path):
    server.script = answer
    rows = tmp_path / "pairs.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"Q{n}", "chosen": "5", "rejected": "1"}) + "\n" for n in range(3))
    )
    model = ["--model", f"openai:{server.url}#genrm", "--judge", "nemotron-genrm"]
    out = tmp_path / "run"
    result = CliRunner().invoke(cli, ["evaluate", *model, "--bench", str(rows), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["accuracy"]["answered"]["value"] == 1.0
    scored = tmp_path / "scored.jsonl"
    result = CliRunner().invoke(cli, ["score", *model, "--data", str(rows), "--out", str(scored)])
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["scores"] for line in scored.read_text().splitlines()] == [[5.0, 1.0]] * 3
