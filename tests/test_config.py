import pytest

from longrm.config import Config, differences, parse_assignments, to_toml
from longrm.errors import ConfigError


class Inner(Config):
    steps: int = 10
    rate: float = 0.5


class Outer(Config):
    name: str
    inner: Inner = Inner()
    note: str | None = None


def test_flags_beat_the_file_which_beats_the_defaults(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('name = "file"\n[inner]\nsteps = 20\n')
    resolved = Outer.resolve(file, {"name": "flag", "inner.rate": 0.25})
    assert resolved == Outer(name="flag", inner=Inner(steps=20, rate=0.25))


def test_the_dumped_settings_repeat_the_run(tmp_path):
    settings = Outer(name="x", inner=Inner(steps=3))
    file = tmp_path / "config.toml"
    file.write_text(to_toml(settings.to_dict()))
    assert Outer.resolve(file) == settings


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"name": "x", "inner.stesp": 3}, "unknown key 'inner.stesp'; did you mean 'steps'?"),
        ({"name": "x", "zzz": 3}, "unknown key 'zzz'; known here: name, inner, note"),
        ({"name": "x", "inner.steps": "many"}, "wrong value for 'inner.steps': "),
        ({}, "the setting 'name' is required"),
        ({"name": "x", "name.sub": 1}, "cannot set 'name.sub': 'name' is a value"),
    ],
)
def test_a_wrong_key_or_value_is_named_in_one_line(overrides, expected):
    with pytest.raises(ConfigError) as error:
        Outer.resolve(None, overrides)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*nothing\.toml: No such file"):
        Outer.resolve(tmp_path / "nothing.toml")
    file = tmp_path / "bad.toml"
    file.write_text("name = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        Outer.resolve(file)


def test_assignments_are_toml_values_or_plain_strings():
    parsed = parse_assignments(["a.b=3", "c=[1, 2]", "d=true", "path=./some/file.jsonl", 'q="x=y"'])
    assert parsed == {"a.b": 3, "c": [1, 2], "d": True, "path": "./some/file.jsonl", "q": "x=y"}


@pytest.mark.parametrize("bad", ["steps", "=3", "a..b=3"])
def test_an_assignment_without_key_or_value_is_refused(bad):
    with pytest.raises(ConfigError, match="--set needs KEY=VALUE"):
        parse_assignments([bad])


def test_differences_name_every_differing_key():
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    new = {"a": 1, "b": {"c": 5}, "e": "x"}
    assert differences(old, new) == ["b.c: 2 -> 5", "b.d: 3 -> 'unset'", "e: 'unset' -> 'x'"]
    assert differences(old, old) == []
