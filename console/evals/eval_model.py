"""The model that `muster eval drafts` asks: the configured one, or one that plays a part in a process of its own.

One child asks for all incidents. Each incident has an engine of its own, so what was spent on those before is taken off
the limits of the next: the budgets of the settings hold for the whole evaluation.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from console.evals.incidents import FOLDER, Incident
from console.forms.settings import ConsoleSettings
from console.service.model_setup import key_source, setup_of
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.errors import RefusedError
from runbooks.actions.catalogue import find
from runbooks.gate.approval_gate import Gate
from runbooks.models.calls import ModelWorker
from runbooks.models.drafter import ModelDrafter, ModelSetup
from runbooks.models.endpoint import Egress, endpoint_of
from runbooks.models.prompt import TARGETS
from runbooks.models.pseudonyms import PromptNames
from runbooks.models.pseudonyms import key_of as names_key_of

DEADLINE_MS = {"perfect": 10_000, "hostile": 1_500}
"""Of one that plays a part."""
MINUTE_S = 60.0
Told = Callable[[Incident, dict[str, str]], None]


class _Kept(ModelWorker):
    """Outlives the drafters that use it."""

    def close(self) -> None:
        """It is ended by `end`."""

    def end(self) -> None:
        super().close()


class EvaluatedModel:
    """Where a model sits that is asked about one incident after the other."""

    def __init__(self, setup: ModelSetup, key: Callable[[], str], told: Told | None = None) -> None:
        """`told`: called before each question with what it is about, and names as they go out. Raises RefusedError,
        which says what to do, where no model can be asked."""
        if setup.endpoint is None:
            raise RefusedError(
                setup.problem or "no model is configured",
                "Set model_url and model in muster.toml, or MUSTER_MODEL_URL and MUSTER_MODEL; see docs/drafts.md",
            )
        self.name = f"{setup.endpoint.model} at {setup.endpoint.origin}"
        self._setup = setup
        self._key = key
        self._told = told
        self._worker = _Kept(setup.endpoint, key)
        self._worker.warm()
        self._hides_all = setup.endpoint.egress == "external"
        self._spent_microusd = 0
        self._asked_s = 0.0

    def drafter(self, gate: Gate, loop: EngineLoop, incident: Incident) -> ModelDrafter:
        """Who is asked about one incident. Waits as long as the limit of calls a minute makes it."""
        if self._told is not None:
            self._told(incident, _names(incident, PromptNames(names_key_of(loop.call), hide_all=self._hides_all)))
        else:
            time.sleep(max(0.0, self._asked_s + MINUTE_S / self._setup.calls_minute - time.monotonic()))
        self._asked_s = time.monotonic()
        limits = self._setup.limits
        left = msgspec.structs.replace(
            limits, hour=limits.hour - self._spent_microusd, day=limits.day - self._spent_microusd
        )
        setup = msgspec.structs.replace(self._setup, limits=left, tenants=loop.call(_tenants))
        return ModelDrafter(
            setup, self._key, call=loop.call, audit=gate.audit, wall_ms=gate.policies.clock, worker=self._worker
        )

    def note(self, drafter: ModelDrafter) -> None:
        """What it has spent counts for those that follow."""
        self._spent_microusd += drafter.standing().spent_day_microusd

    @property
    def spent_microusd(self) -> int:
        return self._spent_microusd

    def close(self) -> None:
        self._worker.end()


@contextlib.contextmanager
def configured(settings: ConsoleSettings) -> Iterator[EvaluatedModel]:
    """The model of the settings. Raises RefusedError where there is none."""
    setup = setup_of(settings)
    seat = EvaluatedModel(setup, key_source(setup.endpoint, settings.model_key_file))
    try:
        yield seat
    finally:
        seat.close()


@contextlib.contextmanager
def scripted(part: str, folder: Path = FOLDER, egress: Egress = "local") -> Iterator[EvaluatedModel]:
    """A model that plays a part of `console.evals.scripted_model`, on this machine, told as an endpoint of that class
    is."""
    command = [sys.executable, "-m", "console.evals.scripted_model", part, str(folder)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        said = server.stdout.readline().strip()
        if not said.isdigit():
            raise RefusedError("the scripted model did not start", "See what it wrote above")
        port = int(said)
        endpoint = endpoint_of(
            f"http://127.0.0.1:{port}/v1", f"scripted-{part}", egress=egress, deadline_ms=DEADLINE_MS[part]
        )
        setup = ModelSetup(endpoint=endpoint, model=endpoint.model, calls_minute=1_000)
        seat = EvaluatedModel(setup, lambda: "", lambda incident, names: _tell(port, incident, names))
        try:
            yield seat
        finally:
            seat.close()
    finally:
        server.communicate()


def _tenants(engine: Engine) -> tuple[str, ...]:
    """All of them: those of an incident are made up, so that even a stranger may be told of them."""
    return tuple(name for name in engine.state.workloads.tenants.names if name)


def _names(incident: Incident, names: PromptNames) -> dict[str, str]:
    """What the answer of the incident names -> as it goes out."""
    found: dict[str, str] = {}
    kinds = {type_: kind for kind, type_ in TARGETS.items()}
    for action, given in incident.perfect:
        for name, value in given.items():
            type_ = find(action).parameters[name].type
            if type_ in kinds:
                for id_ in value if isinstance(value, tuple) else (value,):
                    found[f"{type_} {id_}"] = names.shown(kinds[type_], id_)
    return found


def _tell(port: int, incident: Incident, names: dict[str, str]) -> None:
    body = msgspec.json.encode({"incident": incident.id, "names": names})
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", "/incident", body=body)
        connection.getresponse().read()
    finally:
        connection.close()
