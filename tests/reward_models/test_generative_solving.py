"""`judge.solve`: the judge answers the question before it sees the responses, once for all orders and votes."""

import json

import pytest
from click.testing import CliRunner

from longrm.cli.evaluate import command as evaluate
from longrm.clients import Completion, Request
from longrm.data import write
from longrm.errors import ConfigError
from longrm.modeling import local_generator
from longrm.modeling.local_generator import LocalTextGenerator
from longrm.reward_models import JudgeSettings, ModelSettings, load
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.reward_models.groups import GroupRewardModel
from longrm.reward_models.wrappers import CompressRewardModel, RubricRewardModel
from longrm.runs.judgments import Judgments
from longrm.types import CommittedAnswer, Comparison, Criterion, Outcome, Query, text_of

from . import test_generative
from .test_generative import BAD, GOOD, query
from .tiny_models import make_model, queries

tokenizer = test_generative.tokenizer
WORST = "There is no code at all."
SOLVING = JudgeSettings(solve=True, retries=0)


class Script(test_generative.Script):
    """Writes the first of its two texts as its own answer, and the second one as its verdict."""

    def __init__(self, own, verdict="[[A]]", *, limit=None):
        super().__init__(self._write, limit=limit)
        self.questions, self.verdicts = [], []
        self.own, self.verdict = own, verdict

    def _write(self, request):
        asks = not any(text in text_of(request.messages) for text in (GOOD, BAD, WORST))
        (self.questions if asks else self.verdicts).append(request)
        text = self.own if asks else self.verdict
        return text(request) if callable(text) else text


@pytest.mark.parametrize("form", ["pairwise", "listwise", "pointwise"])
def test_the_first_turn_shows_no_response_and_is_shared_by_all_orders_and_votes(form):
    script = Script("copper", {"pairwise": "[[B]]", "listwise": "[[B > A]]", "pointwise": "[[7]]"}[form])
    model = GenerativeRewardModel(script, JudgeSettings(solve=True, format=form, temperature=1.0))
    orders = [(GOOD, BAD), (BAD, GOOD)] * 3
    judged = model.judge(
        [query(*shown, name=name, trial=trial) for name in "pq" for trial, shown in enumerate(orders)]
    )
    assert {one.outcome for one in judged} == {Outcome.ANSWERED}
    assert {one.committed for one in judged} == {CommittedAnswer("copper")}
    assert len(script.questions) == len({request.seed for request in script.questions}) == 2
    assert len(script.verdicts) == (24 if form == "pointwise" else 12)
    for request in script.verdicts:
        first, own, last = request.messages
        assert first == script.questions[0].messages[0]
        assert "What is the code?" in first["content"]
        assert own == {"role": "assistant", "content": "copper"}
        shown = [text for text in (GOOD, BAD) if text in last["content"]]
        assert len(shown) == (1 if form == "pointwise" else 2)
        assert "What is the code?" not in last["content"]

    # Negative control: by default every prompt shows responses, so that the script is never asked for its own answer.
    plain = Script("copper", script.verdict)
    (one,) = GenerativeRewardModel(plain, JudgeSettings(format=form)).judge([query(GOOD, BAD)])
    assert (one.committed, plain.questions) == (None, [])


def test_a_change_of_the_question_or_of_the_seed_is_asked_again():
    script = Script("copper")
    model = GenerativeRewardModel(script, SOLVING)
    model.judge([query(GOOD, BAD), query(BAD, GOOD, trial=1), query(GOOD, BAD, trial=2, words=5)])
    assert [len(text_of(request.messages).split()) for request in script.questions][1] > 5
    seeds = [request.seed for request in script.questions]
    assert len(seeds) == 2  # the context check has another prompt
    other = Script("copper")
    GenerativeRewardModel(other, SOLVING.model_copy(update={"seed": 1})).judge([query(GOOD, BAD)])
    assert other.questions[0].seed not in seeds


