"""Gradient times embedding of packed responses, against transformers reading each response as a text of its own."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaForSequenceClassification,
)

import longrm
from longrm.attribution.sentences import context_sentences
from longrm.errors import DataError
from longrm.modeling import span_gradients
from longrm.modeling.loading import new_scorer
from longrm.modeling.shapes import ModelShape
from longrm.reward_models import JudgeSettings
from longrm.reward_models.discriminative import DiscriminativeRewardModel
from longrm.types import Query, message_text, query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.data.trajectories import (
    CONTINUED,
    PLAIN,
    TOOLS,
    WRITTEN_HERE,
    call,
    pair_of_tokenizers,
    say,
)
from tests.reward_models.tiny_models import make_model, make_scorer

SHAPE = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=8, hidden=32, intermediate=48, init_std=0.3)
TOLERANCE = 1e-4  # relative

TEXT = "It is cold in Bergen. Oslo lies in the east. Nobody knows the way. Is it warm in Oslo?\n"
ASKED = Query(
    "oslo",
    (say("system", "You help."), say("user", TEXT)),
    (PLAIN, (call(0, "get_weather", "I will look it up.", city="Oslo"),)),
    tools=TOOLS,
)


def test_the_sums_of_spans_are_those_of_plain_autograd():
    scorer = new_scorer(SHAPE, words_tokenizer(), seed=1)
    (row,) = generate(WorldPlan("records", 96), 1, words_tokenizer())
    query = query_of(row, row.best_first())
    spans = context_sentences(query)
    found = DiscriminativeRewardModel(scorer, "tiny").span_gradients(query, spans)

    stock = LlamaForSequenceClassification(copy.deepcopy(scorer.model.config))
    stock.load_state_dict(scorer.model.state_dict())
    stock.set_attn_implementation("eager")
    stock.eval()
    tokenizer, opening = scorer.tokenizer, scorer.tokenizer.opening(query.prompt)
    text = message_text(query.prompt[0])
    start, prompt = opening.index(text), tokenizer.prompt_ids(query.prompt)
    wholes = [tokenizer.encode(one) for one in _rendered(tokenizer, query)]
    assert all(whole[: len(prompt)] == list(prompt) for whole in wholes)
    products = by_autograd(stock, wholes, [len(prompt)] * 2, score)
    truth = []
    for span in spans:
        before = tokenizer.count(opening[: start + span.start])
        size = tokenizer.count(text[span.start : span.end])
        truth.append(float(products[before : before + size].sum()))
    assert found == pytest.approx(truth, rel=TOLERANCE)
    assert found != pytest.approx(
        truth[1:] + truth[:1], rel=1e-2
    )  # the control: each sentence one further on


def _rendered(tokenizer, query):
    opening, texts = tokenizer.continuations(query.prompt, query.responses)
    return [opening + text for text in texts]


def by_autograd(stock, wholes, begins, read):
    """|gradient x embedding| of each token that both texts share, of what is read in the first less the second."""
    gradients = []
    for whole, begin in zip(wholes, begins, strict=True):
        kept = []
        hook = stock.get_input_embeddings().register_forward_hook(
            lambda module, given, output, kept=kept: kept.append(output)
        )
        logits = stock(input_ids=torch.tensor([whole])).logits[0]
        (gradient,) = torch.autograd.grad(read(logits, whole, begin), kept)
        hook.remove()
        gradients.append(gradient[0, : min(begins)])
        embedded = kept[0][0, : min(begins)].detach()
    return ((gradients[0] - gradients[1]) * embedded).abs().sum(-1)


def score(logits, ids, begin):
    return logits.sum()


def likelihoods(logits, ids, begin):
    """The log-probabilities of the tokens from `begin` on."""
    return logits.log_softmax(-1)[range(begin - 1, len(ids) - 1), ids[begin:]]


def total(logits, ids, begin):
    return likelihoods(logits, ids, begin).sum()


def average(logits, ids, begin):
    return likelihoods(logits, ids, begin).mean()


READ = {"scalar": score, "sum": total, "mean": average}


class Case:
    """A model of one kind and template, and the same as a user of transformers alone has it."""

    def __init__(self, folder, kind, template):
        ours, self.tokenizer = pair_of_tokenizers(WRITTEN_HERE[template])
        if kind == "scalar":
            make_scorer(folder, positions=4096, tokenizer=ours)
            self.model, auto = longrm.load(str(folder)), AutoModelForSequenceClassification
        else:
            make_model(folder, tokenizer=ours)
            self.model = longrm.load(f"likelihood:{folder}", judge=JudgeSettings(likelihood=kind))
            auto = AutoModelForCausalLM
        self.stock = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    def truth(self, query, read):
        """The sum of every sentence, as transformers' offsets have its tokens in the rendering."""
        prompt, tools = list(query.prompt), [*query.tools] or None
        opening = self._render(prompt, tools, add_generation_prompt=True)
        texts = [self._render([*prompt, *response], tools) for response in query.responses]
        assert all(text.startswith(opening) for text in texts)
        read_texts = [
            self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True) for text in texts
        ]
        wholes, offsets = ([one[name] for one in read_texts] for name in ("input_ids", "offset_mapping"))
        begins = [sum(low < len(opening) for low, _ in own) for own in offsets]
        products = by_autograd(self.stock, wholes, begins, read)
        start = opening.index(TEXT.strip())
        return [
            sum(
                float(value)
                for value, (low, high) in zip(products, offsets[0], strict=False)
                if low < start + span.end and high > start + span.start
            )
            for span in self.spans(query)
        ]

    def _render(self, messages, tools, **how):
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **how)

    def spans(self, query):
        return [span for span in context_sentences(query) if span.message == 1]

    def found(self, query):
        return self.model.span_gradients(query, self.spans(query))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    made = {}

    def make(kind, template):
        if (kind, template) not in made:
            made[kind, template] = Case(tmp_path_factory.mktemp("model") / "tiny", kind, template)
        return made[kind, template]

    return make


