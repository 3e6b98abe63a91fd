import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longrm.rng import Draws
from longrm.synthesis.chunks import Answering, cut, gold_of, runs, touching
from longrm.synthesis.padding import BETWEEN, Piece, Pool, fill, lay
from longrm.synthesis.tags import draw_tag, free_name
from longrm.worlds import WorldPlan, generate, words_tokenizer

TEXTS = [
    str(c.prompt[0]["content"]) for c in generate(WorldPlan("records", 600, seed=3), 12, words_tokenizer())
]


def pool(order=range(12), **changed):
    rows = [(f"g{at}", f"d{at}", TEXTS[at]) for at in order]
    given = {"chunk": 32, "most_documents": 6, "per_document": 4, "seed": 1}
    return Pool.gather(rows, words_tokenizer(), **given | changed)


def test_chunks_are_the_text_but_for_the_white_space_between_them():
    text = "One two three. Four five six.\n\nSeven eight nine! Ten."
    parts = cut(text, 4)
    assert [part.text for part in parts] == ["One two three.", "Four five six.", "Seven eight nine!", "Ten."]
    assert all(text[part.start : part.end] == part.text for part in parts)
    assert touching(parts, [(16, 17), (40, 41)]) == (1, 2)
    assert touching(parts, [(14, 15)]) == ()  # the space between two chunks is in neither
    joined = runs(text, [parts[0], parts[1], parts[3]])
    assert [part.text for part in joined] == ["One two three. Four five six.", "Ten."]


def test_the_pool_depends_on_the_texts_and_not_on_their_order():
    straight = pool()
    assert len({piece.group for piece in straight.pieces}) == 6
    assert straight.pieces == pool(list(reversed(range(12))), chunk=32).pieces
    assert straight.pieces == pool([*range(12), *range(12)]).pieces
    assert straight.pieces != pool(seed=2).pieces
    assert all(piece.text in TEXTS[int(piece.group[1:])] for piece in straight.pieces)


def test_what_the_pool_says_of_its_pieces_is_what_their_texts_say():
    held = pool()
    evidence = ["The access code of Alora is anchor."]
    for question, answer in [
        ("What is the access code of Alora?", "The access code of Alora is anchor."),
        ("Who?", "anchor"),
        ("Who walked?", "The farmer walked slowly to the museum on a lonely Friday"),
        ("Where?", "nowhere in these texts"),
    ]:
        answering = Answering.of(question, answer, evidence, held.rarity, enough=0.4, alike=0.75)
        told = held.answering(answering)
        assert told.tolist() == [answering.found_in(piece.text) for piece in held.pieces]
        gold = gold_of(question, answer, held.rarity)
        assert held.held(gold) == pytest.approx([gold.held(piece.text) for piece in held.pieces])


def test_a_short_answer_is_held_as_it_stands_and_a_long_one_by_its_own_words():
    short = gold_of("Who?", "Marie Curie", lambda word: 1.0)
    assert short.held("It was marie  Curie!") == 1
    assert short.held("Marie and Pierre Curie") == 0
    long = gold_of("Why did she leave?", "She did leave as her work there was done", lambda word: 1.0)
    assert sorted(long.weights) == ["as", "done", "her", "there", "was", "work"]
    assert long.held("Her work was done.") == pytest.approx(4 / 6)
    assert gold_of("谁?", "居里夫人", lambda word: 1.0).held("她就是居里夫人。") == 1


def test_another_answer_to_the_same_question_is_found_too():
    evidence = ["The access code of Alora is anchor."]
    held = pool()
    question, answer = "What is the access code of Alora?", "anchor"
    of = Answering.of(question, answer, evidence, held.rarity, enough=0.6, alike=0.75)
    assert of.found_in("Meanwhile the access code of Alora is basket.")
    assert not of.found_in("The access code of Bardan is basket.")
    blind = Answering(of.gold, of.enough, of.asked, np.inf)
    assert not blind.found_in("Meanwhile the access code of Alora is basket.")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 10**6))
def test_padding_fills_the_room_whole_piece_by_whole_piece(room, seed):
    draws = random.Random(seed)
    large = [Piece("g", "d", f"l{n}.", draws.randint(60, 140)) for n in range(60)]
    small = [Piece("g", "d", f"s{n}.", draws.randint(5, 30)) for n in range(40)]
    taken = fill(room, iter(large), small)
    total = sum(piece.tokens for piece in taken)
    assert total <= room
    assert len({piece.text for piece in taken}) == len(taken)
    left = [piece.tokens for piece in small if piece not in taken]
    assert not left or room - total < min(left)


@pytest.mark.parametrize("layout", ["scattered", "document", "segment"])
def test_evidence_stands_whole_at_depths_drawn_evenly(layout):
    critical = ["The first critical chunk.", "The second critical chunk."]
    own = [Piece("g", "d", f"own {n}.", 10, n) for n in range(30)]
    foreign = [Piece("f", "e", f"foreign {n}.", 10, n) for n in range(70)]
    tag = "" if layout == "scattered" else "BCD"
    depths = []
    for seed in range(400):
        laid = lay(layout, critical, own, foreign, tag, Draws(seed, "place"))
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


def test_tags_are_in_no_text_and_blocks_cannot_be_closed_from_inside():
    first = draw_tag([], Draws("a"))
    assert first.isalpha()
    assert first.isupper()
    assert draw_tag([f"so <{first}> is taken"], Draws("a")) != first
    assert len({draw_tag([], Draws(n)) for n in range(200)}) > 190
    assert free_name("response", ["</response>", "< response-2>"]) == "response-3"
    assert free_name("response", ["no tag"]) == "response"


@pytest.mark.parametrize(
    "text", ["12500 came", "12,500 came", "12’500 came", "12\u202f500 came", "12 500 came"]
)
@pytest.mark.parametrize("gold", ["12,500", "12500"])
def test_numbers_are_found_however_their_digits_are_grouped(gold, text):
    short = gold_of("How many?", gold, lambda word: 1.0)
    long = gold_of("How many?", f"After the flood no fewer than {gold} people left", lambda word: 1.0)
    for sought, held in ((short, 1), (long, 1 / 9)):
        assert sought.held(f"In all {text}.") == pytest.approx(held)
        assert sought.held("In all 12, or 500, or 125000 came.") == 0


def test_numbers_next_to_each_other_stay_numbers_too():
    assert gold_of("How many?", "345", lambda word: 1.0).held("Sold 12 345 678 of them.") == 1
    assert gold_of("How many?", "12", lambda word: 1.0).held("Room 12, 500 people.") == 1
    assert gold_of("How many?", "3.5 of 12,500", lambda word: 1.0).held("It was 3.5 of 12500.") == 1
    texts = [
        (f"g{at}", f"d{at}", text)
        for at, text in enumerate(["There were 12500 here.", "There were 12,500.", "None."])
    ]
    pieces = pool_of(texts)
    answering = Answering.of("How many?", "12,500", ["12,500"], pieces.rarity, enough=0.6, alike=0.75)
    assert answering.gold.held("There were 12500 here.") == 1
    told = {
        piece.text: found for piece, found in zip(pieces.pieces, pieces.answering(answering), strict=True)
    }
    assert told == {"There were 12500 here.": True, "There were 12,500.": True, "None.": False}


def pool_of(rows):
    return Pool.gather(rows, words_tokenizer(), chunk=32, most_documents=6, per_document=4, seed=1)
