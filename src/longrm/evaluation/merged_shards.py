"""Merges the shards of an evaluation into the run that a single process would have made of all comparisons."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longrm.config import changed_settings
from longrm.errors import RunError
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.judge import LOGS, ExampleSample, conclude
from longrm.evaluation.read_run import Run
from longrm.evaluation.summary_schema import EvaluationSummary
from longrm.runs.folder import CONFIG, RunFolder, write_file
from longrm.runs.logs import EXAMPLES, GOLD, JUDGMENTS, Log, to_line
from longrm.runs.resumable import Shard, merged


def merge_shards(folders: Sequence[Path], out: Path) -> EvaluationSummary:
    """Merges the run folders of all shards of an evaluation, in any order, into the run folder `out`.

    Judgments, gold, examples, summary, results and settings have the bytes of the whole run; the manifest records the
    merge's own machine and time. Nothing is written before the shards are known to be complete.
    """
    by_shard: dict[Shard, Run] = {}
    for path in folders:
        run = Run(path)
        _ = run.evaluation  # an error unless it is a finished evaluation
        if "shard" not in run.manifest:
            raise RunError(f"{run.path} is not a shard: it was run without --shard")
        shard = Shard.parse(run.settings["shard"])
        if shard in by_shard:
            raise RunError(f"{by_shard[shard].path} and {run.path} are both shard {shard}; drop one")
        by_shard[shard] = run
    shards = [by_shard[shard] for shard in sorted(by_shard)]
    first, count = shards[0], min(by_shard).count
    for other in shards[1:]:
        _check_same_run(first, other)
    # Every shard recorded this about the whole run: the sizes of all batches, and the digest of all gold.
    batches, gold_digest = first.manifest["shard"]["batches"], first.manifest["shard"]["gold_sha256"]
    # A shard beyond the number of batches has no folder.
    for number in range(1, min(count, len(batches)) + 1):
        if Shard(number, count) not in by_shard:
            raise RunError(f"shard {number}/{count} is missing; a merge needs the run folders of all {count}")

    gold, judged = (
        [*merged([Log(run.path / name, LOGS[name]) for run in shards], batches)] for name in (GOLD, JUDGMENTS)
    )
    gold_lines = b"".join(map(to_line, gold))
    digest = hashlib.sha256(gold_lines).hexdigest()
    if digest != gold_digest or [one.id for one in judged] != [one.id for one in gold]:
        raise RunError(
            f"{first.path} and the other shards do not have the comparisons of the whole run: a log was changed; judge "
            "that shard again"
        )
    records = [replace(record, ranks=one.ranks) for record, one in zip(judged, gold, strict=True)]
    settings = Evaluation.resolve(first.path / CONFIG).model_copy(update={"shard": None})
    # Each shard kept a superset of what the whole run keeps.
    examples = {example.id: example for run in shards for example in run.examples.values()}
    sample = ExampleSample(settings.judging.examples)
    kept = [examples[record.id] for record in records if sample.keeps(record)]
    summary = first.evaluation
    with RunFolder(out, "evaluation", settings) as folder:
        folder.record(model=first.manifest.get("model") or {}, bench=first.manifest.get("bench") or {})
        write_file(out / JUDGMENTS, b"".join(map(to_line, judged)))
        write_file(out / GOLD, gold_lines)
        write_file(out / EXAMPLES, b"".join(map(to_line, kept)))
        return conclude(
            records,
            folder,
            settings.judging,
            model=summary.model,
            scale=summary.scale,
            bench=summary.bench,
            rule=next(iter(summary.rules), ""),
            counted=summary.counts.model_dump(include={"skipped_rows", "sampled_from"}),
            added={"audit": summary.audit, "measured": summary.measured},
        )


def _check_same_run(one: Run, other: Run) -> None:
    """Raises an error if two shards differ in settings, model, benchmark or its comparisons."""
    counts = [{"number of shards": Shard.parse(run.settings["shard"]).count} for run in (one, other)]
    settings = [Evaluation.defining({**run.settings, "shard": None}) for run in (one, other)]
    changed = [*changed_settings(*counts), *changed_settings(*settings)]
    for key in ("model", "bench"):
        changed += changed_settings(one.manifest.get(key) or {}, other.manifest.get(key) or {})
    if not changed and one.manifest["shard"] != other.manifest["shard"]:
        changed = [f"comparisons of '{one.evaluation.bench}'"]
    if changed:
        raise RunError(f"{one.path} and {other.path} are not shards of one run ({'; '.join(changed)})")
