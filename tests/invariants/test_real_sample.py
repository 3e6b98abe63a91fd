"""A load test on real long comparisons; see also `perf/long_rows.py`."""

import json
import sys
from pathlib import Path

import pytest

from longrm.data import read, write_rows
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.training.settings import TrainingSettings
from longrm.training.train import train

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT.parent / "shared" / "data" / "longrm-sample" / "simpo"


@pytest.mark.real
@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the real sample does not lie beside the checkout")
def test_the_shortest_real_rows_train_and_score(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "perf")
    from long_rows import SHAPE, SPECIALS, TEMPLATE, train_bpe

    rows = sorted(read(SAMPLE / "eval"), key=lambda row: len(str(row.source)))[:1]
    write_rows(tmp_path / "rows.jsonl", (row.source for row in rows))
    texts = iter((tmp_path / "rows.jsonl").read_text().splitlines())
    train_bpe(texts, 2000, SPECIALS, TEMPLATE).save(tmp_path / "tokenizer")
    settings = TrainingSettings.model_validate(
        {"objective": "bradley_terry"}
        | {
            "model": {"new": {**SHAPE, "tokenizer": str(tmp_path / "tokenizer")}},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "optimizer": {"epochs": 1},
        }
    )
    assert train(settings, tmp_path / "run")["steps"] == 1
    scoring = ScoreSettings(
        model=str(tmp_path / "run/model"), data=str(tmp_path / "rows.jsonl"), column="reward"
    )
    score_file(scoring, tmp_path / "scored.jsonl")
    (scored,) = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert len(scored["reward"]) == len(rows[0].comparison.responses)
    assert scored["scores"] == json.loads(json.dumps(rows[0].source["scores"]))
    sys.modules.pop("long_rows", None)
