import logging
from collections import Counter
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from longrm.data import read, write
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, DataError
from longrm.training.sampling import Curriculum, Mixture, spread
from longrm.training.settings import CurriculumSettings, DataSettings
from longrm.training.sources import context_digest, open_source
from longrm.types import text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

from ..worlds.prose.prose_tokenizer import prose_tokenizer

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "longrm-sample"

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)
seeds = st.integers(0, 9)


def rows_of(epoch, source=0):
    return [row for own, row in epoch if own == source]


def worst(series, stratum):
    """How far the first t of a series are from their share of a stratum, at most."""
    share = series.count(stratum) / len(series)
    taken = accumulate(one == stratum for one in series)
    return max(abs(count - share * number) for number, count in enumerate(taken, start=1))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_every_stratum_has_its_share_of_every_beginning(sizes):
    series = spread(sizes)
    assert [series.count(stratum) for stratum in range(len(sizes))] == sizes
    assert all(worst(series, stratum) < 1 for stratum in range(len(sizes)))


def test_a_series_in_order_of_strata_or_by_chance_is_seen():
    series = spread([90, 10])
    assert worst(sorted(series), 1) > 8
    assert worst([0] * 45 + [1] * 5 + [0] * 45 + [1] * 5, 1) > 4


@given(lengths, seeds)
def test_weight_one_reads_every_row_once_an_epoch(given_lengths, seed):
    mixture = Mixture([given_lengths], [1.0], seed)
    for number in range(3):
        assert sorted(rows_of(mixture.epoch(number))) == list(range(len(given_lengths)))


@given(lengths, seeds)
def test_any_window_has_its_share_of_long_rows(given_lengths, seed):
    epoch = rows_of(Mixture([given_lengths], [1.0], seed).epoch(1))
    buckets = [given_lengths[row].bit_length() for row in epoch]
    for bucket in set(buckets):
        share = buckets.count(bucket) / len(buckets)
        for size in {1, 3, len(buckets) // 2, len(buckets)} - {0}:
            for start in range(len(buckets) - size + 1):
                # Less than 1 off at either end of the window.
                assert abs(buckets[start : start + size].count(bucket) - share * size) < 2


@given(lengths, lengths, st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0]), seeds)
@settings(max_examples=50)
def test_weights_are_passes_over_a_source(first, second, weight, seed):
    mixture = Mixture([first, second], [1.0, weight], seed)
    epochs = [mixture.epoch(number) for number in range(4)]
    quota = max(1, round(weight * len(second)))
    assert {len(epoch) for epoch in epochs} == {mixture.rows} == {len(first) + quota}
    assert all(sorted(rows_of(epoch)) == list(range(len(first))) for epoch in epochs)
    read_on = [row for epoch in epochs for row in rows_of(epoch, 1)]
    times = Counter(read_on)
    assert len(read_on) == 4 * quota
    assert max(times.values()) - min(times.get(row, 0) for row in range(len(second))) <= 1


def test_sources_are_mixed_evenly():
    epoch = Mixture([[100] * 30, [100] * 10], [1.0, 1.0], 0).epoch(0)
    places = [place for place, (source, _) in enumerate(epoch) if source == 1]
    assert {later - sooner for sooner, later in pairwise(places)} <= {3, 4, 5}


@pytest.fixture
def opened():
    def open_data(limit=4096, kind="comparison", seed=0, tokenizer=None, **data):
        told = DataSettings.model_validate(data)
        return open_source(told, tokenizer or words_tokenizer(), seed, kind=kind, limit=limit)

    return open_data


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(
        path,
        [
            *generate(WorldPlan("records", 64, seed=3), 5, words_tokenizer()),
            *generate(WorldPlan("records", 400), 2, words_tokenizer()),
        ],
    )
    return path


def test_a_step_is_a_pure_function_of_its_number(pairs, opened):
    data = {"path": str(pairs), "per_step": 3}
    one, other = opened(**data), opened(**data)
    assert one.steps(1) == 3
    forth = [one.batch(step, None) for step in range(6)]
    back = [other.batch(step, None) for step in reversed(range(6))]
    assert forth == back[::-1]
    assert [len(batch) for batch in forth] == [3, 3, 1] * 2
    ids = [example.id for batch in forth for example in batch]
    assert sorted(ids[:7]) == sorted(ids[7:]) == sorted(row.comparison.id for row in read(pairs))
    assert ids[:7] != ids[7:]
    assert opened(**data, seed=1).batch(0, None) != forth[0]


