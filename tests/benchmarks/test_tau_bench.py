"""Synthetic trials in the form of the authors' results, and the published ones where they are at hand."""

import json
from collections import defaultdict

import pytest

from longrm.benchmarks import BenchmarkSource
from longrm.errors import DataError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.types import text_of
from tests.benchmarks.conftest import REAL

SYSTEM = {"role": "system", "content": "# Policy\n\nConfirm before you cancel."}
ASKED = [
    {"role": "user", "content": "Please cancel H1."},
    {"role": "user", "content": "I want H1 cancelled."},
    {"role": "user", "content": "H1, cancel it."},
]


def cancelled(arguments='{"id": "H1"}'):
    call = {"id": "c1", "type": "function", "function": {"name": "cancel", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done", "name": "cancel", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is cancelled."},
    ]


REFUSED = [
    {"role": "assistant", "content": "I cannot."},
    {"role": "user", "content": "###STOP###"},
]


def trial(number, reward, *messages, task=4, **other):
    row = {"task_id": task, "trial": number, "reward": reward, "traj": [SYSTEM, *messages], "info": {}}
    return row | other


TRIALS = [
    trial(0, 0.0, ASKED[0], *REFUSED),
    trial(1, 1.0, ASKED[1], *cancelled()),
    trial(2, 1.0, ASKED[2], *cancelled(), ASKED[0]),
]


@pytest.fixture
def file(tmp_path):
    def write(*rows, name="agent-airline"):
        (tmp_path / "tau").mkdir(exist_ok=True)
        path = tmp_path / "tau" / f"{name}.json"
        path.write_text(json.dumps(rows))
        return path

    return write


def test_every_success_is_paired_with_every_failure_and_all_trials_are_one_item(file, bench, counts):
    loaded = bench(f"tau-bench:{file(*TRIALS)}")
    found = list(loaded.comparisons)
    assert {one.id: one.ranks for one in found} == {
        "agent-airline/4/1>0": (1, 2),
        "agent-airline/4/2>0": (1, 2),
        "agent-airline/4/best-of-3": (2, 1, 1),
    }
    assert [one.metadata["task"] for one in found] == ["pairs", "pairs", "best-of-3"]
    assert [one.metadata["messages"] for one in found] == [[4, 3], [5, 3], [3, 4, 5]]
    assert len({one.group for one in found}) == 1
    assert loaded.rule == ""
    assert counts(loaded) == {"longer_successes": 2, "ties": 1}


def test_a_folder_without_files_names_the_json_files_that_are_read(file, bench):
    folder = file(*TRIALS).parent.parent
    with pytest.raises(DataError, match=rf"{folder}: no \.json"):
        bench(f"tau-bench:{folder}")


def test_without_a_pair_the_error_counts_what_was_left_out(file, tmp_path):
    bad = trial(3, "none", ASKED[0], *REFUSED)
    settings = Evaluation(
        model="baseline:first",
        bench=f"tau-bench:{file(TRIALS[0], trial(1, 0.0, ASKED[1], *REFUSED), bad)}",
        source=BenchmarkSource(on_bad_row="skip"),
    )
    with pytest.raises(DataError, match=r"without both a success and a failure.*: 1.*could not be read.*: 1"):
        run_evaluation(settings, tmp_path / "run")


def test_trajectories_keep_their_turns_calls_and_results(file, bench):
    pair = next(iter(bench(f"tau-bench:{file(*TRIALS)}").comparisons))
    assert pair.prompt == (SYSTEM,), "the users' first messages differ"
    asked, called, result, answer = pair.responses[0]
    assert (asked, result, answer) == (ASKED[1], cancelled()[1], cancelled()[2])
    assert called["content"] == ""
    assert called["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "cancel", "arguments": {"id": "H1"}},
    }
    assert pair.responses[1] == (ASKED[0], *REFUSED)


def test_the_prompt_is_what_all_trials_of_a_task_begin_with_up_to_the_assistant(file, bench):
    question = {"role": "assistant", "content": "Are you sure?"}
    alike = [ASKED[0], question]
    rows = [
        trial(0, 0.0, *alike, ASKED[1], *REFUSED),
        trial(1, 1.0, *alike, ASKED[2], *cancelled()),
        trial(2, 1.0, *alike, ASKED[2], *cancelled('{"id": "H1", "now": true}')),
    ]
    for one in bench(f"tau-bench:{file(*rows)}").comparisons:
        assert one.prompt == (SYSTEM, ASKED[0])
        assert all(response[0] == question for response in one.responses)


