import os
from collections import Counter
from pathlib import Path

import pytest

from longrm.data.chunking import approximate_tokens
from longrm.errors import ConfigError, DataError
from longrm.synthesis.benchmark_rows import chosen_comparisons, write_benchmark
from longrm.synthesis.data_card import BestResponseBias, data_card
from longrm.synthesis.inputs.candidate_ranking import ScoreGap, tier_of
from longrm.synthesis.inputs.candidates import CandidateAnswer, SynthesisInput
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.inputs.input_settings import InputSettings
from longrm.synthesis.inputs.selection import LEVAL_TASKS, BenchmarkSettings, select_comparisons
from longrm.synthesis.second_check import by_metric, by_scores
from longrm.types import text_of

REAL = Path(__file__).parents[3] / "shared" / "data" / "leval"
GOLD = "amber birch copper dune ember fjord grove heath iris jade"
WORDS = GOLD.split()
UNCHECKED = by_metric({})


def unwatched(comparison):
    pass


def answer(right):
    """Ten words of which so many are right: its token F1 is that by ten."""
    return " ".join(WORDS[:right] + ["zinc"] * (10 - right))


def made(
    texts=6, asked=4, rights=((10, "a"), (7, "b"), (4, "c"), (0, "d"), (3, "a")), tasks=("LongQA", "Summ")
):
    """Texts of several lengths, with questions whose candidates earn known scores."""

    def read():
        for number in range(texts):
            text = f"Text {number}. " + "Nothing happens here. " * (200 if number % 3 else 1000)
            for question in range(asked):
                name = f"{number}-{question}"
                task = tasks[number % len(tasks)]
                yield SynthesisInput(
                    Document(name, text, f"What of {question}?", GOLD, task, "token_f1", {"source": "here"}),
                    tuple(
                        CandidateAnswer(name, model, answer(right), "cut" * (at > 3))
                        for at, (right, model) in enumerate(rights)
                    ),
                )

    return read


@pytest.fixture
def loaded(written_benchmark):
    """The rows of a written benchmark, and what its audit counts."""

    def read(folder):
        found = written_benchmark(folder)
        rows = list(found.comparisons)
        return rows, {kind: finding.count for kind, finding in found.audit.findings.items() if finding.count}

    return read


def test_the_loader_reads_back_what_was_built(tmp_path, loaded):
    source = made()
    chosen, counts = select_comparisons(source, BenchmarkSettings(), UNCHECKED, approximate_tokens)
    assert write_benchmark(tmp_path, source, chosen, unwatched) == {
        "LongQA": len(chosen) // 2,
        "Summ": len(chosen) // 2,
    }
    rows, findings = loaded(tmp_path)
    assert findings == {"missing_tasks": 5}  # no odd length, score, question or response
    built = [c for task in ("LongQA", "Summ") for c in chosen_comparisons(source, chosen, task)]
    assert len(rows) == len(built) == counts.chosen.total()
    for row, comparison in zip(rows, built, strict=True):
        assert (row.prompt, row.responses, row.ranks) == (
            comparison.prompt,
            comparison.responses,
            comparison.ranks,
        )
        assert (row.group, row.question) == (comparison.group, comparison.question)
        (read,), (context,) = row.context, comparison.context
        assert (
            read.start <= context.start < context.end <= read.end
        )  # the loader counts what frames it as well
        for key in ("length", "subtype", "candidates_score", "second_check", "source"):
            assert row.metadata[key] == comparison.metadata[key]
    kinds = Counter((row.metadata["tasktype"], row.metadata["subtype"]) for row in rows)
    # Of the ten pairs of a document 4 over 3 is too narrow, and one is there as a ranking of two.
    assert kinds[("PairWise", "cross")] + kinds[("PairWise", "same")] == 24 * 8
    assert 0 < kinds[("PairWise", "same")] <= 24
    assert [kinds[("BestOfN", n)] for n in "234"] == [24, 24, 24]


