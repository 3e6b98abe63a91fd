"""Text that a model's tokenizer does not know is refused where it is most of a comparison, and else warned of."""

import json

import pytest

from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.reward_models import load
from longrm.runs.judgments import Judgments
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.types import Outcome, Query, query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

ENGLISH = Query(
    "english",
    ({"role": "user", "content": "Who wrote the quarterly report?"},),
    tuple(({"role": "assistant", "content": f"{name} wrote the report."},) for name in ("Alice", "Bob")),
)


def known():
    return [query_of(one, (0, 1)) for one in generate(WorldPlan("records", 128), 2, words_tokenizer())]


def in_part(query):
    """The query with two unknown words before its question."""
    (message,) = query.prompt
    prompt = ({**message, "content": f"Unheard Zqx. {message['content']}"},)
    return Query(query.id, prompt, query.responses)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "scorer"
    save(new_scorer(ModelShape(layers=1), words_tokenizer(), seed=0), path)
    return str(path)


@pytest.fixture
def english(tmp_path):
    """Three rows: the second is in English."""
    rows = [
        {"prompt": query.prompt, "chosen": query.responses[0], "rejected": query.responses[1]}
        for query in (known()[0], ENGLISH, known()[1])
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_unknown_text_is_refused_and_known_text_is_not(folder):
    model = load(folder)
    first, refused, second = model.judge([known()[0], ENGLISH, known()[1]])
    assert refused.outcome is Outcome.ERROR
    assert "4 of 6 tokens (66.7%)" in refused.detail, "of the text with the largest share"
    assert folder in refused.detail
    assert first.outcome is second.outcome is Outcome.ANSWERED


def test_an_unknown_response_to_a_known_prompt_is_refused(folder):
    query, control = known()
    unknown = ({"role": "assistant", "content": "Guten Morgen."},)
    garbage = Query(query.id, query.prompt, (query.responses[0], unknown))
    refused, answered = load(folder).judge([garbage, control])
    assert refused.outcome is Outcome.ERROR
    assert answered.outcome is Outcome.ANSWERED


def test_text_that_is_unknown_in_part_is_warned_of_once(folder, caplog):
    model = load(folder)
    model.judge(known())
    assert not caplog.records, "the control"
    judged = model.judge([in_part(query) for query in known()])
    assert [one.outcome for one in judged] == [Outcome.ANSWERED] * 2
    (record,) = caplog.records
    assert "%" in record.getMessage()


def test_a_file_names_the_row_that_cannot_be_read(folder, english, tmp_path):
    counts = score_file(ScoreSettings(model=folder, data=str(english)), tmp_path / "scored.jsonl")
    assert counts.outcomes == {"answered": 2, "error": 1}
    assert counts.first_unscored["error"].startswith("row 2: ")
    rows = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["scores"] is None for row in rows] == [False, True, False]


def test_an_evaluation_counts_it_as_an_error(folder, english, tmp_path):
    summary = run_evaluation(Evaluation(model=folder, bench=f"file:{english}"), tmp_path / "run").to_dict()
    assert summary["counts"]["outcomes"]["error"] == 1
    (refused,) = (one for one in Judgments(tmp_path / "run") if one.outcome is Outcome.ERROR)
    assert "unknown to the tokenizer" in refused.detail
