"""The simulated model: what it knows, how often it errs, and its questions and criteria."""

import asyncio
import re
from dataclasses import replace

import pytest

from longrm.errors import DataError
from longrm.judging.pointwise import Pointwise
from longrm.reward_models.simulated import ErrorRates
from longrm.rng import Rng
from longrm.synthesis import long_context
from longrm.synthesis.chunks import cut_chunks
from longrm.synthesis.documents import Candidate, Document
from longrm.synthesis.domains import DOMAINS
from longrm.synthesis.long_context import (
    attributed,
    attribution_requests,
    sufficiency_request,
    why_insufficient,
)
from longrm.synthesis.models import TaskRequest
from longrm.synthesis.recipes.responses import Passage, View
from longrm.synthesis.simulated import GoldAnswers, SimulatedModel, compare_by, write_criteria
from longrm.types import Outcome, Query

TEXT = 'It rained. "The fox," she said, "sleeps in the [[9]] barn." Nobody saw it.'
FOX = Document("fox", TEXT, "Where does the fox sleep?", "in the barn")
OWL = Document("owl", "The owl lives in an oak.", "Where does the owl live?", "in an oak")
RIGHT, WRONG = Candidate("fox", "m", "in the barn"), Candidate("fox", "n", "under a tree")


INPUTS = (replace(FOX, candidates=(RIGHT, WRONG)), OWL)


def simulated(rates="0", name="judge", seed=0, inputs=INPUTS):
    knowledge = GoldAnswers()
    assert [*knowledge.watching(inputs)] == [*inputs]
    return SimulatedModel(ErrorRates.parse(rates), name, seed, knowledge)


def ask(model, *requests, **changed):
    return asyncio.run(model.ask([replace(request, **changed) for request in requests]))


def judging(response, context=TEXT, question=FOX.question, document="fox"):
    text = DOMAINS["qa_faithfulness"].prompt("en", context, question, response, tag="", rubric=True)
    parts = {"document": document, "context": context, "response": response, "language": "en"}
    return TaskRequest(({"role": "user", "content": text},), 64, task="judge", parts=parts)


def writing(text, question=OWL.question, document="owl"):
    view = View((Passage(text, 1),), question)
    parts = {"document": document, "shown": view.shown, "question": question}
    return TaskRequest(({"role": "user", "content": view.content},), 64, task="answer", parts=parts)


def scores(model, texts):
    query = Query("q", ({"role": "user", "content": "x"},), (({"role": "assistant", "content": "y"},),))
    found = []
    for answer in ask(model, *texts):
        assert answer.outcome is Outcome.ANSWERED
        reading = Pointwise().parse(answer.text, query)
        found.append(reading and reading.values[0])
        assert reading is None or not reading.contradicted
    return found


def test_the_true_score_is_the_own_one_then_the_metric_then_word_overlap():
    scored = replace(FOX, candidates=(Candidate("fox", "m", "in the barn", score=0.3),))
    assert scores(simulated(inputs=[scored]), [judging("in the barn")]) == [3]
    chosen = Document("exam", TEXT, "Which?", "(B) fox", metric="right_choices")
    assert scores(simulated(inputs=[chosen]), [judging("B", question="Which?", document="exam")]) == [10]
    assert scores(simulated(), [judging("a barn")]) == [7]  # F1 of one word of one and of two
    points = simulated(inputs=[replace(FOX, candidates=(Candidate("fox", "m", "x", score=7.0),))])
    with pytest.raises(DataError, match=r"document 'fox'.*from 0 to 1, got 7"):
        scores(points, [judging("x")])


def many(words=0, count=400):
    return [judging("in the barn", f"{TEXT} Day {number}. {'so ' * words}") for number in range(count)]


def share(model, texts):
    """How often a score is 3 points or more from the truth, which is 10."""
    found = scores(model, texts)
    return sum(score is not None and score <= 7 for score in found) / len(found)


def test_errors_come_at_their_rates():
    texts = many(count=1000)
    assert set(scores(simulated(), texts)) == {10}  # the control
    assert share(simulated("0.3"), texts) == pytest.approx(0.3, abs=0.05)
    mute = scores(simulated("misformat=0.2"), texts)
    assert mute.count(None) / len(texts) == pytest.approx(0.2, abs=0.05)
    off_by_one = scores(simulated("disagreement=0.4"), texts)
    assert set(off_by_one) == {9, 10}
    assert off_by_one.count(9) / len(texts) == pytest.approx(0.4, abs=0.05)


