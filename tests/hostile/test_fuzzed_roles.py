"""Requests made of the description, sent by nobody, by somebody who may only look, and by somebody who may do anything:
no answer is a defect, and whoever may only look has no effect, whatever they send."""

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
from sqlalchemy import func, inspect, select, table

from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Submit
from tests.support.gates import gate_of
from tests.support.network import Line, reached, reached_from_afar
from tests.support.patience import PATIENCE_S
from tests.support.people import person, team
from tests.support.served import gpu_job, running_loop

EXAMPLES = 1
"""For each operation and caller: callers are what this is about. Others are in `tests.console.server.test_api_fuzz`."""
STREAMS = ("/v1/events",)
TOLD = ("records", "audit", "nonces", "access_token", "idempotency", "leaf", "node", "segment", "draft")
"""Beginnings of the tables in which it may be noted who was refused, when a token was last used, and what was drafted
by rule: that is looking, too."""

pytestmark = pytest.mark.thorough


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as loop:
        loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("a"), gpu_job("b")))))
        yield loop


def kept(loop: EngineLoop) -> tuple[int, dict[str, int]]:
    """The version of the state, and how many rows each table has of what people have asked for."""

    def look(engine: Engine) -> tuple[int, dict[str, int]]:
        def counted(connection: Any) -> dict[str, int]:
            names = [name for name in inspect(connection).get_table_names() if not name.startswith(TOLD)]
            return {
                name: connection.execute(select(func.count()).select_from(table(name))).scalar_one() for name in names
            }

        return engine.version, engine.recorded(counted)

    return loop.call(look)


def described(line: Line) -> Any:
    with line.http() as http:
        return schemathesis.openapi.from_dict(http.get("/v1/openapi.json").json())


def fuzzed(line: Line, token: str, mode: GenerationMode, schema: Any) -> set[int]:
    """Statuses of the answers to changes."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    statuses: set[int] = set()
    with requests.Session() as session:
        session.headers.update(headers)
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path not in STREAMS and operation.method.upper() == "POST":
                statuses |= _asked(operation, line.url, session, mode)
    return statuses


def _asked(operation: Any, url: str, session: requests.Session, mode: GenerationMode) -> set[int]:
    statuses: set[int] = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(base_url=url, session=session, timeout=PATIENCE_S)
        statuses.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 503, (case.as_curl_command(), answer.text[:400])
        assert "Traceback" not in answer.text
        shown = str(session.headers.get("authorization", "nothing shown"))
        assert answer.status_code == 200 or shown[-20:] not in answer.text

    with contextlib.suppress(Unsatisfiable):
        ask()
    return statuses


def test_nobody_and_whoever_may_only_look_change_nothing(loop: EngineLoop) -> None:
    gate = gate_of(loop.engine, team(person("alice", "operator", "approver", "admin"), person("vic", "viewer")))
    with reached(loop, gate) as near:
        schema = described(near)
        viewer = near.make_token("vic", "read", "submit", "configure", "propose", "vote", "execute", "policy").token
        reader = near.make_token("alice", "read").token
        before = kept(loop)
        for token in (viewer, reader):
            statuses = fuzzed(near, token, GenerationMode.POSITIVE, schema)
            assert 403 in statuses or 409 in statuses
    with reached_from_afar(loop, gate) as far:
        assert fuzzed(far, "", GenerationMode.POSITIVE, schema) <= {401, 429, 400, 403, 404, 405, 413}
    version, tables = kept(loop)
    assert tables == before[1]
    assert version == before[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_whoever_may_do_anything_meets_no_defect(loop: EngineLoop, mode: GenerationMode) -> None:
    gate = gate_of(loop.engine, team(person("alice", "operator", "approver", "admin", "submitter")))
    with reached(loop, gate) as near:
        schema = described(near)
        scopes = ("submit", "configure", "propose", "vote", "execute", "freeze", "policy", "audit")
        token = near.make_token("alice", *scopes).token
        assert fuzzed(near, token, mode, schema)
        with near.http(token) as http:
            assert http.get("/v1/overview").status_code in (200, 401)
