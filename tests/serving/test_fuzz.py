"""Bodies drawn from the document of the routes, right and wrong ones: nothing but answers and refusals."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from longrm.serving.wire_formats import WIRE_FORMATS

PATHS = sorted({route.path for routes in WIRE_FORMATS.values() for route in routes})


def as_bytes(body):
    """A body as it is sent: drawn ones are values, bytes, or nothing at all."""
    if isinstance(body, bytes | schemathesis.core.NotSet):
        return body if isinstance(body, bytes) else b""
    return json.dumps(body).encode()


def fuzz(client, path, mode, count):
    document = client.get("/openapi.json").json()
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        response = client.post(path, content=as_bytes(case.body))
        assert response.status_code in (200, 400, 413, 422, 424), response.text
        assert "Traceback" not in response.text
        response.json()

    check()
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("count", [8, pytest.param(500, marks=pytest.mark.full)])
def test_drawn_bodies_get_answers_or_refusals(client, path, mode, count):
    fuzz(client, path, mode, count)
