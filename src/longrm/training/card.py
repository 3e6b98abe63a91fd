"""The model card: what a stranger must know before using a trained model, as the README.md of its folder."""

import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from longrm import hub
from longrm.config import to_toml
from longrm.data.tokenizing import Tokenizer
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.modeling.folders import ADAPTER
from longrm.modeling.loading import scored_at
from longrm.runs.folder import write_file
from longrm.training.settings import Training

CARD, FIGURE = "README.md", "results.png"

_PACKAGES = ("longrm", "torch", "transformers", "peft", "tokenizers")
_OBJECTIVES = {
    "sft": "imitation of judgments: the likelihood of their tokens",
    "logo": "preference between judgments: the chosen one against the mean of the rejected ones (LOGO)",
    "simpo": "preference between judgments: the chosen one against each rejected one (SimPO)",
    "dpo": "preference between judgments, relative to the model that training started from (DPO)",
    "bradley_terry": "a score for every response, by the Bradley-Terry loss over gold-ordered pairs",
    "hardest": "a score for every response, by the best response against the highest scored worse one",
    "mean_inside": "a score for every response, by the best response against the mean score of the worse ones",
    "plackett_luce": "a score for every response, by the Plackett-Luce likelihood of the whole ranking",
}
SCORES_RESPONSES = {"sft": False, "preference": False, "bradley_terry": True}
"""Whether what an objective trains scores responses; else it writes judgments."""

_COUNTS = {
    "read": "rows read",
    "used": "rows trained on",
    "bad": "left out: could not be read, or had no gold order",
    "tied": "left out: all responses tied",
    "too_long": "left out: longer than is read",
    "without_contrast": "chosen and rejected judgments give the same score",
    "margin": "with a margin between the scores",
    "probability": "with a probability of the gold order",
}


def write_card(
    folder: Path,
    recipe: Training,
    summary: Mapping[str, Any],
    *,
    evaluation: Mapping[str, Any] | None = None,
    figure: bytes | None = None,
    commit: str | None = None,
) -> None:
    """Writes the model card of a folder with a trained model, valid as a README of the Hub.

    Args:
        folder: A full model, or an adapter.
        recipe: The settings that it was trained with.
        summary: Of its training.
        evaluation: The summary of an evaluation of this very model.
        figure: Its results as a PNG, which is written beside the card.
        commit: Of the model that training started from, where that comes from the Hub.
    """
    settings = recipe.to_dict()
    base = _base(settings)
    adapter = (folder / ADAPTER).is_file()
    discriminative = SCORES_RESPONSES[settings["objective"]]
    sections = [
        _front(base, adapter=adapter, discriminative=discriminative),
        _opening(folder, settings, summary, base, commit),
        _usage(folder, base, commit, adapter=adapter, discriminative=discriminative),
        _results(evaluation, figure, rounded=settings["model"]["precision"] == "bfloat16" and not adapter),
        _data(settings, summary),
        _limits(folder, evaluation, discriminative=discriminative),
        _how(settings, summary),
    ]
    if figure is not None:
        write_file(folder / FIGURE, figure)
    write_file(folder / CARD, "\n\n".join(sections) + "\n")


def _base(settings: Mapping[str, Any]) -> str | None:
    """What training started from: a folder, or an id of the Hub without its revision."""
    path: str | None = settings["model"].get("path")
    named = None if path is None or Path(path).exists() else hub.split_revision(path)
    return path if named is None else named[0]


def _front(base: str | None, *, adapter: bool, discriminative: bool) -> str:
    """The YAML front matter; its strings are JSON, which is YAML."""
    tags = ["reward-model", "long-context", "longrm", *(["lora"] if adapter else [])]
    fields: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-classification" if discriminative else "text-generation",
        "tags": tags,
    }
    if base is not None and not Path(base).exists():  # the Hub takes its own ids only
        fields |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---"])


