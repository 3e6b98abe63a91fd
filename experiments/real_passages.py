"""Do reward models use the passages that people's preferences are about? QA-Feedback on real models.

A quarter of the questions is held out. `score` records a model's scores of their four answers after the question's own
passages, those of another question, none, and the own ones among others up to some length; --seen scores answers of
the other three quarters, which an untrained model may be judged on as well. `train` trains an arm:

- `head`: a scalar head by Bradley-Terry, on questions with their own passages;
- `likelihood`: the same pairs by SimPO, so that the log-probability of an answer is its score;
- `control`, `long`: from `head` or `likelihood` (--start), the same questions and as many tokens; in `long` the
  passages are among others, each question at one length.

`marks` records how the score of answer 1 changes without each of its sentences; people marked errors in that answer.
`table` computes every number from the recorded scores and the data set, without longrm. A killed training continues.
"""

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

DATA = Path("../shared/data/qa-feedback/dev_feedback.json")
RESULTS = Path(__file__).parent / "results" / "real_passages.jsonl"
PAIRS = tuple(combinations(range(4), 2))
HELD_OUT = 4  # one question of so many, by a hash
CHECKS = ("own", "other", "none")
LONG = (2048, 4096)  # tokens of the prompts of the arm `long`
Item = dict[str, Any]


def questions(file: Path) -> tuple[list[Item], list[Item]]:
    """The questions with passages and a preference, to train on and held out; both in an order by hash."""
    items = [item for item in json.loads(file.read_text()) if item["passages"] and any(item["preference"])]
    digests = [hashlib.sha256(item["question"].encode()).hexdigest() for item in items]
    ordered = [item for _, item in sorted(zip(digests, items, strict=True), key=lambda pair: pair[0])]
    held_out = len(ordered) // HELD_OUT
    return ordered[held_out:], ordered[:held_out]


def answers(item: Item) -> list[str]:
    return [item[f"prediction {number}"] for number in range(1, 5)]


def passages(item: Item) -> list[str]:
    """Each passage below its title, which the first sentence of an article repeats."""
    return [
        f"{title}\n" + " ".join(sentences).removeprefix(f"{title}\n\n")
        for title, *sentences in item["passages"]
    ]


def prompt(item: Item, texts: Sequence[str]) -> str:
    """As the benchmark `qa-feedback` writes it."""
    if not texts:
        return str(item["question"])
    joined = "\n\n".join(texts)
    question = f"Answer the question from these passages.\n\n{item['question']}"
    return f"Here are passages from Wikipedia.\n\n{joined}\n\n{question}"


