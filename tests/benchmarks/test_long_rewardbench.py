import json
from dataclasses import replace

import pytest

from longrm.benchmarks.long_rewardbench import TASKS, to_row
from longrm.benchmarks.probe import Probe, ProbeCell, comparisons
from longrm.data import write_rows
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
    """The only comparison of a file of one row, and the loaded benchmark."""

    def read(row, **source):
        loaded = bench(f"long-rewardbench:{put('LongQA.jsonl', row)}", **source)
        found = list(loaded.comparisons)
        return found[0] if found else None, loaded

    return read


@pytest.fixture
def oddities(counts):
    """The findings that are not zero, without the tasks that these small sets lack."""
    return lambda loaded: {kind: n for kind, n in counts(loaded).items() if kind != "missing_tasks"}


def test_a_pair_has_its_task_lengths_and_metadata(one):
    pair, loaded = one(PAIR)
    assert (pair.id, pair.ranks, loaded.rule) == ("LongQA/1", (1, 2), "")
    assert [text_of(response) for response in pair.responses] == ["Amber.", "Copper."]
    assert pair.metadata["length"] == 4096
    assert [pair.metadata[key] for key in ("task", "subtype", "source")] == ["LongQA", "same", "longbench"]
    assert (pair.metadata["row_id"], pair.metadata["stated_length"]) == (4, 290)


def test_the_context_is_every_long_part_but_the_question(one):
    text = PROMPT[0]["content"]
    pair, _ = one(PAIR)
    assert text[pair.question.start : pair.question.end] == "What is the code?"
    assert [text[span.start : span.end] for span in pair.context] == [f"Read this.\n{DOCUMENT}".strip()]

    behind = [{"role": "user", "content": f"What is the code?\n{DOCUMENT}"}]
    assert one({**PAIR, "prompt_template": behind})[0].context == (Span(0, 18, 17 + len(DOCUMENT)),)

    apart = [{"role": "system", "content": DOCUMENT}, {"role": "user", "content": "What is the code?"}]
    assert one({**PAIR, "prompt_template": apart})[0].context == (Span(0, 0, len(DOCUMENT.strip())),)

    twice = [{"role": "user", "content": f"What is the code?\n{DOCUMENT}What is the code?"}]
    assert one({**PAIR, "prompt_template": twice})[0].question.start == 18 + len(DOCUMENT)


def test_a_context_without_a_known_question_is_unknown_and_counted(one, oddities):
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
    assert first.id != second.id  # although both rows have the same id


def test_candidates_rank_by_the_order_of_the_file_and_equal_scores_tie(one, oddities):
    best, loaded = one(BEST)
    assert (best.ranks, best.metadata["subtype"], best.metadata["length"]) == ((1, 2, 2), "3", 8192)
    assert oddities(loaded)["ties"] == 1
    assert "rising_scores" not in oddities(loaded)
    best, loaded = one({**BEST, "candidates_score": [0.5, 0.9, 0.9]})  # rising scores do not change the order
    assert best.ranks == (1, 2, 2)
    assert loaded.audit.findings["rising_scores"].examples == ("LongQA/1",)


def test_length_labels_are_compared_with_measured_lengths(one, oddities):
    _, loaded = one(PAIR)
    assert oddities(loaded) == {"length_labels_off": 1}  # 290 tokens are no 4k
    assert loaded.audit.findings["length_labels_off"].examples == ("LongQA/1: 4096, measured 290",)
    assert oddities(one({**PAIR, "ctx_length_for_length": "256"})[1]) == {}


def test_lengths_are_measured_with_the_given_tokenizer(one):
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
    ("change", "field"),
    [
        ({"prompt_template": None}, "prompt_template"),
        ({"ctx_length_for_length": "long"}, "ctx_length_for_length"),
        ({"tasktype": "Triple"}, "tasktype"),
        ({"tasktype": "BestOfN", "candidates": ["a", "b"], "candidates_score": [1]}, "candidates_score"),
    ],
)
def test_an_invalid_field_is_named(change, field, one):
    with pytest.raises(DataError, match=f"line 1, field '{field}'"):
        one({**PAIR, **change})


def test_a_folder_has_a_file_per_task_and_missing_ones_are_counted(tmp_path, put, bench, counts):
    put("set/Safety.jsonl", PAIR)
    put("set/Cite.jsonl", PAIR)
    put("set/notes.jsonl", {"no": "item"})
    loaded = bench(f"long-rewardbench:{tmp_path}/set")
    found = [(c.id, c.metadata["task"]) for c in loaded.comparisons]
    assert found == [("Cite/1", "Cite"), ("Safety/1", "Safety")]
    assert counts(loaded)["missing_tasks"] == 5
    assert loaded.audit.findings["missing_tasks"].examples[0] == "Code"
    # In a file of another name the rows name their task.
    other = bench(f"long-rewardbench:{put('all.jsonl', PAIR, {**PAIR, 'task': 'Math'})}")
    assert [c.id for c in other.comparisons] == ["LongQA/1", "Math/2"]


def test_a_hub_id_is_downloaded_as_a_data_set(put, bench, monkeypatch):
    requested = {}

    def fetch(identity, **options):
        requested.update(options, identity=identity)
        return str(put("hub/Math.jsonl", PAIR).parent)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert [c.id for c in bench("long-rewardbench:owner/name").comparisons] == ["Math/1"]
    assert (requested["identity"], requested["repo_type"]) == ("owner/name", "dataset")


def generated():
    """Pairs and graded fours, one task each, with better responses not always first."""
    for task, responses in zip(TASKS, (2, 4, 3, 2, 4, 3, 2), strict=True):
        probe = Probe(responses=responses, cells=(ProbeCell(lengths=(1024, 2048), groups=2, per_group=2),))
        for comparison in comparisons(probe):
            yield replace(comparison, metadata={**comparison.metadata, "task": task})


def write(folder, items):
    rows = {}
    for item in items:
        rows.setdefault(item.metadata["task"], []).append(
            to_row(item, len(rows.get(item.metadata["task"], [])) + 1)
        )
    for task in rows:
        write_rows(folder / f"{task}.jsonl", rows[task])


def test_written_rows_are_read_back_and_written_again_the_same(tmp_path, bench, oddities):
    originals = list(generated())
    write(tmp_path / "once", originals)
    loaded = bench(f"long-rewardbench:{tmp_path}/once", tokenizer="words")
    found = list(loaded.comparisons)
    assert set(oddities(loaded)) <= {"ties", "duplicates"}  # each task has the same generated items
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
    write(tmp_path / "twice", found)
    for task in TASKS:
        once, twice = ((tmp_path / name / f"{task}.jsonl").read_text() for name in ("once", "twice"))
        assert list(map(json.loads, twice.splitlines())) == list(map(json.loads, once.splitlines()))


def test_a_written_row_has_every_column(one):
    assert set(PAIR) <= set(to_row(next(generated()), 1))
    for given in (PAIR, {**BEST, "subtype": "3", "candidates_score": [0.5, 0.9, 0.5]}):
        comparison, _ = one(given)
        row = to_row(comparison, 4)
        assert {key: row[key] for key in given} == given
    with pytest.raises(DataError):
        to_row(replace(next(generated()), ranks=None), 1)
