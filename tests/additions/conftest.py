"""A user's addition is one file, which these tests write, and one entry in a registry."""

import importlib.util

import pytest

from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.summary_schema import read_summary
from longrm.report import build


@pytest.fixture
def plugin(tmp_path):
    """Writes a plug-in file and returns its module."""

    def load(source):
        path = tmp_path / "plugin_file.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("plugin_file", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def evaluated(tmp_path):
    """Evaluates a baseline, and builds a report; returns the summary, checked against its schema, and the page."""

    def run(model="baseline:overlap", bench="probe", judging=(), **probe):
        judging = {"resamples": 100, **dict(judging)}
        settings = {"model": model, "bench": bench, "judging": judging} | ({"probe": probe} if probe else {})
        run_evaluation(Evaluation.model_validate(settings), tmp_path / "run")
        build([tmp_path / "run"], tmp_path / "report.html")
        return read_summary(tmp_path / "run"), (tmp_path / "report.html").read_text()

    return run
