"""Unmodified trainers of TRL with `longrm.share_prefixes(model)` and without it: time, memory, losses.

The arms alternate in one process, with the same weights, tokens and settings: `reward` (`RewardTrainer`, one pair of
responses of equal lengths), `reward-unequal` (the second is longer by --unequal), `dpo` (`DPOTrainer`, its reference
model shares, too), `grpo` (one update of `GRPOTrainer` on given rollouts, all G in one batch), `grpo-questions` (two
prompts that part in their last --question tokens, G / 2 rollouts of each in one batch), `grpo-hybrid` (`grpo` with a
small Qwen3.5, three of four layers Gated DeltaNet), and `grpo-step` (a step with sampling, which shares nothing). With
--model, one GRPO update of that model on prompts of 2,048 tokens.

On a CPU, TRL applies the vocabulary to all tokens of DPO and GRPO, and on a GPU only to those that the loss reads.
`speedup` is measured as on a GPU, but computed here; `speedup_all_logits` as on a CPU. `share` is the speedup over the
ideal, the ratio of FLOPs

    sum over rows of [c (P+R) + a (P+R)^2/2 + h R]
    ----------------------------------------------------------
    c (P + sum R) + a [P^2/2 + sum (R P + R^2/2)] + h sum R

with c, a and h the FLOPs per token, per pair of tokens and per row of logits (h = 0 for `reward`). It may be above one
where TRL pads: a padding mask keeps attention from its fast causal path. Tokens are those of all calls of a step, as
`longrm.shared_tokens` counts them; memory is the growth of the resident set in a fresh process. The script fails if
losses differ by more than 1e-4, or gradient norms of GRPO.

`--grouping` measures instead what finding the prefixes costs, and compares it with a step of a model of 2 layers.
"""

import argparse
import copy
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from grpo_update import group_advantages, ideals, old_logprobs
from measuring import (
    Arm,
    Workload,
    as_text,
    attention_flops_per_pair,
    circumstances,
    hand_over,
    hybrid_config,
    interleaved,
    linear_flops_per_token,
    make_workload,
    medians,
    model_arguments,
    peak_growth,
    peak_growth_in_fresh_process,
    rounded,
    show,
    timed,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

import longrm
from longrm.modeling import sharing
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.recurrent import pack_states
from longrm.modeling.shapes import TokenTree, TreeShape

AGREEMENT = 1e-4
CASES = ("reward", "reward-unequal", "dpo", "grpo", "grpo-questions", "grpo-hybrid", "grpo-step")
ARMS = ("plain", "shared")
QUICK = """
--prompts 160 --response 12 --generations 4 --unequal 4 --question 16 --repeats 1 --rows 4 --tokens 512 --step 256
--layers 1 --hidden 32 --heads 2 --kv-heads 2 --intermediate 48 --vocabulary 128
"""


def own_lengths(options: argparse.Namespace, case: str, response: int) -> list[int]:
    if case.startswith("grpo"):
        return [response] * options.generations
    return [response, response + (options.unequal if case == "reward-unequal" else 0)]


def workload(options: argparse.Namespace, case: str, prompt: int, response: int) -> Workload:
    lengths = own_lengths(options, case, response)
    if not options.model:
        work = make_workload(options, prompt, lengths, writes=not case.startswith("reward"))
        if case == "grpo-questions":
            tokens, own, half = work.tree.tokens, work.tree.branches, len(lengths) // 2
            begin, first = tokens[: -options.question], tokens[-options.question :]
            tree = TokenTree(begin, [TokenTree(first, own[:half]), TokenTree(first[::-1], own[half:])])
            return replace(work, tree=tree)
        if case == "grpo-hybrid":
            torch.manual_seed(0)
            stock = AutoModelForCausalLM.from_config(hybrid_config(options), attn_implementation="sdpa")
            ours = copy.deepcopy(stock)
            ours.set_attn_implementation(SHARED_PREFIX)
            pack_states(ours)
            return replace(work, stock=stock, ours=ours)
        return work
    torch.set_num_threads(options.threads)
    models = [
        AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation=kind)
        for kind in ("sdpa", SHARED_PREFIX)
    ]
    options.vocabulary = models[0].config.vocab_size
    draw = torch.Generator().manual_seed(0)
    words = lambda n: torch.randint(2, 1000, (n,), generator=draw).tolist()  # noqa: E731 (a line's worth)
    return Workload(TokenTree(words(prompt), [words(n) for n in lengths]), *models)


