import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from longrm.clients import Completion, TextGenerator
from longrm.data.tokenizing import Tokenizer
from longrm.reward_models import JudgeSettings, ModelSettings
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.types import Outcome, Query, Span, text_of

GOOD, BAD = "The code is copper.", "The code is amber."


class Script(TextGenerator):
    """Answers with what a function makes of a request, and keeps what it was asked."""

    name = "script"

    def __init__(self, answer, *, limit=None, counts=True):
        self.limit = limit
        self.batches = []
        self._answer, self._counts = answer, counts

    def generate(self, requests):
        self.batches.append(list(requests))
        answers = [self._answer(request) for request in requests]
        return [
            answer if isinstance(answer, Completion) else Completion(Outcome.ANSWERED, answer)
            for answer in answers
        ]

    def tokens(self, messages):
        return len(text_of(messages).split()) if self._counts else None


@pytest.fixture(scope="module")
def tokenizer():
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_backend(backend)


def query(*texts, name="q", trial=0, words=0, **fields):
    context = " ".join(f"word{index}" for index in range(words))
    responses = tuple(({"role": "assistant", "content": text},) for text in texts or (GOOD, BAD))
    prompt = ({"role": "user", "content": f"{context}\n\nWhat is the code?"},)
    return Query(name, prompt, responses, (Span(0, 0, len(context)),) if words else (), None, trial, **fields)


def asked(request):
    return text_of(request.messages)


def prefers_good(request):
    """Finds the better response wherever it is shown."""
    text = asked(request)
    return f"It says so.\n\n[[{'A' if text.index(GOOD) < text.index(BAD) else 'B'}]]"


def one(model, some):
    (judgment,) = model.judge([some])
    return judgment


def test_a_pair_is_judged_where_it_stands():
    model = GenerativeRewardModel(Script(prefers_good), JudgeSettings())
    judgments = model.judge([query(GOOD, BAD), query(BAD, GOOD, trial=1)])
    assert [judgment.scores for judgment in judgments] == [(1.0, 0.0), (0.0, 1.0)]
    assert {judgment.outcome for judgment in judgments} == {Outcome.ANSWERED}
    assert judgments[0].explanation == "It says so.\n\n[[A]]"
    assert (judgments[0].attempts, judgments[0].detail, judgments[0].cut) == (1, "", None)
    assert (model.sees_order, model.samples, model.scale) == (True, False, "verdict")


def test_pointwise_asks_about_each_response_alone():
    script = Script(lambda request: "[[9.5]]" if GOOD in asked(request) else "[[2]]")
    model = GenerativeRewardModel(script, JudgeSettings(format="pointwise"))
    judgment = one(model, query(BAD, GOOD, BAD))
    assert judgment.scores == (2.0, 9.5, 2.0)
    assert judgment.explanation == "Response 1:\n[[2]]\n\nResponse 2:\n[[9.5]]\n\nResponse 3:\n[[2]]"
    assert [len(batch) for batch in script.batches] == [3]
    assert not any(GOOD in asked(request) and BAD in asked(request) for request in script.batches[0])
    assert (model.sees_order, model.scale) == (False, "points")


def test_what_brought_no_verdict_is_asked_again_together():
    def answer(request):
        text = asked(request)
        if "first of all" in text and len(request.messages) == 1:
            return "I would rather not say."
        return prefers_good(request)

    script = Script(answer)
    model = GenerativeRewardModel(script, JudgeSettings(retries=3))
    judgments = model.judge([query(GOOD, BAD + " first of all"), query(), query(GOOD, "first of all " + BAD)])
    assert [judgment.attempts for judgment in judgments] == [2, 1, 2]
    assert [len(batch) for batch in script.batches] == [3, 2]
    again = script.batches[1][0].messages
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert again[0] == script.batches[0][0].messages[0]
    assert again[1]["content"] == "I would rather not say."
    assert "verdict" in again[2]["content"]
    assert {judgment.scores for judgment in judgments} == {(1.0, 0.0)}
    written = "I would rather not say.\n\n[asked again]\n\nIt says so.\n\n[[A]]"
    assert judgments[0].explanation == written


@pytest.mark.parametrize("retries", [0, 2])
def test_an_answer_without_a_verdict_is_given_up_after_the_retries(retries):
    script = Script(lambda _: "hm")
    judgment = one(GenerativeRewardModel(script, JudgeSettings(retries=retries)), query())
    assert judgment.outcome is Outcome.UNPARSED
    assert judgment.attempts == len(script.batches) == 1 + retries
    assert judgment.scores == ()
    assert judgment.explanation == "\n\n[asked again]\n\n".join(["hm"] * (1 + retries))
    assert f"{1 + retries} attempt" in judgment.detail


