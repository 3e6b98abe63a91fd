"""How often attributions are shown, whether they find the evidence, and what they cost, by model and length.

The controls are an untrained model, and the first model with a random head of the same norm.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from recording import circumstances, show

from longrm.attribution import run
from longrm.attribution.run import AttributionSettings, run_attribution
from longrm.data import write
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import LoadedModel, load_scorer, new_scorer
from longrm.modeling.shapes import ModelShape
from longrm.reward_models.packed import DiscriminativeRewardModel
from longrm.worlds import WorldPlan, generate

UNTRAINED, RANDOM_HEAD = "untrained", "random head"


def loaded(arm: str, options: argparse.Namespace) -> LoadedModel:
    """The model of an arm: from a folder, from the first folder with a random head, or untrained."""
    if arm == UNTRAINED:
        return new_scorer(ModelShape(), Tokenizer.load(options.models[0]), seed=options.seed)
    found = load_scorer(options.models[0] if arm == RANDOM_HEAD else arm)
    if arm == RANDOM_HEAD:
        weight = found.model.score.weight
        drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(options.seed))
        with torch.no_grad():
            weight.copy_(drawn / drawn.norm() * weight.norm())
    return found


def measure(arm: str, length: int, cache: bool, options: argparse.Namespace) -> dict[str, Any]:
    model = loaded(arm, options)
    name = "/".join(Path(arm).parts[-2:])
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "rows.jsonl", Path(folder) / "run"
        rows = list(
            generate(WorldPlan(options.world, length, seed=options.seed), options.items, model.tokenizer)
        )
        write(data, rows)
        settings = AttributionSettings(
            model=options.models[0],
            bench=f"file:{data}",
            removal=options.removal,
        )
        run.PREFIX_CACHE_BYTES = (1 << 30) * cache
        judge = DiscriminativeRewardModel(model, name)
        records, summary, _ = run_attribution(settings, out, model=judge)
    part = summary.overall
    whole = sum(
        record.prompts * sum(len(model.tokenizer.encode(text["content"])) for text in row.prompt)
        for record, row in zip(records, rows, strict=True)
    )
    shares = ("shown", "lds", "evidence_auc", "evidence_recall", "evidence_share")
    found = {share: getattr(part, share) for share in shares}
    return {
        "arm": name,
        "tokens": length,
        "removal": options.removal,
        "prefix_cache": cache,
        "comparisons": len(records),
        "right": sum(bool(record.right) for record in records),
        **{
            share: [None if value is None else round(value, 3) for value in (one.value, one.low, one.high)]
            for share, one in found.items()
        },
        "prompts_an_item": round(summary.prompts / len(records), 1),
        "tokens_computed": summary.tokens_computed,
        # Two full passes per comparison, one for each response.
        "times_fewer_than_full_passes": round(2 * whole / summary.tokens_computed, 2),
        **circumstances(options),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "models",
        nargs="+",
        help="folders of scalar reward models; the first one is also measured with a random head",
    )
    parser.add_argument("--world", default="records")
    parser.add_argument("--lengths", nargs="*", type=int, default=[128, 512])
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--removal", choices=["filler", "deletion"], default="filler")
    parser.add_argument(
        "--controls", action="store_true", help="also measure the untrained model and a random head"
    )
    parser.add_argument(
        "--without-cache", action="store_true", help="also measure the first model without the prefix cache"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON line per arm instead of text")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for length in options.lengths:
        for arm in (*options.models, *((UNTRAINED, RANDOM_HEAD) if options.controls else ())):
            show(measure(arm, length, True, options), options.json)
        if options.without_cache:
            show(measure(options.models[0], length, False, options), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
