import datetime

import pytest

from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError

UNSENDABLE = {
    "nan": float("nan"),
    "infinity": {"deep": [float("inf")]},
    "date": datetime.date(2026, 1, 1),
    "time": datetime.time(1),
    "long number": 10**5000,
}


@pytest.mark.parametrize("kind", UNSENDABLE)
def test_what_json_does_not_have_is_refused(kind):
    with pytest.raises(ConfigError, match=r"wrong value for 'extra\.a") as caught:
        Remote.resolve(None, {"extra": {"a": UNSENDABLE[kind]}})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["sk-very-secret", "a b", "1A", "A=B"])
def test_a_key_in_place_of_the_name_of_its_variable_is_refused_unseen(name):
    with pytest.raises(ConfigError, match="is the name of an environment variable.*not the key") as caught:
        Remote.resolve(None, {"api_key_env": name})
    assert name not in str(caught.value)
    assert Remote(api_key_env="").api_key_env == ""


@pytest.mark.parametrize("fields", [{"max_answer_bytes": 0}, {"timeout": 0}, {"timeout": float("inf")}])
def test_bounds_are_bounds(fields):
    with pytest.raises(ConfigError, match="wrong value for"):
        Remote.resolve(None, fields)
