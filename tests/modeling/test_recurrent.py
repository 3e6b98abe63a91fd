"""Recurrent layers over packed trees: equal to separate sequences by plain transformers, in every supported family.

The families compute parts in fp32 whatever the dtype of their weights (norms, decays, scans). For double precision
`float32` means `float64` meanwhile, in their code and in the heads.
"""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    Mamba2Config,
    MiniMaxConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    Zamba2Config,
    ZayaConfig,
)

from longrm.clients import Request
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.modeling import group_sampling, recurrent
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import checkpoint_activations
from longrm.modeling.group_sampling import Continuation, GroupSampler
from longrm.modeling.loading import load_language_model, load_scorer
from longrm.modeling.local_generator import LocalTextGenerator
from longrm.modeling.recurrent import LayerStates, NodeStates, pack_states
from longrm.modeling.sequence_parallel import share_sequences
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import hidden_states, pack, response_logprobs, scores
from tests.modeling.conftest import ROUNDING, SIZES, distance

HYBRID = SIZES | {"head_dim": 8, "num_hidden_layers": 3}
MIXED = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 1,
    "chunk_size": 16,
}
ZAMBA = {
    "layers_block_type": ["mamba", "hybrid", "mamba"],
    "mamba_d_state": 8,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "mamba_headdim": 8,
    "chunk_size": 16,
    "num_mem_blocks": 1,
    "adapter_rank": 4,
    "attention_head_dim": 16,
    "use_mem_rope": True,
}
FAMILIES: dict[str, Any] = {
    "qwen3.5": lambda: Qwen3_5TextConfig(**HYBRID, **MIXED, **DELTA),
    "qwen3-next": lambda: Qwen3NextConfig(
        **HYBRID, **MIXED, **DELTA, **EXPERTS, shared_expert_intermediate_size=16
    ),
    "olmo-hybrid": lambda: OlmoHybridConfig(**HYBRID, **MIXED, **DELTA),
    "bamba": lambda: BambaConfig(**HYBRID, **MAMBA, attn_layer_indices=[1]),
    "falcon-h1": lambda: FalconH1Config(**HYBRID, **MAMBA, mamba_d_ssm=64, lm_head_multiplier=0.5),
    "granite": lambda: GraniteMoeHybridConfig(
        **HYBRID, **MIXED, **MAMBA, num_local_experts=0, shared_intermediate_size=32, logits_scaling=2.0
    ),
    "nemotron-h": lambda: NemotronHConfig(**HYBRID | NEMOTRON),
    "zamba2": lambda: Zamba2Config(**HYBRID | ZAMBA),
    "lfm2": lambda: Lfm2Config(**HYBRID, layer_types=["conv", "full_attention", "conv"]),
}
WRITERS = FAMILIES | {  # a block of attention that is called twice
    "zamba2, twice": lambda: Zamba2Config(
        **HYBRID | ZAMBA | {"layers_block_type": ["hybrid", "mamba", "hybrid"]}
    )
}
DRAW = torch.Generator().manual_seed(5)


def ids(count: int) -> list[int]:
    return torch.randint(3, 97, (count,), generator=DRAW).tolist()


TREES = [
    TokenTree(ids(21), [ids(5), ids(18), ids(1), ids(16)]),
    # Three levels, a node of one token that branches, and a node with one branch.
    TokenTree(
        ids(6),
        [TokenTree(ids(1), [ids(3), ids(2)]), TokenTree(ids(17), [ids(4), TokenTree(ids(2), [ids(5)])])],
    ),
    TokenTree(ids(3), [ids(9)]),
    TokenTree(ids(1), [ids(4), ids(4)]),
]


def sequences(tree: TokenTree) -> list[tuple[list[int], int]]:
    """Every leaf's sequence, and how many of its tokens are the leaf's."""
    nodes = list(tree.nodes())
    found = []
    for number, (tokens, _) in enumerate(nodes):
        if all(parent != number for _, parent in nodes):
            whole, at = [], number
            while at >= 0:
                own, at = nodes[at]
                whole = [*own, *whole]
            found.append((whole, len(tokens)))
    return found


