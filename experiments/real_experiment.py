"""How far the judgment of a pretrained model of 135M parameters holds, and how training on longer contexts changes it.

Each command runs one arm, and continues where it stopped. An arm that trains starts from the model of its predecessor
and is then evaluated on the tasks and kinds of text of its training, on other kinds of text, and on other tasks.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from real_preferences import LONG, SHORT, write_inboxes, write_other_inboxes, write_pairs
from recording import circumstances, precision

from longrm.benchmarks import Probe, ProbeCell
from longrm.cli.terminal import progress
from longrm.errors import LongRMError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.reward_models import JudgeSettings, ModelSettings
from longrm.runs.progress import Progress
from longrm.training.evaluations import evaluator_of
from longrm.training.settings import TrainingSettings
from longrm.training.train import train

RECIPES = Path(__file__).parents[1] / "src/longrm/recipes/smollm2"
TASKS = ("many-facts", "latest-update")
BALANCED_TASKS = ("exchange", "joined-facts", "dated-update")  # which no rule without understanding answers
OTHER_TASKS = ("two-hops", "citation", "who-said-it", "instruction")
TEXTS, OTHER_TEXTS = ("minutes", "ledger", "mail", "chat"), ("code", "report")
UNTRAINED = ("trained", "whole_window")
"""Probes of the ways of judging that nobody trained here."""
SEED = 1_000_000
"""Of the contexts that are judged; trainings draw from small numbers."""
SHORT_PAIRS = ("held-out", "other-prompt")
PREFERENCES = (*SHORT_PAIRS, "inbox", "other-inbox", "relevance")
"""Probes of the arms that learn real preferences: held-out pairs, alone, after another prompt, in inboxes (the shorter
ones also with the inbox and request of another pair); and the best responses to two messages of an inbox, one of which
is to be answered."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A training or a way of judging.

    Attributes:
        model: How the model is named to `longrm evaluate`, with its folder in place of {}.
        recipe: What is trained, if anything is.
        start: The arm whose model training starts from; none starts from the pretrained one.
        settings: Changes of the recipe.
        same_seed: Start from the model of the same seed; without it, all seeds start from that of seed 0.
        model_args: How the model is loaded, and what it reads.
        judge: How the model is asked.
        probes: What it is judged on.
    """

    model: str
    recipe: str | None = None
    start: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    same_seed: bool = False
    model_args: ModelSettings = field(default_factory=ModelSettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    probes: tuple[str, ...] = ("trained", "other_texts", "other_tasks")


ARMS: Mapping[str, Arm] = {
    "likelihood": Arm(
        "likelihood:{}", probes=("trained", "other_texts", "other_tasks", "whole_window", "balanced")
    ),
    "likelihood-mean": Arm(
        "likelihood:{}", model_args=ModelSettings(likelihood="mean", cut="middle"), probes=()
    ),
    "token-scores": Arm("tokens:{}", probes=UNTRAINED),
    "overlap": Arm("baseline:overlap", probes=("trained",)),
    "writing": Arm("{}", judge=JudgeSettings(max_tokens=64, retries=0), probes=UNTRAINED),
    "likelihood-short": Arm("likelihood:{}", "likelihood_short"),
    "likelihood-control": Arm("likelihood:{}", "likelihood_control", "likelihood-short"),
    "likelihood-long": Arm("likelihood:{}", "likelihood_long", "likelihood-short"),
    "likelihood-control-more": Arm(
        "likelihood:{}", "likelihood_control", "likelihood-control", same_seed=True
    ),
    "likelihood-long-more": Arm("likelihood:{}", "likelihood_long", "likelihood-long", same_seed=True),
    "preferences": Arm("{}", "preferences", probes=PREFERENCES),
    **{
        f"preferences-{rate}": Arm(
            "{}", "preferences", settings={"optimizer.learning_rate": float(rate)}, probes=PREFERENCES
        )
        for rate in ("3e-5", "3e-4")
    },
    "preferences-mlp": Arm(
        "{}",
        "preferences",
        settings={"model.head": "mlp", "optimizer.learning_rate": 3e-5},
        probes=SHORT_PAIRS,
    ),
    # Measured before the higher rate was known.
    **{
        f"preferences-{kind}": Arm(
            "{}", f"preferences_{kind}", "preferences-3e-5", probes=("held-out", "inbox", "other-inbox")
        )
        for kind in ("control", "long")
    },
    "scalar-short": Arm("{}", "scalar_short"),
    "scalar-control": Arm("{}", "scalar_control", "scalar-short"),
    "scalar-long": Arm("{}", "scalar_long", "scalar-short"),
    **{
        f"scalar-{kind}-more": Arm(
            "{}",
            f"scalar_{kind}",
            f"scalar-{kind}",
            settings={"optimizer.max_steps": 96, "optimizer.learning_rate": 1e-4},
            same_seed=True,
        )
        for kind in ("control", "long")
    },
}


def probes(contexts: int, seed: int) -> dict[str, Probe]:
    """The probes of every arm of a seed; other seeds have other contexts.

    A long context costs more than its questions, so that there are fewer of these with more questions each.

    Args:
        contexts: Long ones of every task and length that were trained; a third as many of what is held out.
        seed: Of the training.
    """

    def probe(
        worlds: tuple[str, ...],
        texts: tuple[str, ...],
        short: tuple[int, ...],
        long: tuple[int, ...],
        count: int,
    ) -> Probe:
        cells = (
            ProbeCell(worlds=worlds, lengths=short, groups=2 * count, per_group=8),
            ProbeCell(worlds=worlds, lengths=long, groups=count, per_group=16),
        )
        return Probe(seed=SEED + seed, texts=texts, cells=cells)

    few = max(1, contexts // 3)
    return {
        "trained": probe(TASKS, TEXTS, (256, 1024), (2048, 4096), contexts),
        "other_texts": probe(TASKS, OTHER_TEXTS, (256,), (4096,), few),
        "other_tasks": probe(OTHER_TASKS, TEXTS, (256,), (4096,), few),
        "whole_window": probe(TASKS, TEXTS, (128, 512), (8000,), few),
        "balanced": probe(BALANCED_TASKS, TEXTS, (256, 1024), (2048, 4096), contexts),
    }


def folder_of(options: argparse.Namespace, arm: str, seed: int) -> Path:
    return Path(options.out) / f"{arm}-{seed}"


def model_of(options: argparse.Namespace, arm: str | None, seed: int) -> Path:
    """The folder of an arm's model."""
    if arm is None or ARMS[arm].recipe is None:
        return Path(options.model)
    return folder_of(options, arm, seed) / "training" / "model"


