"""Every endpoint, thrown at with what its own OpenAPI schema allows, and with what it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from echo import make_llm
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from raw import eventually, post
from schemathesis import GenerationMode
from server_for_tests import Server, check_nothing_left

MAX_EXAMPLES = 15  # per endpoint and kind


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Server]:
    server = Server(make_llm(num_blocks=128, max_running=16), drain_time=0.0).start()
    port = server.port
    yield server
    eventually(lambda: server.health()["num_unfinished"] == 0)
    assert (
        post(server, {"prompt": "alive?", "max_tokens": 9}).json()["choices"][0]["text"] == "alive?"
    )
    server.stop()
    check_nothing_left(server, port)


def check(response: schemathesis.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert "application/json" in response.headers["content-type"]
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]


def attack(operation, mode: GenerationMode) -> list[int]:
    """Call it in many ways; the statuses that came back."""
    statuses: list[int] = []

    @settings(
        max_examples=MAX_EXAMPLES, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: schemathesis.Case) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # any other name is 404, and nothing more is tried
        response = case.call(timeout=60)
        check(response)
        statuses.append(response.status_code)

    try:
        call()
    except Unsatisfiable:  # an endpoint without parameters cannot be called wrongly
        assert mode is GenerationMode.NEGATIVE and operation.method.upper() == "GET"
    return statuses


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_that_can_be_sent_makes_the_server_fail(
    fuzzed: Server, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(fuzzed.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    tried = {operation.label: attack(operation, mode) for operation in operations}
    posts = [name for name, statuses in tried.items() if "POST" in name and len(statuses) > 5]
    assert len(posts) >= 6
    if mode is GenerationMode.POSITIVE:
        assert 200 in tried["POST /tokenize"] and 200 in tried["POST /v1/chat/completions"]
    else:
        assert 400 in tried["POST /v1/completions"]
