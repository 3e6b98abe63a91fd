"""What a judge of generated worlds learns to write, read back as text and held against the context itself."""

import re

import pytest

from longrm.errors import ConfigError
from longrm.training.settings import DataSettings
from longrm.training.sources import open_source
from longrm.training.world_judgments import JudgmentWriter
from longrm.worlds import WorldPlan, generate, words_tokenizer

TOKENIZER = words_tokenizer(verdicts=True)
ROWS = list(generate(WorldPlan("records", 64, seed=3), 60, TOKENIZER))


def writing(*forms, error=0.15, judges=7):
    return JudgmentWriter(TOKENIZER, forms, judges=judges, error=error)


def read(encoded):
    """The prompt, and every completion without its end."""
    texts = [TOKENIZER.decode(list(ids)) for ids in encoded.responses]
    return TOKENIZER.decode(list(encoded.prompt)), [re.sub(r" ?<end>.*", "", text) for text in texts]


def stated(prompt):
    """Who is asked about, and the value that the context gives them: two words on, whatever the sentence."""
    context, _, rest = prompt.partition("Question")
    (entity,) = re.findall(r"access code of (\w+) ?\?", rest)
    return entity, re.findall(rf"{entity} (\w+) (\w+)", context)[0]


def named(prompt):
    """The values that the shown responses name, in their order."""
    return re.findall(r"access code of \w+ is (\w+)\.", prompt.partition("?")[2])


def test_the_record_is_what_the_context_says():
    for row in ROWS:
        prompt, (fact,) = read(writing("fact").demonstration(row))
        entity, (verb, value) = stated(prompt)
        assert fact == f"{entity}: {verb} {value}."


def test_a_judgment_of_two_follows_from_its_record():
    letters = []
    for row in ROWS:
        prompt, (judgment,) = read(writing("pairwise").demonstration(row))
        entity, (verb, value) = stated(prompt)
        letters.append("AB"[named(prompt).index(value)])
        assert judgment == f"{entity}: {verb} {value}. [[ {letters[-1]} ]]"
    assert 15 < letters.count("A") < 45, "the right one stands first half of the time"


@pytest.mark.parametrize(("error", "wrong", "unanimous"), [(0.15, 0.012, 0.321), (0.45, 0.392, 0.019)])
def test_the_majority_is_as_wrong_as_seven_such_judges_are(error, wrong, unanimous):
    """Binomial: four or more of seven err; all seven agree."""
    rows = list(generate(WorldPlan("records", 40, seed=5), 400, TOKENIZER))
    pairs = [(row, writing("pairwise", error=error).preference(row)) for row in rows]
    told = [read(tokens) for _, tokens in pairs if tokens is not None]
    assert 1 - len(told) / len(rows) == pytest.approx(unanimous, abs=0.07)
    right = [
        judgments[0][-4] == "AB"[named(prompt).index(stated(prompt)[1][1])] for prompt, judgments in told
    ]
    # Unanimous judges are left out, so the others are wrong a little more often.
    assert 1 - sum(right) / len(right) == pytest.approx(wrong / (1 - unanimous), abs=0.06)


def test_rejected_judgments_give_another_verdict_and_misread_ones_another_record():
    read_wrong = []
    for row in ROWS:
        tokens = writing("pairwise", "pointwise", error=0.3).preference(row)
        if tokens is None:
            continue
        _, (chosen, *rejected) = read(tokens)
        verdicts = [re.findall(r"\[\[ (\w+) \]\]", judgment)[0] for judgment in (chosen, *rejected)]
        assert 1 <= len(rejected) <= 2
        assert verdicts[0] not in verdicts[1:]
        assert len({*rejected}) == len(rejected)
        read_wrong += [judgment.partition(".")[0] != chosen.partition(".")[0] for judgment in rejected]
    assert {True, False} == {*read_wrong}


def source(kind, **world):
    settings = DataSettings.model_validate(
        {"world": {"tokens_per_step": 128, "responses_per_step": 8} | world}
    )
    return open_source(settings, TOKENIZER, 0, kind=kind, limit=4096)


def test_a_world_gives_what_is_to_be_written():
    examples = source("demonstration", completions=["pairwise"]).batch(0, 64)
    assert all(example.ranks == (1,) and "[[" in read(example.tokens)[1][0] for example in examples)
    compared = source("comparison", completions=["pairwise"]).batch(0, 64)
    assert compared
    assert all(set(example.ranks[1:]) == {2} and example.ranks[0] == 1 for example in compared)
    plain = source("demonstration").batch(0, 64)
    assert "[[" not in read(plain[0].tokens)[1][0]


def test_a_step_on_which_all_judges_agree_is_an_error():
    one_question = source("comparison", completions=["pairwise"], responses_per_step=2)
    with pytest.raises(ConfigError, match=r"agree on all 1 questions"):
        [one_question.batch(step, 64) for step in range(30)]


def test_a_tokenizer_without_verdicts_is_refused():
    with pytest.raises(ConfigError, match='tokenizer = "judge_words"'):
        JudgmentWriter(words_tokenizer(), ("pairwise",), judges=7, error=0.15)
