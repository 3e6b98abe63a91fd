"""The layouts of published preference data: what is better, ties, rows without a decision, and malformed rows."""

import json

import pytest
from click.testing import CliRunner

from longrm import audit
from longrm.cli.commands import cli
from longrm.data import FORMATS, read
from longrm.errors import ConfigError, DataError
from longrm.training.settings import DataSettings
from longrm.types import text_of

ASK, ANN, BOB = (
    {"role": "user", "content": "Who holds the key?"},
    {"role": "assistant", "content": "Ann holds it."},
    {"role": "assistant", "content": "Bob or Cy holds it."},
)
WHO, GOOD, BAD = (message["content"] for message in (ASK, ANN, BOB))


def part(message):
    return {
        **message,
        "content": [{"type": "text", "text": message["content"], "image": None, "mimeType": None}],
    }


def turn(message, role):
    return {"from": role, "value": message["content"]}


ARENA = {"model_a": "m", "model_b": "n", "conversation_a": [ASK, BOB], "conversation_b": [ASK, ANN]}
KAGGLE = {
    "id": 7,
    "prompt": json.dumps([WHO]),
    "response_a": json.dumps([BAD]),
    "response_b": json.dumps([GOOD]),
    "winner_model_a": 0,
    "winner_model_b": 1,
    "winner_tie": 0,
}
HELPSTEER_2 = {"prompt": WHO, "response_1": BAD, "response_2": GOOD, "preference_strength": 2}
HELPSTEER_3 = {
    "domain": "general",
    "context": [ASK],
    "response1": BAD,
    "response2": GOOD,
    "overall_preference": 3,
}
ANSWERS = [{"answer": BAD, "model": "m", "rank": 2.0}, {"answer": GOOD, "model": "n", "rank": 1.0}]
NECTAR = {"prompt": f"\n\nHuman: {WHO}\n\nAssistant: ", "answers": ANSWERS, "turns": 1, "source": ["a"]}
RATED = [
    {"response": text, "annotations": {"honesty": {"Rating": honesty}, "helpfulness": {"Rating": "3"}}}
    for text, honesty in ((BAD, "2"), (GOOD, "4"))
]
SCORED = [{**one, "overall_score": score} for one, score in zip(RATED, (3.5, 8), strict=True)]
ULTRAFEEDBACK = {"source": "a", "instruction": WHO, "completions": SCORED}
DISTILABEL = {"instruction": WHO, "generations": [BAD, GOOD], "ratings": [2, 5], "model_name": "judge"}
SHAREGPT = {
    "conversations": [turn(ASK, "human")],
    "chosen": turn(ANN, "gpt"),
    "rejected": turn(BOB, "gpt"),
}
ORCA = {"system": "Be brief.", "question": WHO, "chosen": GOOD, "rejected": BAD}
SKYWORK = {"chosen": [ASK, ANN], "rejected": [ASK, BOB], "source": "mix"}