def trained(options: argparse.Namespace, name: str, recipe: str, report: Progress) -> None:
    """Trains an arm."""
    if model_of(options, name, options.seed).exists():
        return
    start = ARMS[name].start
    begins = model_of(options, start, options.seed if ARMS[name].same_seed else 0)
    if not begins.exists():
        raise SystemExit(f"error: {begins} is not there: run the arm {start} first")
    file = RECIPES / f"{recipe}.toml"
    changes: dict[str, Any] = {
        "model.path": str(begins),
        "model.bf16": precision() == "bfloat16",
        "seed": options.seed,
        **ARMS[name].settings,
    }
    if name.startswith("preferences"):
        changes["data.path"] = str(preference_data(options, name, report))
        if start is None:
            held_out = Path(options.out) / "data" / "held-out.jsonl"
            changes["evaluation.settings.bench"] = f"file:{held_out.absolute()}"
    else:
        # Drawn apart: no two arms and no two seeds read the same contexts.
        arms = [key for key, arm in ARMS.items() if arm.recipe and not key.startswith("preferences")]
        changes["data.world.seed"] = 100 * options.seed + 10 * arms.index(name) + 10
    settings = TrainingSettings.resolve(file, changes)
    evaluator = evaluator_of(settings.evaluation, report) if settings.evaluation else None
    out = folder_of(options, name, options.seed) / "training"
    train(settings, out, progress=report, evaluator=evaluator)


