"""Requests made of the description, and of what it forbids: no answer is a defect, every answer is as described, and
the service goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from console.client.sockets import bind_tcp
from engine.model.commands import Submit
from tests.support.patience import PATIENCE_S
from tests.support.served import gpu_job, running_loop, serving

EXAMPLES = 4
"""For each operation, of what is allowed and as many of what is not."""
STREAMS = ("/v1/events",)
"""They do not end."""

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_loop() as loop:
        loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("a"), gpu_job("b")))))
        bound = bind_tcp("127.0.0.1:0")
        with serving(loop, bound):
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_answered_with_a_defect(url: str, mode: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json")
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in STREAMS:
            continue
        asked += _fuzz(operation, url, mode)
    assert asked > 150
    assert requests.get(f"{url}/v1/health", timeout=PATIENCE_S).status_code == 200


def _fuzz(operation: Any, url: str, mode: Any) -> int:
    known = {200, 405, 404, *(int(status) for status in operation.definition.raw["responses"])}
    asked = 0

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        nonlocal asked
        if case.query and "wait_s" in case.query:
            case.query["wait_s"] = 0
        answer = case.call(base_url=url, timeout=PATIENCE_S)
        asked += 1
        assert answer.status_code in known, (case.as_curl_command(), answer.status_code, answer.text[:400])
        if answer.status_code != 200:
            assert answer.json().keys() == {"code", "problem", "remedy", "request"}
        assert "Traceback" not in answer.text

    with contextlib.suppress(Unsatisfiable):  # it takes nothing that could be wrong
        ask()
    return asked