@pytest.mark.parametrize(
    ("own", "outcome", "continued"),
    [
        ("copper", Outcome.ANSWERED, "copper"),
        ("<think>amber?</think>copper", Outcome.ANSWERED, "copper"),
        ("<think>amber?</think>\n", Outcome.UNPARSED, ""),
        (Completion(Outcome.TRUNCATED, "copper, as far as"), Outcome.TRUNCATED, "copper, as far as"),
        (Completion(Outcome.TRUNCATED, "", "amber or"), Outcome.TRUNCATED, ""),
        (Completion(Outcome.REFUSED, "no"), Outcome.REFUSED, ""),
    ],
)
def test_a_verdict_is_requested_whatever_the_own_answer_is(own, outcome, continued):
    script = Script(own)
    (one,) = GenerativeRewardModel(script, SOLVING).judge([query(GOOD, BAD)])
    assert (one.outcome, one.scores) == (Outcome.ANSWERED, (1.0, 0.0))
    assert one.committed.outcome is outcome
    assert one.committed.text.endswith(own.text if isinstance(own, Completion) else own)
    (asks,), (request,) = script.questions[0].messages, script.verdicts
    if continued:
        assert [message["content"] for message in request.messages[:2]] == [asks["content"], continued]
    else:  # no empty turn: chat templates may reject it
        assert len(request.messages) == 1
        assert request.messages[0]["content"].startswith(asks["content"])


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.TOO_LONG])
def test_without_an_answer_of_the_model_there_is_no_verdict(outcome):
    def own(request):
        return Completion(outcome, detail="lost") if "word3" in text_of(request.messages) else "copper"

    script = Script(own)
    judged = GenerativeRewardModel(script, SOLVING).judge(
        [query(GOOD, BAD, name="p", words=9), query(GOOD, BAD), query(BAD, GOOD, trial=1)]
    )
    assert [one.outcome for one in judged] == [outcome, Outcome.ANSWERED, Outcome.ANSWERED]
    assert (judged[0].detail, judged[0].attempts, judged[0].committed) == ("lost", 1, None)
    assert len(script.verdicts) == 2


def test_all_orders_are_cut_alike_and_leave_room_for_both_answers(tokenizer):
    script = Script("word " * 40, limit=900)
    settings = JudgeSettings(solve=True, max_tokens=50)
    model = GenerativeRewardModel(script, settings, ModelSettings(cut="middle"), tokenizer=tokenizer)
    judged = model.judge([query(GOOD, BAD, words=2000), query(BAD, GOOD, trial=1, words=2000)])
    assert {one.cut for one in judged} == {judged[0].cut}
    assert judged[0].cut.tokens > 1000
    assert len(script.questions) == 1
    for request in (*script.questions, *script.verdicts):
        assert script.tokens(request.messages) + request.max_tokens <= 900
        assert request.max_tokens == 50
    (long,) = GenerativeRewardModel(
        script, JudgeSettings(solve=True, max_tokens=50), tokenizer=tokenizer
    ).judge([query(GOOD, BAD, words=2000)])
    assert long.outcome is Outcome.TOO_LONG
    with pytest.raises(ConfigError, match="max_tokens"):
        GenerativeRewardModel(Script("", limit=100), JudgeSettings(solve=True, max_tokens=50))
    GenerativeRewardModel(Script("", limit=100), JudgeSettings(max_tokens=50))