def test_examples_hold_what_the_rows_say(pairs, opened):
    source, tokenizer = opened(path=str(pairs)), words_tokenizer()
    for example, row in zip(source.examples(), read(pairs), strict=True):
        comparison = row.comparison
        assert (example.id, example.ranks, example.source) == (comparison.id, comparison.ranks, str(pairs))
        assert example.digest == context_digest(comparison)
        assert list(example.tokens.prompt) == tokenizer.prompt_ids(comparison.prompt)
        assert [tokenizer.decode(ids, special=False) for ids in example.tokens.responses] == [
            response[0]["content"] for response in comparison.responses
        ]
    assert source.counts == {
        "read": 7,
        "used": 7,
        "bad": 0,
        "tied": 0,
        "too_long": 0,
        "labeled_bad": 0,
        "without_contrast": 0,
        "margin": 0,
        "probability": 0,
    }


@pytest.mark.parametrize(
    ("limits", "says"),
    [({"limit": 200}, "the context window"), ({"max_length": 200}, "data.max_length")],
)
def test_a_row_that_is_too_long_stops_or_is_left_out_and_never_cut(limits, says, pairs, opened, caplog):
    whole = {example.id: example for example in opened(path=str(pairs)).examples()}
    long = [identity for identity, example in whole.items() if example.tokens.longest > 200]
    assert len(long) == 2
    with pytest.raises(
        DataError, match=rf"pairs.jsonl: '{long[0]}' has \d+ tokens, more than {says} .*skip.* \(2\)$"
    ):
        opened(path=str(pairs), **limits)
    with caplog.at_level(logging.INFO, "longrm"):
        source = opened(path=str(pairs), too_long="skip", **limits)
    assert f"longer than 200 tokens: 2 rows ({long[0]}, {long[1]})" in caplog.text
    assert {example.id: example for example in source.examples()} == {
        identity: example for identity, example in whole.items() if identity not in long
    }
    counts = source.counts
    assert (counts["read"], counts["used"], counts["too_long"]) == (7, 5, 2)
    with pytest.raises(DataError, match="none of 7 rows is left to train on"):
        opened(path=str(pairs), too_long="skip", limit=20)


def judged(scores):
    user = "the access code ?"
    judges = [f"R{number}" for number in range(1, len(scores))]
    return {
        "chat_template": [{"role": "user", "content": user}],
        "chosen": "copper",
        "rejects": ["violin", "walnut"][: len(judges)],
        "chosen_model": "R0",
        "reject_models": judges,
        "scores": {f"R{number}": score for number, score in enumerate(scores)},
    }


def test_rows_without_contrast_are_counted_said_and_left_out_as_told(put, opened, caplog):
    path = str(put("rows.jsonl", *map(judged, ([8, 8, 8], [8, 8, 6], [8, -1], [4, 4]))))
    with caplog.at_level(logging.INFO, "longrm"):
        kept = opened(path=path)
    assert (kept.counts["used"], kept.counts["without_contrast"]) == (4, 2)
    assert "used, all judgments give one score: 2 rows (row-1, row-4)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "longrm"):
        left = opened(path=path, without_contrast="skip")
    assert (left.counts["used"], left.counts["without_contrast"]) == (2, 2)
    assert "omitted, all judgments give one score" in caplog.text
    assert [example.id for example in left.examples()] == ["row-2", "row-3"]
    first = next(left.examples())
    assert [words_tokenizer().decode(ids, special=False) for ids in first.tokens.responses] == [
        "copper",
        "walnut",
        "violin",
    ]


def test_bad_rows_are_counted_and_said_once(put, opened, caplog):
    good = judged([8, 6])
    path = str(put("rows.jsonl", good, good | {"chosen": ""}, good | {"rejects": ["copper"]}))
    with pytest.raises(DataError, match="line 2, field 'chosen': empty"):
        opened(path=path)
    with caplog.at_level(logging.INFO, "longrm"):
        assert opened(path=path, on_bad_row="skip").counts["bad"] == 2
    skipped = [message for message in caplog.messages if message.startswith("skipped")]
    assert [message.split(":")[0] for message in skipped] == [
        f"skipped {path}, line 2, field 'chosen'",
        f"skipped {path}, line 3, field 'rejects'",
    ]


