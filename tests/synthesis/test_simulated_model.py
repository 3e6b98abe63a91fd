import asyncio
from dataclasses import replace

import pytest

from longrm.clients import Request
from longrm.errors import DataError
from longrm.judging.pointwise import Pointwise
from longrm.reward_models.simulated import ErrorRates
from longrm.synthesis.inputs.candidates import CandidateAnswer, SynthesisInput
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.judge import judging_messages
from longrm.synthesis.long_context.chunks import cut_chunks
from longrm.synthesis.long_context.evidence_search import (
    attributed,
    attribution_requests,
    suffices,
    sufficiency_request,
)
from longrm.synthesis.model_requests import AnswerQuestion, JudgeResponse, TaskRequest
from longrm.synthesis.perturbations import Passage, ShownDocument, content_of, passages_of, shown_text
from longrm.synthesis.rubrics import DOMAINS
from longrm.synthesis.simulated_model import GoldAnswers, SimulatedModel
from longrm.types import Outcome, Query

QA = DOMAINS["qa_faithfulness"]
TEXT = 'It rained. "The fox," she said, "sleeps in the [[9]] barn." Nobody saw it.'
FOX = Document("fox", TEXT, "Where does the fox sleep?", "in the barn")
OWL = Document("owl", "The owl lives in an oak.", "Where does the owl live?", "in an oak")
RIGHT, WRONG = CandidateAnswer("fox", "m", "in the barn"), CandidateAnswer("fox", "n", "under a tree")


INPUTS = (SynthesisInput(FOX, (RIGHT, WRONG)), OWL)


def simulated(rates="0", name="judge", seed=0, inputs=INPUTS):
    knowledge = GoldAnswers()
    assert [*knowledge.watching(inputs)] == [*inputs]
    return SimulatedModel(ErrorRates.parse(rates), name, seed, knowledge)


def ask(model, *requests, **changed):
    return asyncio.run(model.ask([replace(request, **changed) for request in requests]))


def judging(response, context=TEXT, question=FOX.question, domain=QA, language="en", tag="", rubric=True):
    task = JudgeResponse(context, question, response, language)
    return TaskRequest(judging_messages(domain, task, tag, rubric=rubric), 64, task=task)


def writing(*texts, question):
    shown = ShownDocument(
        tuple(Passage(text, number) for number, text in enumerate(texts, start=1)), question
    )
    return writing_of(shown)


def writing_of(shown):
    messages = ({"role": "user", "content": content_of(shown)},)
    return TaskRequest(messages, 64, task=AnswerQuestion(shown_text(shown), shown.question))


def scores(model, texts):
    query = Query("q", ({"role": "user", "content": "x"},), (({"role": "assistant", "content": "y"},),))
    found = []
    for answer in ask(model, *texts):
        assert answer.outcome is Outcome.ANSWERED
        reading = Pointwise().parse(answer.text, query)
        found.append(reading and reading.values[0])
        assert reading is None or not reading.contradicted
    return found


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=lambda domain: domain.name)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_prompts_of_all_domains_are_read(domain, language):
    context = "" if domain.layout == "short" else f"<TAG>\n{TEXT}\n</TAG>"
    texts = [
        judging(
            candidate.text, context, domain=domain, language=language, tag=context and "TAG", rubric=rubric
        )
        for candidate in (RIGHT, WRONG)
        for rubric in (True, False)
    ]
    assert scores(simulated(), texts) == [10, 10, 0, 0]


@pytest.mark.parametrize(
    "text", ["</response>\n\nWell.", "<question>\nWhy?\n</question>", "[[3]]", QA.texts()[0]]
)
def test_a_response_that_looks_like_a_prompt_is_judged_as_any_other(text):
    document = Document("odd", TEXT, "What is odd here?", text)
    known = [
        SynthesisInput(
            document,
            (CandidateAnswer("odd", "m", text, score=0.7), CandidateAnswer("odd", "n", "no", score=0.2)),
        )
    ]
    asked = [judging(response, question=document.question) for response in (text, "no")]
    assert scores(simulated(inputs=known), asked) == [7, 2]


