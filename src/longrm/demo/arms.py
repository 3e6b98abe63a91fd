"""What the demo trains from what: the arms of its two roads, and the stages that come of them.

The discriminative road ends in scores, the generative one in judgments that a model writes.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from longrm.config import Config, read_toml
from longrm.modeling.loading import load_language_model, load_scorer, rescale_rope, save
from longrm.report.load import STAGES
from longrm.runs.progress import Progress
from longrm.training.run import RECIPES, Recipe
from longrm.training.run import run as train
from longrm.training.start import start_of

FOLDER = Path(str(files("longrm") / "recipes" / "demo"))
UNTRAINED, UNSTRUCTURED, RESCALED = "untrained", "unstructured", "rescale_only"
SHORT, CONTROL, LONG = "short", "control_short", "long"
WRITES = "generative_base"
WRITES_SHORT, WRITES_LONG, WRITES_LOGO = "generative_short", "generative_long", "generative_logo"
WRITES_RESCALED, WRITES_LONG_ALONE = "generative_rescale_only", "generative_long_alone"


class DemoSettings(Config):
    """Settings of `longrm demo`.

    Attributes:
        seed: Of the training data, the evaluation data and the starts.
        generative: Also take the generative road: a judge that writes. The arm from an unstructured start is then
            one of the controls, for the time it takes.
        controls: Also run the arms that tell what the gain is due to.
    """

    seed: int = 0
    generative: bool = False
    controls: bool = False


class Arm(NamedTuple):
    """A training of the demo: the stage it makes, its recipe, the stage it starts from, what it changes."""

    stage: str
    recipe: str
    start: str | None
    changes: dict[str, Any]


_ARMS = (
    Arm(SHORT, SHORT, None, {}),
    Arm(UNSTRUCTURED, SHORT, None, {"model.new.structured": False, "stall_steps": 0}),
    Arm(LONG, LONG, SHORT, {}),
    Arm(CONTROL, CONTROL, SHORT, {}),
)
_CONTROL_ARMS = (
    Arm("long_without_rescale", LONG, SHORT, {"model.rope_theta": None}),
    Arm("shuffled_labels", SHORT, None, {"data.world.shuffle_labels": True, "stall_steps": 0}),
)
_GENERATIVE_ARMS = (
    Arm(WRITES, WRITES, None, {}),
    Arm(WRITES_SHORT, WRITES_SHORT, WRITES, {}),
    Arm(WRITES_LONG, WRITES_LONG, WRITES_SHORT, {}),
    Arm(WRITES_LOGO, WRITES_LOGO, WRITES_LONG, {}),
    Arm(WRITES_LONG_ALONE, WRITES_LONG_ALONE, WRITES_SHORT, {}),
)
RESCALES = {RESCALED: (SHORT, LONG), WRITES_RESCALED: (WRITES_SHORT, WRITES_LONG)}
"""Stages that nothing was trained for: which stage they are, and whose rotary base they take."""


def arms_of(settings: DemoSettings) -> tuple[Arm, ...]:
    """The trainings of a demo; the longest way is taken first, so that nobody waits for it at the end."""
    roads = (_GENERATIVE_ARMS, settings.generative), (_ARMS, True), (_CONTROL_ARMS, settings.controls)
    arms = tuple(arm for road, taken in roads if taken for arm in road)
    if settings.generative and not settings.controls:
        return tuple(arm for arm in arms if arm.stage != UNSTRUCTURED)
    return arms


def stages_of(settings: DemoSettings) -> tuple[str, ...]:
    """The stages that are evaluated, in reading order. The judge's start is left out: it writes no verdicts yet."""
    trained = [arm.stage for arm in arms_of(settings) if arm.stage != WRITES]
    made = (UNTRAINED, True), (RESCALED, settings.controls), (WRITES_RESCALED, settings.generative)
    return tuple(sorted([*trained, *(stage for stage, taken in made if taken)], key=list(STAGES).index))


def writes(stage: str) -> bool:
    """Whether a stage is one of the generative road."""
    return stage.startswith("generative_")


def train_arm(arm: Arm, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Trains one arm; the first of the discriminative ones leaves the untrained model too."""
    resolved = _resolved(arm, settings.seed, out)
    if arm.stage == SHORT and not model_of(UNTRAINED, out).exists():
        save(start_of(resolved, "scorer"), model_of(UNTRAINED, out))
    train(resolved, out / "training" / arm.stage, progress=progress)


def rescale(stage: str, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Makes a stage that differs from the one it comes from in its rotary base alone."""
    if model_of(stage, out).exists():
        return
    start, recipe = RESCALES[stage]
    load = load_language_model if writes(stage) else load_scorer
    trainee = load(model_of(start, out))
    rescale_rope(trainee.model, float(read_toml(FOLDER / f"{recipe}.toml")["model"]["rope_theta"]))
    save(trainee, model_of(stage, out))


def model_of(stage: str, out: Path) -> Path:
    """Where the model of a stage lies."""
    if stage == UNTRAINED or stage in RESCALES:
        return (out / "models" / stage).resolve()
    return (out / "training" / stage / "model").resolve()


def _resolved(arm: Arm, seed: int, out: Path) -> Recipe:
    number = (*_ARMS, *_CONTROL_ARMS, *_GENERATIVE_ARMS).index(arm)
    changes: dict[str, Any] = {"seed": seed, "data.world.seed": 10 * seed + number}
    if arm.start is not None:
        changes["model.path"] = str(model_of(arm.start, out))
    file = FOLDER / f"{arm.recipe}.toml"
    return RECIPES[read_toml(file)["objective"]].resolve(file, changes | arm.changes)