# Every row prefers the same answer; with other values in these columns it prefers the other one, or neither.
LAYOUTS = {
    "arena, 33k and 100k": (
        "arena",
        ARENA | {"winner": "model_b"},
        {"winner": "model_a"},
        {"winner": "tie (bothbad)"},
    ),
    "arena, 140k": (
        "arena",
        {
            "winner": "model_b",
            "conversation_a": [part(ASK), part(BOB)],
            "conversation_b": [part(one) | {"num_tokens": 4} for one in (ASK, ANN)],
        },
        {"winner": "model_a"},
        {"winner": "both_bad"},
    ),
    "arena, JSON": (
        "arena",
        ARENA | {"conversation_a": json.dumps([ASK, BOB]), "winner": "model_b"},
        {"winner": "model_a"},
        {"winner": "tie"},
    ),
    "arena, 55k": (
        "arena_55k",
        KAGGLE,
        {"winner_model_a": 1, "winner_model_b": 0},
        {"winner_tie": 1, "winner_model_b": 0},
    ),
    "HelpSteer 2": ("helpsteer", HELPSTEER_2, {"preference_strength": -1}, {"preference_strength": 0}),
    "HelpSteer 3": ("helpsteer", HELPSTEER_3, {"overall_preference": -3}, {"overall_preference": 0}),
    "Nectar": (
        "nectar",
        NECTAR,
        {"answers": [ANSWERS[0] | {"rank": 1.0}, ANSWERS[1] | {"rank": 2.0}]},
        {"answers": [one | {"rank": 1} for one in ANSWERS]},
    ),
    "UltraFeedback": (
        "ultrafeedback",
        ULTRAFEEDBACK,
        {"completions": [SCORED[0] | {"overall_score": 9}, SCORED[1]]},
        {"completions": [one | {"overall_score": 5} for one in SCORED]},
    ),
    "UltraFeedback, annotations": (
        "ultrafeedback",
        ULTRAFEEDBACK | {"completions": RATED},
        {"completions": [RATED[1] | {"response": BAD}, RATED[0] | {"response": GOOD}]},
        {"completions": [RATED[1] | {"response": BAD}, RATED[1]]},
    ),
    "distilabel": ("distilabel", DISTILABEL, {"ratings": ["4", "1"]}, {"ratings": [3, 3.0]}),
    "ShareGPT": ("sharegpt", SHAREGPT, {"chosen": turn(BOB, "gpt"), "rejected": turn(ANN, "gpt")}, None),
    "Orca": ("orca", ORCA, {"chosen": BAD, "rejected": GOOD}, None),
    "Orca, argilla": (
        "orca",
        {
            **{"input" if name == "question" else name: value for name, value in ORCA.items()},
            "rating": [9, 8],
        },
        {"chosen": BAD, "rejected": GOOD},
        None,
    ),
    "Skywork": ("trl", SKYWORK, {"chosen": [ASK, BOB], "rejected": [ASK, ANN]}, None),
    "Tulu": (
        "trl",
        {"id": "t", "prompt": WHO, **SKYWORK, "chosen_rating": 4.0},
        {"chosen": [ASK, BOB], "rejected": [ASK, ANN]},
        None,
    ),
}
CASES = pytest.mark.parametrize(("name", "row", "swapped", "tied"), LAYOUTS.values(), ids=LAYOUTS)


def best_of(comparison):
    """The texts of the best responses; all of them if they tie."""
    pairs = zip(comparison.responses, comparison.ranks, strict=True)
    return {text_of(response) for response, rank in pairs if rank == 1}


@CASES
def test_the_better_response_is_found_a_swap_turns_it_round_and_a_tie_stays_one(
    name, row, swapped, tied, put
):
    reader = read(put("rows.jsonl", row))
    (found,) = (one.comparison for one in reader)
    assert reader.format == name
    assert found.prompt[-1] == ASK
    assert sorted(found.responses, key=text_of) == [(ANN,), (BOB,)]
    assert best_of(found) == {GOOD}
    for values, best in ((swapped, {BAD}), (tied, {GOOD, BAD})):
        if values is not None:
            (other,) = read(put("rows.jsonl", row | values))
            assert best_of(other.comparison) == best


@CASES
def test_an_audit_reads_every_layout(name, row, swapped, tied, put):
    rows = [{name: value for name, value in row.items() if name != "id"}] * 2
    found = audit(put("rows.jsonl", *rows, *([row | tied] if tied else [])))
    assert found.rows == (3 if tied else 2)
    assert found.findings["unreadable_rows"].count == 0
    assert found.findings["ties"].count == bool(tied)


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        (ARENA | {"winner": "model_a"}, ("winner",)),
        (KAGGLE, ("winner_model_a", "winner_model_b", "winner_tie")),
        (HELPSTEER_2, ("preference_strength",)),
        (DISTILABEL, ("ratings",)),
    ],
)
def test_a_row_without_a_decision_has_no_order(row, missing, put):
    decided, undecided = ({**row, "id": 1}, {**row, **dict.fromkeys(missing), "id": 2})
    found = [one.comparison.ranks for one in read(put("rows.jsonl", decided, undecided))]
    assert found[0] is not None
    assert found[1] is None


