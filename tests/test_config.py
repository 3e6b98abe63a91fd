from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from longrm.config import OPERATIONAL, Config, IdentifiedBy, changed_settings, parse_assignments, to_toml
from longrm.errors import ConfigError
from longrm.evaluation.evaluate import Evaluation


class Inner(Config):
    steps: int = 10
    rate: float = 0.5


class Outer(Config):
    name: str
    inner: Inner = Inner()
    note: str | None = None


def test_flags_override_the_file_which_overrides_the_defaults(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('name = "file"\n[inner]\nsteps = 20\n')
    resolved = Outer.resolve(file, {"name": "flag", "inner.rate": 0.25})
    assert resolved == Outer(name="flag", inner=Inner(steps=20, rate=0.25))


def test_the_written_settings_repeat_the_run(tmp_path):
    settings = Outer(name="x", inner=Inner(steps=3))
    file = tmp_path / "config.toml"
    file.write_text(to_toml(settings.to_dict()))
    assert Outer.resolve(file) == settings


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"name": "x", "inner.stesp": 3}, "'inner.stesp'; did you mean 'inner.steps'"),
        ({"name": "x", "inner.qqqqqqq": 3}, "'inner.qqqqqqq'; known: inner.steps, inner.rate"),
        ({"name": "x", "inner.depth": 3}, "'inner.depth'; known: inner.steps, inner.rate"),
        ({"name": "x", "inner.steps": "many"}, "'inner.steps': .*'many'"),
        ({"name": "x", "inner": 3}, "'inner': .*got 3"),
        ({}, "'name' is required"),
        ({"name": "x", "name.sub": 1}, "'name.sub'"),
    ],
)
def test_a_wrong_key_or_value_is_named_in_one_line(overrides, named):
    with pytest.raises(ConfigError, match=named) as error:
        Outer.resolve(None, overrides)
    assert "\n" not in str(error.value)


class Checked(Config):
    key: str | None = None

    @model_validator(mode="after")
    def _check(self):
        raise ConfigError("the key and the host do not go together")


class WithChecked(Config):
    below: Checked | None = None


def test_an_error_about_several_settings_shows_none_of_their_values():
    with pytest.raises(ConfigError, match="^the key and the host do not go together$"):
        Checked.resolve(None, {"key": "a"})
    with pytest.raises(ConfigError, match="^wrong value for 'below': the key and the host .* together$"):
        WithChecked.resolve(None, {"below.key": "a"})


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.toml: .*No such file"):
        Outer.resolve(tmp_path / "nothing.toml")
    file = tmp_path / "bad.toml"
    file.write_text("name = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        Outer.resolve(file)


def test_assignments_are_toml_values_or_plain_strings():
    parsed = parse_assignments(
        ["a.b=3", "c=[1, 2]", "d=true", "path=./some/file.jsonl", 'q="x=y"', "a=1\nb=2"]
    )
    assert parsed == {
        "a.b": 3,
        "c": [1, 2],
        "d": True,
        "path": "./some/file.jsonl",
        "q": "x=y",
        "a": "1\nb=2",  # and not 1, with b lost
    }


def test_differences_name_every_differing_key():
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    new = {"a": 1, "b": {"c": 5}, "e": "x"}
    assert changed_settings(old, new) == ["b.c: 2 -> 5", "b.d: 3 -> 'unset'", "e: 'unset' -> 'x'"]
    assert changed_settings(old, old) == []


class Endpoint(Config):
    url: Annotated[str, IdentifiedBy(lambda url: url.rpartition("#")[2])] = "http://a#m"
    concurrency: Annotated[int, OPERATIONAL] = 8
    extra: dict[str, Any] = Field(default_factory=dict)


class Scored(Config):
    name: str = ""


class Run(Config):
    endpoint: Endpoint = Endpoint()
    several: tuple[Endpoint, ...] = ()
    one_of: Endpoint | Scored | None = None
    workers: Annotated[int | None, OPERATIONAL] = None
    seed: int = 0


def test_the_settings_that_define_a_run_come_from_the_marks_of_their_fields():
    one = Run(endpoint=Endpoint(url="http://a#m", concurrency=3), several=(Endpoint(),), workers=2)
    other = Run(endpoint=Endpoint(url="http://b#m", extra={"workers": 1}), one_of=Scored(name="s"))
    assert Run.defining(one.to_dict()) == {
        "endpoint": {"url": "m", "extra": {}},
        "several": [{"url": "m", "extra": {}}],
        "seed": 0,
    }
    assert Run.defining(other.to_dict()) == {
        "endpoint": {"url": "m", "extra": {"workers": 1}},
        "several": [],
        "one_of": {"name": "s"},
        "seed": 0,
    }


def test_a_setting_of_another_group_is_found_by_its_name():
    with pytest.raises(ConfigError, match=r"'judging.orders'\?"):
        Evaluation.resolve(None, {"bench": "probe", "judge.orders": "both"})
    with pytest.raises(ConfigError, match=r"'judge.retries'\?"):
        Evaluation.resolve(None, {"bench": "probe", "judge.retrys": 2})


def test_a_list_without_a_right_item_is_named_once():
    class Listed(Config):
        kinds: Annotated[tuple[Literal["a", "b"], ...], Field(min_length=1)] = ("a",)

    with pytest.raises(ConfigError, match=r"kinds\.0") as caught:
        Listed.resolve(None, {"kinds": ["c"]})
    assert "also wrong" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"kinds\.0.*also wrong: kinds\.1$"):
        Listed.resolve(None, {"kinds": ["c", "d"]})


def test_every_wrong_key_is_named():
    with pytest.raises(ConfigError, match=r"judge.retries.*also wrong: judging.seed, judging.votes"):
        Evaluation.resolve(
            None, {"bench": "probe", "judge.retries": -1, "judging.seed": "x", "judging.votes": "y"}
        )