def test_a_template_renders_both_turns(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text(
        "{% if solve %}{{ conversation }} Answer.{% else %}1: {{ responses[0] }} 2: {{ responses[1] }}{% endif %}"
    )
    script = Script("copper")
    settings = JudgeSettings(solve=True, format="pairwise", template=str(file))
    GenerativeRewardModel(script, settings).judge([query(GOOD, BAD)])
    assert text_of(script.questions[0].messages).endswith("Answer.")
    assert script.verdicts[0].messages[2]["content"] == f"1: {GOOD} 2: {BAD}"
    file.write_text("{{ conversation }} {{ responses[0] }} {{ responses[1] }}")
    with pytest.raises(ConfigError, match="mine.jinja"):
        GenerativeRewardModel(script, settings).judge([query(GOOD, BAD)])


def test_wrappers_pass_the_answer_on_and_other_models_are_refused():
    context = {"words": 300, "rubrics": (Criterion("It is short."), Criterion("It is true."))}
    for wrap in (
        lambda model: CompressRewardModel(model, 64),
        lambda model: RubricRewardModel(model, "item"),
        lambda model: GroupRewardModel(model, "round-robin"),
    ):
        script = Script(
            "copper", lambda request: "[[A > B > C]]" if WORST in text_of(request.messages) else "[[A]]"
        )
        model = wrap(GenerativeRewardModel(script, SOLVING))
        (one,) = model.judge([query(GOOD, BAD, WORST, **context)])
        assert model.solves
        assert one.committed == CommittedAnswer("copper")
        assert len(script.questions) == 1
    for name in ("baseline:longest", "simulated:0.1", "ensemble:votes:baseline:longest+baseline:shortest"):
        with pytest.raises(ConfigError, match=r"judge\.solve"):
            load(name, judge={"solve": True})


OWN = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("judge") / "model")


def test_a_local_model_reads_every_prompt_once(folder, monkeypatch):
    monkeypatch.setattr(local_generator, "_TOGETHER", 2)
    some = queries((60, 2), (90, 2), (75, 2))
    both = [
        Query(one.id, one.prompt, one.responses[::step], one.context, trial=trial)
        for one in some
        for trial, step in enumerate((1, -1))
    ]

    def judge(keeps):
        writer, read = LocalTextGenerator.load(str(folder)), []
        forward = writer._sampler._forward
        monkeypatch.setattr(writer, "keeps_prompt", keeps)
        counted = lambda ids, *rest: read.append(len(ids)) or forward(ids, *rest)  # noqa: E731
        monkeypatch.setattr(writer._sampler, "_forward", counted)
        settings = JudgeSettings(solve=True, retries=0, max_tokens=OWN)
        judged = GenerativeRewardModel(writer, settings, tokenizer=writer.tokenizer).judge(both)
        return writer, judged, sum(read)

    writer, judged, read = judge(True)
    _, apart, control = judge(False)
    assert judged == apart
    questions = 0
    for place in range(0, len(both), 2):
        one, other = judged[place : place + 2]
        assert one.committed == other.committed
        # The first turn alone, asked of the same model: nothing else decides the answer.
        form = GenerativeRewardModel(writer, SOLVING)._formats["pairwise"]
        ((asks, _),) = form.render_turns(both[place])
        (alone,) = writer.generate([Request((asks,), OWN)])
        assert (alone.text, alone.outcome) == (one.committed.text, one.committed.outcome)
        questions += alone.prompt_tokens
    # Negative control: if all questions come before all verdicts, every question is read again but for its opening,
    # which all prompts share.
    assert questions / 2 < control - read <= questions


def test_evaluate_with_a_tiny_model(folder, tmp_path):
    rows = [
        Comparison(
            one.id,
            one.id,
            one.prompt,
            one.responses,
            (1, 2),
            metadata={"answer": "copper"} if number else {},
            context=one.context,
        )
        for number, one in enumerate(queries(*[(20 + 5 * number, 2) for number in range(6)]))
    ]
    write(tmp_path / "pairs.jsonl", rows)
    given = [
        "--model",
        str(folder),
        "--bench",
        f"file:{tmp_path / 'pairs.jsonl'}",
        "--out",
        str(tmp_path / "run"),
    ]
    given += ["--set", "judging.resamples=100", "--set", "judge.solve=true", "--set", "judge.max_tokens=8"]
    done = CliRunner().invoke(evaluate, given)
    assert done.exit_code == 1, "a random model writes no verdict"
    assert "own answers" in done.output
    records = Judgments(tmp_path / "run")
    assert [record.committed.solved for record in records] == [None, *[False] * 5]
    assert {record.committed.outcome for record in records} == {Outcome.TRUNCATED}
    found = json.loads((tmp_path / "run/summary.json").read_text())["solve_to_judge"]
    assert found["outcomes"]["truncated"] == 6
    assert (found["solved"]["value"], found["solved"]["n"], found["gap"]["value"]) == (0.0, 5, 0.0)