def test_turns_systems_and_both_bad_are_kept(put):
    again = {"role": "user", "content": "Sure?"}
    yes, no = ({"role": "assistant", "content": text} for text in ("Yes.", "No."))
    row = KAGGLE | {
        name: json.dumps([json.loads(KAGGLE[name])[0], text])
        for name, text in (("prompt", "Sure?"), ("response_a", "Yes."), ("response_b", "No."))
    }
    (long,) = read(put("rows.jsonl", row))
    assert long.comparison.prompt == (ASK,)
    assert long.comparison.responses == ((BOB, again, yes), (ANN, again, no))
    (orca,) = read(put("rows.jsonl", ORCA))
    assert orca.comparison.prompt == ({"role": "system", "content": "Be brief."}, ASK)
    text = f"Hi\n<extra_id_1>Assistant\nHello\n<extra_id_1>User\n{WHO}"
    (steered,) = read(put("rows.jsonl", HELPSTEER_2 | {"prompt": text}))
    assert [message["content"] for message in steered.comparison.prompt] == ["Hi", "Hello", WHO]
    (bad,) = read(put("rows.jsonl", ARENA | {"winner": "both_bad"}))
    assert bad.comparison.metadata["winner"] == "both_bad"
    roles = {"human": "user", "gpt": "assistant", "observation": "tool", "system": "system"}
    turns = [{"from": role, "value": "a"} for role in roles]
    (shared,) = read(put("rows.jsonl", SHAREGPT | {"conversations": turns}))
    assert [message["role"] for message in shared.comparison.prompt] == [*roles.values()]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (ARENA | {"winner": "model_c"}, "winner"),
        (ARENA | {"winner": 1}, "winner"),  # from 0, or from 1?
        (ARENA | {"conversation_b": None, "winner": "tie"}, "conversation_b"),
        (ARENA | {"conversation_a": "[", "winner": "tie"}, "conversation_a"),
        (KAGGLE | {"winner_tie": 1}, "winner_model_a"),
        (KAGGLE | {"response_a": "[null]"}, "response_a"),
        (KAGGLE | {"response_b": json.dumps([GOOD, GOOD])}, "response_b"),
        (HELPSTEER_2 | {"preference_strength": "much"}, "preference_strength"),
        (HELPSTEER_3 | {"response2": ""}, "response2"),
        (NECTAR | {"answers": [ANSWERS[0], {"answer": GOOD}]}, "answers[1].rank"),
        (NECTAR | {"answers": [ANSWERS[0], ANSWERS[1] | {"rank": 0.5}]}, "answers"),
        (ULTRAFEEDBACK | {"completions": [RATED[0], {"response": GOOD}]}, "completions"),
        (DISTILABEL | {"ratings": [1]}, "ratings"),
        (DISTILABEL | {"ratings": [1, None]}, "ratings"),
        (SHAREGPT | {"chosen": {"from": "gpt", "value": None}}, "chosen"),
        (ORCA | {"question": " "}, "question"),
    ],
)
def test_a_malformed_row_names_its_place_and_column(row, field, put):
    path = put("rows.jsonl", row)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line 1, field '{field}': ")


def test_csv_of_the_55k_votes(tmp_path):
    import pandas

    pandas.DataFrame([KAGGLE]).to_csv(tmp_path / "train.csv", index=False)
    (found,) = read(tmp_path / "train.csv")
    assert best_of(found.comparison) == {GOOD}


def test_every_format_is_recognized_before_later_ones(put):
    assert {name for name, *_ in LAYOUTS.values()} < set(FORMATS)
    judge_prompt = {"prompt": "a", "gold": "A", "order": [0, 1], "format": "pairwise", "group": "g", "id": 1}
    with pytest.raises(DataError, match="judging prompt"):
        read(put("rows.jsonl", judge_prompt))


# --- Columns of any name ---