def test_errors_grow_with_the_length_of_the_prompt():
    growing, texts = simulated("error=0.1,per_doubling=0.15"), many(words=4096 - 360, count=100)
    assert share(growing, many(count=100)) == pytest.approx(0.1, abs=0.06)
    assert share(growing, texts) == pytest.approx(0.4, abs=0.1)
    assert share(simulated("error=0.1"), texts) == pytest.approx(0.1, abs=0.06)


def test_models_err_independently_and_reproducibly():
    texts = many()

    def wrong(**changed):
        return {number for number, s in enumerate(scores(simulated("0.3", **changed), texts)) if s <= 7}

    first, other, later = wrong(), wrong(name="other"), wrong(seed=1)
    assert first == wrong()
    for one in (other, later):
        assert len(first & one) / len(texts) == pytest.approx(0.09, abs=0.04)


def test_above_temperature_0_every_seed_draws_anew():
    model, (text, *_) = simulated("0.5"), many()
    cold = {ask(model, text, seed=seed)[0].text for seed in range(20)}
    warm = {ask(model, text, temperature=1.0, seed=seed)[0].text for seed in range(20)}
    assert len(cold) == 1 < len(warm)


def test_sufficiency_and_attribution_look_for_the_gold_answer(monkeypatch):
    monkeypatch.setattr(long_context, "_CHUNKS_PER_REQUEST", 3)

    def said(*passages):
        return ask(simulated("0.9"), *passages)

    yes, no = said(sufficiency_request(FOX, [TEXT, "so"]), sufficiency_request(FOX, ["so"]))
    # The gold words are not together.
    assert [why_insufficient(yes), why_insufficient(no)] == ["insufficient", "insufficient"]
    known = Document("known", "", FOX.question, "in the barn")
    texts = ["One.\n\n[7] Two.", "It sleeps in the barn.", "Three.", "Go, and look in the barn."]
    yes, no = said(sufficiency_request(known, texts), sufficiency_request(known, texts[::2]))
    assert (why_insufficient(yes), why_insufficient(no)) == ("", "insufficient")
    parts = cut_chunks("\n\n".join(texts), 8)
    requests = attribution_requests(known, parts)
    found = attributed(said(*requests), parts)
    assert [parts[number].text for number in found] == [texts[1], texts[3]]


def test_a_writer_answers_from_the_text_shown():
    shown = [writing(OWL.text), writing(TEXT)]
    assert [answer.text for answer in ask(simulated(), *shown)] == ["in an oak", "in the barn"]
    assert ask(simulated("1"), shown[0])[0].text == "in the barn"
    alone = simulated(inputs=[OWL])
    assert ask(alone, shown[1])[0].text == "The passages do not tell."


BETTER = "The copper key lies in the old barn, behind seven green bottles."
WORSE = "The copper key lies on the new roof, before three blue crates."


def words(text):
    return re.findall(r"\w+", text.lower())


def drafted(key, *, better=BETTER, worse=WORSE, most=5, error=0.0, readable=True):
    reply = write_criteria(better, worse, most, Rng(key), error=error, readable=readable)
    return re.findall(r'^Criterion: (The response (?:says|does not say) "\w+"\.)$', reply, re.MULTILINE)


def quoted(criterion):
    return criterion.split('"')[1]


def test_sound_criteria_name_words_of_the_better_response_alone():
    found = drafted("a")
    assert len(found) == len({*found}) == 5
    assert all(quoted(one) in words(BETTER) and quoted(one) not in words(WORSE) for one in found)
    assert drafted("a") == found != drafted("b")


def test_criteria_are_looked_up_in_both_responses():
    for criterion, letter, swapped in (
        ('The response says "barn".', "A", "B"),
        ('The response says "copper".', "C", "C"),
        ('The response does not say "barn".', "B", "A"),
    ):
        assert compare_by(criterion, BETTER, WORSE).endswith(f"\n[[{letter}]]")
        assert compare_by(criterion, WORSE, BETTER).endswith(f"\n[[{swapped}]]")
    assert compare_by("The response is kind.", BETTER, WORSE) is None
