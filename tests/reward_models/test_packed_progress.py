"""Models that read for long report how much they have read."""

from longrm.reward_models import load, packed

from .tiny_models import bytes_tokenizer, make_model, make_scorer, queries


def test_reading_and_writing_report_their_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "_TOKENS_PER_FORWARD", 1000)
    folder = make_scorer(tmp_path / "scorer", positions=4096, tokenizer=bytes_tokenizer())
    scorer, shares = load(str(folder)), []
    scorer.on_progress = shares.append
    scorer.judge(queries((300, 2), (300, 3), (300, 2)))
    assert shares == [2 / 7, 5 / 7, 1.0]

    judge, shares = load(str(make_model(tmp_path / "judge")), judge={"max_tokens": 2, "retries": 1}), []
    judge.on_progress = shares.append
    judged = judge.judge(queries((3, 2), (3, 2)))
    assert any(one.attempts == 2 for one in judged)
    assert shares == [0.5, 1.0]  # both write two tokens, and what is asked again is not counted twice