def make(family: str, auto: Any = AutoModelForCausalLM) -> Any:
    """A model of transformers whose states matter: with the decays of a new one hardly anything is remembered."""
    config = WRITERS[family]()
    config.num_labels = 1
    torch.manual_seed(0)
    model = auto.from_config(config, attn_implementation="sdpa").train()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):
                weight.sub_(weight.mean() + 1.0)
            elif weight.ndim == 1:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def packed(model: Any) -> Any:
    ours = copy.deepcopy(model)
    ours.set_attn_implementation(SHARED_PREFIX)
    pack_states(ours)
    return ours


def separate(model: Any) -> list[torch.Tensor]:
    """The log-probabilities of every leaf's tokens, or the score of every sequence, by transformers' own forward."""
    found = []
    for tree in TREES:
        for whole, own in sequences(tree):
            logits = model(input_ids=torch.tensor([whole]), use_cache=False).logits[0]
            if hasattr(model, "score"):
                found.append(logits)
            else:
                logprobs = logits[-own - 1 : -1].log_softmax(-1)
                found.append(logprobs.gather(1, torch.tensor(whole[-own:])[:, None])[:, 0])
    return found


def together(model: Any) -> list[torch.Tensor]:
    read = pack(TREES)
    return [*scores(model, read)[:, None]] if hasattr(model, "score") else response_logprobs(model, read)


