"""Writes `docs/coming_from_trl.md` from TRL's config classes and our settings; `--check` fails if it is out of date."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trl import DPOConfig, GRPOConfig, RewardConfig

from longrm.config import Config, groups_of, keys_of
from longrm.training.losses import LOSSES
from longrm.training.other_names import OTHER_NAMES
from longrm.training.settings import TrainingSettings, default_losses

PAGE = Path(__file__).with_name("coming_from_trl.md")
CONFIGS = {"RewardConfig": RewardConfig, "DPOConfig": DPOConfig, "GRPOConfig": GRPOConfig}
INTRODUCTION = """# Coming from TRL

## Keep your script

One line makes any trainer of TRL encode a prompt once for all of its responses:

```python
import longrm
from trl import RewardConfig, RewardTrainer

longrm.share_prefixes(model)  # the one line

args = RewardConfig("runs/trl", learning_rate=1e-5, max_steps=100, max_length=None)
trainer = RewardTrainer(model=model, processing_class=tokenizer, args=args, train_dataset=data)
trainer.train()
```

[Shared prefixes](shared_prefix.md) describes what is shared, and how to choose the batch.

## Or let longrm train

Instead, longrm trains from the same model and rows. It resumes after a kill, accepts rows of any
length, and saves a model card:

```python
import longrm

run = longrm.train(
    "bradley-terry",
    model=model,
    tokenizer=tokenizer,
    data=data,
    out="runs/longrm",
    learning_rate=1e-5,
    max_steps=100,
    per_step=8,
)
print(run.steps.loss)
print(longrm.load(run.model).score(data[0]["prompt"], ["one response", "another"]))
```

`model` and `data` are the objects of the script above before its training, or paths. Losses of
conversational rows are TRL's; prompts and responses that are texts get the chat template here, where
TRL trains on them as they are. A model in memory stays untrained: it is first copied to
`runs/longrm/initial_model`, and `run.model` is the trained one. Merge PEFT's adapters first.

Instead of `RewardTrainer` write
"bradley-terry"; of `SFTTrainer` "sft"; of `DPOTrainer` and `CPOTrainer` "preference" with
`loss_type="dpo"` or `"simpo"`; of `GRPOTrainer`, to train a judge for its verdicts, "grpo"; of
`PRMTrainer` in older versions of TRL "prm", with the same rows: there a token classifier has two
labels, here one score is read after each step. A policy is trained by TRL, with
[longrm as its reward](rewards.md). There is no `TrainerCallback`:
`callbacks` are functions of a step and its metrics, and one that returns True ends the training.

## Arguments

All arguments of `RewardConfig`, `DPOConfig` and `GRPOConfig` of the installed TRL (docs/trl_page.py
writes these tables). The hints are also in the errors for these names.
"""


def fields() -> dict[str, dict[str, dataclasses.Field]]:  # type: ignore[type-arg]
    """Every argument, with the classes that have it."""
    found: dict[str, dict[str, dataclasses.Field]] = {}  # type: ignore[type-arg]
    for name, config in CONFIGS.items():
        for field in dataclasses.fields(config):
            found.setdefault(field.name, {})[name] = field
    return found


def default_of(group: type[Config], key: str) -> object:
    """The default of a setting by its dotted key."""
    name, _, rest = key.partition(".")
    field = group.model_fields[name]
    return default_of(next(groups_of(field.annotation)), rest) if rest else field.default


def shown(values: Iterable[object]) -> str:
    """Defaults, each once. None and empty ones are not shown, nor those of a factory."""
    kept = [value for value in values if value is not dataclasses.MISSING and value not in (None, (), {})]
    return ", ".join(dict.fromkeys(f"`{getattr(value, 'value', value)}`" for value in kept))


def same_names() -> Iterator[str]:
    """The rows of the arguments with the same name, and their defaults."""
    keys = set(keys_of(TrainingSettings))
    for name, owners in fields().items():
        if (key := TrainingSettings.dotted(name)) not in keys:
            continue
        ours = [default_of(TrainingSettings, key)]
        if name == "loss_type":
            ours = [*default_losses().values()]
        elif key.startswith("loss."):
            ours = [loss.options.get(name) for loss in LOSSES.values()]
        theirs = shown(field.default for field in owners.values())
        yield f"| `{name}` | `{key}` | {theirs} | {shown(ours)} |"


def others() -> Iterator[str]:
    """The rows of the other arguments, grouped by the alternative."""
    rows: dict[str, list[str]] = {}
    for name in fields():
        if name in OTHER_NAMES:
            rows.setdefault(OTHER_NAMES[name], []).append(f"`{name}`")
    for target, names in rows.items():
        yield f"| {', '.join(names)} | {target if ' ' in target else f'`{target}`'} |"


def main() -> None:
    page = "\n".join(
        [
            INTRODUCTION,
            "### The same name\n",
            "| argument | here | default in TRL | here |",
            "|---|---|---|---|",
            *same_names(),
            "\nDefaults that differ have their reason in the [settings](cli.md#settings-of-longrm-train).\n",
            "### Another name, or none\n",
            "| arguments | here |",
            "|---|---|",
            *others(),
            "",
        ]
    )
    if "--check" not in sys.argv:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/coming_from_trl.md is out of date: run `make docs` and commit it")


if __name__ == "__main__":
    main()