def apart(found, truth):
    return max(abs(one - other) / other for one, other in zip(found, truth, strict=True))


@pytest.mark.parametrize(("kind", "other"), [("sum", "mean"), ("mean", "sum")])
def test_a_likelihood_is_that_of_plain_autograd_as_the_settings_reduce_it(case, kind, other):
    query, one = replace(ASKED, tools=()), case(kind, "hermes")
    found = one.found(query)
    assert len(found) == 4
    assert apart(found, one.truth(query, READ[kind])) < TOLERANCE
    swapped = replace(query, responses=query.responses[::-1])
    assert one.found(swapped) == pytest.approx(found, rel=TOLERANCE), "signs are dropped"
    assert apart(found, one.truth(query, READ[other])) > 100 * TOLERANCE, "the control: the other mean"

    def without_what_closes(logits, ids, begin):
        return READ[kind](logits[:-1], ids[:-1], begin)

    assert apart(found, one.truth(query, without_what_closes)) > 100 * TOLERANCE, "the control"


def test_a_likelihood_against_a_reference_has_no_gradient(case, tmp_path):
    make_model(tmp_path / "model", tokenizer=pair_of_tokenizers(WRITTEN_HERE["hermes"])[0])
    model = longrm.load(f"likelihood:{tmp_path}/model#{tmp_path}/model")
    assert model.span_gradients(ASKED, context_sentences(ASKED)) is None


@pytest.mark.parametrize("template", ["hermes", "mistral"])
@pytest.mark.parametrize("kind", ["scalar", "sum"])
def test_spans_lie_in_the_rendering_with_tools(case, kind, template, monkeypatch):
    one = case(kind, template)
    found, truth = one.found(ASKED), one.truth(ASKED, READ[kind])
    assert apart(found, truth) < TOLERANCE
    assert apart(one.found(replace(ASKED, tools=())), truth) > 100 * TOLERANCE, "tools are read"
    real = span_gradients.span_tokens
    monkeypatch.setattr(span_gradients, "span_tokens", lambda *given: real(*given[:3]))
    assert apart(one.found(ASKED), truth) > 100 * TOLERANCE, "the control: sought where no tools are"


def test_what_trajectories_do_not_share_has_no_gradient(case):
    """One template writes the tools before the user's last turn: in the prompt, or behind it."""
    query = replace(ASKED, responses=(CONTINUED, PLAIN))
    with pytest.raises(DataError, match="share the first [0-9]+ tokens of the prompt") as told:
        case("scalar", "mistral").found(query)
    assert "\n" not in str(told.value)
    one = case("scalar", "hermes")
    assert apart(one.found(query), one.truth(query, score)) < TOLERANCE, "the control: tools come first"