def test_every_gold_order_is_the_one_the_scores_were_planted_in(tmp_path, loaded):
    source = made()
    chosen, _ = select_comparisons(source, BenchmarkSettings(), UNCHECKED, approximate_tokens)
    write_benchmark(tmp_path, source, chosen, unwatched)
    for row in loaded(tmp_path)[0]:
        planted = [sum(word in WORDS for word in text_of(response).split()) for response in row.responses]
        assert planted == sorted(planted, reverse=True)
        assert row.metadata["candidates_score"] == pytest.approx([right / 10 for right in planted])
        if row.metadata["tasktype"] == "BestOfN":
            tiers = [tier_of(right / 10) for right in planted]
            assert tiers == sorted({*tiers} - {None})


def test_the_choice_is_even_over_tasks_and_lengths():
    settings = BenchmarkSettings(pairs=42, rankings=10)
    chosen, counts = select_comparisons(made(texts=12), settings, UNCHECKED, approximate_tokens)
    by_kind = Counter(one.ranked.kind for one in chosen)
    assert by_kind == {"cross": 21, "same": 21, "best-of-2": 10, "best-of-3": 10, "best-of-4": 10}
    for kind in by_kind:
        cells = [count for (of, *_), count in counts.chosen.items() if of == kind]
        assert len(cells) == 4
        assert max(cells) - min(cells) <= 1
    groups = Counter(one.group for one in chosen if one.ranked.kind == "cross")
    assert max(groups.values()) <= 3  # texts take turns: twelve share 21 items


def test_so_many_items_of_a_text_and_no_more():
    chosen, _ = select_comparisons(made(), BenchmarkSettings(per_document=2), UNCHECKED, approximate_tokens)
    assert {*Counter((one.ranked.kind, one.group) for one in chosen).values()} == {2}


def test_the_same_seed_chooses_the_same_and_another_does_not():
    def ids(seed):
        return [
            one.ranked.id
            for one in select_comparisons(
                made(), BenchmarkSettings(pairs=30), UNCHECKED, approximate_tokens, seed=seed
            )[0]
        ]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


async def planted_errors(document, texts):
    """A judge that knows the truth, and turns it around for every fourth document."""
    sign = -1 if document.id.endswith("-3") else 1
    return [sign * sum(word in WORDS for word in text.split()) for text in texts]


def test_disagreements_are_kept_out_or_marked_and_counted():
    dropped, counts = select_comparisons(
        made(), BenchmarkSettings(), by_scores(planted_errors), approximate_tokens
    )
    assert counts.share("disagrees") == counts.share("disagrees", "token_f1") == 0.25
    assert not [one for one in dropped if one.ranked.document.endswith("-3")]
    marked, _ = select_comparisons(
        made(), BenchmarkSettings(on_disagreement="mark"), by_scores(planted_errors), approximate_tokens
    )
    wrong = {one.ranked.document for one in marked if one.opinion == "disagrees"}
    assert wrong == {f"{number}-3" for number in range(6)}
    assert {one.opinion for one in dropped} == {"agrees"}
    nothing = select_comparisons(made(), BenchmarkSettings(), UNCHECKED, approximate_tokens)[1]
    assert nothing.share("disagrees") is None
    # The words themselves agree with what was made of them.
    assert (
        select_comparisons(made(), BenchmarkSettings(), by_metric(), approximate_tokens)[1].share("agrees")
        == 1
    )


def test_what_cannot_be_scored_is_counted():
    def read():
        yield SynthesisInput(Document("x", "t", "q", "g", "LongQA"), (CandidateAnswer("x", "m", "y"),))
        yield SynthesisInput(
            Document("y", "t", "q", "g", "LongQA", "token_f1"), (CandidateAnswer("y", "m", "y"),)
        )

    chosen, counts = select_comparisons(read, BenchmarkSettings(), UNCHECKED, approximate_tokens)
    assert chosen == []
    assert counts.steps.steps["documents"] == {
        "no gold answer that a metric can rate by": 1,
        "fewer than two candidates": 1,
    }
    named = select_comparisons(read, BenchmarkSettings(metric="exact_match"), UNCHECKED, approximate_tokens)[
        1
    ]
    assert named.steps.steps["documents"] == {"fewer than two candidates": 2}
    with pytest.raises(ConfigError, match="did you mean 'chrf'"):
        BenchmarkSettings.resolve(None, {"metric": "chrff"})


