import json
from dataclasses import replace

import pytest

from longrm.benchmarks.long_rewardbench import TASKS, to_row, write
from longrm.benchmarks.probe import Probe, ProbeCell, comparisons
from longrm.errors import DataError
from longrm.types import Span, text_of

DOCUMENT = "The code of Quill is amber. " * 40
PROMPT = [{"role": "user", "content": f"Read this.\n{DOCUMENT}\nWhat is the code? Answer:"}]
PAIR = {
    "id": 4,
    "prompt_template": PROMPT,
    "question": "What is the code?",
    "source": "longbench",
    "chosen": "Amber.",
    "rejected": "Copper.",
    "subtask": "single",
    "chosen_model": "one",
    "rejected_model": "two",
    "ctx_length_for_length": "4k",
    "ctx_length_for_words": "4k",
    "length": 290,
    "words_count": 247,
    "task": "LongQA",
    "tasktype": "PairWise",
    "subtype": "same",
    "candidates_model": None,
    "candidates": None,
    "candidates_score": None,
}
BEST = {
    **PAIR,
    "chosen": None,
    "rejected": None,
    "ctx_length_for_length": "8k",
    "tasktype": "BestOfN",
    "subtype": 3.0,
    "candidates_model": ["a", "b", "c"],
    "candidates": ["Amber.", "Amber or copper.", "No idea."],
    "candidates_score": [0.9, 0.5, 0.5],
}


@pytest.fixture
def one(put, bench):
    """The only comparison of a file of one row, and what it was read as."""

    def read(row, **source):
        loaded = bench(f"long-rewardbench:{put('LongQA.jsonl', row)}", **source)
        found = list(loaded.comparisons)
        return found[0] if found else None, loaded

    return read


@pytest.fixture
def oddities(counts):
    """The findings that are not zero, but for the tasks that are no part of these small sets."""
    return lambda loaded: {kind: n for kind, n in counts(loaded).items() if kind != "missing_tasks"}


def test_a_pair_has_all_that_the_runner_reads(one):
    pair, loaded = one(PAIR)
    assert (pair.id, pair.ranks, loaded.rule) == ("LongQA/1", (1, 2), "")
    assert [text_of(response) for response in pair.responses] == ["Amber.", "Copper."]
    assert pair.metadata["length"] == 4096
    assert [pair.metadata[key] for key in ("task", "subtype", "source")] == ["LongQA", "same", "longbench"]
    assert (pair.metadata["row_id"], pair.metadata["stated_length"]) == (4, 290)


def test_the_context_is_what_is_long_beside_the_question(one):
    text = PROMPT[0]["content"]
    pair, _ = one(PAIR)
    assert text[pair.question.start : pair.question.end] == "What is the code?"
    assert [text[span.start : span.end] for span in pair.context] == [f"Read this.\n{DOCUMENT}".strip()]

    behind = [{"role": "user", "content": f"What is the code?\n{DOCUMENT}"}]
    assert one({**PAIR, "prompt_template": behind})[0].context == (Span(0, 18, 17 + len(DOCUMENT)),)

    apart = [{"role": "system", "content": DOCUMENT}, {"role": "user", "content": "What is the code?"}]
    assert one({**PAIR, "prompt_template": apart})[0].context == (Span(0, 0, len(DOCUMENT.strip())),)


def test_the_last_occurrence_is_the_question(one):
    twice = [{"role": "user", "content": f"What is the code?\n{DOCUMENT}What is the code?"}]
    pair, _ = one({**PAIR, "prompt_template": twice})
    assert pair.question.start == 18 + len(DOCUMENT)


def test_a_context_is_not_guessed_where_the_question_is_elsewhere_and_that_is_counted(one, oddities):
    for question in ("Who?", None):
        pair, loaded = one({**PAIR, "question": question})
        assert (pair.context, pair.question) == ((), None)
        assert loaded.audit.findings["question_not_found"].examples == ("LongQA/1",)
    assert "question_not_found" not in oddities(one(PAIR)[1])