def test_margins_and_probabilities_reach_the_examples(put, opened):
    row = {"prompt": "the access code ?", "chosen": "copper", "rejected": "walnut"}
    path = put("rows.jsonl", row | {"margin": 1.5}, row | {"probability": 0.9})
    source = opened(path=str(path))
    assert [(example.margin, example.probability) for example in source.examples()] == [
        (1.5, None),
        (None, 0.9),
    ]
    assert (source.counts["margin"], source.counts["probability"]) == (1, 1)


def test_examples_of_several_sources_have_the_path_in_their_ids(put, pairs, opened):
    row = {"id": "x", "prompt": "the access code ?", "chosen": "copper", "rejected": "walnut"}
    short = put("short.jsonl", row, row | {"id": "y"})
    sources = [{"path": str(pairs)}, {"path": str(short), "weight": 2.0}]
    source = opened(sources=sources, per_step=4)
    assert source.steps(1) == 3
    epoch = [example for step in range(3) for example in source.batch(step, None)]
    assert Counter(example.source for example in epoch) == {str(pairs): 7, str(short): 4}
    ids = Counter(example.id for example in epoch if example.source == str(short))
    assert ids == {f"{short}/x": 2, f"{short}/y": 2}
    assert [example.id for example in source.examples()][-2:] == [f"{short}/x", f"{short}/y"]
    assert (source.counts["read"], source.counts["used"]) == (9, 9)


def test_demonstrations_of_a_file(put, opened):
    path = str(put("rows.jsonl", {"prompt": "the access code ?", "completion": "copper"}))
    (example,) = opened(path=path, kind="demonstration").batch(0, None)
    assert example.ranks == (1,)
    assert words_tokenizer().decode(example.tokens.responses[0], special=False) == "copper"
    with pytest.raises(ConfigError, match="'trl' is a format of comparisons"):
        opened(sources=[{"path": path, "format": "trl"}], kind="demonstration")


def judge_prompts(*sizes):
    """Comparisons with so many prompts."""
    shared = {"prompt": "the access code ?", "gold": "1", "format": "pointwise"}
    return [
        shared | {"id": f"c{number}", "order": [at]}
        for number, size in enumerate(sizes)
        for at in range(size)
    ]


def test_a_step_has_as_many_whole_comparisons_as_fit(put, opened, caplog):
    sizes = [2, 3, 4] * 30 + [60]  # one is larger than a step
    data = {"path": str(put("prompts.jsonl", *judge_prompts(*sizes))), "per_step": 45, "kind": "judge_prompt"}
    with caplog.at_level(logging.INFO, "longrm"):
        source = opened(**data)
    ends = [source.steps(epochs) for epochs in (1, 2, 3)]
    batches = [source.batch(step, None) for step in range(ends[-1])]
    for start, end in pairwise([0, *ends]):
        epoch = [Counter(example.id.partition("#")[0] for example in batch) for batch in batches[start:end]]
        assert sum(epoch, Counter()) == {f"c{number}": size for number, size in enumerate(sizes)}
        assert sum(len(batch) for batch in epoch) == len(sizes), "comparisons stay together"
        for batch, following in pairwise(epoch):
            next_one = next(iter(following.values()))
            assert batch.total() <= 45 < batch.total() + next_one or len(batch) == 1
    resumed = opened(**data)
    assert [resumed.batch(step, None) for step in reversed(range(ends[-1]))] == batches[::-1]
    said = sorted(len(batch) for batch in batches[: ends[0] - 1])
    assert said[-1] == 60
    assert f"data.per_step = 45: a step reads {said[0]} to 60 rows" in caplog.text


