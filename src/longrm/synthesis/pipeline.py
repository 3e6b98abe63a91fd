"""Runs a recipe over its inputs in order, in a run folder that a killed run can continue.

`rows/` contains the rows and nothing else, so that it can be read as data. `ledger.jsonl` has a line for every input,
in order, with its outcome and where its rows end. Rows are on disk before the ledger mentions them; on resume, rows
that it does not mention are cut off. So no row is lost or doubled, and a resumed run ends with the same bytes as one
that was never killed.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from longrm import reward_models
from longrm.clients import TextGenerator
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote, split_address
from longrm.data.files import RUN_ROWS
from longrm.errors import ConfigError, RunError
from longrm.jsonl import append_lines, json_line, writable
from longrm.judging.prompts import prompt_hash
from longrm.reward_models import JudgeSettings, load
from longrm.reward_models.kinds import split_kind
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.simulated import ErrorRates
from longrm.runs.folder import (
    CACHE,
    FILES,
    MANIFEST,
    RunFolder,
    check_files,
    read_manifest,
    record_files,
    write_json,
)
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.resumable import ResumableRun, Written, unique
from longrm.synthesis.models import SPENDING, AsyncModel, ModelSettings, PaidAnswer, ServedModel, Spending
from longrm.synthesis.settings import SynthesisRecipe
from longrm.synthesis.simulated import GoldAnswers, SimulatedModel

LEDGER, VOTES = "ledger.jsonl", "votes.jsonl"

KEPT = "kept"


class Steps(Counter[tuple[str, str]]):
    """How many units each step kept, as (step, KEPT), or dropped, as (step, reason). Steps appear in their order.

    Attributes:
        unusable: The replies of models that a step dropped: its name, the reason and the text.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unusable: list[dict[str, str]] = []

    def reply(self, step: str, reason: str, text: str) -> None:
        """Counts a reply; with a reason it is dropped, and kept for the ledger."""
        self[step, reason or KEPT] += 1
        if reason:
            self.unusable.append({"step": step, "reason": reason, "text": text})


