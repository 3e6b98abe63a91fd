import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from longrm.auditing import AuditSettings, as_html, as_text, audit, duplicates
from longrm.auditing.rendering import tables
from longrm.data import write
from longrm.errors import DataError
from longrm.reporting.formatting import FEW
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

pytest.importorskip("datasketch")
SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def text(seed, count=120):
    random_ = random.Random(seed)
    return " ".join(f"w{random_.randrange(10_000)}" for _ in range(count))


def comparison(number, context, question="What?", better="yes", worse="nay", **more):
    return {
        "id": f"row {number}",
        "prompt": f"{context}\n\n{question}",
        "context": context,
        "question": question,
        "responses": [better, worse],
        "ranks": [1, 2],
        **more,
    }


def counts(found):
    return {kind: finding.count for kind, finding in found.findings.items() if finding.count}


def test_clean_rows_are_clean(put):
    rows = [comparison(n, text(n), f"What is {text(n + 100, 8)}?", f"a {n}", f"b {n}") for n in range(8)]
    found = audit(put("a.jsonl", *rows))
    assert counts(found) == {}
    assert (found.rows, found.groups, found.kinds) == (8, 8, {"comparison": 8})
    assert "no findings" in as_text(found)


def test_exact_and_near_duplicates_are_counted_separately(put):
    long, other = text(1, 400), text(2, 400)
    near = long + " and a few more words"
    question = f"What is {text(3, 80)}?"
    path = put(
        "a.jsonl",
        comparison(1, long, question),
        comparison(2, long, question, "nay", "yes"),  # the same responses the other way round
        comparison(3, near, f"{question} Tell"),
        comparison(4, other, question),
        comparison(5, long, f"Who is {text(4, 20)}?"),  # another question about one context: no duplicate
    )
    found = audit(path)
    assert counts(found) == {
        "exact_duplicates": 1,
        "near_duplicates": 1,
        "near_contexts": 1,
        "repeated_elsewhere": 1,
    }
    examples = {kind: finding.examples for kind, finding in found.findings.items()}
    assert examples["exact_duplicates"] == ("row 2 repeats row 1",)
    assert examples["near_duplicates"][0].startswith("row 3 is 9")
    assert examples["repeated_elsewhere"] == ("row 4 is 100% like row 1",)
    assert found.groups == 3


def test_leakage_against_a_named_benchmark(put):
    document, question = text(1, 2000), f"Where is {text(9, 15)}?"
    bench = put("bench.jsonl", comparison(1, document, question, text(5, 40), text(6, 40)))
    part = " ".join(document.split()[:600])
    rows = put(
        "rows.jsonl",
        comparison(1, f"{text(11, 1500)} {document} {text(12, 1500)}"),  # the benchmark's text, padded
        comparison(2, part),  # a part of the benchmark's text
        comparison(3, text(13, 2000), question.upper()),
        comparison(4, text(14, 2000), better=f"I say: {text(6, 40)}"),
        comparison(5, text(15, 2000)),
        comparison(6, f"{text(16, 2000)} {' '.join(document.split()[:100])}"),  # a twentieth
    )
    found = audit(rows, AuditSettings(against=(f"file:{bench}",))).findings
    leaked = {kind: [example.partition(":")[0] for example in found[kind].examples] for kind in found}
    assert leaked["leaked_contexts"] == ["row 1", "row 2"]
    assert leaked["leaked_questions"] == ["row 3"]
    assert leaked["leaked_responses"] == ["row 4"]
    assert "of which 100% is here" in found["leaked_contexts"].examples[0]
    assert "100% of it is in" in found["leaked_contexts"].examples[1]
    # What was not looked for is not reported as clean.
    assert "leaked_contexts" not in audit(rows).findings


def test_depths_of_worlds_are_where_they_were_drawn(tmp_path):
    plan = WorldPlan(world="records", length=512, depth=1.0, seed=1)
    write(tmp_path / "end.jsonl", generate(plan, 12, load_tokenizer("words")))
    found = audit(tmp_path / "end.jsonl").depths
    assert found.known >= 12
    assert found.tenths[9] >= 12
    write(tmp_path / "any.jsonl", generate(replace(plan, depth="uniform"), 200, load_tokenizer("words")))
    even = audit(tmp_path / "any.jsonl", AuditSettings(tokenizers=("words",)))
    assert even.depths.even > 0.001
    assert even.depths.mean == pytest.approx(0.5, abs=0.1)
    lengths = even.lengths["words"]["prompts"]
    assert lengths.texts == 200
    assert lengths.quantiles["0"] <= lengths.quantiles["0.5"] <= lengths.quantiles["1"] <= 512
    assert not even.findings["lengths_off"].count


