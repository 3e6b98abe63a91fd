"""Short-to-long: labels from the short context, rows with the long one."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import models, trainers

from longrm.clients import Completion
from longrm.data import read, write_rows
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import tokenize
from longrm.errors import RunError
from longrm.synthesis import long_context
from longrm.synthesis.chunks import cut_chunks
from longrm.synthesis.documents import Document
from longrm.synthesis.labeling import gather_pool, pair_up
from longrm.synthesis.long_context import ATTRIBUTION, SUFFICIENCY, retrieved
from longrm.synthesis.pipeline import KEPT, Steps, nested
from longrm.synthesis.recipes.short_to_long import RECIPE, JudgeLabeling
from longrm.types import Outcome, message_text
from longrm.worlds import words_tokenizer

from ..sources import all_outcomes, completion_of, world_documents

RECORD = re.compile(r"(?:code of|say that|old ledger|agreed that) (\w+) (?:is|has|holds|keeps) (\w+)\.")
GOOD = "The passage shows it.\n[[8]]"


class Judge:
    """Scores 8; other replies are set by the test."""

    name = "simulated"

    def __init__(self, score=lambda text: GOOD, suffices=lambda text: True, names=lambda text: "[[1]]"):
        self.score, self.suffices, self.names = score, suffices, names
        self.read = []

    async def ask(self, requests):
        return [self._answer(message_text(request.messages[-1])) for request in requests]

    def _answer(self, text):
        self.read.append(text)
        if text.endswith(SUFFICIENCY):
            said = self.suffices(text)
            said = {True: "So it is. [[yes]]", False: "[[no]]"}.get(said, said)
        elif text.endswith(ATTRIBUTION):
            said = self.names(text)
        else:
            said = self.score(text)
        return completion_of(said)


SOURCES = list(world_documents())


def recipe_for(documents, **changed):
    """A recipe that reads these documents."""

    class Recipe(RECIPE):
        def read(self):
            return iter(documents)

    given = {
        "documents": {"path": "none"},
        "candidates": {"synthetic": True},
        "judge": {"model": "simulated:0"},
        "lengths": (1500, 3000),
        "chunk_size": 48,
        "evidence_from": "given",
    }
    return Recipe.resolve(None, given | changed)


def make(judge=None, given=SOURCES, foreign=None, tokenizer=None, **changed):
    """The rows of some documents, and the counts of each; the tokenizer is `words` by default."""
    tokenizer = tokenizer or words_tokenizer()
    recipe = recipe_for(SOURCES if foreign is None else foreign, **changed)
    labeling = JudgeLabeling(recipe, tokenizer, gather_pool(recipe, tokenizer), judge or Judge())
    found = all_outcomes(labeling.make_rows, given)
    return [row for one in found for row in one.rows], [nested(one.steps) for one in found]


def evidence_of(row):
    text = row["prompt"][-1]["content"]
    return [text[span["start"] : span["end"]] for span in row["evidence"]]


@pytest.mark.parametrize("domain", ["qa_faithfulness", "qa_helpfulness", "summary"])
def test_rows_have_the_target_length_and_complete_evidence(domain):
    rows, _ = make(domain=domain, evidence_from="retrieval")
    assert len(rows) == 12
    assert {row["length"] for row in rows} == {1500, 3000}
    by_id = {document.id: document for document in SOURCES}
    for row in rows:
        text = row["prompt"][0]["content"]
        assert row["tokens"] == len(words_tokenizer().prompt_ids(row["prompt"]))
        assert row["length"] - 16 <= row["tokens"] <= row["length"]
        document = by_id[row["document"]]
        parts = cut_chunks(document.text, 48)
        for chunk in evidence_of(row):  # whole chunks, one or several that follow each other
            assert chunk in document.text
            assert any(chunk.startswith(part.text) for part in parts)
            assert any(chunk.endswith(part.text) for part in parts)
        assert document.question in text
        assert re.fullmatch("" if domain == "qa_faithfulness" else "[A-Z]{5}", row["tag"])
        inside = text.partition(f"<{row['tag']}>\n")[2].partition(f"</{row['tag']}>")[0]
        assert domain == "qa_faithfulness" or all(chunk in inside for chunk in evidence_of(row))


@pytest.mark.parametrize("domain", ["qa_faithfulness", "summary", "code"])
def test_every_chunk_of_a_mixed_context_is_below_the_title_of_its_document(domain):
    named = [
        replace(one, metadata={**one.metadata, "title": f"Diary {at}"}) for at, one in enumerate(SOURCES)
    ]
    rows, _ = make(domain=domain, given=named, foreign=named)
    assert len(rows) > 9
    titles = {one.title: one.text for one in named}
    own = {one.id: one.title for one in named}
    for row in rows:
        content = row["prompt"][0]["content"]
        parts = content.partition("<context>\n")[2].partition("\n</context>")[0].split("\n\nDocument: ")
        shown = dict.fromkeys(titles, 0)
        for part in parts:
            title, _, text = part.removeprefix("Document: ").partition("\n")
            shown[title] += 1
            for line in re.sub(r"</?[A-Z]{5}>", "", text).strip().split("\n\n"):
                assert line.strip() in titles[title]
        assert sum(map(bool, shown.values())) > 3
        for chunk in evidence_of(row):
            before = content[: content.index(chunk)]
            assert before.rpartition("Document: ")[2].partition("\n")[0] == own[row["document"]]


def test_a_context_of_one_document_has_no_title():
    rows, _ = make(given=SOURCES[:1], foreign=SOURCES[:1], lengths=(330,), in_document_share=1.0)
    assert rows
    assert not any("Document: " in row["prompt"][0]["content"] for row in rows)


def test_a_title_is_a_column_a_file_or_a_number():
    document = Document("notes/may.txt#2", "Text.", "?", "!")
    assert document.title == "notes/may.txt"
    assert replace(document, metadata={"file": "a.txt"}).title == "a.txt"
    assert replace(document, metadata={"file": "a.txt", "title": " May\n2001 "}).title == "May 2001"
    number = replace(document, id="row-17").title
    assert number.isdecimal()
    assert number == replace(document, id="row-18").title != replace(document, id="row-18", text="B").title


@pytest.fixture(scope="module")
def merging():
    """A BPE whose tokens reach across words and chunks, so that the counts of parts do not add up."""
    backend = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    texts = [source.text.replace(". ", ".\n\nDocument: 7\n") for source in SOURCES]
    backend.train_from_iterator(texts, trainer)
    return Tokenizer.from_backend(backend)


def test_lengths_are_met_where_the_counts_of_parts_do_not_add_up(merging):
    rows, _ = make(tokenizer=merging, lengths=(2000, 2500), tolerance=24)
    assert len(rows) == 12
    off = 0
    for row in rows:
        tokens = len(merging.prompt_ids(row["prompt"]))
        assert row["length"] - 24 <= tokens <= row["length"]
        context = row["prompt"][0]["content"]
        off += tokens != sum(merging.count(part) for part in re.split("(?<=\n\n)", context))
    assert off > 6  # the control: the sum of the parts is another length


def test_a_length_that_cannot_be_filled_is_not_swapped_for_another():
    rows, steps = make(lengths=(1500, 60_000))
    assert {row["length"] for row in rows} == {1500}
    dropped = sum(one["padding"].get("padding_ran_out", 0) for one in steps)
    assert (len(rows) + dropped, dropped > 2) == (12, True)


def test_the_judge_reads_the_rubric_and_the_critical_chunks_alone():
    judge = Judge()
    rows, _ = make(judge, domain="summary")
    level = "All main points of that part, no errors, nothing from other parts, well balanced."
    assert len(judge.read) == 12
    assert all(level in text for text in judge.read)
    assert all(len(words_tokenizer().encode(text)) < 500 for text in judge.read)
    for row, shown in zip(rows, judge.read, strict=True):
        assert level not in row["prompt"][0]["content"]
        assert all(chunk in shown for chunk in evidence_of(row))
        assert f"<{row['tag']}>" in shown
        assert (row["score"], row["completion"]) == (8, GOOD)


def test_a_planted_distractor_that_answers_the_question_is_found():
    entities = [re.search(r"code of (\w+)\?", source.question)[1] for source in SOURCES]
    right = [source.answer for source in SOURCES]
    other = [f"The access code of {entity} is basket." for entity in entities]
    for sentences in (right, other):
        text = f"It was a long day. {' '.join(sentences)} So it went on."
        foreign = [*SOURCES, *(Document(f"other-{number}", text, "?", "!") for number in range(3))]
        for check in ("words", "none"):
            settings = {"in_document_share": 0.2, "distractor_check": check, "sufficiency": "none"}
            rows, steps = make(foreign=foreign, lengths=(3000,), **settings)
            answering = 0
            for row in rows:
                content = row["prompt"][0]["content"]
                entity = re.search(r"<question>\n.*code of (\w+)\?", content)[1]
                padding = content.partition("<context>\n")[2].partition("\n</context>")[0]
                for chunk in evidence_of(row):
                    padding = padding.replace(chunk, "")
                answering += any(name == entity for name, _ in RECORD.findall(padding))
            if check == "words":
                assert (len(rows), answering) == (12, 0)
                assert all(one["pool"]["answers_question"] > 0 for one in steps)
            else:
                assert answering > 6  # the control: unchecked, they are in the rows


def test_a_judge_finds_an_answer_in_other_words(monkeypatch):
    hint = "Whoever asks for the secret of the first person should think of a woven box."
    foreign = [Document(f"other-{n}", f"{hint} " * 3, "?", "!") for n in range(2)]
    holders = [*SOURCES, *foreign]
    finds = Judge(suffices=lambda text: hint in text)
    changed = {"given": SOURCES[:2], "foreign": holders, "lengths": (3000,), "in_document_share": 0.0}
    monkeypatch.setattr(long_context, "_JUDGED_CHUNKS", 200)
    plain, _ = make(finds, **changed)
    assert any(hint in row["prompt"][0]["content"] for row in plain)
    rows, _ = make(finds, distractor_check="judge", **changed)
    assert rows
    assert not any(hint in row["prompt"][0]["content"] for row in rows)
    never = Judge(suffices=lambda text: Completion(Outcome.TRUNCATED, "I"))
    monkeypatch.setattr(long_context, "_JUDGED_CHUNKS", 1)
    rows, steps = make(never, distractor_check="judge", **changed | {"lengths": (1500,)})
    assert not rows
    assert [one["padding"] for one in steps] == [{"answered_in_padding": 2}] * 2


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("I like it.", "unparsed"),
        ("So: [[7.5]]", "not_whole"),
        (Completion(Outcome.TRUNCATED, "The"), "truncated"),
        (Completion(Outcome.REFUSED), "refused"),
    ],
)
def test_unusable_judgments_are_dropped_and_counted(said, reason):
    rows, steps = make(Judge(score=lambda text: said))
    assert rows == []
    assert [one["judgment"] for one in steps] == [{reason: 2}] * 6


@pytest.mark.parametrize("step", ["score", "suffices", "names"])
def test_a_model_that_cannot_be_reached_stops_the_run(step):
    gone = Judge(**{step: lambda text: Completion(Outcome.ERROR, detail="500")})
    with pytest.raises(RunError, match="simulated could not be asked"):
        make(gone, evidence_from="model", sufficiency="judge")


def by_truth(text):
    """8 for a right answer, 3 for a wrong one."""
    response = text.partition("<response>\n")[2].partition("\n</response>")[0]
    return f"[[{8 if response in {source.answer for source in SOURCES} else 3}]]"


def test_pairs_share_one_long_context_and_are_read_by_training(tmp_path):
    more = []
    for source in SOURCES:
        best, worst = source.candidates
        other, again = replace(worst, text=f"{worst.text} I think."), replace(worst, model="o")
        more.append(replace(source, candidates=(best, worst, other, again)))
    rows, steps = make(Judge(score=by_truth), given=more, rows="pairs", domain="summary")
    assert [one["pairs"] for one in steps] == [{"kept": 2, "tie": 1}] * 6
    assert [one["answers"] for one in steps] == [{"kept": 3, "same_text": 1}] * 6
    assert [one["padding"] for one in steps] == [{KEPT: 1}] * 6  # one context for all
    write_rows(tmp_path / "rows.jsonl", rows)
    found = list(read(tmp_path / "rows.jsonl"))
    assert len(found) == 12
    for number, row in enumerate(found):
        comparison, source = row.comparison, more[number // 2]
        text, document = message_text(comparison.prompt[0]), source
        listed = [message_text(comparison.responses[at][0]) for at in comparison.best_first()]
        assert listed == [source.candidates[0].text, source.candidates[1 + number % 2].text]
        assert comparison.metadata["points_apart"] == 5
        assert comparison.group == document.group
        (context,), question = comparison.context, comparison.question
        assert text[question.start : question.end] == document.question
        tag = comparison.metadata["tag"]
        assert f"<{tag}>" in text[context.start : context.end]
        assert f"between <{tag}> and </{tag}>" in text[context.end :]
        for span in comparison.evidence:
            assert context.start <= span.start < span.end <= context.end
            assert text[span.start : span.end] in document.text
        assert not any(candidate.text in text for candidate in source.candidates[1:])
        size = len(words_tokenizer().prompt_ids(comparison.prompt))
        assert size == comparison.metadata["tokens"]
        assert comparison.metadata["length"] - 16 <= size <= comparison.metadata["length"]
        assert not tokenize(row, words_tokenizer()).margin
    assert {row.comparison.ranks for row in found} == {(1, 2), (2, 1)}  # their order carries no information
    assert found[0].comparison.prompt == found[1].comparison.prompt != found[2].comparison.prompt
    rows, steps = make(rows="pairs")  # the control: a judge that always gives 8 carries no information
    assert rows == []
    assert [one["pairs"] for one in steps] == [{"tie": 1}] * 6
    assert not any("padding" in one for one in steps)


@pytest.mark.parametrize("rows", ["judgments", "pairs"])
def test_naive_long_data_differ_only_in_the_context_of_the_judge(rows):
    def lost_in_length(text):
        return by_truth(text) if len(words_tokenizer().encode(text)) < 500 else "[[5]]"

    judges = {reads: Judge(score=by_truth) for reads in ("short", "long")}
    found = {reads: make(judge, rows=rows, judge_reads=reads)[0] for reads, judge in judges.items()}
    assert [row["prompt"] for row in found["short"]] == [row["prompt"] for row in found["long"]]
    assert max(len(words_tokenizer().encode(text)) for text in judges["short"].read) < 500
    assert min(len(words_tokenizer().encode(text)) for text in judges["long"].read) > 1500
    assert all("The text supports every claim" in text for text in judges["long"].read)  # the rubric
    short, _ = make(Judge(score=lost_in_length), rows=rows)
    assert short == found["short"]
    naive, _ = make(Judge(score=lost_in_length), rows=rows, judge_reads="long")
    assert {row["score"] for row in naive} == ({5} if rows == "judgments" else set())


def test_unusable_documents_are_dropped_and_counted_by_step():
    document = SOURCES[0]

    def fate(document=document, judge=None, **changed):
        rows, (steps,) = make(judge, given=[document], **changed)
        assert rows == []
        return next((step, fate) for step, fates in steps.items() for fate in fates if fate != KEPT)

    assert fate(replace(document, candidates=())) == ("critical", "no_candidate")
    assert fate(replace(document, metadata={})) == ("critical", "nothing_found")
    assert fate(replace(document, answer=" ")) == ("sufficiency", "no_gold_answer")
    assert fate(replace(document, answer="The access code of Alora is violet.")) == (
        "sufficiency",
        "insufficient",
    )
    assert fate(replace(document, answer="The")) == ("sufficiency", "answer_too_common")
    doubting = Judge(suffices=lambda text: False)
    assert fate(judge=doubting, sufficiency="judge") == ("sufficiency", "insufficient")
    assert fate(judge=Judge(suffices=lambda _: "Hm."), sufficiency="judge") == ("sufficiency", "unparsed")
    assert fate(lengths=(100,)) == ("padding", "too_long")
    assert fate(lengths=(90000,)) == ("padding", "padding_ran_out")


def test_a_model_names_the_critical_chunks(monkeypatch):
    monkeypatch.setattr(long_context, "_CHUNKS_PER_REQUEST", 3)
    source = SOURCES[0]
    parts = cut_chunks(source.text, 48)
    start, end = source.metadata["evidence"][0]
    wanted = next(part for part in parts if part.start <= start and end <= part.end)

    def names(text):
        found = re.findall(rf"\[(\d+)\] {re.escape(wanted.text)}", text)
        return f"These: [[{', '.join(found)}]]" if found else "Nothing here. [[none]]"

    rows, _ = make(Judge(names=names), given=[source], evidence_from="model")
    assert evidence_of(rows[0]) == [wanted.text]
    assert rows[0]["found_by"] == "model"
    for said in ("No numbers.", "[[999]]"):
        rows, (steps,) = make(Judge(names=lambda _, said=said: said), given=[source], evidence_from="model")
        assert steps["critical"] == {"unparsed": 1}


def test_retrieval_finds_the_evidence_far_more_often_than_chance():
    found = chance = 0.0
    for source in SOURCES:
        parts = cut_chunks(source.text, 48)
        start, _ = source.metadata["evidence"][0]
        true = {part.number for part in parts if part.start <= start < part.end}
        found += bool(true & {*retrieved(source, parts, 2)})
        chance += 2 / len(parts)
    assert found == 6
    assert chance < 2


def test_a_row_depends_on_nothing_but_its_document():
    together, _ = make()
    alone = [row for source in reversed(SOURCES) for row in make(given=[source])[0]]
    assert sorted(together, key=lambda row: row["id"]) == sorted(alone, key=lambda row: row["id"])
    other, _ = make(seed=1)
    assert [row["prompt"] for row in other] != [row["prompt"] for row in together]


def test_pairs_follow_the_scores():
    steps = Steps()
    low, high, same = (SimpleNamespace(score=score) for score in (2.0, 9.0, 9.0))
    assert pair_up([low, high, same], steps) == [(high, low), (same, low)]
    assert nested(steps)["pairs"] == {"kept": 2, "tie": 1}
