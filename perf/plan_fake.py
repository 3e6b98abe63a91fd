"""The peak of a training step on tensors without data (torch's FakeTensorMode), next to what `longrm plan` predicts.

Both are compared with the trainings that `plan_memory.py` has measured (`results/plan_memory_*.jsonl`). A fake step
runs the model, the loss, the backward pass and the optimizer of the real training twice, and follows every storage.

    python perf/plan_fake.py > perf/results/plan_fake.jsonl
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from measuring import circumstances
from plan_memory import make, recipe_of
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from longrm.modeling import attention_varlen
from longrm.modeling.attention import SHARED_PREFIX
from longrm.runs.progress import no_progress
from longrm.training.batches import Batches, Example
from longrm.training.initial_model import prepare_model
from longrm.training.objectives import OBJECTIVES
from longrm.training.plan.plan import plan_training
from longrm.training.settings import TrainingSettings
from longrm.training.sources import open_source
from longrm.training.train import make_optimizer
from longrm.worlds.words_tokenizer import load_tokenizer

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
from fake import Storages, _fill  # type: ignore[import-not-found]  # in the folder that the line above adds

RESULTS = Path(__file__).parent / "results"
LIMIT = 131_072
SMOLLM = {"layers": 30, "hidden": 576, "heads": 9, "kv_heads": 3, "intermediate": 1536, "vocabulary": 49152}
"""The sizes of the model that the set real trains."""

RENAMED = {
    "memory.checkpointing": "memory.gradient_checkpointing",
    "memory.tokens_per_forward": "memory.max_tokens_per_microbatch",
}


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with real tensors: attention reads the values of its bounds."""

    def run(*arguments: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments)

    return run


def fake_model(settings: TrainingSettings, kind: str) -> Any:
    """The model that a training starts from, on the meta device."""
    from longrm.modeling.adapters import adapt

    path = settings.model.path or ""
    config = AutoConfig.from_pretrained(path)
    config.num_labels = 1
    auto: Any = AutoModelForSequenceClassification if kind == "scorer" else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config, attn_implementation=SHARED_PREFIX, dtype=torch.float32)
        if lora := settings.model.lora:
            adapt(model, base=path, rank=lora.r, alpha=lora.lora_alpha, seed=0)
    holder: Any = SimpleNamespace(model=model)
    with patch("longrm.training.initial_model.resolve_device", lambda name: "meta"):
        prepare_model(holder, settings)
    return model


def micro_batches(settings: TrainingSettings, steps: int) -> tuple[Any, list[Any]]:
    """The objective of a training, and the function that draws the micro-batches of a step."""
    make_objective, rollouts = OBJECTIVES[settings.objective], settings.rollouts
    source = open_source(
        settings.data,
        load_tokenizer(settings.model.path or ""),
        settings.seed,
        kind=make_objective.reads,
        limit=LIMIT,
        reserved=rollouts.max_completion_length if rollouts else 0,
        progress=no_progress,
    )
    objective: Any = make_objective(settings.loss)
    examples: Any = source
    if rollouts is not None:
        count, most = rollouts.num_generations, rollouts.max_completion_length
        objective.rollouts = rollouts
        judgments = [(5,) * most] * count
        drawn = [[one.with_judgments(judgments) for one in source.batch(at, None)] for at in range(steps)]

        def batch(step: int, length: int | None) -> list[Example]:
            return drawn[step]

        examples = SimpleNamespace(batch=batch)
        group = SimpleNamespace(
            advantages=[1.0] * count, old_logprobs=[], reference_logprobs=[[0.0] * most] * count
        )
        objective.groups = {one.id: group for step in drawn for one in step}
    batches = Batches(examples, objective, budget=settings.memory.max_tokens_per_microbatch, limit=LIMIT)
    return objective, [lambda at=at: batches.prepare(at).micro_batches for at in range(steps)]


def fake_peak(settings: TrainingSettings, steps: int = 2) -> int:
    """Bytes of all tensors at once, at most, in some steps on a CPU."""
    objective, drawn = micro_batches(settings, steps)
    model = fake_model(settings, objective.trains)
    with ExitStack() as stack:
        stack.enter_context(patch("longrm.modeling.shared_prefix._at_ends", lambda scored, packed: True))
        for name in ("plan_calls", "_batches"):
            real = outside(getattr(attention_varlen, name))
            stack.enter_context(patch.object(attention_varlen, name, real))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        storages = stack.enter_context(Storages())
        _fill(model)
        model.tie_weights()
        start = None
        if settings.rollouts and settings.loss.options()["beta"] and not settings.model.lora:
            start = [torch.empty_like(weight) for weight in model.parameters()]
        optimizer = make_optimizer(model, settings.optimizer)
        model.train()
        for draw in drawn:
            for micro in draw():
                loss, _ = objective.loss(model, micro)
                (loss * micro.weight).backward()
                del loss
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.max_grad_norm)
            optimizer.step()
            model.zero_grad()
        del start
        return int(storages.peak["cpu"])


def measured() -> Iterator[dict[str, Any]]:
    """What `plan_memory.py` has measured."""
    for file in sorted(RESULTS.glob("plan_memory_*.jsonl")):
        yield from map(json.loads, file.read_text().splitlines())


def compare(line: dict[str, Any]) -> dict[str, Any]:
    """A training: what was measured, planned, and counted on a fake step."""
    text = line["settings"]
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    case = SMOLLM | line | {"settings": text}
    assignments = text.split()
    if "gradient_checkpointing" not in text:
        assignments.append("memory.gradient_checkpointing=false")
    with tempfile.TemporaryDirectory() as name:
        settings = recipe_of(make(case, Path(name)), assignments)
        memory = plan_training(settings, "cpu").memory
        planned = memory.total - memory.process  # measured growth is that of a running process
        began = time.process_time()
        fake = fake_peak(settings)
    took = time.process_time() - began
    names = ("set", "objective", "rows", "prompt", "response", "rejected", "measured_bytes")
    return {name: line[name] for name in names} | {
        "settings": text,
        "planned_bytes": round(planned),
        "fake_bytes": fake,
        "planned_over_measured": round(planned / line["measured_bytes"], 3),
        "fake_over_measured": round(fake / line["measured_bytes"], 3),
        "fake_cpu_seconds": round(took, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=int, help="number of the only measured training to compare, from 0")
    options = parser.parse_args()
    options.threads = 1
    lines = list(measured())
    found = []
    for line in lines if options.only is None else [lines[options.only]]:
        found.append(compare(line))
        print(json.dumps(found[-1] | circumstances(options)), flush=True)
    for name in ("planned", "fake"):
        ratios = [one[f"{name}_over_measured"] for one in found]
        worst = max(ratios, key=lambda ratio: abs(ratio - 1))
        print(f"{name}: median {statistics.median(ratios):.3f}, worst {worst}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
