"""Checkpoints: those that earlier versions wrote are read, and damaged ones stepped over or refused."""

import copy
import shutil

import pytest
import torch
from safetensors.torch import save_file

from longrm.errors import RunError
from longrm.training import checkpoints
from longrm.training.checkpoints import damage, latest, prune, saved_steps, seal
from longrm.training.train import train


def test_a_checkpoint_with_an_empty_group_is_continued(tmp_path, recipe, stop, results_of):
    settings, (stopped, at) = recipe("bradley_terry", model__lora={"rank": 2, "alpha": 4.0}), stop
    train(settings, tmp_path / "whole")
    with pytest.raises(stopped):
        train(settings, tmp_path / "cut", progress=at(5))
    checkpoint = tmp_path / "cut/checkpoints/3"
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    (group,) = optimizer["param_groups"]
    torch.save(
        optimizer | {"param_groups": [group, copy.deepcopy(group) | {"params": []}]},
        checkpoint / "optimizer.pt",
    )
    schedule = torch.load(checkpoint / "scheduler.pt", weights_only=True)
    doubled = {name: schedule[name] * 2 for name in ("base_lrs", "_last_lr", "lr_lambdas")}
    torch.save(schedule | doubled, checkpoint / "scheduler.pt")
    (checkpoint / MANIFEST).unlink()  # they wrote none
    train(settings, tmp_path / "cut")
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")


FILES = (
    "contexts.jsonl",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "steps.jsonl",
    "timing.jsonl",
    "trained.safetensors",
    "trainer_state.json",
)
MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory, recipe):
    """A run that was stopped after the checkpoints of steps 3 and 6; its recipe, and the same run never stopped."""

    def stop(label, done, total, note=""):
        if label == "training" and done == 7:
            raise KeyboardInterrupt

    folder, settings = tmp_path_factory.mktemp("stopped"), recipe("bradley_terry", checkpoint__keep=9)
    with pytest.raises(KeyboardInterrupt):
        train(settings, folder / "cut", progress=stop)
    train(settings, folder / "whole")
    assert saved_steps(folder / "cut") == [3, 6]
    return folder, settings


@pytest.fixture
def cut(stopped_run, tmp_path):
    """A copy of the run that was stopped."""
    shutil.copytree(stopped_run[0] / "cut", tmp_path / "cut")
    return tmp_path / "cut"


def other(path):
    """Something valid of its kind that no checkpoint holds."""
    if path.suffix in (".pt", ".pth"):
        torch.save({}, path)
    elif path.suffix == ".safetensors":
        save_file({"other": torch.zeros(1)}, path)
    else:
        path.write_text("{}\n")


def flipped(path):
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"damaged"),
    "other": other,
    "flipped": flipped,
    "removed": lambda path: path.unlink(),
}


def told(caplog):
    return [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]


@pytest.mark.parametrize("way", DAMAGES)
@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_damaged_checkpoint_is_stepped_over_and_told(cut, caplog, name, way):
    assert sorted(path.name for path in (cut / "checkpoints/6").iterdir()) == sorted([*FILES, MANIFEST])
    DAMAGES[way](cut / "checkpoints/6" / name)
    if (name, way) == (MANIFEST, "removed"):  # as versions before it wrote it
        assert latest(cut) == cut / "checkpoints/6"
        return
    assert latest(cut) == cut / "checkpoints/3"
    (line,) = told(caplog)
    # A digest in the manifest that is another speaks against its file.
    named = "" if (name, way) == (MANIFEST, "flipped") else name
    assert line.startswith(f"{cut}/checkpoints/6 is damaged ({named}")
    assert line.endswith("it is now 6.damaged, and training continues from 3")
    assert saved_steps(cut) == [3]