def test_a_task_must_be_one_of_the_benchmark_s():
    with pytest.raises(ConfigError, match="of the task 'quiz'; map it in `benchmark.tasks` to one of Cite"):
        select_comparisons(made(tasks=("quiz",)), BenchmarkSettings(), UNCHECKED, approximate_tokens)
    chosen, _ = select_comparisons(
        made(tasks=("quiz",)), BenchmarkSettings(tasks={"quiz": "ICL"}), UNCHECKED, approximate_tokens
    )
    assert {one.task for one in chosen} == {"ICL"}
    with pytest.raises(ConfigError, match="names no task; say in `benchmark.task`"):
        select_comparisons(made(tasks=("",)), BenchmarkSettings(), UNCHECKED, approximate_tokens)
    chosen, _ = select_comparisons(
        made(tasks=("",)), BenchmarkSettings(task="Code"), UNCHECKED, approximate_tokens
    )
    assert {one.task for one in chosen} == {"Code"}


def test_a_document_that_is_gone_is_noticed(tmp_path):
    chosen, _ = select_comparisons(made(), BenchmarkSettings(), UNCHECKED, approximate_tokens)
    with pytest.raises(DataError, match="was there at first and is gone"):
        write_benchmark(tmp_path, made(texts=5), chosen, unwatched)


def test_the_card_tells_what_was_counted(tmp_path):
    source = made()
    settings = BenchmarkSettings(gap=ScoreGap(least=0.5, most=3.0))
    chosen, counts = select_comparisons(source, settings, by_scores(planted_errors), approximate_tokens)
    bias = BestResponseBias()
    for task in ("LongQA", "Summ"):
        for comparison in chosen_comparisons(source, chosen, task):
            bias.see(comparison)
    text = data_card(
        "mine", settings, counts, bias, checked_by="a planted judge", sources={"here": "mit"}, seed=0
    )
    assert "license: mit" in text
    assert "| `token_f1` |" in text
    assert "25.0%" in text
    assert "by 50% of it at least, and by 300% at most" in text
    whole = next(line for line in text.splitlines() if line.startswith("| all |"))
    assert whole.split("|")[-2].strip() == str(len(chosen)) == str(bias.comparisons)
    assert bias.longest + bias.shortest <= bias.comparisons
    assert bias.best_by_model.total() == bias.comparisons


@pytest.mark.real
@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
def test_real_documents_become_a_benchmark(tmp_path, loaded):
    place = tmp_path / "leval"
    for name in ("natural_question", "financial_qa"):
        for file in REAL.glob(f"*/**/{name}*.jsonl"):
            link = place / file.relative_to(REAL)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(file, link)
    inputs = InputSettings.resolve(
        None,
        {"documents.path": str(place), "candidates.recorded": True, "candidates.synthetic": True},
    )
    settings = BenchmarkSettings(pairs=60, rankings=20, tasks=LEVAL_TASKS)
    chosen, counts = select_comparisons(inputs.read, settings, by_metric(), approximate_tokens)
    assert counts.available["best-of-4"] > 0
    assert 0 < counts.share("disagrees") < 0.2
    write_benchmark(tmp_path / "out", inputs.read, chosen, unwatched)
    rows, findings = loaded(tmp_path / "out")
    assert len(rows) == len(chosen) >= 100
    assert set(findings) <= {"missing_tasks"}
    assert {row.metadata["tasktype"] for row in rows} == {"PairWise", "BestOfN"}