def test_position_and_length_biases_are_measured(put):
    rows = []
    for n in range(40):
        row = comparison(n, text(n), f"Q {text(n + 50, 9)}", f"a longer one {n}", f"no {n}")
        if n % 4 == 0:
            row["responses"].reverse()
            row["ranks"].reverse()
        rows.append(row)
    found = audit(put("a.jsonl", *rows))
    assert found.places == {1: 30, 2: 10}
    assert (found.first.value, found.first.chance, found.first.groups) == (0.75, 0.5, 40)
    assert found.first.low > 0.5
    assert found.longer.value == 1
    few = audit(put("few.jsonl", *rows[:9]))
    for one, marked in ((found, False), (few, True)):
        (biases,) = (table for table in tables(one) if table.title.startswith("The better response"))
        assert [FEW in row[2] for row in biases.rows] == [marked, marked]
    chosen = [{"prompt": f"q {n}", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(4)]
    assert audit(put("b.jsonl", *chosen)).first.value is None  # this format lists it first by rule


def test_every_kind_of_row_is_read(put):
    judgments = {
        "chat_template": [{"role": "user", "content": f"Judge {text(1)} here"}],
        "context": " ".join(text(1).split()[50:60]),
        "chosen": "Good.\n[Score: 8]",
        "rejects": ["Fine.\n[Score: 8]", "What?"],
        "chosen_model": "a",
        "reject_models": ["b", "c"],
        "scores": {"a": 8, "b": 8, "c": -1},
        "conf": [2, 1],
    }
    found = audit(put("judgments.jsonl", judgments))
    assert (found.kinds, found.labels) == ({"judgment": 1}, {"8": 1})
    assert counts(found) == {"contrast_of_form_only": 1}
    assert found.depths.tenths[4] == 1
    unanimous = judgments | {"scores": {"a": 8, "b": 8, "c": 8}}
    assert counts(audit(put("unanimous.jsonl", unanimous))) == {"without_contrast": 1}

    golden = {"prompt": "Judge.", "completion": "Good.\n\n[[7]]", "domain": "safety", "source": "mine"}
    found = audit(put("golden.jsonl", golden, golden | {"prompt": "Judge this.", "completion": "Hm."}))
    assert (found.kinds, found.labels) == ({"demonstration": 2}, {"7": 1, "not read": 1})
    assert found.counts["task"] == {"safety": 2}

    document = {"context": f"{text(1)} copper {text(2)}", "question": "What?", "answer": "Copper"}
    elsewhere = document | {"context": text(3), "question": "Which?"}
    twice = document | {"context": f"copper {text(4)} copper", "question": "Who?", "answer": "copper"}
    found = audit(put("documents.jsonl", document, elsewhere, twice))
    assert (found.format, found.depths.known, sum(found.depths.tenths[4:6])) == ("documents", 1, 1)
    assert counts(found) == {"evidence_not_found": 1}


def test_unreadable_rows_are_counted_and_the_rest_is_audited(put):
    path = put("a.jsonl", comparison(1, text(1)), {"id": "bad", "prompt": "q", "responses": ["one"]})
    path.write_text(path.read_text() + "{broken\n")
    found = audit(path)
    assert (found.rows, found.findings["unreadable_rows"].count) == (1, 2)
    assert "line 3" in found.findings["unreadable_rows"].examples[1]
    documents = put("b.jsonl", {"context": "c", "question": "q", "answer": "a"}, {"context": 3})
    assert audit(documents, AuditSettings(format="documents")).findings["unreadable_rows"].count == 1
    path.write_text('{"prompt": "q", "responses": ["one"]}\n')
    for nothing in (path, put("c.jsonl", {"color": "red"})):
        with pytest.raises(DataError, match=nothing.name):
            audit(nothing)


def test_a_benchmark_is_audited_by_its_name(put):
    shared = {"tasktype": "PairWise", "subtype": "same", "question": "Why so?", "ctx_length_for_length": "4k"}
    shared |= {"task": "Summ", "source": "x"}
    pair = {"id": 1, "chosen": "yes", "rejected": "no"}
    best_of = {"id": 2, "tasktype": "BestOfN", "subtype": "3", "candidates": [text(n, 9) for n in (5, 6, 7)]}
    rows = [
        shared | {"prompt_template": [{"role": "user", "content": f"{text(n)} Why so?"}]} | row
        for n, row in enumerate((pair, best_of))
    ]
    path = put("bench/Summ.jsonl", *rows, {"id": 3})
    found = audit(f"long-rewardbench:{path.parent}")
    assert (found.format, found.rows) == ("long-rewardbench", 2)
    assert found.counts["number of responses"] == {"2": 1, "3": 1}
    assert found.findings["unreadable_rows"].count == 1
    assert found.findings["missing_tasks"].count == 6  # from the benchmark's own audit


def test_odd_rows_are_counted(put):
    rows = [
        comparison(1, text(1), ranks=[1, 1]),
        comparison(2, text(2), ranks=None, better="one", worse="other"),
    ]
    # 120 tokens of prompt and 400 of response: a stated length may be that of the prompt, or include the response.
    rows += [
        comparison(n, text(n), f"Q {text(n + 99, 9)}", text(9, 400), "b", length=n)
        for n in (16, 128, 512, 2048)
    ]
    found = audit(put("a.jsonl", *rows)).findings
    assert (found["ties"].count, found["unknown_order"].count) == (1, 1)
    assert [one.partition(":")[0] for one in found["lengths_off"].examples] == ["row 16", "row 2048"]


def test_json_text_and_page_agree(put):
    row = comparison(1, text(1), "<script>alert(1)</script>")
    found = audit(put("a<b>.jsonl", row, row | {"id": "<i>twice</i>\x1b[31m\u202e"}))
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["findings"]["exact_duplicates"]["count"] == 1
    assert plain["findings"]["exact_duplicates"]["what"] in as_text(found, 200)
    page = as_html(found)
    assert plain["findings"]["exact_duplicates"]["what"] in page
    assert "&lt;i&gt;twice" in page
    assert "<i>twice" not in page
    assert "\\x1b[31m\\u202e" in page
    assert not {"\x1b", "\u202e"} & {*page}
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page == as_html(audit(found.path))


def test_a_context_made_of_many_benchmark_texts_has_leaked(put, monkeypatch):
    monkeypatch.setattr(duplicates, "NGRAM_SAMPLING", 1)
    parts = [text(seed, 400) for seed in range(20, 26)]
    bench = put("bench.jsonl", *(comparison(at, part) for at, part in enumerate(parts)))
    quarters = [" ".join(part.split()[:100]) for part in parts]
    mixed, alone = " ".join(quarters), f"{quarters[0]} {text(40, 500)}"
    rows = put("rows.jsonl", comparison(1, mixed), comparison(2, alone))
    (found,) = audit(rows, AuditSettings(against=(f"file:{bench}",))).findings["leaked_contexts"].examples
    assert found.startswith("row 1: 90% of it")  # at each of five seams 12 runs are new


def demonstration(number, depth, size=40, filler=4000, **more):
    """A judgment about a context whose evidence is at this depth."""
    before = int(depth * (filler - size))
    context = "x" * before + "e" * size + "x" * (filler - size - before)
    prompt = f"<context>\n{context}\n</context>\n\n<question>\nWhat?\n</question>\n\n<response>\n{number}"
    start = prompt.index("e" * size)
    spans = [{"message": 0, "start": start, "end": start + size}]
    row = {"id": f"r{number}", "prompt": [{"role": "user", "content": prompt}], "completion": "[[8]]"}
    return row | {"evidence": spans, "depths": [depth], "document": f"d{number}"} | more


def test_evidence_spans_decide_depths(put):
    spread = [demonstration(number, number / 59) for number in range(60)]
    found = audit(put("right.jsonl", *spread))
    assert (found.depths.known, found.findings["evidence_not_found"].count) == (60, 0)
    assert found.depths.tenths == (6,) * 10
    assert found.depths.even > 0.99
    # Spans, here all at the start, take precedence over recorded depths.
    wrong = [demonstration(number, 0.0, depths=[number / 59]) for number in range(60)]
    found = audit(put("wrong.jsonl", *wrong))
    assert found.depths.tenths == (60, *(0,) * 9)
    assert found.depths.even < 1e-6
    far = [{"message": 0, "start": 10**7, "end": 10**7 + 40}]
    broken = [{"message": 0, "start": 9, "end": 3}]
    moved = [demonstration(91, 0.5, evidence=far), demonstration(92, 0.5, evidence=broken)]
    found = audit(put("moved.jsonl", *moved, *spread))
    assert (found.depths.known, found.findings["evidence_not_found"].count) == (60, 2)


def test_depths_count_once_per_context_and_large_pieces_are_not_tested(put):
    random_ = random.Random(0)
    rows = []
    for number in range(100):
        row = demonstration(number, random_.random())
        rows += [row | {"id": f"{number}-{again}", "completion": f"[[{again}]]"} for again in range(15)]
    found = audit(put("shared.jsonl", *rows)).depths
    assert found.known == 100
    assert found.even > 0.01
    large = [demonstration(number, random_.random(), size=400) for number in range(100)]
    found = audit(put("large.jsonl", *large)).depths
    assert (found.known, found.even) == (100, None)


@pytest.mark.skipif(
    not (SHARED / "longrm-sample").is_dir(), reason="the real sample is not next to the checkout"
)
def test_the_released_sample():
    found = audit(SHARED / "longrm-sample" / "simpo" / "train")
    assert (found.rows, found.depths.known, found.counts["number of responses"]) == (16, 16, {"5": 16})
    assert counts(found) == {"without_contrast": 5, "contrast_of_form_only": 2}
    assert audit(SHARED / "longrm-sample" / "sft" / "eval").labels == {"8": 1, "10": 1}


def long_word(n):
    return f"incomprehensibly{n % 10}"


def short_word(n):
    return f"so{n % 10}"


@pytest.mark.parametrize(
    ("better", "worse", "right", "rule"),
    [
        (long_word, short_word, 1.0, "longest"),  # one token each: a count of tokens sees no difference
        (short_word, long_word, 1.0, "shortest"),
        (lambda n: (long_word if n % 4 else short_word)(n), lambda n: f"sixsix{n % 10}", 0.75, "longest"),
        (lambda n: f"aa{n % 10}", lambda n: f"bb{n % 10}", None, ""),
        (lambda n: (long_word if n % 2 else short_word)(n), lambda n: f"sixsix{n % 10}", None, ""),
    ],
)
def test_the_length_shortcut_equals_the_accuracy_of_the_baseline(better, worse, right, rule, put):
    from longrm.benchmarks import load
    from longrm.reward_models.baselines import Baseline
    from longrm.types import query_of

    rows = [comparison(n, text(n), f"Q {text(n + 999, 9)}", better(n), worse(n)) for n in range(80)]
    path = put("rows.jsonl", *rows)
    found = audit(path)
    rows = load(f"file:{path}").comparisons
    judged = [(row, Baseline("longest").judge([query_of(row, range(2))])[0].scores) for row in rows]
    earned = [
        0.5 if one == two else float((one > two) == (row.ranks[0] < row.ranks[1]))
        for row, (one, two) in judged
    ]
    assert found.longer.value == pytest.approx(sum(earned) / 80)
    assert found.longer.n == 80
    shortcut = found.findings["length_shortcut"]
    assert shortcut.count == (round(80 * right) if right else 0)
    if right:
        assert f"baseline:{rule} is right on {right:.1%} of 80 pairs [" in shortcut.examples[0]


def test_pairs_that_a_rule_decides_are_found(tmp_path):
    def found(world):
        path = tmp_path / f"{world}.jsonl"
        rows = generate(WorldPlan(world, 256, per_group=4), 160, load_tokenizer("approximate"))
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                best, worst = (message_text(row.responses[place][0]) for place in row.best_first())
                file.write(
                    json.dumps({"prompt": message_text(row.prompt[0]), "chosen": best, "rejected": worst})
                    + "\n"
                )
        return audit(path).findings["lexical_shortcut"]

    shortcut = found("single-fact")
    assert shortcut.count == 160
    assert shortcut.examples[0].startswith("baseline:")
    assert found("exchange").count == 0  # Control: a world that no rule answers


def test_judging_prompts_are_refused_by_their_name(put):
    row = {"prompt": "a", "gold": "A", "order": [0, 1], "id": "x", "group": "g", "format": "pairwise"}
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: judging prompts are not audited"):
        audit(put("a.jsonl", row))


def test_demonstrations_with_a_label_that_says_bad_are_counted(put):
    rows = [
        {"id": str(n), "prompt": text(n), "completion": text(n + 50, 9), "label": n > 0} for n in range(4)
    ]
    found = audit(put("a.jsonl", *rows)).findings["labeled_bad"]
    assert (found.count, found.examples) == (1, ("0",))
    assert "labeled_bad" not in audit(put("b.jsonl", *({**row, "label": True} for row in rows))).findings