def test_the_truth_is_the_score_then_the_metric_then_word_overlap():
    scored = SynthesisInput(FOX, (CandidateAnswer("fox", "m", "in the barn", score=0.3),))
    assert scores(simulated(inputs=[scored]), [judging("in the barn")]) == [3]
    chosen = Document("exam", TEXT, "Which?", "(B) fox", metric="right_choices")
    assert scores(simulated(inputs=[chosen]), [judging("B", question="Which?")]) == [10]
    assert scores(simulated(), [judging("a barn")]) == [7]  # F1 of one word of one and of two
    points = simulated(inputs=[SynthesisInput(FOX, (CandidateAnswer("fox", "m", "x", score=7.0),))])
    with pytest.raises(DataError, match=r"document 'fox'.*from 0 to 1, got 7"):
        scores(points, [judging("x")])


def test_of_documents_with_one_question_the_right_one_is_meant():
    asked = "What does it say?"
    known = [
        SynthesisInput(Document(name, "", asked, gold), (CandidateAnswer(name, "m", text, score=score),))
        for name, gold, text, score in (("a", "fox", "one", 0.1), ("b", "owl", "two", 0.9))
    ]
    assert scores(simulated(inputs=known), [judging(text, "", asked) for text in ("one", "two")]) == [1, 9]
    written = [writing(f"An {gold}.", question=asked) for gold in ("owl", "fox")]
    assert [answer.text for answer in ask(simulated(inputs=known), *written)] == ["owl", "fox"]


def many(words=0, count=600):
    return [judging("in the barn", f"{TEXT} Day {number}. {'so ' * words}") for number in range(count)]


def share(model, texts):
    """How often a score is 3 points or more from the truth, which is 10."""
    found = scores(model, texts)
    return sum(score is not None and score <= 7 for score in found) / len(found)


def test_errors_come_at_their_rates():
    texts = many()
    assert set(scores(simulated(), texts)) == {10}  # the control
    assert share(simulated("0.3"), texts) == pytest.approx(0.3, abs=0.05)
    mute = scores(simulated("misformat=0.2"), texts)
    assert mute.count(None) / len(texts) == pytest.approx(0.2, abs=0.05)
    beside = scores(simulated("disagreement=0.4"), texts)
    assert set(beside) == {9, 10}
    assert beside.count(9) / len(texts) == pytest.approx(0.4, abs=0.05)


def test_errors_grow_with_the_length_of_the_prompt():
    growing, texts = simulated("error=0.1,per_doubling=0.15"), many(words=4096 - 360, count=100)
    assert share(growing, many(count=100)) == pytest.approx(0.1, abs=0.06)
    assert share(growing, texts) == pytest.approx(0.4, abs=0.1)
    assert share(simulated("error=0.1"), texts) == pytest.approx(0.1, abs=0.06)


def test_what_is_wrong_is_3_points_off_whatever_else_happens():
    texts = many()
    both = scores(simulated("error=0.3,disagreement=0.5"), texts)
    assert {10, 9} < set(both)
    assert not {8} & set(both)
    assert sum(score <= 7 for score in both) / len(both) == pytest.approx(0.3, abs=0.05)
    assert both.count(9) / len(both) == pytest.approx(0.7 * 0.5, abs=0.06)


def asking_alike():
    """Texts with one question; every text names every answer, as values of a world come up again and again."""
    golds = ["donkey", "marble", "candle", "violin", "sponge", "ribbon"]
    found = []
    for number, gold in enumerate(golds):
        others = " ".join(f"Room {number} has {other}." for other in golds if other != gold)
        text = f"{others} The code of room {number} is {gold}. It rained on day {number}."
        found.append(Document(f"d{number}", text, "What is the code?", gold))
    return found


def test_of_texts_with_one_question_the_shown_one_is_meant():
    documents = asking_alike()
    model = simulated(inputs=documents)
    shown = [ShownDocument(passages_of(one.text, 12), one.question) for one in documents]
    cut_chunks = [ShownDocument(view.passages[1:], view.question) for view in shown]
    for views in (shown, cut_chunks):
        asked = [writing_of(view) for view in views]
        assert [answer.text for answer in ask(model, *asked)] == [one.answer for one in documents]
    judged = [judging(one.answer, one.text, one.question) for one in documents]
    assert scores(model, judged) == [10] * len(documents)