def among_others(item: Item, others: Sequence[Item], length: int, tokenizer: Any, seed: int) -> str:
    """A prompt of at most `length` tokens: the question's passages and those of others, of other titles, shuffled."""
    digest = hashlib.sha256(f"{seed} {length} {item['question']}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8]))
    own, titles = passages(item), {passage[0] for passage in item["passages"]}
    foreign = [
        text
        for other in others
        for passage, text in zip(other["passages"], passages(other), strict=True)
        if passage[0] not in titles
    ]
    foreign = list(dict.fromkeys(foreign))
    rng.shuffle(foreign)
    texts, size = list(own), len(tokenizer.encode(prompt(item, own)))
    for text in foreign:
        more = len(tokenizer.encode(f"\n\n{text}"))
        if size + more <= length:
            texts.append(text)
            size += more
    rng.shuffle(texts)
    return prompt(item, texts)


def prompts(items: list[Item], condition: str, tokenizer: Any) -> Iterator[str]:
    half = len(items) // 2
    for item, other in zip(items, items[half:] + items[:half], strict=True):
        match condition:
            case "own":
                yield prompt(item, passages(item))
            case "other":
                yield prompt(item, passages(other))
            case "none":
                yield prompt(item, ())
            case _:
                yield among_others(item, items, int(condition), tokenizer, -1)


def record(options: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Adds a result; one of the same arm, seed and condition is replaced."""
    from recording import circumstances

    key = ("arm", "seed", "condition", "part")
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    kept = [line for line in lines if any(json.loads(line)[name] != facts[name] for name in key)]
    text = json.dumps(facts | circumstances(options))
    options.results.write_text("".join(f"{line}\n" for line in [*kept, text]))


def written(tokenizer: Any, item: Item) -> list[int]:
    """The tokens of each answer with those that close its turn, over which likelihoods are sums."""
    from longrm.data.joining import encode

    asked = ({"role": "user", "content": item["question"]},)
    replies = tuple(({"role": "assistant", "content": answer},) for answer in answers(item))
    encoded = encode(tokenizer, asked, replies, (), completion_tokens=True)
    return [len(places) for places in encoded.completion_tokens]


def score(options: argparse.Namespace) -> None:
    """Records the scores of the answers under some conditions."""
    import torch
    from recording import precision

    import longrm
    from longrm.worlds.words_tokenizer import load_tokenizer

    torch.set_num_threads(options.threads)
    seen, held_out = questions(options.data)
    part, items = ("seen", seen[: options.seen]) if options.seen else ("held-out", held_out)
    tokenizer = load_tokenizer(options.model.removeprefix("likelihood:"))
    model = longrm.load(options.model, model_args={"dtype": options.dtype or precision()})
    for condition in options.conditions:
        rows = [
            {"id": str(number), "prompt": text, "responses": answers(item)}
            for number, (text, item) in enumerate(
                zip(prompts(items, condition, tokenizer), items, strict=True)
            )
        ]
        scores = [[round(float(one), 4) for one in own] for own in longrm.score(model, rows)["scores"]]
        facts = {
            "arm": options.arm,
            "seed": options.seed,
            "condition": condition,
            "part": part,
            "scores": scores,
        }
        if options.model.startswith("likelihood:"):
            facts["tokens"] = [written(tokenizer, item) for item in items]
        record(options, facts)
        for name, own in judged(facts).items():
            show(f"{name}: {condition}, seed {options.seed}", estimate(right(own, items)))


def sentences(text: str) -> list[tuple[int, int]]:
    """Where the sentences of an answer begin and end."""
    ends = [match.end() for match in re.finditer(r"[.!?][\"')\]]*\s+(?=[A-Z0-9\"'(])", text)]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))


def marks(options: argparse.Namespace) -> None:
    """Records, for every sentence of the held-out answers 1, the score without it less the score with it."""
    import torch
    from recording import precision

    import longrm

    torch.set_num_threads(options.threads)
    _, held_out = questions(options.data)
    model_args = {"dtype": options.dtype or precision(), "likelihood": "mean"}
    model = longrm.load(options.model, model_args=model_args)
    rows = []
    for number, item in enumerate(held_out):
        whole = item["prediction 1"]
        without = [(whole[:start] + whole[end:]).strip() for start, end in sentences(whole)]
        text = prompt(item, passages(item))
        if len(without) > 1:
            rows.append({"id": str(number), "prompt": text, "responses": [whole, *without]})
    effects = {
        str(row["id"]): [round(float(one - own[0]), 4) for one in own[1:]]
        for row, own in zip(rows, longrm.score(model, rows)["scores"], strict=True)
    }
    record(
        options,
        {
            "arm": options.arm,
            "seed": options.seed,
            "condition": "marks",
            "part": "held-out",
            "effects": effects,
        },
    )
    show(f"{options.arm}: AUC of marked sentences", auc(*marked(effects, held_out)))


def marked(effects: dict[str, list[float]], items: list[Item]) -> tuple[list[list[bool]], list[list[float]]]:
    """For the sentences of every answer: whether most of it is marked as an error, and its effect."""
    labels = []
    for number in effects:
        item = items[int(number)]
        spans = {at for error in item["feedback"]["errors"] for at in range(error["start"], error["end"])}
        labels.append(
            [
                2 * len(spans.intersection(range(start, end))) > end - start
                for start, end in sentences(item["prediction 1"])
            ]
        )
    return labels, list(effects.values())


def auc(
    labels: list[list[bool]], effects: list[list[float]], resamples: int = 2_000
) -> tuple[float, float, float]:
    """The probability that a marked sentence has a larger effect than another one, with its 95% interval."""

    def area(chosen: Iterable[int]) -> float:
        truth, found = (np.concatenate([part[at] for at in chosen]) for part in (labels, effects))
        return float(roc_auc_score(truth, found))

    rng = np.random.default_rng(0)
    drawn = [area(rng.integers(len(labels), size=len(labels)).tolist()) for _ in range(resamples)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return area(range(len(labels))), float(low), float(high)


def ranks(item: Item) -> list[int]:
    """Ranks by pairs won less pairs lost. On the published questions they agree with every pair."""
    wins: Counter[int] = Counter()
    for (one, other), preferred in zip(PAIRS, item["preference"], strict=True):
        if preferred:
            winner, loser = (one, other) if preferred == 1 else (other, one)
            wins[winner] += 1
            wins[loser] -= 1
    return [1 + sum(wins[other] > wins[answer] for other in range(4)) for answer in range(4)]


def train_arm(options: argparse.Namespace) -> None:
    """Trains an arm in OUT/ARM-SEED."""
    import torch
    from recording import precision

    from longrm.training.settings import TrainingSettings
    from longrm.training.train import train
    from longrm.worlds.words_tokenizer import load_tokenizer

    torch.set_num_threads(options.threads)
    seen, _ = questions(options.data)
    tokenizer = load_tokenizer(options.model)
    rng = np.random.default_rng(options.seed)
    own = [prompt(item, passages(item)) for item in seen]
    texts = own
    if options.arm in ("control", "long"):
        chosen = [int(at) for at in rng.permutation(len(seen))[: options.questions]]
        long = [
            among_others(seen[at], seen, LONG[number % len(LONG)], tokenizer, options.seed)
            for number, at in enumerate(chosen)
        ]
        seen, own = [seen[at] for at in chosen], [own[at] for at in chosen]
        texts = long if options.arm == "long" else own
    rows = [
        {"id": str(number), "prompt": text, "responses": answers(item), "ranks": ranks(item)}
        for number, (text, item) in enumerate(zip(texts, seen, strict=True))
    ]

    def tokens(some: Sequence[str]) -> int:
        return sum(
            len(tokenizer.encode(text)) + sum(len(tokenizer.encode(answer)) for answer in answers(item))
            for text, item in zip(some, seen, strict=True)
        )

    # As many tokens for both arms: the questions of `control` are read several times.
    epochs = tokens(long) / tokens(own) if options.arm == "control" else options.epochs
    out = options.out / f"{options.arm}-{options.seed}"
    data = options.out / f"{options.arm}-{options.seed}.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    likelihood = options.likelihood or options.arm == "likelihood"
    changes = {
        "objective": "preference" if likelihood else "bradley_terry",
        **({"loss.loss_type": "simpo"} if likelihood else {}),
        "model.path": str(options.start or options.model),
        "model.bf16": precision() == "bfloat16",
        "model.compile": options.compile,
        "model.frozen_layers": options.frozen,
        "data.path": str(data),
        "data.per_step": options.per_step,
        "optimizer.learning_rate": options.learning_rate,
        "optimizer.max_steps": max(1, round(epochs * len(rows) / options.per_step)),
        "optimizer.lr_scheduler_type": "linear",
        "optimizer.warmup_steps": 0.1,
        "memory.max_tokens_per_microbatch": 6144,
        "checkpoint.save_steps": 10,
        "seed": options.seed,
    }
    train(TrainingSettings.resolve(None, changes), out)


def right(scores: list[list[float]], items: list[Item]) -> list[list[float]]:
    """For every pair with a preference, grouped by question: whether the preferred answer has the higher score."""
    grouped = []
    for own, item in zip(scores, items, strict=True):
        group = []
        for (one, other), preferred in zip(PAIRS, item["preference"], strict=True):
            if preferred:
                gap = (own[one] - own[other]) * (1 if preferred == 1 else -1)
                group.append(float(gap > 0) + 0.5 * (gap == 0))
        grouped.append(group)
    return grouped


def estimate(groups: list[list[float]], resamples: int = 10_000) -> tuple[float, float, float]:
    """The mean over pairs with its 95% interval, by the bootstrap over questions."""
    sums, sizes = (np.array([measure(group) for group in groups], float) for measure in (sum, len))
    drawn = np.random.default_rng(0).integers(len(groups), size=(resamples, len(groups)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return sums.sum() / sizes.sum(), float(low), float(high)


def words(text: str) -> set[str]:
    return set(text.lower().split())


def rules(items: list[Item]) -> dict[str, list[list[float]]]:
    """Scores by rules without a model: length, and the share of an answer's words that its passages have."""
    longest = [[float(len(answer)) for answer in answers(item)] for item in items]
    overlap = []
    for item in items:
        context = words(" ".join(passages(item)))
        overlap.append([len(words(answer) & context) / len(words(answer)) for answer in answers(item)])
    return {"longest": longest, "overlap": overlap}


def judged(line: dict[str, Any]) -> dict[str, list[list[float]]]:
    """The scores of a recorded line, by name: of likelihoods the mean and the sum over tokens."""
    if "tokens" not in line:
        return {line["arm"]: line["scores"]}
    pairs = zip(line["scores"], line["tokens"], strict=True)
    mean = [[one / count for one, count in zip(*pair, strict=True)] for pair in pairs]
    return {line["arm"]: mean, f"{line['arm']}, sum": line["scores"]}


def minus(one: list[list[float]], other: list[list[float]]) -> list[list[float]]:
    return [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(one, other, strict=True)]


def show(name: str, estimated: tuple[float, float, float]) -> None:
    value, low, high = (100 * one for one in estimated)
    print(f"{name:59} {value:6.1f} [{low:.1f}, {high:.1f}]")


def table(options: argparse.Namespace) -> None:
    """Prints accuracy in percent of every arm and condition, and what other passages cost."""
    seen, held_out = questions(options.data)
    lines = [json.loads(line) for line in options.results.read_text().splitlines()]
    scored = {
        (line["arm"], line["condition"], line["seed"], line["part"]): line
        for line in lines
        if "scores" in line
    }
    show_part([line for line in scored.values() if line["part"] == "held-out"], held_out)
    both: dict[int, list[dict[str, Any]]] = {}
    for (*key, part), line in scored.items():
        if part == "seen":
            own = scored[*key, "held-out"]
            joined = own | {name: own[name] + line[name] for name in ("scores", "tokens") if name in own}
            both.setdefault(len(joined["scores"]), []).append(joined)
    for number, joined_lines in both.items():
        show_part(joined_lines, [*held_out, *seen][:number])
    for line in lines:
        if "effects" in line:
            labels, effects = marked(line["effects"], held_out)
            texts = [held_out[int(number)]["prediction 1"] for number in line["effects"]]
            print(f"{sum(map(sum, labels))} of {sum(map(len, labels))} sentences are marked; AUC in percent")
            show(f"{line['arm']}, seed {line['seed']}", auc(labels, effects))
            show("later sentences", auc(labels, [[float(at) for at in range(len(own))] for own in labels]))
            lengths = [[float(end - start) for start, end in sentences(text)] for text in texts]
            show("longer sentences", auc(labels, lengths))


def show_part(lines: list[dict[str, Any]], items: list[Item]) -> None:
    """Prints the accuracies of recorded lines of some questions."""
    scores: dict[tuple[str, str], dict[int, list[list[float]]]] = {}
    for line in lines:
        for arm, own in judged(line).items():
            scores.setdefault((arm, line["condition"]), {})[line["seed"]] = own
    for arm, condition in [*scores]:
        if condition in ("other", "none") and (arm, "own") in scores:
            # How much the own passages raise a score over those of another question, or over none.
            scores[f"{arm}, own over {condition}", "own"] = {
                seed: minus(scores[arm, "own"][seed], before)
                for seed, before in scores[arm, condition].items()
            }
    correct = {key: {seed: right(own, items) for seed, own in seeds.items()} for key, seeds in scores.items()}

    def pooled(key: tuple[str, str], seeds: Iterable[int]) -> list[list[float]]:
        """The means over seeds, for every pair."""
        found = [correct[key][seed] for seed in seeds]
        return [
            [float(np.mean(pair)) for pair in zip(*group, strict=True)] for group in zip(*found, strict=True)
        ]

    def show_difference(name: str, one: tuple[str, str], other: tuple[str, str]) -> None:
        """Over the seeds that both have, and by seed."""
        both = sorted(correct[one].keys() & correct.get(other, {}).keys())
        if one != other and both:
            for seeds in dict.fromkeys([tuple(both), *((seed,) for seed in both)]):
                difference = minus(pooled(one, seeds), pooled(other, seeds))
                show(f"{name}, seeds {[*seeds]}", estimate(difference))

    baselines = {name: right(own, items) for name, own in rules(items).items()}
    print(len(items), "questions,", sum(map(len, baselines["overlap"])), "pairs")
    for name, groups in baselines.items():
        show(name, estimate(groups))
    for (arm, condition), seeds in correct.items():
        key, groups = (arm, condition), pooled((arm, condition), seeds)
        show(f"{arm}: {condition}, seeds {sorted(seeds)}", estimate(groups))
        for name in baselines if condition == "own" else ():
            show(f"{arm}: own - {name}", estimate(minus(groups, baselines[name])))
        if (arm, "own") in correct:
            show_difference(f"{arm}: own - {condition}", (arm, "own"), key)
        show_difference(f"{arm} - control: {condition}", key, (arm.replace("-long", "-control"), condition))
        mean, is_raised, _ = arm.replace(", sum", "").partition(", own over ")
        if is_raised:
            show_difference(f"{arm}: - mean", key, (mean, "own"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the data set (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="recorded scores (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    commands = parser.add_subparsers(required=True)
    own = commands.add_parser("score")
    own.add_argument("arm", help="name of the result")
    own.add_argument("--model", required=True, help="as for longrm evaluate --model")
    own.add_argument("--conditions", nargs="*", default=CHECKS, help="own, other, none, or tokens")
    own.add_argument("--dtype", help="by default bfloat16 where the processor is fast with it, else float32")
    own.add_argument("--seen", type=int, help="score the first so many of the questions that trainings read")
    own.set_defaults(run=score)
    own = commands.add_parser("marks")
    own.add_argument("arm", help="name of the result")
    own.add_argument("--model", required=True, help="as for longrm evaluate --model")
    own.add_argument("--dtype", help="by default bfloat16 where the processor is fast with it, else float32")
    own.set_defaults(run=marks)
    own = commands.add_parser("train")
    own.add_argument("arm", choices=["head", "likelihood", "control", "long"])
    own.add_argument("--model", type=Path, default=Path("runs/real-model"), help="whose tokenizer counts")
    own.add_argument("--start", type=Path, help="the model to continue from, by default the first")
    own.add_argument("--out", type=Path, required=True, help="folder of the runs")
    own.add_argument("--likelihood", action="store_true", help="SimPO in place of a scalar head")
    own.add_argument("--frozen", type=int, default=15, help="lower layers that are not trained")
    own.add_argument("--epochs", type=float, default=1)
    own.add_argument("--questions", type=int, default=96, help="of the arms control and long")
    own.add_argument("--per-step", type=int, default=8)
    own.add_argument("--learning-rate", type=float, default=1e-4)
    own.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    own.set_defaults(run=train_arm)
    commands.add_parser("table").set_defaults(run=table)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