@pytest.mark.parametrize(
    ("row", "columns", "ranks"),
    [
        ({"q": WHO, "one": BAD, "two": GOOD, "by": "two"}, {"winner": "by"}, (2, 1)),
        ({"q": WHO, "response_0": BAD, "response_1": GOOD, "better_id": 1}, {"winner": "better_id"}, (2, 1)),
        (
            {"q": WHO, "response_0": BAD, "response_1": GOOD, "better_id": 0.0},
            {"winner": "better_id"},
            (1, 2),
        ),
        ({"q": WHO, "answer_b": GOOD, "answer_a": BAD, "by": "model_a"}, {"winner": "by"}, (2, 1)),
        ({"q": WHO, "x": GOOD, "y": BAD, "by": "B"}, {"winner": "by"}, (2, 1)),
        ({"q": WHO, "x": GOOD, "y": BAD, "by": "tie"}, {"winner": "by"}, (1, 1)),
        ({"q": WHO, "x": GOOD, "y": BAD, "by": None}, {"winner": "by"}, None),
        ({"q": WHO, "x": GOOD, "y": BAD, "s": -0.5}, {"strength": "s"}, (1, 2)),
        ({"q": WHO, "x": GOOD, "y": BAD, "s": 0}, {"strength": "s"}, (1, 1)),
        ({"q": WHO, "x": GOOD, "y": BAD, "r1": 2, "r2": 1.0}, {"ranks": ["r1", "r2"]}, (2, 1)),
        ({"q": WHO, "x": GOOD, "y": BAD, "sx": 2, "sy": 3}, {"scores": ["sx", "sy"]}, (2, 1)),
        ({"q": WHO, "x": GOOD, "y": BAD, "sx": None, "sy": None}, {"scores": ["sx", "sy"]}, None),
    ],
)
def test_any_columns_can_be_named(row, columns, ranks, put):
    own = [name for name, value in row.items() if value in (GOOD, BAD)]
    (found,) = read(put("rows.jsonl", row), columns={"prompt": "q", "responses": own, **columns})
    assert found.comparison.ranks == ranks
    assert found.comparison.prompt == (ASK,)
    assert [text_of(one) for one in found.comparison.responses] == [row[name] for name in own]
    (again,) = read(put("again.jsonl", found.source))  # as longrm score writes it
    assert again.comparison == found.comparison


def test_a_list_of_responses_and_a_system_prompt(put):
    row = {"q": WHO, "sys": "Be brief.", "all": [BAD, GOOD], "points": [1, 2], "context": WHO}
    columns = {"prompt": "q", "system": "sys", "responses": "all", "scores": "points"}
    (found,) = read(put("rows.jsonl", row), columns=columns)
    assert found.comparison.ranks == (2, 1)
    assert found.comparison.prompt == ({"role": "system", "content": "Be brief."}, ASK)
    assert found.comparison.context[0].message == 1  # places in the prompt move with it
    assert found.comparison.metadata == {"scores": [1, 2]}


def test_a_number_is_no_winner_where_no_column_ends_in_it(put):
    row = {"q": WHO, "x": GOOD, "y": BAD, "by": 1}
    with pytest.raises(DataError, match="line 1, field 'winner'"):
        read(put("rows.jsonl", row), columns={"prompt": "q", "responses": ["x", "y"], "winner": "by"})


@pytest.mark.parametrize(
    ("row", "nearest", "example"),
    [
        (
            {"instr": WHO, "answer_1": GOOD, "answer_2": BAD, "label": 1},
            "open_rubrics",
            "prompt=instr,responses=answer_1+answer_2,winner=label",
        ),
        ({"q": WHO, "texts": [GOOD, BAD], "votes": [1, 2]}, "", "prompt=q,responses=texts,scores=votes"),
        (
            {"conversation_A": WHO, "conversation_B": [ASK], "winner": "a"},
            "arena",
            "rejected=BAD",
        ),
        ({"question": WHO, "good": GOOD, "bad": BAD}, "", "prompt=question,chosen=good,rejected=bad"),
        (
            {"question": WHO, "humanA": GOOD, "humanB": BAD, "score_A": 1, "score_B": 2},
            "",
            "prompt=question,responses=humanA+humanB,scores=score_A+score_B",
        ),
        (
            {"input": WHO, "out1": GOOD, "out2": BAD, "margin_of": -2},
            "",
            "prompt=input,responses=out1+out2,strength=margin_of",
        ),
        (  # a label for each pair of answers is no score of an answer; spaces are quoted
            {"question": WHO, "answer 1": GOOD, "answer 2": BAD, "answer 3": BAD, "labels": [1, 1, 0, 2]},
            "",
            "'prompt=question,responses=answer 1+answer 2+answer 3,winner=WINNER'",
        ),
    ],
)
def test_unknown_columns_show_the_nearest_format_and_an_example_for_them(row, nearest, example, put):
    with pytest.raises(DataError, match=f"nearest is '{nearest}") as caught:
        read(put("rows.jsonl", row))
    assert example in str(caught.value)
    with pytest.raises(DataError, match="--columns"):
        audit(put("rows.jsonl", row))


