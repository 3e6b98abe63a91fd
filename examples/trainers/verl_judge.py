"""Rewards a judge that verl trains for its verdicts.

longrm synthesize judge-prompts --set source=file:pairs.jsonl --set tokenizer=JUDGE --out runs/prompts
python examples/trainers/verl_judge.py runs/prompts/rows prompts.parquet   # the columns that verl reads
python -m verl.trainer.main_ppo ... \
    data.train_files=prompts.parquet reward.custom_reward_function.path=examples/trainers/verl_judge.py

verl passes one completion per call, so terms that compare completions of one comparison (`consistent`, and `correct` of
the pointwise format) do not apply. For long completions use verl's own overlong buffer in place of `brief`.
"""

import sys
from typing import Any

import longrm

REWARD = longrm.verdict_reward(correct=1.0, format=0.1)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **_: Any
) -> dict[str, float]:
    """The reward of one completion, and its terms for verl's metrics, which must have the same keys every time."""
    (score,) = REWARD.judge([{**extra_info, "gold": ground_truth}], [solution_str], [None])
    terms = {name: score.terms.get(name, 0.0) for name in REWARD.weights}
    return {"score": score.reward, **terms, "unparsed": float(not score.verdict)}


def to_verl(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `longrm synthesize judge-prompts` with the columns of verl."""
    extra = {name: row[name] for name in ("order", "id", "format", "answer") if name in row}
    return {
        "data_source": "longrm",
        "prompt": row["prompt"],
        "reward_model": {"style": "rule", "ground_truth": row["gold"]},
        "extra_info": extra,
    }


if __name__ == "__main__":
    import datasets

    rows = datasets.load_dataset(sys.argv[1], split="train")
    rows.map(to_verl, remove_columns=rows.column_names).to_parquet(sys.argv[2])
