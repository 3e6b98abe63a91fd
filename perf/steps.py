"""Scores after every step of a trajectory: `RewardModel.judge` against transformers with SDPA.

`separate` reads a sequence for every step. `cached` is transformers' best path, written by hand: one key-value cache,
of which the tokens that close a turn are cropped again. `ideal` is the ratio of operations of `separate`, attention
included.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from measuring import circumstances
from transformers import AutoModelForSequenceClassification, DynamicCache

import longrm
from longrm.data.joining import common_prefix, encode_steps
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape, build_trees, seen_pairs
from longrm.types import Query, Trajectory
from longrm.worlds.vocabulary import VALUES
from longrm.worlds.words_tokenizer import words_tokenizer


def trajectory(tokens: int, steps: int, turn: int) -> Trajectory:
    """Turns of the assistant of `turn` words, each after a result; about so many tokens in all."""
    draw, result = random.Random(0), tokens // steps - turn
    made = []
    for _ in range(steps):
        texts = [" ".join(draw.choices(VALUES, k=count)) for count in (result, turn)]
        roles = ("user", "assistant")
        made.append(tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=True)))
    return Trajectory("one", "one", ({"role": "user", "content": VALUES[0]},), tuple(made))


def operations(shape: ModelShape, sequences: list[tuple[int, int]]) -> float:
    """Of so many tokens, each with so many pairs of a token and one that it sees."""
    layer = 4 * shape.hidden * shape.heads * shape.head_dim + 3 * shape.hidden * shape.intermediate
    return sum(tokens * 2 * layer + pairs * 4 * shape.heads * shape.head_dim for tokens, pairs in sequences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1024, 8192])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turn", type=int, default=60, help="words of a turn of the assistant")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = ModelShape(
        layers=2, hidden=256, heads=4, kv_heads=4, head_dim=64, intermediate=1024, max_positions=16_384
    )
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save(new_scorer(shape, words_tokenizer(), seed=0), folder)
        ours = longrm.load(str(folder))
        plain = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa").eval()
        assert isinstance(ours.tokenizer, Tokenizer)
        for tokens in options.tokens:
            query = trajectory(tokens, options.steps, options.turn).query()
            items = encode_steps(ours.tokenizer, query)
            sequences = [torch.tensor([[*item.prompt, *item.responses[0]]]) for item in items]
            (tree,) = build_trees(items)

            @torch.inference_mode()
            def separate(sequences: list[torch.Tensor] = sequences) -> list[float]:
                return [plain(ids).logits.item() for ids in sequences]

            @torch.inference_mode()
            def cached(sequences: list[torch.Tensor] = sequences) -> list[float]:
                cache, read, found = DynamicCache(), list[int](), list[float]()
                for ids in sequences:
                    own = ids[0].tolist()
                    kept = common_prefix(read, own)
                    if kept < len(read):
                        cache.crop(kept - len(read))  # negative: how many tokens to remove
                    found.append(plain(ids[:, kept:], past_key_values=cache, use_cache=True).logits.item())
                    read = own
                return found

            def together(query: Query = query) -> list[float]:
                return list(ours.judge([query])[0].scores)

            arms: dict[str, Callable[[], list[float]]] = {
                "together": together,
                "separate": separate,
                "cached": cached,
            }
            seconds: dict[str, list[float]] = {name: [] for name in arms}
            for _ in range(options.repeats):
                found = {}
                for name, arm in arms.items():
                    start = perf_counter()
                    found[name] = arm()
                    seconds[name].append(perf_counter() - start)
            truth = found["separate"]
            difference = max(abs(a - b) for of in found.values() for a, b in zip(of, truth, strict=True))
            assert difference < 1e-4, difference
            median = {name: sorted(of)[len(of) // 2] for name, of in seconds.items()}
            lengths = [ids.shape[1] for ids in sequences]
            ideal = operations(shape, [(n, seen_pairs(0, n, None)) for n in lengths]) / operations(
                shape, [(tree.size, tree.shape.pairs())]
            )
            result = {
                "tokens": lengths[-1],
                "steps": options.steps,
                "turn": options.turn,
                "speedup": round(median["separate"] / median["together"], 3),
                "speedup_cached": round(median["cached"] / median["together"], 3),
                "ideal": round(ideal, 3),
                "tokens_computed": {"together": tree.size, "separate": sum(lengths)},
                "score_difference": difference,
                "seconds": {name: [round(one, 4) for one in of] for name, of in seconds.items()},
                **circumstances(options),
            }
            print(
                json.dumps(result)
                if options.json
                else f"{lengths[-1]:,} tokens: {result['speedup']}x, ideal {ideal:.2f}"
            )


if __name__ == "__main__":
    main()
