import asyncio
from dataclasses import replace

import pytest

from longrm.clients import Completion
from longrm.data import read, write_rows
from longrm.data.training_rows import tokenize
from longrm.errors import RunError
from longrm.synthesis.inputs.candidates import CandidateAnswer, SynthesisInput
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.labels.consensus import VotingSettings
from longrm.synthesis.labels.labeling import Labeling, gather_pool
from longrm.synthesis.labels.vote_verification import verify_votes
from longrm.synthesis.long_context.evidence_search import SUFFICIENCY
from longrm.synthesis.recipes.vote import PanelLabeler
from longrm.synthesis.short_to_long_settings import ShortToLongSettings
from longrm.types import Outcome, message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

RUBRIC = "The text supports every claim, and they answer the question."


def from_world(count=4):
    for comparison in generate(WorldPlan("records", 600, seed=5), count, words_tokenizer()):
        text, context, question = (
            message_text(comparison.prompt[0]),
            comparison.context[0],
            comparison.question,
        )
        best, worst = (message_text(comparison.responses[at][0]) for at in comparison.best_first())
        evidence = [[span.start, span.end] for span in comparison.evidence]
        document = Document(
            comparison.id, text[context.start : context.end], text[question.start : question.end], best,
            metadata={"evidence": evidence},
        )  # fmt: skip
        texts = {"m": best, "n": worst, "o": f"{worst} I think."}
        yield SynthesisInput(document, tuple(CandidateAnswer(comparison.id, *pair) for pair in texts.items()))


SOURCES = list(from_world())
POINTS = {candidate.text: 8 - 3 * at for source in SOURCES for at, candidate in enumerate(source.candidates)}


class Judge:
    """Gives 8, 5 and 2 points to the three candidates, and its own bias; or says something else."""

    def __init__(self, name, bias=0, says=None):
        self.name, self.bias, self.says, self.read = name, bias, says, []

    async def ask(self, requests):
        return [self._answer(message_text(request.messages[-1])) for request in requests]

    def _answer(self, text):
        self.read.append(text)
        if self.says is not None:
            return self.says if isinstance(self.says, Completion) else Completion(Outcome.ANSWERED, self.says)
        if text.endswith(SUFFICIENCY):
            return Completion(Outcome.ANSWERED, "[[yes]]")
        response = text.partition("<response>\n")[2].partition("\n</response>")[0]
        said = f"{self.name} has looked it up.\n\n[[{POINTS[response] + self.bias}]]"
        return Completion(Outcome.ANSWERED, said)


def judges(*biases):
    return [Judge(f"judge {number}", bias) for number, bias in enumerate(biases)]


async def all_rows(labeling, given):
    return await asyncio.gather(*map(labeling.make_rows, given))


def make(panel, given=SOURCES, voting=None, **changed):
    settings = ShortToLongSettings(
        **{"lengths": (1500, 2500), "chunk_size": 48, "evidence_from": "given"} | changed
    )
    pool = gather_pool(from_world(12), words_tokenizer(), settings)
    labeler = PanelLabeler(panel, voting or VotingSettings(), settings.rows)
    labeling = Labeling(settings, words_tokenizer(), pool, labeler, panel[0], panel[0])
    made = asyncio.run(all_rows(labeling, given))
    return [row for one in made for row in one.rows], [one.steps for one in made]


