"""Rows in the published columns, written by hand in the style of BFCL: schemas, calls, and one wrong call a type."""

import json

import pytest

import longrm
from longrm.errors import DataError
from longrm.reward_models.protocol import RewardModel
from longrm.types import Judgment, Outcome, text_of

# BFCL writes "dict" and "float" where JSON schema has "object" and "number".
TOOLS = [
    {
        "name": "room.book",
        "description": "Books a room.",
        "parameters": {
            "type": "dict",
            "properties": {
                "city": {"type": "string"},
                "nights": {"type": "integer", "description": "How many."},
                "budget": {"type": "float"},
            },
            "required": ["city", "nights"],
        },
    },
    {
        "name": "room.cancel",
        "description": "Cancels a room.",
        "parameters": {"type": "dict", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
]
RIGHT = {"room.book": {"city": "Oslo", "nights": 3, "budget": 90.5}}
WRONG = {
    "Parameter value error": [{"room.book": {"city": "Oslo", "nights": 4, "budget": 90.5}}],
    "Incorrect function name": [{"book_room": {"city": "Oslo", "nights": 3, "budget": 90.5}}],
    "Incorrect number of function calls": [RIGHT, RIGHT],
    "Missing optional parameter": [{"room.book": {"city": "Oslo", "nights": 3}}],
    "Missing required parameter": [{"room.book": {"city": "Oslo", "budget": 90.5}}],
    "Parameter value type error": [{"room.book": {"city": "Oslo", "nights": "3", "budget": 90.5}}],
    "Unexpected parameter": [{"room.book": {"city": "Oslo", "nights": 3, "budget": 90.5, "beds": 1}}],
    "Parsing error": "I book a room in Oslo",
}
SEEN_IN_THE_SCHEMA = {
    "Incorrect function name",
    "Missing required parameter",
    "Parameter value type error",
    "Unexpected parameter",
    "Parsing error",
}


def row(error, number=0, **change):
    wrong = WRONG[error]
    return {
        "tools": json.dumps(TOOLS),
        "conversation": [{"role": "user", "content": f"Guest {number}: 3 nights in Oslo, for 90.5 a night."}],
        "chosen_output": json.dumps([RIGHT]),
        "rejected_output": wrong if isinstance(wrong, str) else json.dumps(wrong),
        "error_type": error,
        "model_name": "some-model-8B",
        "test_category": "simple",
        "test_id": f"simple_{error}_{number}",
        **change,
    }


class SchemaReader(RewardModel):
    """Counts what contradicts the tools of the query, as BFCL's checker does before it compares values."""

    name = "schema reader"

    def judge(self, queries):
        return [
            Judgment(
                Outcome.ANSWERED, scores=tuple(-self.errors(query.tools, text_of(r)) for r in query.responses)
            )
            for query in queries
        ]

    @staticmethod
    def errors(tools, text):
        try:
            calls = json.loads(text)
        except ValueError:
            return 9.0
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        count = 0.0
        for call in calls:
            ((name, given),) = call.items()
            if name not in schemas:
                count += 1
                continue
            known = schemas[name]["properties"]
            types = {"string": str, "integer": int, "float": float}
            count += sum(required not in given for required in schemas[name]["required"])
            count += sum(
                one not in known or type(value) is not types[known[one]["type"]]
                for one, value in given.items()
            )
        return count


def evaluated(path, out):
    """The metrics of the schema reader."""
    return longrm.evaluate(SchemaReader(), f"fc-rewardbench:{path}", out).summary.to_dict()["metrics"]


def test_a_pair_is_what_the_columns_say(put, bench):
    (pair,) = bench(f"fc-rewardbench:{put('f.jsonl', row('Unexpected parameter'))}").comparisons
    assert (pair.id, pair.ranks) == ("simple_Unexpected parameter_0", (1, 2))
    assert pair.prompt == tuple(row("Unexpected parameter")["conversation"])
    assert pair.tools == tuple({"type": "function", "function": tool} for tool in TOOLS)
    assert [json.loads(text_of(response)) for response in pair.responses] == [
        [RIGHT],
        WRONG["Unexpected parameter"],
    ]
    assert pair.metadata["task"] == "Unexpected parameter"
    assert (pair.metadata["subtype"], pair.metadata["model_name"]) == ("simple", "some-model-8B")


def test_lists_are_read_like_their_json_texts(put, bench):
    given = row("Parameter value error")
    lists = {name: json.loads(given[name]) for name in ("tools", "chosen_output", "rejected_output")}
    (text,) = bench(f"fc-rewardbench:{put('text.jsonl', given)}").comparisons
    assert [*bench(f"fc-rewardbench:{put('lists.jsonl', {**given, **lists})}").comparisons] == [text]


def test_results_are_by_type_of_error(put, tmp_path):
    rows = [row(error, number) for error in WRONG for number in range(3)]
    path = put("f.jsonl", *rows)
    metrics = evaluated(path, tmp_path / "run")
    found = {name: part["pair_accuracy"]["value"] for name, part in metrics["by_task"].items()}
    assert found == {error: 1.0 if error in SEEN_IN_THE_SCHEMA else 0.5 for error in WRONG}
    assert metrics["overall"]["pair_accuracy"]["value"] == pytest.approx((5 + 3 / 2) / 8)
    # Negative control: without the tools no error of a name or an argument is seen.
    path = put("bare.jsonl", *({**one, "tools": "[]"} for one in rows))
    bare = evaluated(path, tmp_path / "bare")
    assert bare["by_task"]["Unexpected parameter"]["pair_accuracy"]["value"] == 0.5


def test_groups_are_requests_with_the_same_tools(put, bench):
    other = json.dumps(TOOLS[:1])
    rows = [
        row("Parsing error"),
        row("Parsing error", 1),
        row("Parsing error", 2, tools=other),
        row("Parsing error", 2),
    ]
    pairs = [*bench(f"fc-rewardbench:{put('f.jsonl', *rows)}").comparisons]
    assert pairs[0].group == pairs[1].group == pairs[3].group != pairs[2].group
    assert pairs[3].id == "simple_Parsing error_2#2"
    # The length includes the tools, which are what is long.
    many = row("Parsing error", 4, tools=json.dumps([{**TOOLS[0], "name": f"t{n}"} for n in range(50)]))
    (longer,) = bench(f"fc-rewardbench:{put('long.jsonl', many)}").comparisons
    assert longer.metadata["length"] > 8 * pairs[0].metadata["length"]


def test_rows_that_cannot_be_rated_are_counted(put, bench, counts):
    same = row("Parameter value error", rejected_output=json.dumps([RIGHT]))
    rows = [row("Parsing error"), same, row("Parsing error", 1, rejected_output="")]
    loaded = bench(f"fc-rewardbench:{put('f.jsonl', *rows)}")
    assert len([*loaded.comparisons]) == 1
    assert counts(loaded) == {"identical_responses": 1, "empty_responses": 1}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tools": "[{"}, "tools"),
        ({"tools": None}, "tools"),
        ({"conversation": [{"content": "no role"}]}, r"conversation\[0\].role"),
        ({"error_type": None}, "error_type"),
        ({"test_id": None}, "test_id"),
    ],
)
def test_an_invalid_field_is_named(change, field, put, bench):
    with pytest.raises(DataError, match=f"field '{field}'"):
        bench(f"fc-rewardbench:{put('f.jsonl', row('Parsing error', **change))}")