@pytest.mark.parametrize("arguments", ['{"id": ', "[1]", None])
def test_arguments_that_are_no_object_stay_as_they_are(arguments, file, bench):
    rows = [TRIALS[0], trial(1, 1.0, ASKED[1], *cancelled(arguments))]
    pair = next(iter(bench(f"tau-bench:{file(*rows)}").comparisons))
    assert pair.responses[0][1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_tasks_without_contrast_and_failed_trials_are_counted(file, bench, counts):
    rows = [
        *TRIALS,
        trial(0, 0.0, ASKED[0], *REFUSED, task=5),
        trial(1, 0.5, ASKED[1], *cancelled(), task=5),
        {**trial(2, 0.0, task=5), "traj": [], "info": {"error": "time-out"}},
        {**trial(0, 0.0, task=6), "traj": []},
    ]
    loaded = bench(f"tau-bench:{file(*rows)}")
    assert len(list(loaded.comparisons)) == 3
    assert counts(loaded) == {"longer_successes": 2, "same_outcome": 1, "failed_trials": 2, "ties": 1}


def test_tasks_of_two_agents_share_a_group_and_those_of_two_domains_do_not(file, bench):
    file(*TRIALS)
    file(*TRIALS, name="other-airline")
    shop = {"role": "system", "content": "# Shop"}
    path = file(*({**row, "traj": [shop, *row["traj"][1:]]} for row in TRIALS), name="agent-retail")
    groups = defaultdict(set)
    for one in bench(f"tau-bench:{path.parent}").comparisons:
        groups[one.metadata["subtype"]].add(one.group)
    assert groups["agent-airline"] == groups["other-airline"] != groups["agent-retail"]
    assert {len(names) for names in groups.values()} == {1}


def test_identical_trajectories_are_left_out_and_counted(file, bench, counts):
    loaded = bench(f"tau-bench:{file(TRIALS[1], {**TRIALS[1], 'trial': 0, 'reward': 0.0})}")
    assert list(loaded.comparisons) == []
    assert counts(loaded) == {"identical_responses": 1}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reward": None}, "reward"),
        ({"reward": "yes"}, "reward"),
        ({"reward": float("nan")}, "reward"),
        ({"reward": 100}, "reward"),
        ({"trial": 0}, "trial"),
        ({"task_id": None}, "task_id"),
        ({"traj": [{"content": "x"}]}, r"traj\[0\].role"),
        ({"traj": [SYSTEM, ASKED[1]]}, "traj"),
    ],
)
def test_an_invalid_field_is_named_or_counted(change, field, file, bench, counts):
    path = file(TRIALS[0], {**TRIALS[1], **change}, TRIALS[2])
    with pytest.raises(DataError, match=f"row 2, field '{field}'"):
        bench(f"tau-bench:{path}")
    loaded = bench(f"tau-bench:{path}", on_bad_row="skip")
    assert [one.id for one in loaded.comparisons] == ["agent-airline/4/2>0"], "two trials are no best-of-2"
    assert counts(loaded)["unreadable_rows"] == 1


def test_trials_with_other_instructions_are_refused(file, bench, counts):
    other = {**TRIALS[1], "traj": TRIALS[1]["traj"][1:]}
    rows = [TRIALS[0], other, *({**row, "task_id": 5} for row in TRIALS)]
    path = file(*rows)
    with pytest.raises(DataError, match="task 4, field 'prompt'"):
        bench(f"tau-bench:{path}")
    loaded = bench(f"tau-bench:{path}", on_bad_row="skip")
    assert len(list(loaded.comparisons)) == 3
    assert counts(loaded)["unreadable_rows"] == 1


def test_the_published_trials_by_an_independent_count(bench, counts):
    path = REAL / "tau-bench" / "gpt-4o-airline.json"
    if not path.is_file():
        pytest.skip("tau-bench is not in ../shared/data")
    loaded = bench(f"tau-bench:{path.parent}")
    found = list(loaded.comparisons)
    trials, tasks = {}, defaultdict(list)
    for row in json.loads(path.read_text()):
        trials[row["task_id"], row["trial"]] = row
        tasks[row["task_id"]].append(row["reward"])
    mixed = [rewards for rewards in tasks.values() if len(set(rewards)) == 2]
    assert len(mixed) == len({one.group for one in found}) == 17
    kinds = [one.metadata["task"] for one in found]
    assert kinds.count("pairs") == sum(rewards.count(1) * rewards.count(0) for rewards in mixed) == 57
    assert kinds.count("best-of-4") == 17
    for one in found:
        task, names = one.id.split("/")[1:]
        shown = range(4) if names == "best-of-4" else map(int, names.split(">"))
        rows = [trials[int(task), number] for number in shown]
        assert [rank == 1 for rank in one.ranks] == [row["reward"] == 1 for row in rows]
        # Nothing is cut: prompt and response together are the trajectory, with every call.
        assert [text_of([*one.prompt, *response]) for response in one.responses] == [
            text_of(row["traj"]) for row in rows
        ]
    longer = sum(
        a > b for one in found if one.metadata["task"] == "pairs" for a, b in [one.metadata["messages"]]
    )
    expected = {"same_outcome": 8, "longer_successes": longer, "shorter_successes": 25, "ties": 17}
    assert counts(loaded) == expected
    assert longer == 28