@pytest.mark.parametrize("way", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_is_seen_without_a_manifest_too(cut, caplog, name, way):
    """As far as reading tells: a bit of a weight or of a seed may be any."""
    checkpoint = cut / "checkpoints/6"
    (checkpoint / MANIFEST).unlink()
    assert damage(checkpoint) is None
    DAMAGES[way](checkpoint / name)
    if way == "flipped" or (name, way) == (
        "trained.safetensors",
        "other",
    ):  # which is told from the model's own
        return
    assert latest(cut) == cut / "checkpoints/3"
    assert f"6 is damaged ({name}" in told(caplog)[0]


def copied(cut, stray, manifest):
    shutil.copytree(cut / "checkpoints/3", stray)
    if not manifest:
        (stray / MANIFEST).unlink()


STRAYS = {
    "an empty folder": lambda cut, stray: stray.mkdir(),
    "another folder": lambda cut, stray: (stray / "folder").mkdir(parents=True),
    "a copy": lambda cut, stray: copied(cut, stray, manifest=True),
    "an old copy": lambda cut, stray: copied(cut, stray, manifest=False),
}


@pytest.mark.parametrize("stray", STRAYS)
def test_a_stray_folder_is_no_checkpoint(cut, caplog, stray):
    STRAYS[stray](cut, cut / "checkpoints/999")
    assert latest(cut) == cut / "checkpoints/6"
    assert len(told(caplog)) == 1
    prune(cut, 1)
    assert saved_steps(cut) == [6], "a stray folder does not count"


@pytest.mark.parametrize("name", ["0007", "\u0667", "7.damaged", "x"])
def test_what_is_not_called_as_a_checkpoint_is_left_alone(cut, caplog, name):
    (cut / "checkpoints" / name).mkdir()
    (cut / "checkpoints/998").write_text("a file")
    assert latest(cut) == cut / "checkpoints/6"
    assert not told(caplog)
    assert (cut / "checkpoints" / name).is_dir()


def test_several_damaged_checkpoints_are_stepped_over_and_set_aside_anew(cut):
    shutil.copytree(cut / "checkpoints/6", cut / "checkpoints/6.damaged")
    (cut / "checkpoints/999").mkdir()
    (cut / "checkpoints/6/optimizer.pt").write_bytes(b"")
    assert latest(cut) == cut / "checkpoints/3"
    names = sorted(entry.name for entry in (cut / "checkpoints").iterdir())
    assert names == ["3", "6.damaged", "999.damaged"]
    assert not (cut / "checkpoints/6.damaged/optimizer.pt").read_bytes()


def test_a_run_without_a_whole_checkpoint_is_refused_in_one_line(cut, stopped_run):
    for step in (3, 6):
        (cut / f"checkpoints/{step}/scheduler.pt").write_bytes(b"")
    line = rf"6 is damaged \(scheduler.pt has 0 of [\d,]+ bytes\), and no checkpoint before it is whole; remove {cut}"
    with pytest.raises(RunError, match=line) as caught:
        train(stopped_run[1], cut)
    assert "\n" not in str(caught.value)
    assert saved_steps(cut) == [3, 6], "nothing is moved in vain"


ALL = [(name, way, manifest) for name in FILES for way in DAMAGES for manifest in (True, False)]
SOME = [
    ("trained.safetensors", "cut", True),
    ("scheduler.pt", "empty", False),
    ("steps.jsonl", "other", True),
]
UNSEEN = [(name, "flipped", False) for name in FILES] + [("trained.safetensors", "other", False)]


@pytest.mark.parametrize(
    ("name", "way", "manifest"),
    [
        *SOME,
        *(pytest.param(*case, marks=pytest.mark.full) for case in ALL if case not in SOME + UNSEEN),
    ],
)
def test_the_run_that_steps_over_a_damaged_checkpoint_ends_as_if_never_stopped(
    cut, stopped_run, results_of, name, way, manifest
):
    folder, settings = stopped_run
    if not manifest:
        (cut / "checkpoints/6" / MANIFEST).unlink()
    DAMAGES[way](cut / "checkpoints/6" / name)
    train(settings, cut)
    assert results_of(cut) == results_of(folder / "whole")
    assert saved_steps(cut) == [3, 6, 8]


def test_an_optimizer_of_another_model_is_refused(cut, stopped_run):
    checkpoint = cut / "checkpoints/6"
    (checkpoint / MANIFEST).unlink()  # which would tell
    stored = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    stored["param_groups"][0]["params"].pop()
    torch.save(stored, checkpoint / "optimizer.pt")
    with pytest.raises(RunError, match=r"checkpoints/6 holds the state of another optimizer"):
        train(stopped_run[1], cut)


def test_large_files_are_known_by_every_chunk(cut, monkeypatch):
    checkpoint = cut / "checkpoints/6"
    monkeypatch.setattr(checkpoints, "_CHUNK", 1000)
    (checkpoint / MANIFEST).unlink()
    seal(checkpoint, 6)
    assert damage(checkpoint) is None
    path = checkpoint / "optimizer.pt"
    held = path.read_bytes()
    for place in (0, 999, 1000, len(held) - 1):
        changed = bytearray(held)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert damage(checkpoint) == "optimizer.pt is not what was written"
    path.write_bytes(held[1000:2000] + held[:1000] + held[2000:])
    assert damage(checkpoint) == "optimizer.pt is not what was written"