def test_every_command_of_rows_takes_several_columns(put, tmp_path):
    row = {"q": WHO, "a": GOOD, "b": BAD, "best": "b"}
    path = str(
        put("rows.jsonl", row, row | {"q": "Who?", "best": "a"}, row | {"q": "Who now?", "best": "tie"})
    )
    flag = ("--columns", "prompt=q,responses=a+b", "--columns", "winner=best")  # given once or several times

    def run(*arguments):
        done = CliRunner().invoke(cli, [*arguments, *flag], catch_exceptions=False, standalone_mode=False)
        return json.loads(done.stdout)

    assert run("audit", path, "--json")["findings"]["ties"]["count"] == 1
    judged = run(
        "evaluate",
        "--model",
        "baseline:longest",
        "--bench",
        f"file:{path}",
        "--json",
        "--out",
        str(tmp_path / "e"),
    )
    assert judged["metrics"]["overall"]["pair_accuracy"]["n"] == 2
    prompts = run(
        "synthesize", "judge-prompts", "--set", f"source=file:{path}", "--json", "--out", str(tmp_path / "j")
    )
    assert prompts["counts"]["steps"]["comparisons"]["dropped"]["tied"] == 1
    columns = {"prompt": "q", "responses": ["a", "b"], "winner": "best"}
    (file,) = DataSettings.resolve(None, {"path": path, "columns": columns}).files()
    assert [row.comparison.ranks for row in read(path, columns=file.columns)] == [(2, 1), (1, 2), (1, 1)]
    with pytest.raises(ConfigError, match="data.columns"):
        DataSettings.resolve(None, {"sources": [{"path": path}], "columns": columns})


@pytest.mark.parametrize(
    "columns",
    [{"prompt": ["q", "p"]}, {"responses": ["a", "a"]}, {"responses": []}, {"responses": ["a"], "id": "a"}],
)
def test_columns_that_cannot_be_joined_are_errors(columns, put):
    with pytest.raises(ConfigError, match=f"'{next(iter(columns))}'"):
        read(put("rows.jsonl", {"q": WHO, "a": GOOD}), columns=columns)


def test_a_negative_winner_is_no_response():
    row = {"q": "q", "answer_1": "x", "answer_2": "y", "label": -1}
    columns = {"prompt": "q", "responses": ["answer_1", "answer_2"], "winner": "label"}
    with pytest.raises(DataError):
        next(iter(read([row], columns=columns)))
    signed = {"prompt": "q", "responses": ["answer_1", "answer_2"], "strength": "label"}
    assert next(iter(read([row], columns=signed))).comparison.ranks == (1, 2)


def test_scales_of_ultrafeedback_are_not_mixed_within_a_row():
    def rated(text, rating, score):
        return {"response": text, "overall_score": score, "annotations": {"honesty": {"Rating": str(rating)}}}

    row = {"instruction": "q", "completions": [rated("x", 4, None), rated("y", 3, 8.0)]}
    assert next(iter(read([row]))).comparison.ranks == (1, 2)
    row["completions"][0]["overall_score"] = 7.0
    assert next(iter(read([row]))).comparison.ranks == (2, 1)


def test_the_hint_of_an_unknown_layout_names_the_prompt():
    row = {"post_id": "id1", "history": "A long question?", "human_ref_A": "x", "human_ref_B": "y"}
    with pytest.raises(DataError, match="prompt=history,responses=human_ref_A"):
        read([row | {"c_root_id_A": "a", "c_root_id_B": "b", "score_A": 3, "score_B": 2}])
    with pytest.raises(DataError, match="one response a row"):
        read([{"prompt": "p", "response": "r", "helpfulness": 3, "correctness": 2}])