def test_judges_read_the_short_context_and_rows_hold_the_long_one(tmp_path):
    panel = [*judges(0, 0, 0, 1), Judge("mute", says="No idea.")]
    rows, steps = make(panel)
    assert [one["votes read"] for one in steps] == [{"kept": 12, "unparsed": 3}] * 4
    assert all(one["contrast"] == one["padding"] == {"kept": 3} for one in steps)
    for judge in panel:
        assert len(judge.read) == 12
        assert all(RUBRIC in text and len(words_tokenizer().encode(text)) < 500 for text in judge.read)
    write_rows(tmp_path / "rows.jsonl", rows)
    found = list(read(tmp_path / "rows.jsonl"))
    assert len(found) == 12
    for number, row in enumerate(found):
        comparison, source = row.comparison, SOURCES[number // 3]
        candidate, told, text = (
            source.candidates[number % 3],
            row.comparison.metadata,
            message_text(row.comparison.prompt[0]),
        )
        points = POINTS[candidate.text]
        assert comparison.role == "judgment"
        assert told["scores"] == {
            "judge 0": points,
            "judge 1": points,
            "judge 2": points,
            "judge 3": points + 1,
            "mute": -1,
        }
        assert (told["conf"], told["consensus_score"], told["contrast"]) == ([3, 1, 1], points, "score")
        assert set(told["reject_models"]) == {"judge 3", "mute"}
        assert (told["answer"], told["query"]) == (candidate.text, source.document.question)
        assert RUBRIC not in text
        assert f"<response>\n{candidate.text}\n</response>" in text
        size = len(words_tokenizer().prompt_ids(comparison.prompt))
        assert told["length"] - 16 <= size == told["prompt_ctx_length"] <= told["length"]
        before = text.partition("<context>\n")[2][: told["evidence"][0]["start"] - len("<context>\n")]
        assert before.count("\n\n") == told["insert_index"]
        assert tokenize(row, words_tokenizer(verdicts=True)).row.contrast
        assert verify_votes(comparison, VotingSettings()).same_conf


def test_only_what_is_kept_is_lengthened():
    rows, steps = make(judges(0, 0, 0))
    assert rows == []
    assert [one["contrast"] for one in steps] == [{"no_contrast": 3}] * 4
    assert not any("padding" in one for one in steps)
    rows, steps = make(judges(0, 1))
    assert [one["consensus"] for one in steps] == [{"tie": 3}] * 4
    marked, steps = make(judges(0, 0, 0), voting=VotingSettings(without_contrast="mark"))
    assert {row["contrast"] for row in marked} == {"none"}
    assert steps[0]["marked as without contrast"] == {"kept": 3}


def test_pairs_follow_the_consensus_over_one_long_context(tmp_path):
    rows, steps = make(judges(0, 0, 1), rows="pairs", voting=VotingSettings(least_gap=4))
    assert [one["pairs"] for one in steps] == [{"too_close": 2, "kept": 1}] * 4
    write_rows(tmp_path / "rows.jsonl", rows)
    for row, source in zip(read(tmp_path / "rows.jsonl"), SOURCES, strict=True):
        told = row.comparison.metadata
        listed = [message_text(row.comparison.responses[at][0]) for at in row.comparison.best_first()]
        assert listed == [source.candidates[0].text, source.candidates[2].text]
        scores = [told["judge_scores"][at] for at in row.comparison.best_first()]
        assert (told["points_apart"], scores, told["conf"]) == (6, [8, 2], [[2, 1], [2, 1]])
        assert not tokenize(row, words_tokenizer()).row.margin  # points are no margin of scores


@pytest.mark.parametrize("rows", ["judgments", "pairs"])
def test_rows_depend_on_nothing_but_their_document(rows):
    together, _ = make(judges(0, 0, 1), rows=rows)
    alone = [row for source in reversed(SOURCES) for row in make(judges(0, 0, 1), [source], rows=rows)[0]]
    assert together
    assert sorted(together, key=lambda row: row["id"]) == sorted(alone, key=lambda row: row["id"])


def test_naive_judges_read_the_long_context():
    panel = judges(0, 0, 1)
    long, _ = make(panel, judge_reads="long")
    assert all(len(words_tokenizer().encode(text)) > 1500 for judge in panel for text in judge.read)
    short, _ = make(judges(0, 0, 1))
    assert [row["chat_template"] for row in long] == [row["chat_template"] for row in short]


def test_the_first_judge_checks_what_suffices():
    panel = judges(0, 0, 1)
    make(panel, sufficiency="judge")
    assert [sum(text.endswith(SUFFICIENCY) for text in judge.read) for judge in panel] == [4, 0, 0]


def test_a_judge_that_cannot_be_asked_loses_no_row():
    gone = Judge("gone", says=Completion(Outcome.ERROR, detail="500"))
    with pytest.raises(RunError, match="gone could not be asked .500.; run the same command again"):
        make([*judges(0, 0), gone])


def test_short_chat_is_voted_on_and_kept_short():
    text = SOURCES[0].candidates[0].text
    chat = replace(SOURCES[0], document=Document("c", "unread", "Say something.", ""))
    rows, _ = make(judges(0, 0, 1), [chat], domain="chat")
    assert rows[0]["answer"] == text
    assert all("insert_index" not in row and "length" not in row for row in rows)
    (pair, *_), _ = make(judges(0, 0, 1), [chat], domain="chat", rows="pairs")
    assert pair["prompt"] == [{"role": "user", "content": "Say something."}]
