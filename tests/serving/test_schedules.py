"""Scores do not depend on other requests, before or at the same time: random schedules on the thread of the model."""

import random

import pytest

import longrm
from longrm.serving.wire import ScoreRequest
from longrm.serving.worker import Worker

from ..reward_models.tiny_models import words

TOLERANCE = 5e-5


def asked(draw):
    """Prompts that share beginnings of all lengths, as groups, as single samples, and as rendered texts."""
    document = words(random.Random(draw.randrange(4)), 60)
    prompt = document[: draw.randrange(5, len(document))] + words(draw, draw.randrange(3))
    responses = [words(draw, draw.randrange(1, 6)) for _ in range(draw.choice([1, 1, 1, 2, 4]))]
    if len(responses) == 1 and draw.random() < 0.5:
        rendered = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{responses[0]}<|im_end|>\n"
        return prompt, responses, ScoreRequest(rendered=rendered)
    return prompt, responses, ScoreRequest(prompt, responses)


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.full)])
def test_random_schedules(names, count):
    plain, model = longrm.load(names["scalar"]), longrm.load(names["scalar"])
    model.keep_prefixes(2**18)
    worker, draw, cached = Worker(lambda: model, 100), random.Random(0), 0
    try:
        for _ in range(count):
            several = [asked(draw) for _ in range(draw.randint(1, 6))]
            waiting = [future for one in several for future in worker.submit([one[2]])]
            gone = {index for index in range(len(waiting)) if draw.random() < 0.1 and waiting[index].cancel()}
            for index, (prompt, responses, _) in enumerate(several):
                if index not in gone:
                    found = waiting[index].result(60)
                    assert list(found.scores) == pytest.approx(plain.score(prompt, responses), abs=TOLERANCE)
                    cached += found.cached_tokens
            assert len(model.prefix_cache.table) * model.prefix_cache.block_bytes <= 2**18
    finally:
        worker.stop(60)
    assert not worker.alive
    assert cached > 20 * count


def test_a_corrupt_cache_changes_scores(names):
    model = longrm.load(names["scalar"])
    model.keep_prefixes(2**20)
    prompt = words(random.Random(0), 40)
    (before,) = model.score(prompt, ["w1"])
    for keys_values in next(iter(model.prefix_cache._pools.values()))._layers:
        for part in keys_values:
            part.add_(0.5)
    (after,) = model.score(prompt, ["w1"])
    assert abs(after - before) > 100 * TOLERANCE