def make_arm(
    options: argparse.Namespace, case: str, arm: str, work: Workload, old: list[list[float]] | None
) -> Arm:
    """One step, or one update: forward and backward."""
    # Importing TRL takes seconds.
    from trl_peer import make_grpo_peer, make_peer

    work.stock.train()
    if arm == "shared":
        longrm.share_prefixes(work.stock)
    count = len(work.tree.shape.leaves)
    if case == "grpo-step":
        return grpo_step(work)
    if case.startswith("grpo"):
        return make_grpo_peer(work, group_advantages(count), old, count)
    settings = argparse.Namespace(objective="dpo" if case == "dpo" else "bradley_terry")
    settings.vocabulary = options.vocabulary
    return make_peer(settings, work, 1, 0.1, 0.0)


def grpo_step(work: Workload) -> Arm:
    """One step of TRL's loop: it samples the completions, and computes loss and gradient."""
    import datasets
    from trl import GRPOConfig, GRPOTrainer
    from trl_peer import _common, _words

    count, (length, *_) = len(work.tree.branches), map(len, work.tree.branches)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=work.stock,
            reward_funcs=lambda completions, **_: [float(len(set(text.split()))) for text in completions],
            args=GRPOConfig(
                num_generations=count,
                max_completion_length=length,
                generation_kwargs={"min_new_tokens": length},
                gradient_accumulation_steps=1,
                **_common(scratch, count),
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": as_text(work.tree.tokens)}]),
            processing_class=_words(work.stock.config.vocab_size),
        )
    trainer.current_gradient_accumulation_steps = 1  # as its loop does
    (rows,) = trainer.get_train_dataloader()

    def arm() -> Tensor:
        torch.manual_seed(0)
        loss: Tensor = trainer.training_step(trainer.model, rows, None)
        trainer.model.zero_grad(set_to_none=True)
        return loss.detach()

    return arm


def as_on(device: str) -> Any:
    """Which logits TRL computes: see the module."""
    on_a_gpu = mock.patch("trl.trainer.utils._use_triton", return_value=True)
    return on_a_gpu if device == "gpu" else nullcontext()


def measure(options: argparse.Namespace, case: str, prompt: int) -> dict[str, Any]:
    """Times both arms of one case.

    Raises:
        SystemExit: The arms disagree about the loss or the norm of the gradient.
    """
    works = {arm: workload(options, case, prompt, options.response) for arm in ARMS}
    old = old_logprobs(works["plain"]) if case.startswith("grpo") and case != "grpo-step" else None
    arms = {arm: make_arm(options, case, arm, work, old) for arm, work in works.items()}
    computed: dict[str, Tensor] = {}

    def kept(arm: str) -> Arm:
        return lambda: computed.__setitem__(arm, arms[arm]().double())

    def run(device: str, repeats: int) -> dict[str, list[float]]:
        with as_on(device):
            return interleaved({arm: kept(arm) for arm in ARMS}, repeats)

    sampled = case == "grpo-step"
    repeats = 1 if sampled or options.model else options.repeats
    short = max(64, 2 * options.question)
    warm = {arm: make_arm(options, case, arm, workload(options, case, short, 8), None) for arm in ARMS}
    for arm in warm.values():
        arm()
    seconds = {"gpu": run("gpu", repeats)}
    model = works["shared"].stock
    tokens = longrm.shared_tokens(model)
    assert tokens.given, f"nothing was shared: {tokens.plain}"
    if not case.startswith("reward") and not sampled and not options.model:
        seconds["cpu"] = run("cpu", 1)
    apart = float((computed["shared"] / computed["plain"] - 1).abs().max())
    if not sampled and apart > AGREEMENT:
        raise SystemExit(f"{case}: the arms do not compute the same: {computed}")
    own = own_lengths(options, case, options.response)
    sizes = real_sizes(model.config, options) if options.model else options
    shape = argparse.Namespace(**{**vars(sizes), "prompt": prompt})
    if case.startswith("reward"):
        shape.vocabulary = 0
    found = {key: medians(values) for key, values in seconds.items()}
    speed = {key: values["plain"] / values["shared"] for key, values in found.items()}
    ideal = ideals(shape, own)["ideal"]
    if case == "grpo-questions":
        ideal = ideal_of(shape, works["plain"].tree)
    elif case == "grpo-hybrid":
        ideal = ideal_of(shape, works["plain"].tree, model)
    memory, kind = {}, "Qwen3.5, " if case == "grpo-hybrid" else ""
    if not sampled and prompt == max(options.prompts) and not options.model:
        memory = {
            arm: peak_growth_in_fresh_process(arm, "--cases", case, "--prompts", str(prompt)) for arm in ARMS
        }
    return {
        "case": case,
        "model": options.model
        or f"{kind}{model.config.num_hidden_layers} layers, hidden size {options.hidden}",
        **{name: getattr(options, name) for name in ("response", "generations", "unequal")},
        "prompt": prompt,
        "speedup": round(speed["gpu"], 3),
        **({"speedup_all_logits": round(speed["cpu"], 3)} if "cpu" in speed else {}),
        **({} if sampled else {"ideal": round(ideal, 3), "share": round(speed["gpu"] / ideal, 3)}),
        **({"loss_difference": apart} if not sampled else {}),
        "tokens_given": tokens.given // repeats,
        "tokens_computed": tokens.computed // repeats,
        "calls_not_shared": tokens.plain,
        "seconds": {key: rounded(values) for key, values in found.items()},
        **({"memory_ratio": round(memory["shared"] / memory["plain"], 3)} if memory else {}),
        "memory_bytes": memory,
        **circumstances(options),
    }