def outcome(model: Any, values: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The values, and the gradients of a sum in which each has another weight."""
    found = torch.cat(values)
    model.zero_grad()
    (found * torch.linspace(-1, 1, len(found)).to(found)).sum().backward()
    return found.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def differences(one: Any, other: Any) -> tuple[float, float]:
    """The largest difference of values over the largest value, and that of gradients over their norm."""
    assert one[1].keys() == other[1].keys()
    pairs = [(one[1][name], other[1][name]) for name in one[1]]
    norm = torch.cat([left.flatten() for left, _ in pairs]).norm()
    change = torch.cat([(left - right).flatten() for left, right in pairs]).norm()
    return float((one[0] - other[0]).abs().max() / one[0].abs().max()), float(change / norm)


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("float", "float32"):
        monkeypatch.setattr(torch, name, torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    return


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_gradients_are_those_of_separate_sequences(family: str):
    model = make(family)
    ours = packed(model)
    expected = outcome(model, separate(model))
    values, gradients = differences(expected, outcome(ours, together(ours)))
    assert values < 1e-5
    assert gradients < 1e-5
    checkpoint_activations(ours, offload=False)
    # Two sequences at once: what is computed again has its own layout, not that of the last forward pass.
    found = together(ours)
    response_logprobs(ours, pack([TokenTree(ids(4), [ids(3), ids(2)])]))
    values, gradients = differences(expected, outcome(ours, found))
    assert values < 1e-5
    assert gradients < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("in_double")
def test_in_double_precision_to_1e_9(family: str):
    model = make(family).double()
    if family == "qwen3-next":
        model.set_experts_implementation("eager")  # the product of groups knows no double
    ours = packed(model)
    values, gradients = differences(outcome(model, separate(model)), outcome(ours, together(ours)))
    assert values < 1e-9
    assert gradients < 1e-9


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3-next", "zamba2"])
def test_scores_are_those_of_separate_sequences(family: str):
    model = make(family, AutoModelForSequenceClassification)
    ours = packed(model)
    values, gradients = differences(outcome(model, separate(model)), outcome(ours, together(ours)))
    assert values < 1e-5
    assert gradients < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_state_of_another_node_shows(family: str, monkeypatch: pytest.MonkeyPatch):
    ours = packed(make(family))
    right = torch.cat(together(ours))
    batches, place = recurrent.plan(pack(TREES).layout, torch.device("cpu"))
    plan = recurrent.plan

    def shifted(*_: Any, **__: Any) -> Any:  # the parent of another tree
        return [
            recurrent._Batch(b.nodes, [*b.parents[-1:], *b.parents[:-1]], b.branching, b.tokens)
            for b in batches
        ], place

    monkeypatch.setattr(recurrent, "plan", shifted)
    wrong = torch.cat(together(ours))
    assert float((wrong - right).abs().max() / right.abs().max()) > 1e-3
    monkeypatch.setattr(recurrent, "plan", plan)
    cat = NodeStates.cat

    def sibling(nodes: Any) -> NodeStates:  # one after the other
        states = cat(nodes)
        for kind in (states.conv, states.recurrent):
            for key, state in kind.items():
                kind[key] = state + 0.1 * state.roll(1, -1)
        return states

    monkeypatch.setattr(NodeStates, "cat", sibling)
    wrong = torch.cat(together(ours))
    assert float((wrong - right).abs().max() / right.abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (JambaConfig(**HYBRID, attn_layer_period=2, attn_layer_offset=1), "JambaMambaMixer"),
        (MiniMaxConfig(**HYBRID), "linear_attention"),
        (RecurrentGemmaConfig(**HYBRID), "RecurrentGemmaRecurrentBlock"),
        (ZayaConfig(**HYBRID), "Zaya"),
        (Mamba2Config(vocab_size=97, hidden_size=32, num_heads=8, head_dim=8), "state-space"),
    ],
)
def test_states_that_cannot_be_continued_are_refused(
    config: Any, line: str, tokenizer: Tokenizer, tmp_path: Path
):
    tokenizer.save(tmp_path)
    config.save_pretrained(tmp_path)  # weights are never reached
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelError, match=line):
        load_language_model(tmp_path, packed=True)


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    model = make("qwen3.5")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_loaded_model_writes_what_transformers_writes_also_in_training(folder: Path):
    requests = [
        Request(({"role": "user", "content": f"w1 w2 w{number} w4"},), max_tokens=12) for number in range(3)
    ]
    plain = AutoModelForCausalLM.from_pretrained(folder)
    for loaded in (load_language_model(folder), load_language_model(folder, packed=True)):
        before = loaded.model.config._attn_implementation
        answers = LocalTextGenerator(loaded, "m").generate(requests)
        assert loaded.model.config._attn_implementation == before
        for request, answer in zip(requests, answers, strict=True):
            prompt = torch.tensor([loaded.tokenizer.generation_ids(request.messages)])
            written = plain.generate(prompt, do_sample=False, max_new_tokens=12, pad_token_id=0)[
                0, prompt.shape[1] :
            ]
            assert answer.text == loaded.tokenizer.decode(written.tolist(), special=False)
    assert torch.cat(response_logprobs(loaded.model, pack(TREES))).isfinite().all()  # packed, as before


@torch.no_grad()
def test_the_text_part_of_a_multimodal_model_is_loaded(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    whole = Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=FAMILIES["qwen3.5"]().to_dict(), vision_config=vision)
    )
    text = load_language_model(folder, packed=True).model
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path / "whole")
    tokenizer.save(tmp_path / "whole")
    found = load_language_model(tmp_path / "whole", packed=True).model
    assert "text part" in caplog.text
    expected = torch.cat(response_logprobs(text, pack(TREES)))
    assert distance(torch.cat(response_logprobs(found, pack(TREES))), expected) < ROUNDING
    scorer = load_scorer(tmp_path / "whole", head_seed=0).model
    states = hidden_states(text, pack(TREES))
    assert distance(hidden_states(scorer, pack(TREES)), states) < ROUNDING * float(states.abs().max())


DOCUMENT = ids(45)
QUESTION = ids(10)
PROMPTS = [
    ids(1),
    ids(16),
    ids(17),
    DOCUMENT,
    [*DOCUMENT, *ids(9)],
    [*DOCUMENT, *QUESTION, *ids(3)],
    [*DOCUMENT, *QUESTION, *ids(4)],
    [*DOCUMENT[:20], *ids(30)],
    [*DOCUMENT[:32], *ids(2)],
    [*DOCUMENT[:44], 96, *ids(60)],
]


def greedy(model: Any, prompt: list[int], most: int = 12) -> tuple[int, ...]:
    """The continuation that transformers' own generation writes."""
    given = torch.tensor([prompt])
    mask = torch.ones_like(given)
    whole = model.generate(given, attention_mask=mask, do_sample=False, max_new_tokens=most)
    return tuple(whole[0, len(prompt) :].tolist())


def read_tokens(model: Any, sampler: GroupSampler, wanted: list[Continuation]) -> tuple[list[Any], int]:
    """The continuations, and how many tokens of prompts were read."""
    sizes: list[int] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    found = [sample.tokens for sample in sampler.write(wanted)]
    hook.remove()
    return found, sum(sizes) - sum(len(tokens) - 1 for tokens in found)


@pytest.mark.parametrize("family", WRITERS)
def test_greedy_continuations_are_those_of_transformers(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_sampling, "_BLOCK", 16)
    model = make(family).eval()
    ours = packed(model)
    expected = [greedy(model, prompt) for prompt in PROMPTS]
    assert len(set(expected)) == len(PROMPTS)
    wanted = [Continuation(prompt, 12) for prompt in PROMPTS]
    sampler = GroupSampler(ours, {2})
    found, read = read_tokens(ours, sampler, [*wanted, wanted[3]])
    assert found == [*expected, expected[3]]
    assert read == len({tuple(prompt[:end]) for prompt in PROMPTS for end in range(1, len(prompt) + 1)})
    # Over what the call before left behind: again, and one prompt after the other.
    found, again = read_tokens(ours, sampler, wanted[6:2:-1])
    assert found == expected[6:2:-1]
    assert again < 60, "the document of 45 tokens and the question of 10 are known"
    assert [sampler.write([one])[0].tokens for one in wanted] == expected
    # Those that end at different times.
    short = [Continuation(prompt, 1 + 5 * at % 12) for at, prompt in enumerate(PROMPTS)]
    assert [own.tokens for own in sampler.write(short)] == [
        own[: one.max_tokens] for own, one in zip(expected, short, strict=True)
    ]


@pytest.mark.parametrize("family", WRITERS)
@torch.no_grad()
def test_logprobs_at_sampling_are_those_of_packed_sequences(family: str, monkeypatch: pytest.MonkeyPatch):
    ours = packed(make(family)).eval()
    for mixer in recurrent.mixers(ours, ""):
        # Zamba 2 and Nemotron-H bound time steps from below, but not where transformers reads a single token.
        mixer.time_step_limit = (0.0, math.inf)
    seen: list[torch.Tensor] = []
    logits = group_sampling.next_logits
    monkeypatch.setattr(group_sampling, "_BLOCK", 16)
    monkeypatch.setattr(group_sampling, "next_logits", lambda *given: seen.append(logits(*given)) or seen[-1])

    def difference() -> float:
        seen.clear()
        wanted = [Continuation(PROMPTS[8], 6, seed, 1.0) for seed in range(4)]
        sampled = [sample.tokens for sample in GroupSampler(ours, ()).write(wanted)]
        rows = torch.stack([seen[-6].expand(4, -1), *seen[-5:]], 1).log_softmax(-1)  # [4, 6, vocabulary]
        found = rows.gather(2, torch.tensor(sampled)[:, :, None])[:, :, 0]
        return distance(found, torch.stack(response_logprobs(ours, pack([TokenTree(PROMPTS[8], sampled)]))))

    assert difference() < 5e-5
    carry = LayerStates.__call__

    def neighbor(states: LayerStates, compute: Any, layer: int, *rest: Any) -> Any:
        output = carry(states, compute, layer, *rest)
        rows = range(1 - len(states[layer]), 1)
        states[layer] = NodeStates.cat([states[layer].of_node(row % len(rows)) for row in rows])
        return output

    def left(states: LayerStates, compute: Any, layer: int, *rest: Any) -> Any:
        if len(states.get(layer, ())) > 1:  # only where continuations are written
            states = LayerStates({layer: NodeStates.cat([states[layer]])})
        return carry(states, compute, layer, *rest)

    for wrong in (neighbor, left):
        monkeypatch.setattr(LayerStates, "__call__", wrong)
        assert difference() > 100 * 5e-5


def test_what_knows_keys_alone_is_refused(folder: Path):
    model = load_language_model(folder, packed=True).model
    with pytest.raises(ModelError, match="sequence_parallel_size"):
        share_sequences(model, None)  # type: ignore[arg-type]