def test_items_about_one_document_share_a_group(put, bench):
    other = [{"role": "user", "content": PROMPT[0]["content"].replace("What is", "Who knows")}]
    rows = [PAIR, {**PAIR, "prompt_template": other, "question": "Who knows the code?"}]
    first, second = bench(f"long-rewardbench:{put('LongQA.jsonl', *rows)}").comparisons
    assert first.group == second.group
    assert first.id != second.id  # though both rows have the same id


def test_candidates_rank_by_the_order_of_the_file_and_equal_scores_tie(one, oddities):
    best, loaded = one(BEST)
    assert (best.ranks, best.metadata["subtype"], best.metadata["length"]) == ((1, 2, 2), "3", 8192)
    assert oddities(loaded)["ties"] == 1
    assert "rising_scores" not in oddities(loaded)


def test_scores_that_rise_are_counted_and_do_not_change_the_order(one, oddities):
    best, loaded = one({**BEST, "candidates_score": [0.5, 0.9, 0.9]})
    assert best.ranks == (1, 2, 2)
    assert loaded.audit.findings["rising_scores"].examples == ("LongQA/1",)


def test_labels_are_held_against_what_is_measured(one, oddities):
    _, loaded = one(PAIR)
    assert oddities(loaded) == {"length_labels_off": 1}  # 290 tokens are no 4k
    assert loaded.audit.findings["length_labels_off"].examples == ("LongQA/1: 4096, measured 290",)
    right = {**PAIR, "ctx_length_for_length": "256"}
    assert oddities(one(right)[1]) == {}
    assert oddities(one({**right, "length": 600})[1]) == {}  # not near the tokens, but near the characters
    assert oddities(one({**right, "length": 9000, "words_count": 20})[1]) == {
        "stated_lengths_off": 1,
        "word_counts_off": 1,
    }


@pytest.mark.parametrize(
    ("stated", "off"),
    [(123, 1), (124, 0), (580, 0), (581, 1)],  # 247 words, 290 with marks
)
def test_word_counts_may_be_twice_or_half_of_the_words_with_or_without_marks(stated, off, one, counts):
    assert counts(one({**PAIR, "words_count": stated})[1]).get("word_counts_off", 0) == off


def test_lengths_are_measured_in_the_tokens_of_a_tokenizer(one):
    text = "amber . " * 300 + "What is the code?"
    row = {**PAIR, "prompt_template": [{"role": "user", "content": text}]}
    _, loaded = one(row, tokenizer="words")
    assert loaded.audit.findings["length_labels_off"].examples == ("LongQA/1: 4096, measured 605",)


