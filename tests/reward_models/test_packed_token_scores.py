import math
from dataclasses import replace

import pytest
import torch

import longrm
from longrm.errors import ConfigError
from longrm.judging import TOKEN_FORMATS
from longrm.reward_models import packed as tokens_read
from longrm.reward_models.trials import to_scores
from longrm.types import Outcome

from .tiny_models import CHATML, Plain, bytes_tokenizer, make_model, queries

TOLERANCE = 1e-4
THOUGHT = CHATML.replace(
    "message.content + '<|im_end|>",
    "('<think>\n\n</think>\n\n' if message.role == 'assistant' else '') + message.content + '<|im_end|>",
)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp(request.param) / "model", request.param)


def load(folder, model_args=None, **judge):
    return longrm.load(f"tokens:{folder}", model_args=model_args, judge=judge)


def log_shares(values):
    total = math.log(math.fsum(map(math.exp, values)))
    return [value - total for value in values]


@pytest.mark.parametrize(
    ("form", "shapes"), [("pairwise", [(30, 2), (300, 2), (11, 2)]), ("listwise", [(30, 7), (90, 3)])]
)
def test_letters_are_read_after_one_prompt(folder, form, shapes):
    model, plain, asked = load(folder, format=form), Plain(folder), queries(*shapes, per_document=2)
    for query, judgment in zip(asked, model.judge(asked), strict=True):
        (prompt,) = TOKEN_FORMATS[form]().render(query)
        truth = plain.first(prompt, "ABCDEFG"[: len(query.responses)])
        assert list(judgment.scores) == pytest.approx(log_shares(truth), abs=TOLERANCE)
        assert judgment.explanation.startswith(f"P(A) = {math.exp(truth[0]):.3f}"[:10])
        assert judgment.prompt_tokens == len(
            plain.tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True)["input_ids"]
        )
    assert model.scale == "logit"
    assert model.sees_order


def test_alone_the_score_is_the_log_odds_of_yes(folder):
    model, plain = load(folder, format="pointwise"), Plain(folder)
    asked = queries((30, 1), (120, 4), (60, 2), per_document=2)
    for query, judgment in zip(asked, model.judge(asked), strict=True):
        prompts = TOKEN_FORMATS["pointwise"]().render(query)
        truth = [yes - no for yes, no in (plain.first(prompt, ("Yes", "No")) for prompt in prompts)]
        assert list(judgment.scores) == pytest.approx(truth, abs=TOLERANCE)
        assert judgment.explanation.count("P(Yes)") == len(query.responses)
    assert not model.sees_order


def test_what_is_read_elsewhere_is_told_from_it(folder):
    """The control."""
    (query,) = queries((60, 2))
    (judgment,) = load(folder, format="pairwise").judge([query])
    plain, (prompt,) = Plain(folder), TOKEN_FORMATS["pairwise"]().render(query)
    turned = TOKEN_FORMATS["pairwise"]().render(replace(query, responses=query.responses[::-1]))[0]
    faults = {
        "the other order": plain.first(turned, "AB"),
        "other tokens": plain.first(prompt, "BA"),
        "no context": plain.first(({"role": "user", "content": "?"},), "AB"),
    }
    for fault, found in faults.items():
        assert max(map(abs, map(float.__sub__, log_shares(found), judgment.scores))) > 100 * TOLERANCE, fault


def test_both_orders_are_averaged_and_share_the_document(folder, monkeypatch):
    read, real = [], tokens_read.next_logprobs

    def watched(model, packed, tokens):
        read.append(packed.layout.tokens)
        return real(model, packed, tokens)

    monkeypatch.setattr(tokens_read, "next_logprobs", watched)
    model, (query,) = load(folder), queries((700, 2))
    (trial,) = model.judge_in_all_orders([query])
    turned = replace(query, responses=query.responses[::-1])
    (one,), (other,) = model.judge([query]), model.judge([turned])
    expected = [(a + b) / 2 for a, b in zip(one.scores, other.scores[::-1], strict=True)]
    assert to_scores(trial) == pytest.approx(expected, abs=TOLERANCE)
    alone = read[1]
    assert read[0] < 1.6 * alone, "two prompts over one document"


def test_the_token_stands_behind_what_the_template_writes_before_an_answer(tmp_path):
    folder = make_model(tmp_path / "model", tokenizer=bytes_tokenizer(THOUGHT))
    plain, (query,) = Plain(folder), queries((30, 2))
    (judgment,) = load(folder).judge([query])
    (prompt,) = TOKEN_FORMATS["pairwise"]().render(query)
    opened = plain.tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=False)
    ids = plain.tokenizer(opened + "<think>\n\n</think>\n\n", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        row = plain.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    truth = [row[plain.tokenizer.convert_tokens_to_ids(letter)].item() for letter in "AB"]
    assert list(judgment.scores) == pytest.approx(log_shares(truth), abs=TOLERANCE)
    header = log_shares(plain.first(prompt, "AB"))
    assert abs(header[0] - judgment.scores[0]) > 100 * TOLERANCE, "the control"


def test_a_template_of_ones_own_names_its_tokens(folder, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("{{ conversation }}\n{{ responses[0] }}\n{{ responses[1] }}\nX or Y?")
    model = load(folder, format="pairwise", template=str(file), tokens=("X", "Y"))
    (query,) = queries((20, 2))
    (judgment,) = model.judge([query])
    (prompt,) = TOKEN_FORMATS["pairwise"](file).render(query)
    assert list(judgment.scores) == pytest.approx(
        log_shares(Plain(folder).first(prompt, "XY")), abs=TOLERANCE
    )


def test_tokens_that_a_tokenizer_does_not_tell_apart_are_refused(tmp_path):
    lower = bytes_tokenizer(CHATML.replace("message.content", "message.content | lower"))
    folder = make_model(tmp_path / "model", tokenizer=lower)
    file = tmp_path / "mine.txt"
    file.write_text("{{ responses }}")
    with pytest.raises(ConfigError, match=r"judge\.tokens"):
        load(folder, format="pairwise", template=str(file), tokens=("X", "x"))


def test_what_does_not_fit_is_counted_or_cut(folder):
    (long,) = queries((900, 2))
    (judgment,) = load(folder, {"max_length": 3000}).judge([long])
    assert judgment.outcome is Outcome.TOO_LONG
    (judgment,) = load(folder, {"max_length": 3000, "cut": "left"}).judge([long])
    assert (judgment.outcome, judgment.cut.policy) == (Outcome.ANSWERED, "left")
    assert 2900 < judgment.prompt_tokens <= 3000


def test_formats():
    assert [kind.name for kind in TOKEN_FORMATS.values()] == list(TOKEN_FORMATS)
    pairwise = TOKEN_FORMATS["pairwise"]()
    assert pairwise.scores([[math.log(0.3), math.log(0.1)]], 2) == pytest.approx(
        (math.log(0.75), math.log(0.25))
    )
    assert pairwise.scores([[-math.inf, -math.inf]], 2) == (-math.inf, -math.inf)
    assert TOKEN_FORMATS["pointwise"]().scores([[-1.0, -3.0], [-2.0, -2.0]], 2) == (2.0, 0.0)