def test_an_answer_that_was_cut_off_counts_by_what_it_says():
    cut_off = Completion(Outcome.TRUNCATED, "So far, so", detail="the answer reached its end")
    judgment = one(GenerativeRewardModel(Script(lambda _: cut_off), JudgeSettings(retries=1)), query())
    assert (judgment.outcome, judgment.attempts) == (Outcome.TRUNCATED, 2)
    assert judgment.detail == "the answer reached its end"
    said = Completion(Outcome.TRUNCATED, "Copper is right.\n[[A]]\nand so on and", detail="cut")
    judgment = one(GenerativeRewardModel(Script(lambda _: said), JudgeSettings()), query())
    assert (judgment.outcome, judgment.scores, judgment.detail) == (Outcome.ANSWERED, (1.0, 0.0), "")


def thoughtful(tokenizer, ending="<think>\n"):
    """The tokenizer of a model whose chat template opens a thought in the prompt."""
    template = "{{ messages[0].content }}{% if add_generation_prompt %}{{ ending }}{% endif %}"
    return Tokenizer.from_backend(tokenizer.backend, chat_template=template.replace("ending", repr(ending)))


MUSING = "Perhaps the first.\n[[A]]\nOr is it"


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        (Completion(Outcome.TRUNCATED, MUSING), Outcome.TRUNCATED),
        (Completion(Outcome.TRUNCATED, f"Hm.</think>{MUSING}"), Outcome.ANSWERED),
        (Completion(Outcome.TRUNCATED, MUSING, thinking="Hm."), Outcome.ANSWERED),
        (Completion(Outcome.ANSWERED, "[[A]]"), Outcome.ANSWERED),
    ],
)
def test_a_thought_that_the_prompt_opens_is_no_answer_where_it_was_cut_off(tokenizer, completion, outcome):
    def judged(known):
        model = GenerativeRewardModel(Script(lambda _: completion), JudgeSettings(retries=0), tokenizer=known)
        return one(model, query())

    thought = judged(thoughtful(tokenizer))
    assert thought.outcome is outcome
    assert thought.explanation.startswith("<think>\nPerhaps") == (outcome is Outcome.TRUNCATED)
    for known in (None, tokenizer, thoughtful(tokenizer, "<think></think>")):
        assert judged(known).outcome is Outcome.ANSWERED


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.TOO_LONG, Outcome.ERROR])
def test_what_is_no_answer_is_not_asked_again(outcome):
    script = Script(lambda _: Completion(outcome, detail="because"))
    judgment = one(GenerativeRewardModel(script, JudgeSettings(retries=3)), query())
    assert (judgment.outcome, judgment.detail, judgment.attempts) == (outcome, "because", 1)
    assert len(script.batches) == 1


def test_thinking_is_kept_and_marked_and_never_read():
    thought = Completion(Outcome.ANSWERED, "[[A]]", "Perhaps [[B]]\n[[B]]")
    judgment = one(GenerativeRewardModel(Script(lambda _: thought), JudgeSettings()), query())
    assert judgment.scores == (1.0, 0.0)
    assert judgment.explanation == "<think>\nPerhaps [[B]]\n[[B]]\n</think>\n\n[[A]]"


def test_a_thought_without_an_answer_is_reminded_within_the_question():
    thought = Completion(Outcome.TRUNCATED, "", "Perhaps [[B]]\n[[B]]")
    script = Script(lambda request: thought if len(script.batches) == 1 else "[[A]]")
    judgment = one(GenerativeRewardModel(script, JudgeSettings()), query())
    assert judgment.scores == (1.0, 0.0)
    (again,) = script.batches[1][0].messages
    first = script.batches[0][0].messages[0]["content"]
    assert again["role"] == "user"
    assert again["content"].startswith(first)
    assert "verdict" in again["content"][len(first) :]


@pytest.mark.parametrize(
    ("answers", "outcome", "detail"),
    [
        (["[[5]]", "hm", "[[4]]"], Outcome.UNPARSED, "response 2 of 3: no verdict"),
        (
            ["hm", Completion(Outcome.TRUNCATED, "hm", detail="cut"), "[[4]]"],
            Outcome.TRUNCATED,
            "response 2 of 3: cut",
        ),
        (["hm", "[[4]]", Completion(Outcome.ERROR, detail="broke")], Outcome.ERROR, "response 3 of 3: broke"),
    ],
)
def test_pointwise_needs_every_score_and_names_the_worst(answers, outcome, detail):
    def answer(request):
        return answers[next(index for index in range(3) if f"answer {index}" in asked(request))]

    model = GenerativeRewardModel(Script(answer), JudgeSettings(format="pointwise"))
    judgment = one(model, query(*(f"answer {index}" for index in range(3))))
    assert (judgment.outcome, judgment.scores) == (outcome, ())
    assert judgment.detail.startswith(detail)