def preference_data(options: argparse.Namespace, name: str, report: Progress) -> Path:
    """Writes the rows that an arm learns from, unless they exist."""
    folder = Path(options.out) / "data"
    write_pairs(options.rmb, options.model, folder)
    if ARMS[name].start is None:
        return folder / "train.jsonl"
    lengths = SHORT if name == "preferences-control" else LONG
    return write_inboxes(folder, "train", options.model, lengths, 640 // len(lengths), options.seed, report)


def judged(options: argparse.Namespace, name: str, report: Progress) -> None:
    """Judges all probes and prints a line for each; it replaces an earlier one in the file of results."""
    arm = ARMS[name]
    model = arm.model.format(model_of(options, name, options.seed))
    model_args = arm.model_args.model_dump()
    if not arm.model.startswith("baseline:"):
        model_args["dtype"] = precision()
    facts = circumstances(options)
    wanted = arm.probes if options.probes is None else options.probes
    benches: dict[str, dict[str, Any]] = {
        bench: {"bench": "probe", "probe": {**probe.model_dump(), "tokenizer": str(options.model)}}
        for bench, probe in probes(options.contexts, options.seed).items()
        if bench in wanted
    }
    if {*wanted} & {*PREFERENCES}:
        data = Path(options.out) / "data"
        write_pairs(options.rmb, options.model, data)
        files = {name: data / f"{name}.jsonl" for name in SHORT_PAIRS}

        def inboxes(pairs: Literal["preference", "relevance"], contexts: int) -> Path:
            number = contexts * options.contexts
            return write_inboxes(data, "held-out", options.model, LONG, number, SEED, report, pairs)

        if {"inbox", "other-inbox"} & {*wanted}:
            files["inbox"] = inboxes("preference", 20)
            files["other-inbox"] = write_other_inboxes(files["inbox"], data / "other-inbox.jsonl", LONG[:2])
        if "relevance" in wanted:
            files["relevance"] = inboxes("relevance", 8)
        benches |= {bench: {"bench": f"file:{file}"} for bench, file in files.items() if bench in wanted}
    benches |= {
        bench.partition(":")[0]: {"bench": bench, "source": {"limit": options.limit}}
        for bench in options.bench
    }
    for bench, what in benches.items():
        settings = Evaluation.model_validate(
            {"model": model, "model_args": model_args, "judge": arm.judge, **what}
        )
        began = time.process_time()
        summary = run_evaluation(
            settings, folder_of(options, name, options.seed) / bench, progress=report
        ).to_dict()
        result: dict[str, Any] = {
            "arm": name,
            "seed": options.seed,
            "probe": bench,
            "cpu_seconds": round(time.process_time() - began),
            "outcomes": summary["counts"]["outcomes"],
            "pair_accuracy": summary["metrics"]["overall"]["pair_accuracy"],
        }
        if what["bench"] in options.bench:
            of_tasks = summary["metrics"]["by_task"].items()
            result["by_task"] = {task: found["pair_accuracy"] for task, found in of_tasks}
            baselines = summary["baselines"].items()
            result["over_baselines"] = {name: found["difference"] for name, found in baselines}
            result |= {key: value for key, value in summary.items() if key.endswith("_rule")}
        elif bench not in SHORT_PAIRS:
            of_lengths = summary["metrics"]["by_length"].items()
            result["by_length"] = {length: found["pair_accuracy"] for length, found in of_lengths}
            result["boundary"] = summary["boundary"]
        result |= facts
        write_result(options.results, result)


def training_result(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What training an arm took, in seconds of its steps, and how it was judged meanwhile."""
    folder = folder_of(options, name, options.seed) / "training"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    timing = (folder / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "arm": name,
        "seed": options.seed,
        "probe": "training",
        **{key: summary[key] for key in ("steps", "tokens", "evaluations")},
        "seconds": round(sum(json.loads(line)["seconds"] for line in timing)),
        **circumstances(options),
    }


def write_result(file: Path | None, result: dict[str, Any]) -> None:
    """Prints a result and replaces an earlier one in a file, if one is given."""
    print(json.dumps(result), flush=True)
    if file is None:
        return
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    results = [json.loads(line) for line in lines]
    same = ("arm", "seed", "probe")
    kept = [line for line in results if any(line[key] != result[key] for key in same)]
    if "cpu_seconds" in result:  # a run that was resumed has those of its last part only
        earlier = (line["cpu_seconds"] for line in results if line not in kept)
        result = {**result, "cpu_seconds": max(result["cpu_seconds"], *earlier, 0)}
    file.write_text("".join(json.dumps(line) + "\n" for line in [*kept, result]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm", choices=list(ARMS), help="arm to train, if it has a recipe, and to judge")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the training and of the judged contexts (%(default)s)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=Path("runs/real-model"),
        help="folder that make real-model wrote (%(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/smollm2"), help="folder of all arms (%(default)s)"
    )
    parser.add_argument(
        "--contexts",
        type=int,
        default=6,
        help="long contexts per task and length (%(default)s)",
    )
    names = [*probes(1, 0), *PREFERENCES]
    parser.add_argument(
        "--probes", nargs="*", choices=names, help="judge only these probes; none if no name follows"
    )
    parser.add_argument(
        "--bench", nargs="*", default=[], metavar="NAME:PATH", help="benchmarks to judge as well"
    )
    parser.add_argument(
        "--limit", type=int, help="the most comparisons of each of these benchmarks (default: all)"
    )
    parser.add_argument(
        "--rmb", type=Path, default=Path("../shared/data/rmb"), help="a copy of RMB (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of torch (%(default)s)"
    )
    parser.add_argument("--results", type=Path, help="JSONL file to add the results to")
    options = parser.parse_args()
    if options.contexts < 1:
        parser.error("--contexts is 1 at least")
    if not options.model.exists():
        raise SystemExit(f"error: {options.model} is not there: make real-model")
    torch.set_num_threads(options.threads)
    arm = ARMS[options.arm]
    try:
        with progress() as report:
            if arm.recipe is not None:
                trained(options, options.arm, arm.recipe, report)
                write_result(options.results, training_result(options, options.arm))
            judged(options, options.arm, report)
    except LongRMError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
