import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longrm.rng import Rng
from longrm.synthesis import chunks
from longrm.synthesis.chunks import (
    BETWEEN,
    AnswerMatcher,
    DistractorPool,
    DocumentChunk,
    cut_chunks,
    fill_room,
    gold_words,
    merge_adjacent,
)
from longrm.synthesis.documents import Document
from longrm.synthesis.long_context import lay_out
from longrm.worlds import WorldPlan, generate, words_tokenizer

TEXTS = [
    str(c.prompt[0]["content"]) for c in generate(WorldPlan("records", 600, seed=3), 12, words_tokenizer())
]


def chunk(number, text, tokens):
    return DocumentChunk(number, number, number + 1, text, tokens=tokens)


def pool(order=range(12), **changed):
    documents = [Document(f"d{at}", TEXTS[at], "", "") for at in order]
    given = {"chunk_size": 32, "seed": 1}
    return DistractorPool.gather(documents, words_tokenizer(), **given | changed)


@pytest.fixture(autouse=True)
def few_documents(monkeypatch):
    monkeypatch.setattr(chunks, "POOL_DOCUMENTS", 6)
    monkeypatch.setattr(chunks, "POOL_CHUNKS", 4)


def test_chunks_are_the_text_but_for_the_white_space_between_them():
    text = "One two three. Four five six.\n\nSeven eight nine! Ten."
    parts = cut_chunks(text, 4)
    assert [part.text for part in parts] == ["One two three.", "Four five six.", "Seven eight nine!", "Ten."]
    assert all(text[part.start : part.end] == part.text for part in parts)
    joined = merge_adjacent(text, [parts[0], parts[1], parts[3]])
    assert [part.text for part in joined] == ["One two three. Four five six.", "Ten."]


def test_the_pool_depends_on_the_texts_and_not_on_their_order():
    straight = pool()
    assert len({piece.group for piece in straight.chunks}) == 6
    assert straight.chunks == pool(list(reversed(range(12))), chunk_size=32).chunks
    assert straight.chunks == pool([*range(12), *range(12)]).chunks
    assert straight.chunks != pool(seed=2).chunks
    assert all(piece.text in TEXTS[int(piece.document[1:])] for piece in straight.chunks)
    assert (straight.documents, pool(range(3)).documents) == (12, 3)


def test_the_index_agrees_with_the_texts():
    held = pool()
    evidence = ["The access code of Alora is anchor."]
    for question, answer in [
        ("What is the access code of Alora?", "The access code of Alora is anchor."),
        ("Who?", "anchor"),
        ("Who walked?", "The farmer walked slowly to the museum on a lonely Friday"),
        ("Where?", "nowhere in these texts"),
    ]:
        answering = AnswerMatcher.of(question, answer, evidence, held.rarity)
        found_by_index = held.may_answer(answering)
        assert found_by_index.tolist() == [answering.may_answer(piece.text) for piece in held.chunks]
        gold = gold_words(question, answer, held.rarity)
        assert held.coverage(gold) == pytest.approx([gold.coverage(piece.text) for piece in held.chunks])


def test_distractors_are_of_other_documents_and_neither_unfit_nor_banned():
    held = pool()
    own, banned = held.chunks[0].group, held.chunks[-1].text
    unfit = np.array([len(piece.text) % 3 == 0 for piece in held.chunks])
    large, small = held.draw(own, unfit, [banned], Rng("distractors"))
    fit = {
        piece
        for piece, is_unfit in zip(held.chunks, unfit, strict=True)
        if piece.group != own and not is_unfit and piece.text != banned
    }
    assert {*large, *small} == fit
    assert 0 < len(fit) < len(held.chunks)


def test_a_short_answer_is_sought_as_a_phrase_and_a_long_one_by_its_own_words():
    short = gold_words("Who?", "Marie Curie", lambda word: 1.0)
    assert short.coverage("It was marie  Curie!") == 1
    assert short.coverage("Marie and Pierre Curie") == 0
    long = gold_words("Why did she leave?", "She did leave as her work there was done", lambda word: 1.0)
    assert sorted(long.weights) == ["as", "done", "her", "there", "was", "work"]
    assert long.coverage("Her work was done.") == pytest.approx(4 / 6)
    assert gold_words("谁?", "居里夫人", lambda word: 1.0).coverage("她就是居里夫人。") == 1


def test_another_answer_to_the_same_question_is_found_too():
    evidence = ["The access code of Alora is anchor."]
    held = pool()
    question, answer = "What is the access code of Alora?", "anchor"
    of = AnswerMatcher.of(question, answer, evidence, held.rarity)
    assert of.may_answer("Meanwhile the access code of Alora is basket.")
    assert not of.may_answer("The access code of Bardan is basket.")
    blind = AnswerMatcher(of.gold, of.question, np.inf)
    assert not blind.may_answer("Meanwhile the access code of Alora is basket.")


@settings(max_examples=60)
@given(st.integers(0, 3000), st.integers(0, 10**6))
def test_padding_fills_the_room_whole_piece_by_whole_piece(room, seed):
    draws = random.Random(seed)
    large = [chunk(n, f"l{n}.", draws.randint(60, 140)) for n in range(60)]
    small = [chunk(n, f"s{n}.", draws.randint(5, 30)) for n in range(40)]
    taken = fill_room(room, iter(large), small)
    total = sum(piece.tokens for piece in taken)
    assert total <= room
    assert len({piece.text for piece in taken}) == len(taken)
    left = [piece.tokens for piece in small if piece not in taken]
    assert not left or room - total < min(left)


@pytest.mark.parametrize("layout", ["scattered", "document", "segment"])
def test_evidence_is_complete_at_uniform_depths(layout):
    critical = ["The first critical chunk.", "The second critical chunk."]
    own = [chunk(n, f"own {n}.", 10) for n in range(30)]
    foreign = [chunk(n, f"foreign {n}.", 10) for n in range(70)]
    tag = "" if layout == "scattered" else "BCD"
    depths = []
    for seed in range(300):
        laid = lay_out(layout, critical, own, foreign, tag, Rng(seed, "place"))
        assert [laid.text[start:end] for start, end in laid.evidence] == critical
        before = laid.text[: laid.evidence[0][0]].count(".")
        assert laid.depths[0] == pytest.approx(before / 100, abs=0.006)
        inside = laid.text.partition("<BCD>\n")[2].partition("\n</BCD>")[0]
        if layout == "segment":
            assert inside == BETWEEN.join(critical)
        if layout == "document":
            assert inside.count("own") == 30
            assert "foreign" not in inside
        assert sum(laid.text.count(piece.text) == 1 for piece in (*own, *foreign)) == 100
        depths += laid.depths if layout == "scattered" else laid.depths[:1]
    assert stats.kstest(depths, "uniform").pvalue > 0.001
    assert stats.kstest(np.array(depths) ** 1.5, "uniform").pvalue < 0.001  # the control


@pytest.mark.parametrize(
    "text", ["12500 came", "12,500 came", "12’500 came", "12\u202f500 came", "12 500 came"]
)
@pytest.mark.parametrize("gold", ["12,500", "12500"])
def test_numbers_are_found_however_their_digits_are_grouped(gold, text):
    short = gold_words("How many?", gold, lambda word: 1.0)
    long = gold_words("How many?", f"After the flood no fewer than {gold} people left", lambda word: 1.0)
    for sought, held in ((short, 1), (long, 1 / 9)):
        assert sought.coverage(f"In all {text}.") == pytest.approx(held)
        assert sought.coverage("In all 12, or 500, or 125000 came.") == 0
