"""The trainings of the demo, discriminative and generative, and the stages that they make.

Torch is imported where there is training: the demo's main process goes without, so that its workers begin sooner.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from longrm.config import Config
from longrm.errors import ConfigError
from longrm.reading import read_toml
from longrm.report.load import STAGES
from longrm.runs.progress import Progress
from longrm.training.objectives import OBJECTIVES
from longrm.training.training_settings import TrainingSettings

FOLDER = Path(str(files("longrm") / "recipes" / "demo"))
UNTRAINED, UNSTRUCTURED, RESCALED = "untrained", "unstructured", "rescale_only"
SHORT, CONTROL, LONG = "short", "control", "long"
GENERATIVE_BASE = "generative_base"
GENERATIVE_SHORT, GENERATIVE_LONG, GENERATIVE_LOGO = "generative_short", "generative_long", "generative_logo"
GENERATIVE_RESCALED, GENERATIVE_LONG_ALONE = "generative_rescale_only", "generative_long_alone"


class DemoSettings(Config):
    """Settings of `longrm demo`.

    Attributes:
        seed: Of the training data, the evaluation data and the starts.
        generative: Also train a generative judge. The training from an unstructured start is then one of the controls,
            for the time it takes.
        controls: Also run the trainings that show what the gain is due to.
    """

    seed: int = 0
    generative: bool = False
    controls: bool = False


class DemoTraining(NamedTuple):
    """A training of the demo: the stage it makes, its recipe, the stage it starts from, what it changes."""

    stage: str
    recipe: str
    start: str | None
    changes: dict[str, Any]


_DISCRIMINATIVE = (
    DemoTraining(SHORT, SHORT, None, {}),
    DemoTraining(UNSTRUCTURED, SHORT, None, {"model.new.structured": False, "plateau_steps": 0}),
    DemoTraining(LONG, LONG, SHORT, {}),
    DemoTraining(CONTROL, CONTROL, SHORT, {}),
)
_CONTROLS = (
    DemoTraining("long_without_rescale", LONG, SHORT, {"model.rope_theta": None}),
    DemoTraining("shuffled_labels", SHORT, None, {"data.world.shuffle_labels": True, "plateau_steps": 0}),
)
_GENERATIVE = (
    DemoTraining(GENERATIVE_BASE, GENERATIVE_BASE, None, {}),
    DemoTraining(GENERATIVE_SHORT, GENERATIVE_SHORT, GENERATIVE_BASE, {}),
    DemoTraining(GENERATIVE_LONG, GENERATIVE_LONG, GENERATIVE_SHORT, {}),
    DemoTraining(GENERATIVE_LOGO, GENERATIVE_LOGO, GENERATIVE_LONG, {}),
    DemoTraining(GENERATIVE_LONG_ALONE, GENERATIVE_LONG_ALONE, GENERATIVE_SHORT, {}),
)
RESCALES = {RESCALED: (SHORT, LONG), GENERATIVE_RESCALED: (GENERATIVE_SHORT, GENERATIVE_LONG)}
"""Stages that nothing was trained for: which stage they are, and whose rotary base they take."""


def trainings_of(settings: DemoSettings) -> tuple[DemoTraining, ...]:
    """The trainings of a demo; the longest chain comes first, so that nobody waits for it at the end."""
    groups = (_GENERATIVE, settings.generative), (_DISCRIMINATIVE, True), (_CONTROLS, settings.controls)
    trainings = tuple(training for group, taken in groups if taken for training in group)
    if settings.generative and not settings.controls:
        return tuple(training for training in trainings if training.stage != UNSTRUCTURED)
    return trainings


def stages_of(settings: DemoSettings) -> tuple[str, ...]:
    """The stages that are evaluated, in reading order. The judge's start is left out: it writes no verdicts yet."""
    trained = [training.stage for training in trainings_of(settings) if training.stage != GENERATIVE_BASE]
    made = (UNTRAINED, True), (RESCALED, settings.controls), (GENERATIVE_RESCALED, settings.generative)
    return tuple(sorted([*trained, *(stage for stage, taken in made if taken)], key=list(STAGES).index))


def is_generative(stage: str) -> bool:
    """Whether the model of a stage is generative."""
    return stage.startswith("generative_")


def train_stage(training: DemoTraining, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Trains the model of one stage; the first discriminative one saves the untrained model too."""
    from longrm.modeling.saving import save
    from longrm.training.initial_model import initial_model
    from longrm.training.train import train

    resolved = _resolved(training, settings.seed, out)
    if training.stage == SHORT and not model_of(UNTRAINED, out).exists():
        save(initial_model(resolved, "scorer"), model_of(UNTRAINED, out))
    train(resolved, out / "training" / training.stage, progress=progress)


def tokens_of(training: DemoTraining, settings: DemoSettings, out: Path) -> int:
    """Tokens of all contexts that a training reads."""
    resolved = _resolved(training, settings.seed, out)
    steps, world = resolved.optimizer.steps, resolved.data.world
    assert steps is not None, "recipes of the demo say how many steps"
    assert world is not None, "they train on generated worlds"
    return steps * world.tokens_per_step


def rescale(stage: str, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Makes a stage that differs from the one it comes from in its rotary base alone."""
    from longrm.modeling.loading import load_language_model, load_scorer, rescale_rope
    from longrm.modeling.saving import save

    if model_of(stage, out).exists():
        return
    start, recipe = RESCALES[stage]
    load = load_language_model if is_generative(stage) else load_scorer
    model = load(model_of(start, out))
    rescale_rope(model.model, float(read_toml(FOLDER / f"{recipe}.toml", ConfigError)["model"]["rope_theta"]))
    save(model, model_of(stage, out))


def model_of(stage: str, out: Path) -> Path:
    """The folder of the model of a stage."""
    if stage == UNTRAINED or stage in RESCALES:
        return (out / "models" / stage).resolve()
    return (out / "training" / stage / "model").resolve()


def _resolved(training: DemoTraining, seed: int, out: Path) -> TrainingSettings:
    number = (*_DISCRIMINATIVE, *_CONTROLS, *_GENERATIVE).index(training)
    changes: dict[str, Any] = {"seed": seed, "data.world.seed": 10 * seed + number}
    if training.start is not None:
        changes["model.path"] = str(model_of(training.start, out))
    file = FOLDER / f"{training.recipe}.toml"
    return OBJECTIVES[read_toml(file, ConfigError)["objective"]].settings.resolve(
        file, changes | training.changes
    )
