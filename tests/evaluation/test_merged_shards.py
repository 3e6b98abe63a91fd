"""Shards, merged, are the whole run byte for byte; what is not all of one run is refused."""

import json
import shutil

import pytest

from longrm.benchmarks import BenchmarkSource, Probe, ProbeCell
from longrm.errors import RunError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.merged_shards import merge_shards
from longrm.evaluation.trials import JudgingSettings
from tests.reward_models.tiny_models import make_scorer

SAME = ("judgments.jsonl", "gold.jsonl", "examples.jsonl", "summary.json", "results.csv", "config.toml")
CELL = ProbeCell(lengths=(64, 128), groups=60, per_group=4)
FEW = JudgingSettings(resamples=200)


def settings(model="baseline:overlap", **given):
    given = {"bench": "probe", "probe": Probe(cells=(CELL,)), "judging": FEW} | given
    return Evaluation(model=model, **given)


def judged(one, folder, count, *numbers):
    """The folders of shards; of all unless some are named."""
    folders = []
    for number in numbers or range(1, count + 1):
        folders.append(folder / f"{number}-of-{count}")
        run_evaluation(one.model_copy(update={"shard": f"{number}/{count}"}), folders[-1])
    return folders


def contents(folder):
    return {name: (folder / name).read_bytes() for name in SAME}


def test_merged_shards_are_the_whole_run(tmp_path):
    scorer = str(make_scorer(tmp_path / "scorer"))
    swapped = FEW.model_copy(update={"context_check": "swapped", "baselines": ("longest",)})
    cases = [
        (settings(), 3),
        (settings(judging=swapped), 4),
        (settings("simulated:error=0.2,misformat=0.1"), 2),
        (settings(scorer, probe=Probe(cells=(ProbeCell(lengths=(64, 128), groups=25, per_group=3),))), 2),
        (settings(source=BenchmarkSource(limit=200)), 2),
    ]
    for place, (one, count) in enumerate(cases):
        folder = tmp_path / str(place)
        whole = run_evaluation(one, folder / "whole").to_dict()
        parts = judged(one, folder, count)
        assert merge_shards(parts[::-1], folder / "merged").to_dict() == whole
        assert contents(folder / "merged") == contents(folder / "whole"), one
        # What a shard judged is its own: together they are the whole, and none of them is.
        logs = [(part / "judgments.jsonl").read_bytes().splitlines() for part in parts]
        assert all(logs)
        assert sorted(line for log in logs for line in log) == sorted(
            (folder / "whole/judgments.jsonl").read_bytes().splitlines()
        )
        assert json.loads((parts[0] / "summary.json").read_text())["shard"] == f"1/{count}"
        assert "shard" not in whole


def test_a_shard_continues_where_it_was_stopped(tmp_path):
    one = settings(shard="2/3")
    run_evaluation(one, tmp_path / "whole")

    def stopped(label, done, total, note=""):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_evaluation(one, tmp_path / "cut", progress=stopped)
    with pytest.raises(RunError, match="cut is not finished"):
        merge_shards([tmp_path / "cut"], tmp_path / "merged")
    run_evaluation(one, tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_shards_that_are_not_all_of_one_run_are_refused(tmp_path):
    parts = judged(settings(), tmp_path, 3)
    whole = tmp_path / "plain"
    run_evaluation(settings(), whole)
    (other_seed,) = judged(settings(judging=JudgingSettings(resamples=200, seed=1)), tmp_path / "seed", 3, 2)
    (other_count,) = judged(settings(), tmp_path / "four", 4, 4)
    (other_model,) = judged(settings("baseline:longest"), tmp_path / "model", 3, 2)
    twice = shutil.copytree(parts[1], tmp_path / "twice")
    one, two, three = parts
    for folders, message in [
        ([one, three], "2/3 is missing"),
        ([two], "1/3 is missing"),
        ([one, two, three, twice], "2/3"),
        ([one, other_seed, three], r"judging\.seed"),
        ([one, two, three, other_count], "number of shards: 3 -> 4"),
        ([one, other_model, three], r"model: 'baseline:overlap' -> 'baseline:longest'"),
        ([one, two, whole], "without --shard"),
        ([one, two, tmp_path / "nothing"], "nothing"),
    ]:
        with pytest.raises(RunError, match=message):
            merge_shards(folders, tmp_path / "merged")
        assert not (tmp_path / "merged").exists()


def edited(change):
    def edit(folder, name):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(change(lines)))

    return edit


@pytest.mark.parametrize("name", ["gold.jsonl", "judgments.jsonl"])
@pytest.mark.parametrize(
    "edit",
    [
        edited(lambda lines: lines[:-1]),
        edited(lambda lines: [*lines, lines[0]]),
        edited(lambda lines: [lines[1], lines[0], *lines[2:]]),
        edited(lambda lines: [lines[0].replace('"id":"records', '"id":"record'), *lines[1:]]),
    ],
    ids=["one less", "one twice", "another order", "another id"],
)
def test_a_log_that_was_changed_is_found(tmp_path, name, edit):
    parts = judged(settings(), tmp_path, 2)
    edit(parts[1], name)
    with pytest.raises(RunError, match="a log was changed"):
        merge_shards(parts, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_gold_order_that_was_changed_is_found(tmp_path):
    parts = judged(settings(), tmp_path, 2)
    edited(lambda lines: [json.dumps({**json.loads(lines[0]), "ranks": [1, 1]}) + "\n", *lines[1:]])(
        parts[0], "gold.jsonl"
    )
    with pytest.raises(RunError, match="a log was changed"):
        merge_shards(parts, tmp_path / "merged")
