"""The recipes and launch examples of `scale/`: parsed, planned, and fitting what they name."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from longrm.cli.plan import command as plan_command
from longrm.cli.train import command as train
from longrm.config import parse_assignments
from longrm.errors import ConfigError
from longrm.reading import read_toml
from longrm.training.plan.plan import plan_training
from longrm.training.settings import TrainingSettings

from .test_recipes import FILES, FOLDER, FULL

PLANS = {
    "1-gpu-lora": [("h100-80gb", 1), ("h200-141gb", 1)],
    "1-gpu-full": [("h100-80gb", 1), ("h200-141gb", 1)],
    "8-a100": [("a100-80gb", 8)],
    "2x8": [("a100-80gb", 16), ("h100-80gb", 16)],
}

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"


def rows_of_the_page():
    """The rows of the table of plans: recipe, its settings, device, how many, and the plan on the page."""
    _, _, table = PAGE.read_text().partition("| recipe | device | memory, GiB of |")
    name, rows = "", []
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        what, device, memory, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        tiled = what == "with tiled_mlp"  # of the recipe above it
        name = name if tiled else what
        count, _, device = device.rpartition(" x ")
        rows.append((name, tiled, device, int(count or 1), [*memory.split(" of "), *rest]))
    return rows


@pytest.fixture(autouse=True)
def _away_from_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def recipe_of(name):
    tree = read_toml(FOLDER / "scale" / f"{name}.toml", ConfigError)
    return TrainingSettings.model_validate(tree)


def test_all_are_planned():
    assert {name.removeprefix("scale/") for name in FILES if name.startswith("scale/")} == set(PLANS)


@pytest.mark.parametrize(
    ("name", "device", "devices"), [(n, *where) for n, all_ in PLANS.items() for where in all_]
)
def test_a_recipe_fits_what_it_names(name, device, devices):
    recipe = recipe_of(name)
    found = plan_training(recipe, device, devices=devices)
    assert found.memory.total < 0.9 * found.offers.memory
    assert found.switches == ()
    assert recipe.data.max_length == 131_072
    assert found.workload.largest.tokens > 130_000


@pytest.mark.parametrize(("name", "tiled", "device", "devices", "said"), rows_of_the_page())
def test_the_page_says_what_is_planned(name, tiled, device, devices, said):
    recipe = recipe_of(name)
    recipe = recipe.model_copy(update={"memory": recipe.memory.model_copy(update={"tiled_mlp": tiled})})
    found = plan_training(recipe, device, devices=devices)
    gib = [size / 2**30 for size in (found.memory.total, found.offers.memory, found.memory.offloaded)]
    longest = found.longest_prompt // 1000 * 1000
    planned = [
        f"{gib[0]:.1f}",
        f"{gib[1]:.1f}",
        f"{gib[2]:.0f}",
        " / ".join(f"{seconds / 3600:.1f}" for seconds in found.seconds_with.values()),
        f"{longest:,}",
    ]
    assert said == planned


def test_the_page_has_every_plan():
    planned = {(name, *where) for name, all_ in PLANS.items() for where in all_}
    assert {(name, device, devices) for name, _, device, devices, _ in rows_of_the_page()} == planned


def test_the_page_shows_what_the_command_prints():
    command, shown = re.search(
        r"```sh\n(longrm plan .*)\n```\n\n```text\n(.*?)```", PAGE.read_text(), re.S
    ).groups()
    printed = CliRunner().invoke(plan_command, shlex.split(command)[2:]).stdout
    assert {*shown.splitlines()} - {"..."} <= {*printed.splitlines()}


@pytest.mark.parametrize(("name", "gib"), [("1-gpu-full", 194), ("1-gpu-lora", 36)])
def test_a_plan_compares_cpu_memory(name, gib):
    command = [str(FOLDER / "scale" / f"{name}.toml"), "--device", "h100-80gb"]

    def second_line(*more):
        lines = CliRunner().invoke(plan_command, [*command, *more]).stdout.splitlines()
        assert lines[0].startswith("Fits: ")
        return lines[1]

    assert f"needs {gib}" in second_line()
    assert second_line("--host-memory", str(gib + 1)).startswith("CPU memory fits")
    assert second_line("--host-memory", str(gib - 1)).startswith("CPU memory does not fit")
    assert second_line("--host-memory", "inf").startswith("CPU memory fits")


@pytest.mark.parametrize("name", [name for name in PLANS if name != "2x8"])  # which slurm.sh starts
def test_the_comment_of_a_recipe_has_its_command(name):
    text, parallel = (FOLDER / "scale" / f"{name}.toml").read_text(), recipe_of(name).parallel
    (devices,) = {devices for _, devices in PLANS[name]}
    run = f"longrm train preference --config scale/{name} --out runs/{name}"
    launcher = f"torchrun --standalone --nproc-per-node {devices} -m " if parallel.shard else ""
    assert f"# {launcher}{run}" in text.partition("objective")[0].splitlines()
    # What needs torchrun on one device would be refused without.
    assert f"{launcher}longrm train" in PAGE.read_text()


@pytest.mark.parametrize("name", FULL)
def test_a_recipe_of_the_paper_fits_eight_a100_as_its_comment_starts_it(name):
    text = (FOLDER / f"{name}.toml").read_text()
    comment = " ".join(line.removeprefix("# ") for line in text.partition("objective")[0].splitlines())
    assert f"--config {name}" in comment
    tree = read_toml(FOLDER / f"{name}.toml", ConfigError)
    assert f"torchrun --nproc-per-node 8 -m longrm train {tree['objective'].replace('_', '-')}" in comment
    for key, value in parse_assignments(re.findall(r"--set (\S+)", comment)).items():
        group, setting = key.split(".")
        tree.setdefault(group, {})[setting] = value
    found = plan_training(TrainingSettings.model_validate(tree), "a100-80gb", devices=8)
    assert found.memory.total < 0.9 * found.offers.memory


def torchrun_of(file):
    """The options that torchrun gets, and the arguments of the module, `\\` at line ends undone."""
    text = (FOLDER / "scale" / file).read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if re.match(r"(srun .*)?torchrun ", line))
    words = shlex.split(line)
    at = words.index("-m")
    assert words[at + 1 : at + 3] == ["longrm", "train"]
    return text, words[words.index("torchrun") + 1 : at], words[at + 3 :]


@pytest.mark.parametrize("file", ["torchrun.sh", "slurm.sh"])
def test_a_launch_example_is_parsed(file, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    text, launcher, (objective, *arguments) = torchrun_of(file)
    subprocess.run(["bash", "-n", FOLDER / "scale" / file], check=True)
    torch_run = pytest.importorskip("torch.distributed.run")
    options = torch_run.get_args_parser().parse_args([*launcher, "-m", "longrm"])
    machines, each = int(options.nnodes.split(":")[0]), int(options.nproc_per_node)
    context = click.Context(train)
    subcommand = train.get_command(context, objective)
    given = subcommand.make_context(objective, list(arguments), resilient_parsing=True).params
    name = given["config_file"].stem
    assert given["config_file"] == FOLDER / f"scale/{name}.toml"
    recipe = recipe_of(name)
    assert recipe.objective == objective.replace("-", "_")
    assert machines * each in {devices for _, devices in PLANS[name]}
    assert options.max_restarts == 3
    (grace,) = re.findall(r"^export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", text, re.MULTILINE)
    assert each % recipe.parallel.sequence_parallel_size == 0  # all-to-all stays within a machine
    if file == "slurm.sh":
        asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
        assert (int(asked["nodes"]), int(asked["gpus-per-node"])) == (machines, each)
        assert asked["ntasks-per-node"] == "1"  # torchrun starts the processes of a machine
        assert "srun --kill-on-bad-exit=1 torchrun" in text
        longest = max(plan_training(recipe, *plan[:1], devices=plan[1]).seconds for plan in PLANS[name])
        assert int(asked["time"].split(":")[0]) > 1.5 * longest / 3600
        assert asked["signal"] == f"TERM@{grace}"