def test_a_writer_depends_on_no_batch_where_texts_share_their_question():
    documents = asking_alike()
    whole = [ShownDocument(passages_of(one.text, 12), one.question) for one in documents]
    lost = [  # the answers that are still shown are those of the other documents
        ShownDocument(tuple(part for part in view.passages if one.answer not in part.text), view.question)
        for one, view in zip(documents, whole, strict=True)
    ]
    for rates, views in (("0", whole), ("0.5", whole), ("0", lost)):
        asked = [writing_of(view) for view in views]
        together = ask(simulated(rates, inputs=documents), *asked)
        alone = [
            ask(simulated(rates, inputs=documents[: number + 1]), text)[0]
            for number, text in enumerate(asked)
        ]
        assert together == alone


def test_models_err_on_their_own_and_the_same_way_again():
    texts = many()

    def wrong(**changed):
        return {number for number, s in enumerate(scores(simulated("0.3", **changed), texts)) if s <= 7}

    first, other, later = wrong(), wrong(name="other"), wrong(seed=1)
    assert first == wrong()
    for one in (other, later):
        assert len(first & one) / len(texts) == pytest.approx(0.09, abs=0.04)


def test_answers_depend_on_neither_batches_nor_what_comes_later():
    texts = many(count=30)
    model = simulated("0.5")
    assert ask(model, *texts) == [ask(model, text)[0] for text in texts]
    lost = writing("Nothing.", question=OWL.question)
    more = [Document(str(number), "", f"{number}?", str(number)) for number in range(50)]
    assert ask(simulated(), lost) == ask(simulated(inputs=(FOX, OWL, *more)), lost)


def test_above_temperature_0_every_seed_draws_anew():
    model, (text, *_) = simulated("0.5"), many()
    cold = {ask(model, text, seed=seed)[0].text for seed in range(20)}
    warm = {ask(model, text, temperature=1.0, seed=seed)[0].text for seed in range(20)}
    assert len(cold) == 1 < len(warm)


def test_sufficiency_and_attribution_go_by_the_gold_answer():
    def said(*passages):
        return ask(simulated("0.9"), *passages)

    yes, no = said(sufficiency_request(FOX, [TEXT, "so"]), sufficiency_request(FOX, ["so"]))
    assert (suffices(yes), suffices(no)) == (
        False,
        False,
    )  # the gold words are not together
    told = Document("told", "", FOX.question, "in the barn")
    texts = ["One.\n\n[7] Two.", "It sleeps in the barn.", "Three.", "Go, and look in the barn."]
    yes, no = said(sufficiency_request(told, texts), sufficiency_request(told, texts[::2]))
    assert (suffices(yes), suffices(no)) == (True, False)
    parts = cut_chunks("\n\n".join(texts), 8)
    requests = attribution_requests(told, parts, 3)
    found = attributed(said(*requests), parts)
    assert [parts[number].text for number in found] == [texts[1], texts[3]]


def test_a_writer_answers_by_what_it_is_shown():
    shown = [writing(text, question=OWL.question) for text in (OWL.text, TEXT)]
    assert [answer.text for answer in ask(simulated(), *shown)] == ["in an oak", "in the barn"]
    assert ask(simulated("1"), shown[0])[0].text == "in the barn"
    alone = simulated(inputs=[OWL])
    assert ask(alone, shown[1])[0].text == "The passages do not tell."


@pytest.mark.parametrize(
    "request_", [TaskRequest((), 8), Request((), 8), judging("x", question="Unheard of?")], ids=str
)
def test_what_it_cannot_know_is_an_error(request_):
    (answer,) = ask(simulated(), request_)
    assert answer.outcome is Outcome.ERROR
    assert answer.detail.startswith("a simulated model")


def test_memory_is_bounded():
    knowledge = GoldAnswers(most=3)
    for number in range(10):
        knowledge.see(Document(str(number), "", f"{number % 4}?", f"gold {number}"))
    assert [knowledge.about(f"{number}?", "") and knowledge.about(f"{number}?", "").answer for number in range(4)] == [
        "gold 8", "gold 9", None, "gold 7",
    ]  # fmt: skip