def ideal_of(options: argparse.Namespace, tree: TokenTree, hybrid: Any = None) -> float:
    """The ratio of FLOPs of any tree, but for recurrences."""
    c, a = linear_flops_per_token(options), attention_flops_per_pair(options)
    if hybrid is not None:
        c = sum(
            2 * part.weight.numel() for part in hybrid.model.modules() if isinstance(part, torch.nn.Linear)
        )
        a //= options.layers  # one layer has attention
    rows = 2.0 * options.hidden * options.vocabulary * options.response * len(tree.shape.leaves)
    together, separate = (
        rows + sum(c * one.tokens + a * one.pairs() for one in shapes)
        for shapes in ([tree.shape], [TreeShape(length) for length in tree.shape.leaves])
    )
    return separate / together


def real_sizes(config: Any, options: argparse.Namespace) -> argparse.Namespace:
    """The sizes of a model with the names of this script's options."""
    return argparse.Namespace(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


def grouping(options: argparse.Namespace) -> dict[str, Any]:
    """Time to find the prefixes of --rows rows of --tokens tokens, and of a step on them.

    Its seconds are those of a step on --step tokens a row, whose prompts are shared, too, times the ratio of FLOPs.
    """
    rows, length = options.rows, options.tokens
    ids = torch.randint(2, options.vocabulary, (rows, length))
    ids[:, :-128] = ids[0, :-128]  # one group, so that rows are compared to their ends
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    work = make_workload(options, options.step - 128, [128] * rows, writes=True)
    model = longrm.share_prefixes(work.stock)
    state = vars(model.base_model)[sharing._ATTRIBUTE]
    seconds = min(timed(lambda: sharing._plan(model.config, state, given)) for _ in range(5))
    batch = torch.tensor([[*work.tree.tokens, *own] for own in work.tree.branches])

    def step() -> None:
        model(input_ids=batch, use_cache=False, logits_to_keep=129).logits.mean().backward()

    step()
    measured = min(timed(step) for _ in range(options.repeats))
    c, a = linear_flops_per_token(options), attention_flops_per_pair(options)
    flops = [
        c * (n + rows * 128)
        + a * (n**2 / 2 + rows * 128 * (n + 64))
        + 2 * rows * 128 * options.hidden * options.vocabulary
        for n in (length - 128, options.step - 128)
    ]
    return {
        "case": "grouping",
        "rows": rows,
        "tokens": length,
        "seconds": round(seconds, 4),
        "step_seconds": round(measured * flops[0] / flops[1], 1),
        "step_measured_at": options.step,
        "step_measured_seconds": round(measured, 3),
        "share_of_step": seconds / (measured * flops[0] / flops[1]),
        **circumstances(options),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model_arguments(parser)
    parser.set_defaults(repeats=2, threads=1)
    parser.add_argument("--prompts", nargs="+", type=int, help="tokens (1024 4096 8192)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--generations", type=int, default=8, help="G of GRPO")
    parser.add_argument("--question", type=int, default=128, help="tokens in which two prompts part")
    parser.add_argument("--unequal", type=int, default=64, help="tokens by which one response is longer")
    parser.add_argument("--model", help="folder of a model: its GRPO update, and no other case")
    parser.add_argument(
        "--grouping", action="store_true", help="the cost of finding prefixes, and no other case"
    )
    parser.add_argument("--rows", type=int, default=16, help="rows of --grouping")
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens of a row of --grouping")
    parser.add_argument("--step", type=int, default=8192, help="tokens of a row of the step that is measured")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--memory-of", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options = parser.parse_args([*QUICK.split(), *sys.argv[1:]])
    options.prompts = options.prompts or ([2048] if options.model else [1024, 4096, 8192])
    if options.memory_of:
        case = options.cases[0]
        warm, arm = (
            make_arm(options, case, options.memory_of, workload(options, case, *sizes), None)
            for sizes in ((max(64, 2 * options.question), 8), (options.prompts[0], options.response))
        )
        with as_on("gpu"):
            hand_over(peak_growth(warm, arm))
        return 0
    if options.grouping:
        show(grouping(options), options.json)
        return 0
    if options.model:
        options.cases = ["grpo"]
    for case in options.cases:
        for prompt in options.prompts:
            show(measure(options, case, prompt), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
