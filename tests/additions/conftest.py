"""What a user adds stands in a file of its own, which these tests write, and in one entry of a registry."""

import importlib.util

import pytest


@pytest.fixture
def plugin(tmp_path):
    """Writes a plug-in file, and hands its module over."""

    def load(source):
        path = tmp_path / "plugin_file.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("plugin_file", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