@dataclass(frozen=True)
class InputOutcome:
    """The rows of one input in order, the counts of its steps, and the votes of a panel of judges."""

    id: str
    rows: Sequence[Mapping[str, Any]] = ()
    steps: Steps = field(default_factory=Steps)
    votes: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The rows of one input, the bytes of all rows so far, and what was dropped."""

    id: str
    rows: int
    end: int
    steps: dict[str, dict[str, int]] = field(default_factory=dict)
    unusable: list[dict[str, str]] = field(default_factory=list)


def nested(steps: Steps) -> dict[str, dict[str, int]]:
    """The counts by step, then by reason."""
    found: dict[str, dict[str, int]] = {}
    for (step, reason), units in steps.items():
        found.setdefault(step, {})[reason] = units
    return found


def step_counts(steps: Steps) -> dict[str, dict[str, Any]]:
    """For the manifest: what each step took in and kept, and why it dropped the others."""
    return {
        step: {
            "in": sum(counts.values()),
            "kept": counts.get(KEPT, 0),
            "dropped": {reason: counts[reason] for reason in sorted(counts) if reason != KEPT},
        }
        for step, counts in nested(steps).items()
    }


class SynthesisRun(NamedTuple):
    """An open run folder of a recipe."""

    folder: RunFolder
    batch: int  # how many inputs run together
    facts: Mapping[str, Any]  # for the manifest; a run is not continued with other `sources` or `prompts`
    models: Mapping[str, AsyncModel]  # by role
    spending: Spending
    answers: GoldAnswers

    def load_reward_model(
        self, name: str, model_args: reward_models.ModelSettings, judge: JudgeSettings, remote: Remote
    ) -> RewardModel:
        """Loads a reward model; paid answers of an endpoint are cached in the folder unless `remote` names a file."""
        cached = remote.cached_in(self.folder.path / CACHE)
        pay = partial(self.spending.pay, name)
        return load(name, model_args=model_args, judge=judge, remote=cached, on_usage=pay)

    def write(
        self,
        inputs: Iterable[Any],
        make_rows: Callable[[Any], Awaitable[InputOutcome]],
        *,
        total: int = 0,
        progress: Progress = no_progress,
        votes: type[Any] | None = None,
    ) -> dict[str, Any]:
        """Works on the inputs that the folder does not contain yet, and returns the manifest.

        Args:
            inputs: Each with an `id`, in the same order in every run.
            make_rows: Turns one input into rows. It must depend only on the input, the settings and the models.
            total: The number of inputs, for the progress.
            progress: Shows the progress.
            votes: The type of the outcomes' votes, which `votes.jsonl` keeps.
        """
        path, facts, spending = self.folder.path, self.facts, self.spending
        self.folder.restarts = (
            f"starts again from the beginning, as the first {self.batch} inputs were not finished (--set batch=N with "
            "a lower N keeps more)"
        )
        check_unchanged(path, {name: facts[name] for name in ("sources", "prompts")})
        write_json(path / MANIFEST, {**read_manifest(path), **facts, "counts": None})
        stream, steps = unique(self.answers.watching(inputs)), Steps()
        rows = 0

        def count(entry: LedgerEntry) -> None:
            nonlocal rows
            rows += entry.rows
            for step, reasons in entry.steps.items():
                steps.update({(step, reason): units for reason, units in reasons.items()})

        # The inputs in the ledger are done; the batches begin after them. They are read again all the same: each must
        # come in its place, and simulated models learn the gold answers from the stream.
        run = ResumableRun(path, ({VOTES: votes} if votes else {}) | {LEDGER: LedgerEntry})
        last: LedgerEntry | None = None
        before = 0
        for before, last in enumerate(run.read(LEDGER), start=1):
            one = next(stream, None)
            if one is None or one.id != last.id:
                raise RunError(
                    f"{path / LEDGER}: input {before} was '{last.id}' and is now {one and repr(one.id)}; the sources "
                    "have changed: restore them, or choose another --out"
                )
            count(last)
        # A finished run: report changed files before the rows are cut back to the ledger.
        if (path / FILES).is_file():
            check_files(path)
        end = 0 if last is None else last.end
        rows_file = path / RUN_ROWS / "rows.jsonl"
        _cut_back(rows_file, end)

        async def gather(batch: Sequence[Any]) -> list[InputOutcome]:
            return await asyncio.gather(*map(make_rows, batch))

        def work(batch: Sequence[Any]) -> Written:
            nonlocal end
            (path / FILES).unlink(missing_ok=True)  # the rows are about to grow
            outcomes, entries, lines = runner.run(gather(batch)), list[LedgerEntry](), list[bytes]()
            for one in outcomes:
                own = [json_line(row) for row in one.rows]
                lines += own
                end += sum(map(len, own))
                entries.append(LedgerEntry(one.id, len(own), end, nested(one.steps), one.steps.unusable))
                count(entries[-1])
            if lines:  # a kill before the ledger mentions them has them cut off
                with writable(rows_file), rows_file.open("ab") as file:
                    append_lines(file, lines, to_disk=True)
            return {VOTES: [vote for one in outcomes for vote in one.votes], LEDGER: entries}

        with asyncio.Runner() as runner:
            done = run.run(
                iter(lambda: list(islice(stream, self.batch)), []),
                work,
                {VOTES: {vote.id for vote in run.read(VOTES)} if votes else (), LEDGER: ()},
                progress=lambda new: progress("inputs", before + new, total, spending.note()),
            )
        if not (path / FILES).is_file():
            record_files(path, (path / RUN_ROWS).iterdir())
        counts = {"inputs": before + done, "rows": rows, "steps": step_counts(steps)}
        manifest = {**read_manifest(path), **facts, "counts": counts, "spending": spending.to_dict()}
        write_json(path / MANIFEST, manifest)
        return manifest


@contextmanager
def open_run(
    kind: str,
    recipe: SynthesisRecipe,
    out: Path,
    models: Mapping[str, ModelSettings],
    sources: Sequence[Mapping[str, str]],
    prompts: Mapping[str, Sequence[str]],
    reward_model: str = "",
) -> Iterator[SynthesisRun]:
    """Opens the folder `out`, to start a run or to continue it, and its models.

    `sources` are names, licenses, paths and digests of the data, `prompts` the texts of each prompt, whose hashes the
    manifest keeps. The recipe loads the reward model itself; its name is for the manifest.
    """
    answers = GoldAnswers(max(1024, 2 * recipe.batch))
    names = {role: model.label for role, model in models.items()}
    names |= {"reward model": reward_model} if reward_model else {}
    hashes = {name: prompt_hash(*texts) for name, texts in prompts.items()}
    facts = {"sources": sources, "seed": recipe.seed, "prompts": hashes, "models": names}
    with (
        RunFolder(out, f"synthesis of {kind}", recipe) as folder,
        open_models([*models.values()], out, recipe.seed, answers) as (opened, spending),
    ):
        by_role = dict(zip(models, opened, strict=True))
        yield SynthesisRun(folder, recipe.batch, facts, by_role, spending, answers)


def check_unchanged(folder: Path, facts: Mapping[str, Any]) -> None:
    """Raises `RunError` if the folder's manifest has other values for these facts."""
    before = read_manifest(folder)
    for name, value in facts.items():
        if before.get(name, value) != value:
            raise RunError(
                f"{folder}: the {name} have changed since this run began; restore them, or choose another --out "
                "(a shared remote.cache keeps paid answers)"
            )


@contextmanager
def open_models(
    models: Sequence[ModelSettings], folder: Path, seed: int, answers: GoldAnswers
) -> Iterator[tuple[list[AsyncModel], Spending]]:
    """Opens models, in order, and the record of what they cost; the folder is for cache and log.

    `seed` and `answers` are for simulated models.
    """
    names = [model.label for model in models]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ConfigError(f"two models have the name '{repeated}'; give one of them another `name`")
    with Log(folder / SPENDING, PaidAnswer) as log:
        spending = Spending(log, {model.label: model.price for model in models})
        opened: list[AsyncModel] = []
        for model in models:
            kind, _, address = model.model.partition(":")
            if kind == "simulated":
                opened.append(SimulatedModel(ErrorRates.parse(address), model.label, seed, answers))
                continue
            writer: TextGenerator
            if kind == "openai":
                (url, name), remote = split_address(address), model.remote.cached_in(folder / CACHE)
                writer = OpenAIClient(url, name, remote, on_usage=partial(spending.pay, model.label))
            elif split_kind(model.model)[0] is None:
                # Here, because it imports torch, which nothing else here needs.
                from longrm.modeling.local_generator import LocalTextGenerator

                writer = LocalTextGenerator.load(model.model)
            else:
                raise ConfigError(
                    f"'{model.model}' cannot write: use openai:URL#NAME (an endpoint), or the folder or Hub id of a "
                    "causal language model"
                )
            opened.append(ServedModel(model.label, writer))
        yield opened, spending


def _cut_back(rows: Path, end: int) -> None:
    """Cuts off rows that the ledger does not mention; `RunError` if some that it mentions are missing."""
    with writable(rows):
        rows.parent.mkdir(exist_ok=True)
        size = rows.stat().st_size if rows.exists() else 0
        if size < end:
            raise RunError(
                f"{rows} has {size:,} of the {end:,} bytes in the ledger; restore it, or choose another --out"
            )
        if size > end:
            os.truncate(rows, end)
