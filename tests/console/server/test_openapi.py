"""The description of the control plane: every route is in it, and what it says can be relied upon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from console.client.protocol import Client
from console.client.questions import questions_of
from console.server import application
from console.server.application import document
from console.server.operations import asked_by
from tests.support.served import running_loop, served_on_unix


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with running_loop() as loop, served_on_unix(loop) as found:
        yield found


@pytest.fixture(scope="module")
def told(path: Path) -> dict[str, Any]:
    with over_unix(path) as http:
        answer = http.get("/v1/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def over_unix(path: Path) -> httpx.Client:
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path), verify=False), base_url="http://muster", trust_env=False
    )


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def test_every_route_that_is_served_is_described(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    routes: list[Route] = []
    starlette = application.Starlette

    def noted(*arguments: Any, **named: Any) -> Any:
        routes.extend(named["routes"])
        return starlette(*arguments, **named)

    monkeypatch.setattr(application, "Starlette", noted)
    with running_loop() as loop, served_on_unix(loop):
        served = {
            (method.lower(), route.path.replace(":path}", "}"))
            for route in routes
            for method in (route.methods or set()) - {"HEAD"}
        }
    described = {(method, path) for path, methods in told["paths"].items() for method in methods}
    assert described == served
    assert len(described) > 60


def test_what_it_refers_to_is_there_and_names_are_unique(told: dict[str, Any]) -> None:
    schemas = told["components"]["schemas"]
    for reference in _references(told):
        assert reference.removeprefix("#/components/schemas/") in schemas
    names = [operation["operationId"] for methods in told["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    for methods in told["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert operation["responses"]["200"]


def test_changes_take_a_key_and_reads_say_what_they_show(told: dict[str, Any]) -> None:
    def headers(path: str, method: str) -> set[str]:
        return {each["name"] for each in told["paths"][path][method]["parameters"] if each["in"] == "header"}

    assert headers("/v1/command", "post") == {"idempotency-key"}
    assert headers("/v1/vote", "post") == {"idempotency-key"}
    assert headers("/v1/query", "post") == {"muster-at-least", "muster-as-of"}
    assert headers("/healthz", "get") == set()


def test_a_row_without_a_body_describes_none() -> None:
    found = document([asked_by(question) for question in questions_of(Client)])
    assert "requestBody" not in found["paths"]["/v1/overview"]["get"]
    assert found["paths"]["/v1/query"]["post"]["requestBody"]["required"]