def _opening(
    folder: Path,
    settings: Mapping[str, Any],
    summary: Mapping[str, Any],
    base: str | None,
    commit: str | None,
) -> str:
    place = folder.resolve()
    name = place.parent.name if place.name == "model" else place.name
    start = f"`{base}`" if base is not None else "random weights"
    start += "" if commit is None else f" at commit `{commit}`"
    objective = _OBJECTIVES[settings.get("loss", {}).get("kind") or settings["objective"]]
    kind = "scores responses" if SCORES_RESPONSES[settings["objective"]] else "writes judgments"
    return (
        f"# {name}\n\n"
        f"A reward model that {kind} to prompts with long contexts, trained from {start} with "
        f"[longrm](https://arxiv.org/abs/2510.06915).\n\n"
        f"- Objective: {objective}\n"
        f"- Training: {summary['steps']:,} steps, {summary['tokens']:,} tokens; a prompt is counted once for all "
        "its responses" + _score_place(folder, discriminative=settings["objective"] == "bradley_terry")
    )


def _score_place(folder: Path, *, discriminative: bool) -> str:
    """At which token a score is read; nothing where the config of a base tells it, or there is no score."""
    if not discriminative or not (folder / "config.json").is_file():
        return ""
    return (
        f"\n- A score is read at {scored_at(_padding(folder), Tokenizer.load(folder))}, as transformers does"
    )


def _padding(folder: Path) -> int | None:
    padding: int | None = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("pad_token_id")
    return padding


def _usage(folder: Path, base: str | None, commit: str | None, *, adapter: bool, discriminative: bool) -> str:
    parts = ["## How to use it\n", "With longrm:\n", _code("python", _LONGRM)]
    if adapter:
        auto = "SequenceClassification" if discriminative else "CausalLM"
        revision = "" if commit is None else f', revision="{commit}"'
        parts += [
            "With PEFT, on its base:\n",
            _code(
                "python",
                _PEFT.format(auto=auto, base=base, revision=revision, labels=_LABELS[discriminative]),
            ),
        ]
        parts += [
            "As one model, which vLLM and SGLang serve:\n",
            _code("bash", "longrm merge . --out merged"),
        ]
        return "\n".join(parts)
    template = (folder / "chat_template.jinja").is_file()
    if discriminative:
        text = _TEMPLATED if template else _PLAIN
        parts += ["With transformers:\n", _code("python", _SCORES.format(text=text))]
        if _padding(folder) in Tokenizer.load(folder).closing_ids():
            parts += ["vLLM and SGLang read the very last token, and so give other scores."]
        else:
            parts += ["With vLLM or SGLang; the score is the raw logit:\n", _code("bash", _SERVE_SCORES)]
    else:
        parts += [
            "With vLLM or SGLang, then `longrm evaluate --model openai:URL#NAME`:\n",
            _code("bash", _SERVE),
        ]
    return "\n".join(parts)


def _results(evaluation: Mapping[str, Any] | None, figure: bytes | None, *, rounded: bool) -> str:
    lines = ["## Results by length\n"]
    if figure is not None:
        lines.append(f"![Accuracy by length]({FIGURE})\n")
    if evaluation is None:
        return "\n".join([*lines, "This model was not evaluated when the card was written."])
    lines += [
        f"On `{evaluation['bench']}`; {evaluation['counts']['comparisons']:,} comparisons. Pair accuracy with its 95% "
        f"interval; a coin has 0.5.{_ROUNDED if rounded else ''}\n",
        "| context tokens | pair accuracy | 95% interval | pairs | contexts |",
        "|---:|---:|:---:|---:|---:|",
    ]
    by_length = evaluation["metrics"]["by_length"]
    for length in sorted(by_length, key=int):
        lines.append(_row(f"{int(length):,}", by_length[length][PAIR_ACCURACY.name]))
    lines.append(_row("all", evaluation["metrics"]["overall"][PAIR_ACCURACY.name]))
    return "\n".join([*lines, *_boundary(evaluation.get("boundary")), *_unanswered(evaluation)])


def _row(name: str, metric: Mapping[str, Any]) -> str:
    if metric["value"] is None:
        return f"| {name} | | | 0 | 0 |"
    between = "" if metric["low"] is None else f"{metric['low']:.3f} to {metric['high']:.3f}"
    return f"| {name} | {metric['value']:.3f} | {between} | {metric['n']:,} | {metric['groups']:,} |"