def test_unrateable_items_are_left_out_and_counted(put, bench, oddities):
    rows = [{**PAIR, "rejected": ""}, {**BEST, "candidates": ["a", "b", "a"]}, {**PAIR, "chosen": None}]
    loaded = bench(f"long-rewardbench:{put('LongQA.jsonl', *rows)}")
    assert list(loaded.comparisons) == []
    assert oddities(loaded) == {"empty_responses": 2, "identical_responses": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_template": None}, "line 1, field 'prompt_template'"),
        ({"ctx_length_for_length": "long"}, "field 'ctx_length_for_length'"),
        ({"tasktype": "Triple"}, "field 'tasktype'"),
        ({"tasktype": "BestOfN"}, "field 'candidates'"),
        ({"tasktype": "BestOfN", "candidates": ["a"]}, "field 'candidates'"),
        ({"tasktype": "BestOfN", "candidates": ["a", "b"], "candidates_score": [1]}, "1 scores for 2"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(change, message, one):
    with pytest.raises(DataError, match=message):
        one({**PAIR, **change})


def test_a_folder_holds_tasks_and_tells_those_it_lacks(tmp_path, put, bench, counts):
    put("set/Safety.jsonl", PAIR)
    put("set/Cite.jsonl", PAIR)
    put("set/notes.jsonl", {"no": "item"})
    loaded = bench(f"long-rewardbench:{tmp_path}/set")
    assert [(c.id, c.metadata["task"]) for c in loaded.comparisons] == [
        ("Cite/1", "Cite"),
        ("Safety/1", "Safety"),
    ]
    assert counts(loaded)["missing_tasks"] == 5
    assert loaded.audit.findings["missing_tasks"].examples[0] == "Code"


def test_a_file_of_another_name_tells_tasks_by_its_rows(put, bench):
    loaded = bench(f"long-rewardbench:{put('all.jsonl', PAIR, {**PAIR, 'task': 'Math'})}")
    assert [c.id for c in loaded.comparisons] == ["LongQA/1", "Math/2"]


def test_a_folder_without_any_task_is_refused(tmp_path, bench):
    with pytest.raises(DataError, match=r"no file or folder of Long-RewardBench.*Cite\.jsonl"):
        bench(f"long-rewardbench:{tmp_path}")


def test_a_hub_id_is_fetched_as_a_data_set(put, bench, monkeypatch):
    asked = {}

    def fetch(identity, **options):
        asked.update(options, identity=identity)
        return str(put("hub/Math.jsonl", PAIR).parent)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    loaded = bench("long-rewardbench:owner/name")
    assert [c.id for c in loaded.comparisons] == ["Math/1"]
    assert (asked["identity"], asked["repo_type"]) == ("owner/name", "dataset")


def test_a_hub_id_that_cannot_be_had_is_named(bench):
    with pytest.raises(DataError, match="owner/nothing: there is no such file or folder, nor can it be had"):
        bench("long-rewardbench:owner/nothing")


def generated():
    """Pairs and graded fours, a task each, with better responses not always first."""
    for task, responses in zip(TASKS, (2, 4, 3, 2, 4, 3, 2), strict=True):
        probe = Probe(responses=responses, cells=(ProbeCell(lengths=(1024, 2048), groups=2, per_group=2),))
        for comparison in comparisons(probe):
            yield replace(comparison, metadata={**comparison.metadata, "task": task})


def test_what_is_written_is_read_back(tmp_path, bench, oddities):
    originals = list(generated())
    assert write(tmp_path / "set", originals) == dict.fromkeys(TASKS, 8)
    loaded = bench(f"long-rewardbench:{tmp_path}/set", tokenizer="words")
    found = list(loaded.comparisons)
    assert set(oddities(loaded)) <= {
        "ties",
        "duplicates",
    }  # what was generated seven times is there seven times
    assert len(found) == len(originals)
    for original, back in zip(originals, found, strict=True):
        order = original.best_first()
        assert back.prompt == original.prompt
        assert back.responses == tuple(original.responses[index] for index in order)
        assert back.ranks == tuple(original.ranks[index] for index in order)
        assert (back.group, back.context, back.question) == (
            original.group,
            original.context,
            original.question,
        )
        assert {key: back.metadata[key] for key in original.metadata} == dict(original.metadata)


def test_written_twice_it_stays_the_same(tmp_path, bench):
    write(tmp_path / "once", generated())
    write(tmp_path / "twice", bench(f"long-rewardbench:{tmp_path}/once").comparisons)
    for task in TASKS:
        once, twice = ((tmp_path / name / f"{task}.jsonl").read_text() for name in ("once", "twice"))
        assert [json.loads(line) for line in twice.splitlines()] == [
            json.loads(line) for line in once.splitlines()
        ]


def test_a_row_has_every_field_of_the_schema(one):
    assert set(PAIR) <= set(to_row(next(generated()), 1))
    for given in (PAIR, {**BEST, "subtype": "3", "candidates_score": [0.5, 0.9, 0.5]}):
        comparison, _ = one(given)
        row = to_row(comparison, 4)
        assert {key: row[key] for key in given} == given


def test_what_the_schema_cannot_hold_is_refused(tmp_path):
    first = next(generated())
    with pytest.raises(DataError, match="task 'poems'; Long-RewardBench has Cite"):
        write(tmp_path, [replace(first, metadata={"task": "poems"})])
    with pytest.raises(DataError, match="lacks gold ranks"):
        write(tmp_path, [replace(first, ranks=None)])
