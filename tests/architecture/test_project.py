"""What pages, workflows and package metadata state about the project agrees."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_one_list_of_python_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (sentence,) = re.findall(
        r"Python\s3\.\d+[^.]*(?:\.\d+[^.]*)*\.\s", (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert classified == workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert classified == re.findall(r"3\.\d+", sentence)
    assert project["requires-python"] == f">={classified[0]}"
    assert f"Python {classified[0]} or newer" in (ROOT / "README.md").read_text()