@pytest.mark.parametrize(
    ("per_step", "rows", "said"), [(4, 4, ""), (5, 4, "a step reads 4 rows"), (90, 14, "")]
)
def test_steps_of_comparisons_of_one_size(per_step, rows, said, put, opened, caplog):
    path = str(put("prompts.jsonl", *judge_prompts(*[2] * 7)))
    with caplog.at_level(logging.INFO, "longrm"):
        source = opened(path=path, per_step=per_step, kind="judge_prompt")
    steps = -(-14 // rows)
    sizes = [len(source.batch(step, None)) for step in range(steps)]
    assert (source.steps(1), source.steps(2), sizes[0], sum(sizes)) == (steps, 2 * steps, rows, 14)
    assert said in caplog.text
    assert ("data.per_step" in caplog.text) == bool(said)


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        ([{"label": True}, {"label": False}, {"label": None}], [1, 3]),
        ([{"label": 1}, {"label": 0}, {"label": -1.0}], [1]),
        ([{"label": "True"}, {"label": "false"}, {"label": " undesirable "}], [1]),
        ([{"label": "given"}, {"label": "model"}, {"label": "maths"}], [1, 2, 3]),  # categories
        ([{"is_chosen": False}, {"chosen": 1}, {"correct": "0"}], [2]),
        ([{"rejected": True}, {"is_rejected": False}, {"is_bad": 1}], [2]),
        ([{"reward": 1.0}, {"reward": 0.0}, {"reward": -1.0}], [1]),
        ([{"score": 0}, {"score": 0}, {"score": 0}], [1, 2, 3]),  # a placeholder
        (
            [{"score": 0, "judge": "R0"}, {"score": 1, "judge": "R0"}, {}],
            [1, 2, 3],
        ),  # what the completion says
        ([{"score": 0, "label": True}, {"score": 1, "label": False}, {"rating": 1}], [1, 3]),
        ([{"label": False, "rating": 4.5}, {"rating": 1}, {"rating": 0}], [2, 3]),
    ],
)
def test_demonstrations_that_a_column_calls_bad_are_omitted(columns, used, put, opened, caplog):
    row = {"prompt": "the access code ?", "completion": "copper"}
    path = str(put("rows.jsonl", *(row | more for more in columns)))
    with caplog.at_level(logging.INFO, "longrm"):
        source = opened(path=path, kind="demonstration")
    assert [example.id for example in source.examples()] == [f"row-{number}" for number in used]
    bad = [number for number in (1, 2, 3) if number not in used]
    assert source.counts["labeled_bad"] == len(bad) == 3 - source.counts["used"]
    said = f"omitted, labeled as bad: {len(bad)} rows ({', '.join(f'row-{number}' for number in bad)})"
    assert (said in caplog.text) == bool(bad)
    graded = any(more.get(name, 1) not in (-1, 0, 1) for more in columns for name in ("score", "rating"))
    assert ("learned whatever their score" in caplog.text) == (graded or columns[0] == {"score": 0})


def test_labels_are_read_under_another_name_and_refused_if_unclear(put, opened):
    row = {"prompt": "the access code ?", "completion": "copper"}
    path = str(put("rows.jsonl", row | {"ok": False}, row | {"ok": True}))
    renamed = {"sources": [{"path": path, "columns": {"label": "ok"}}], "kind": "demonstration"}
    assert [example.id for example in opened(**renamed).examples()] == ["row-2"]
    put("rows.jsonl", row | {"label": True}, row | {"label": 3})
    with pytest.raises(DataError, match=r"line 2, field 'label': must be true or false, got 3"):
        opened(path=path, kind="demonstration")
    put("rows.jsonl", row | {"label": False})
    with pytest.raises(DataError, match="none of 1 rows is left"):
        opened(path=path, kind="demonstration")


def test_a_bad_demonstration_may_be_too_long(put, opened):
    row = {"prompt": "the access code ?", "completion": "copper", "label": True}
    path = str(put("rows.jsonl", row, row | {"completion": "copper " * 99, "label": False}))
    counts = opened(path=path, kind="demonstration", limit=32).counts
    assert (counts["used"], counts["labeled_bad"], counts["too_long"]) == (1, 1, 0)


WORLD = {"responses": [2, 4], "tokens_per_step": 512, "responses_per_step": 12}


def test_a_world_gives_fresh_contexts_for_every_step(opened):
    source = opened(world=WORLD)
    batches = [source.batch(step, 160) for step in range(2)]
    assert batches == [opened(world=WORLD).batch(step, 160) for step in range(2)]
    digests = [{example.digest for example in batch} for batch in batches]
    assert [len(own) for own in digests] == [3, 3]
    assert not digests[0] & digests[1]
    assert {len(example.ranks) for example in batches[0]} == {2, 4}