def _boundary(boundary: Mapping[str, Any] | None) -> Iterator[str]:
    if boundary is None:
        return
    tau = f"{boundary['tau']:.2f}"
    reached, below = boundary["at_least"], boundary["below"]
    known = f"at least {tau} up to {reached:,} tokens" if reached is not None else ""
    match boundary["status"]:
        case "resolved" | "unresolved" | "below_range" | "beyond_range":
            known = known or f"not shown to reach {tau} anywhere"
            ends = f", and below it from {below:,} tokens on" if below is not None else ""
        case "rising" | "not_monotone":
            known = f"{known}, below it" if known else f"below {tau}"
            ends = f" at {below:,} tokens, and above it at a longer length"
        case unknown:
            raise ValueError(f"the status {unknown!r} of a boundary is not known")
    yield f"\nContext boundary ({boundary['status'].replace('_', ' ')}): accuracy is {known}{ends}."


def _unanswered(evaluation: Mapping[str, Any]) -> Iterator[str]:
    outcomes = evaluation["counts"]["outcomes"]
    other = {name: count for name, count in outcomes.items() if name != "answered" and count}
    if other:
        named = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in other.items())
        yield f"\nNot answered, and counted as wrong: {named}."


def _data(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    data = settings["data"]
    lines = ["## Data\n"]
    if "world" in data:
        lengths = ", ".join(f"{length:,}" for length in settings["curriculum"]["lengths"])
        lines.append(
            f"Generated while training: the world `{data['world']['name']}`, contexts of {lengths} tokens."
        )
        return "\n".join(lines)
    files = data.get("sources") or [data]
    lines += [f"- `{file.get('name') or file['path']}`{_weight(file)}" for file in files]
    lines += ["", "| rows | |", "|---:|:---|"]
    lines += [
        f"| {count:,} | {_COUNTS.get(name, name.replace('_', ' '))} |"
        for name, count in summary["data"].items()
        if count
    ]
    return "\n".join([*lines, "", "Nothing was cut."])


def _weight(file: Mapping[str, Any]) -> str:
    weight = file.get("weight", 1.0)
    return "" if weight == 1.0 else f", {weight:g} passes an epoch"


def _limits(folder: Path, evaluation: Mapping[str, Any] | None, *, discriminative: bool) -> str:
    lines = ["## Limits\n"]
    config = folder / "config.json"
    if config.is_file():
        reads = json.loads(config.read_text(encoding="utf-8"))["max_position_embeddings"]
        lines.append(f"- It reads up to {reads:,} tokens, prompt and response together.")
    if evaluation is None:
        lines.append("- How well it judges, and up to which length, was not measured.")
    else:
        lines.append(f"- What it is worth on other data than `{evaluation['bench']}` was not measured.")
    if discriminative:
        lines.append("- Scores order the responses to one prompt; those of two prompts are not comparable.")
    else:
        lines.append("- Read its verdict, not its explanation: the two may disagree.")
    return "\n".join([*lines, "- It inherits the biases of its base and of its data."])


def _how(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    figures = [f"loss {summary['loss']:.4f}"]
    if summary.get("accuracy") is not None:
        figures.append(f"accuracy {summary['accuracy']:.4f}")
    return "\n".join(
        [
            "## How it was made\n",
            f"Mean over the last {summary['window']} steps: {', '.join(figures)}. {_versions()}.\n",
            "<details><summary>All settings; <code>longrm train</code> repeats the run with them</summary>\n",
            _code("toml", to_toml(settings).strip()),
            "</details>",
        ]
    )


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


_ROUNDED = " Measured in fp32, before the weights were rounded to bfloat16 to be written."

_LONGRM = """\
import longrm

model = longrm.load(".")  # this folder
print(model.score("The long context, and a question about it.", ["One answer.", "Another answer."]))"""

_LABELS = {True: ", num_labels=1", False: ""}

_PEFT = """\
from peft import PeftModel
from transformers import AutoModelFor{auto}

base = AutoModelFor{auto}.from_pretrained("{base}"{revision}{labels})
model = PeftModel.from_pretrained(base, ".")"""

_TEMPLATED = """\
messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]"""

_PLAIN = """\
ids = tokenizer(prompt + response + (tokenizer.eos_token or ""), return_tensors="pt")["input_ids"]"""

_SCORES = """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained(".").eval()
tokenizer = AutoTokenizer.from_pretrained(".")
prompt, response = "The long context, and a question about it.", "One answer."
{text}
print(model(input_ids=ids).logits[0, 0].item())"""

_SERVE_SCORES = """\
vllm serve . --runner pooling --pooler-config '{"use_activation": false}'
python -m sglang.launch_server --model-path . --is-embedding"""

_SERVE = """\
vllm serve .
python -m sglang.launch_server --model-path ."""
