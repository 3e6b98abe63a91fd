"""The folder of a training stands for its model."""

import shutil
from dataclasses import replace

import pytest
import torch

import longrm
from longrm.clients.remote_settings import Remote
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.evaluation.evaluate import own_tokenizer
from longrm.modeling.loading import load_scorer
from longrm.runs.folder import FILES, MANIFEST
from longrm.training.initial_model import initial_model
from longrm.training.plan.workload import sizes_of


def test_all_that_load_a_model_find_it_in_the_folder_of_its_training(finished, recipe):
    run, _ = finished
    asked = ("Who holds bucket?", ["Corimo.", "Nobody holds it."])
    assert longrm.load(str(run)).score(*asked) == longrm.load(str(run / "model")).score(*asked)
    assert Tokenizer.load(run).encode("Corimo") == Tokenizer.load(run / "model").encode("Corimo")
    own = own_tokenizer(str(run), Remote())
    assert (own.name, own.place) == (str(run), str(run / "model"))
    by_run, by_model = (recipe("bradley_terry", model={"path": str(path)}) for path in (run, run / "model"))
    assert replace(sizes_of(by_run, "scorer"), origin="") == replace(sizes_of(by_model, "scorer"), origin="")
    started = initial_model(by_run, "scorer").model.state_dict()
    truth = load_scorer(run / "model").model.state_dict()
    assert all(torch.equal(started[name], truth[name]) for name in truth)


def test_other_folders_are_no_models(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        longrm.load(str(tmp_path))
    (tmp_path / "model").rmdir()
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(ModelError, match="a run without a finished model"):
        longrm.load(str(tmp_path))


def test_a_model_that_lost_a_file_is_not_loaded(finished, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(finished[0] / "model", folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"chat_template\.jinja is missing"):
        longrm.load(str(folder))
    (folder / FILES).unlink()  # deleted on purpose
    longrm.load(str(folder))
