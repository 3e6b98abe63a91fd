"""A tiny judge trained to use one criterion, measured on pairs in which one of three criteria is broken.

Contexts come from the world `records`. A response makes three claims about one context; in the rejected response one
claim is wrong: it has the value of another entity. A criterion asks for the record of one entity. The judge starts from
the demo's model, which writes down the record that answers a question, and is trained further to rate one response by
one criterion: "Corimo: keeps bucket. [[10]]". As in `rubrics.py` it is measured on unseen contexts, with two controls:
contexts that are unrelated to the claims, and criteria that ask about other claims.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from recording import circumstances
from rubrics import by_criteria

from longrm.cli.commands import cli
from longrm.data import write_rows
from longrm.judging import load_format
from longrm.rng import Rng
from longrm.types import Comparison, Criterion, message_text, query_of, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

PARTS = 3
TEMPLATE = "{{ context }} {{ response }} {{ criterion }} Score"
_MEASURED_SEED = 1_000_000  # of contexts that are measured on; no training comes so far


def pairs(length: int, n: int, seed: int, *, unrelated: bool = False) -> Iterator[Comparison]:
    """Pairs whose responses make three claims each; one claim of the rejected response is wrong."""
    plan = WorldPlan("records", length, per_group=PARTS, seed=seed, unrelated=unrelated)
    asked = iter(generate(plan, 2 * PARTS * n, words_tokenizer()))
    made = (_pair(group, index % PARTS) for index, group in enumerate(zip(*[asked] * PARTS, strict=True)))
    return (pair for pair, _ in zip(filter(None, made), range(n), strict=False))


def _pair(asked: Sequence[Comparison], broken: int) -> Comparison | None:
    """The comparison of three questions about a context; None if a response would name a value twice."""
    right, wrong = ([_value(one, one.best_first()[at]) for one in asked] for at in (0, 1))
    entities = [_entity(one) for one in asked]
    if len({*right, wrong[broken]}) <= PARTS or len({*entities}) < PARTS:
        return None
    worse = [*right[:broken], wrong[broken], *right[broken + 1 :]]
    ranks = asked[broken].ranks
    texts = [_text(entities, right if rank == 1 else worse) for rank in ranks or ()]
    first = asked[0]
    context = message_text(first.prompt[0])[: first.context[0].end]
    return replace(
        first,
        prompt=({"role": "user", "content": context},),
        responses=tuple(({"role": "assistant", "content": text},) for text in texts),
        ranks=ranks,
        rubrics=tuple(Criterion(_question(one)) for one in asked),
        question=None,
        evidence=tuple(sorted((span for one in asked for span in one.evidence), key=lambda span: span.start)),
        metadata={"criterion_ranks": [list(ranks or ()) if at == broken else [1, 1] for at in range(PARTS)]},
    )


def _text(entities: Sequence[str], values: Sequence[str]) -> str:
    *first, last = (f"{entity} has {value}" for entity, value in zip(entities, values, strict=True))
    return f"{', '.join(first)} and {last}."


def _question(one: Comparison) -> str:
    assert one.question is not None, "worlds have questions"
    return message_text(one.prompt[0])[one.question.start : one.question.end]


def _entity(one: Comparison) -> str:
    return _question(one).rstrip("?").split()[-1]


def _value(one: Comparison, response: int) -> str:
    return text_of(one.responses[response]).rstrip(".").split()[-1]


def demonstrations(rows: Sequence[Comparison], template: Path) -> Iterator[dict[str, object]]:
    """For every pair a rating of the wrong claim, and of one right claim at random."""
    shown = load_format("pointwise", template=template)
    for row in rows:
        best, worse = row.best_first()
        ranks_by: list[Sequence[int]] = row.metadata["criterion_ranks"]
        broken = next(at for at, ranks in enumerate(ranks_by) if len({*ranks}) > 1)
        intact = [
            (response, at)
            for response in (best, worse)
            for at in range(PARTS)
            if (response, at) != (worse, broken)
        ]
        for response, at in ((worse, broken), Rng("rated", row.id).choice(intact)):
            query = replace(query_of(row, (response,)), criterion=row.rubrics[at].text)
            (prompt,) = shown.render(query)
            points = "0" if (response, at) == (worse, broken) else "10"
            yield {
                "id": f"{row.id}-{response}-{at}",
                "prompt": [*prompt],
                "completion": f"{_record(row, at)} [[{points}]]",
            }


def _record(row: Comparison, at: int) -> str:
    """The record that a criterion asks for, as a note: "Corimo: keeps bucket."."""
    entity, text = row.rubrics[at].text.rstrip("?").split()[-1], message_text(row.prompt[0])
    held = [text[span.start : span.end].rstrip(".").split()[-3:] for span in row.evidence]
    verb, value = next((verb, value) for name, verb, value in held if name == entity)
    return f"{entity}: {verb} {value}."


def run(*arguments: str) -> None:
    """Runs a longrm command."""
    cli.main([*arguments], standalone_mode=False)


def trained(out: Path, template: Path, length: int, steps: int, seed: int) -> Path:
    """Trains the judge: the demo's model, then ratings by one criterion."""
    start, data = out / "start", out / "ratings.jsonl"
    run(
        "train",
        "sft",
        "--config",
        "demo/generative_base",
        "--set",
        f"seed={seed}",
        "--set",
        "data.world.seed=0",
        "--out",
        str(start),
    )
    lengths = (length // 2, length)
    rows = [row for at in lengths for row in pairs(at, 16 * steps, seed)]
    write_rows(data, demonstrations(rows, template))
    settings = {
        "model.path": str(start / "model"),
        "data.path": str(data),
        "data.per_step": 64,
        "optimizer.max_steps": steps,
        "optimizer.learning_rate": 3e-3,
        "seed": seed,
    }
    chosen = [part for name, value in settings.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    run("train", "sft", *chosen, "--out", str(out / "judge"))
    return out / "judge" / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the trainings; a killed training continues"
    )
    parser.add_argument("--length", type=int, default=96, help="longest training context in tokens")
    parser.add_argument(
        "--longer", type=int, nargs="*", default=[192, 384], help="longer contexts that are only measured"
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    template = options.out / "criterion.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    model = trained(options.out, template, options.length, options.steps, options.seed)
    for length in (options.length, *options.longer):
        measure(model, template, length, options)


def measure(model: Path, template: Path, length: int, options: argparse.Namespace) -> None:
    """Prints the results of the judge and the controls at a length."""
    seed = _MEASURED_SEED + options.seed
    rows = list(pairs(length, options.n, seed))
    arms = {
        "judge": rows,
        "unrelated contexts": list(pairs(length, options.n, seed, unrelated=True)),
        "criteria of other claims": [
            replace(row, rubrics=(*row.rubrics[1:], row.rubrics[0])) for row in rows
        ],
    }
    for arm, measured in arms.items():
        found = by_criteria(str(model), measured, format="pointwise", template=str(template), max_tokens=16)
        about = {"model": "tiny", "arm": arm, "length": length, "n": len(measured), "seed": options.seed}
        print(json.dumps(about | found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