def test_a_template_that_is_not_there_is_named(opened):
    with pytest.raises(ConfigError, match=r"nowhere\.jinja"):
        opened(world=WORLD | {"template": "/nowhere.jinja"}, kind="judge_prompt")


def test_the_best_responses_of_a_world_are_its_demonstrations(opened):
    compared = opened(world=WORLD).batch(0, 160)
    imitated = opened(world=WORLD, kind="demonstration").batch(0, 160)
    for comparison, demonstration in zip(compared, imitated, strict=True):
        assert demonstration.ranks == (1,)
        best = comparison.tokens.responses[comparison.ranks.index(1)]
        assert demonstration.tokens.responses == [best]


def test_rows_of_similar_length_follow_each_other_in_groups(tmp_path, opened):
    """The setting and the order that a training reads: of 8 groups of 4, all but those at the ends are similar."""
    path = tmp_path / "pairs.jsonl"
    sizes = range(72, 72 + 32 * 8, 8)
    write(
        path,
        [
            row
            for size in sizes
            for row in generate(WorldPlan("records", size, seed=size), 1, words_tokenizer())
        ],
    )

    def ranges(**data):
        """Of every four rows in order, the longest prompt minus the shortest."""
        source = opened(path=str(path), per_step=4, **data)
        steps = [[len(example.tokens.prompt) for example in source.batch(step, 4096)] for step in range(8)]
        assert sum(map(len, steps)) == 32
        return sorted(max(step) - min(step) for step in steps)

    assert ranges(group_by_length=4)[5] <= 40
    assert ranges()[2] > 80


def by_words(texts) -> Tokenizer:
    """A token for every word of the texts, between white space."""
    known = {
        word: number for number, word in enumerate(sorted({word for text in texts for word in text.split()}))
    }
    backend = tokenizers.Tokenizer(models.WordLevel(known))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_backend(backend)


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the LongRM sample does not lie beside the checkout")
def test_rows_of_the_sample_without_contrast_are_counted(opened):
    """Every judge of 5 of the 16 rows gave the same score, by their column `scores`."""
    rows = list(read(SAMPLE / "simpo/train"))
    texts = [text_of(part) for row in rows for part in (row.comparison.prompt, *row.comparison.responses)]
    source = opened(
        path=str(SAMPLE / "simpo/train"),
        limit=2**30,
        without_contrast="skip",
        tokenizer=by_words(texts),
    )
    alike = sum(len(set(row.source["scores"].values())) == 1 for row in rows)
    assert source.counts["without_contrast"] == alike == 5
    assert source.counts["used"] == 11


def test_contexts_of_several_worlds_and_of_some_kinds_of_text_alternate():
    names = ["single-fact", "latest-update"]
    world = {"name": names, "texts": ["mail"], "tokens_per_step": 2048, "responses_per_step": 32}
    data = DataSettings.model_validate({"world": world})
    source = open_source(data, prose_tokenizer(), 0, kind="comparison", limit=1000)
    examples = [example for step in range(6) for example in source.batch(step, 512)]
    assert {example.source for example in examples} == {*names}
    assert all("-mail-" in example.id for example in examples)
    assert [example.id for example in source.batch(3, 512)] == [
        example.id for example in source.batch(3, 512)
    ]


def curriculum_lengths(steps=100, **settings):
    curriculum = Curriculum(CurriculumSettings(lengths=(24, 48, 96), **settings), steps=steps, seed=0)
    return [curriculum.length(step) for step in range(steps)]


def test_curriculum_lengths_grow_in_equal_parts_and_stay_at_the_last():
    assert curriculum_lengths(ramp=0.5) == [24] * 25 + [48] * 25 + [96] * 50
    assert set(curriculum_lengths(ramp=1.0)) == {24, 48}, "a full ramp never reaches the last length"
    curriculum = Curriculum(CurriculumSettings(lengths=(128,)), steps=3, seed=0)
    assert {curriculum.length(step) for step in range(3)} == {128}


def test_a_share_of_the_steps_goes_back_to_the_shortest_length():
    late = curriculum_lengths(steps=2000, ramp=0.1, short_share=0.3)[200:]
    assert set(late) == {24, 96}
    assert 0.26 < late.count(24) / len(late) < 0.34
    assert curriculum_lengths(steps=2000, ramp=0.1)[200:].count(24) == 0