def test_judgments_do_not_depend_on_the_batch():
    def answer(request):
        return "hm" if request.seed % 3 else prefers_good(request)

    model = GenerativeRewardModel(Script(answer), JudgeSettings(temperature=1.0, retries=2))
    some = [query(name=f"q{index}", trial=trial) for index in range(10) for trial in range(2)]
    together = model.judge(some)
    assert together == [one(model, each) for each in some]
    assert together == model.judge(some[::-1])[::-1]
    assert len({judgment.attempts for judgment in together}) == 3, (
        "the batch must shrink for this to mean anything"
    )


def test_seeds_differ_by_all_that_they_are_drawn_from_and_by_nothing_else():
    def seeds(settings, *some):
        script = Script(lambda _: "hm")
        GenerativeRewardModel(script, settings).judge(some)
        return [request.seed for batch in script.batches for request in batch]

    sampled = JudgeSettings(temperature=1.0, format="pointwise")
    drawn = seeds(sampled, query(), query(trial=1), query(name="other"))
    drawn += seeds(JudgeSettings(temperature=1.0, format="pointwise", seed=1), query())
    assert len(set(drawn)) == len(drawn) == 16
    assert all(0 <= seed < 2**31 for seed in drawn)
    assert seeds(sampled, query("x", "y")) == seeds(sampled, query("z", "w"))
    assert GenerativeRewardModel(Script(prefers_good), sampled).samples


def test_a_context_that_does_not_fit_is_cut_by_the_policy(tokenizer):
    script = Script(prefers_good, limit=1000)
    model = GenerativeRewardModel(
        script, JudgeSettings(max_tokens=100), ModelSettings(cut="middle"), tokenizer=tokenizer
    )
    short, long = model.judge([query(words=50), query(words=2000)])
    assert short.cut is None
    assert long.cut.policy == "middle"
    assert long.cut.tokens > 1000
    text = asked(script.batches[0][1])
    assert len(text.split()) == long.prompt_tokens <= 900
    assert "word0 " in text
    assert "word1999" in text
    assert "word1000 " not in text
    assert [judgment.scores for judgment in (short, long)] == [(1.0, 0.0)] * 2


def test_what_does_not_fit_is_too_long_where_nothing_may_be_cut(tokenizer):
    script = Script(prefers_good, limit=1000)
    model = GenerativeRewardModel(script, JudgeSettings(max_tokens=100), tokenizer=tokenizer)
    short, long = model.judge([query(words=50), query(words=2000)])
    assert short.outcome is Outcome.ANSWERED
    assert long.outcome is Outcome.TOO_LONG
    assert long.prompt_tokens > 2000
    assert f"{long.prompt_tokens:,} > 900 tokens; " in long.detail
    assert [len(batch) for batch in script.batches] == [1]


def test_a_retry_writes_no_more_than_the_limit_leaves(tokenizer):
    script = Script(lambda _: "hm " * 40, limit=600)
    model = GenerativeRewardModel(
        script, JudgeSettings(max_tokens=100, retries=9), ModelSettings(cut="right"), tokenizer=tokenizer
    )
    judgment = one(model, query(words=2000))
    rooms = [batch[0].max_tokens for batch in script.batches]
    assert rooms[0] == 100
    assert 0 < min(rooms) < 100
    assert all(len(asked(batch[0]).split()) + batch[0].max_tokens <= 600 for batch in script.batches)
    assert judgment.attempts == len(rooms) < 10
    assert judgment.outcome is Outcome.UNPARSED


def test_a_template_and_a_pattern_of_ones_own(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("{{ question }} 1: {{ responses[0] }} 2: {{ responses[1] }} Which? Write WINNER=")
    script = Script(lambda _: "WINNER=2")
    settings = JudgeSettings(format="pairwise", template=str(file), verdict=r"WINNER=([12])")
    some = query()
    some = Query(some.id, some.prompt, some.responses, question=Span(0, 2, len(some.prompt[0]["content"])))
    assert one(GenerativeRewardModel(script, settings), some).scores == (0.0, 1.0)
    assert asked(script.batches[0][0]) == (f"What is the code? 1: {GOOD} 2: {BAD} Which? Write WINNER=")


def test_the_provenance_identifies_the_prompts(tmp_path):
    def hashed(text=None, format="pairwise", **settings):
        if text is not None:
            (tmp_path / "mine.txt").write_text(text)
            settings["template"] = str(tmp_path / "mine.txt")
        return GenerativeRewardModel(Script(str), JudgeSettings(format=format, **settings)).provenance[
            "prompts"
        ]

    assert hashed() == hashed(max_tokens=9)
    texts = "{{ responses }} Which?", "{{ responses }} Which one?"
    assert len({hashed(), hashed(format="listwise"), *map(hashed, texts)}) == 4


def test_a_query_that_the_format_does_not_take_is_an_error_and_the_others_are_judged():
    model = GenerativeRewardModel(Script(prefers_good), JudgeSettings(format="pairwise"))
    three, two = model.judge([query("x", "y", "z"), query()])
    assert (three.outcome, two.outcome) == (Outcome.ERROR, Outcome.ANSWERED)
    assert "pairwise" in three.detail
