"""HTTP routes for agents on nodes: register, heartbeats, progress of tasks. Bodies are msgpack or JSON.

    POST /v1/agents/register    {"nodes": [id, ...]}
    POST /v1/agents/leave       {"nodes": [id, ...]}
    POST /v1/agents/heartbeats  {"rows": int32s, "epochs": int32s, "numbers": int32s, "clocks_ms": int64s}
    POST /v1/agents/status      {"reports": [{"row", "epoch", "number", "tasks": [[workload, task, permille], ...],
                                "usage": [[workload, cpu_milli, memory_mib], ...]}, ...]}

A token may be limited to pools: entries of a batch about nodes elsewhere are ignored and named in `forbidden`.
Columns of a batch are packed, little-endian, one entry for each heartbeat; in JSON they are base64. The answer has
the format of the request. docs/agents.md tells what an agent has to do.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from console.client.credentials import CALLER
from console.server.operations import VERSION, Operation, body, decoded, forbid_if_read_only, on_engine
from engine.executors.agent_reports import SampleOf, UsageOf
from engine.model.errors import SpecError, misfit
from runbooks.gate.approval_gate import wall_ms

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.loop import EngineLoop


MAX_BEATS = 1_000_000
"""Heartbeats, names or reports in one request."""
MSGPACK = "application/msgpack"


class RegisterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...]


class RegisterAnswer(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]
    rows: tuple[int, ...]
    epochs: tuple[int, ...]
    """Row and epoch of each of the nodes are its token."""
    refused: tuple[str, ...]
    """Those that the cell does not have."""
    heartbeat_every_s: float
    """Seconds of a wall clock between heartbeats."""
    forbidden: tuple[str, ...] = ()
    """Those in pools that the token is not for."""


class LeaveAnswer(msgspec.Struct, frozen=True):
    refused: tuple[str, ...]
    """Those that the cell does not have."""
    forbidden: tuple[str, ...] = ()
    """Those in pools that the token is not for."""


class BeatBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: bytes
    epochs: bytes
    numbers: bytes
    clocks_ms: bytes = b""
    """Unix milliseconds by the clock of each node; only compared with ours. May be left out."""


class BeatAnswer(msgspec.Struct, frozen=True):
    renewed: int
    repeated: int
    refused: tuple[int, ...]
    """Where in the batch those stand whose token is not known: they are to register again."""
    forbidden: tuple[int, ...] = ()
    """Where those stand whose pools the token of this request is not for."""


_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class StatusReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: _Int32
    epoch: _Int32
    number: _Int32
    tasks: tuple[SampleOf, ...] = ()
    usage: tuple[UsageOf, ...] = ()


class StatusBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reports: tuple[StatusReport, ...]


class StatusAnswer(msgspec.Struct, frozen=True):
    taken: int
    """Samples of tasks that run on the nodes that sent them."""
    refused: tuple[int, ...]
    """Where in the batch those stand whose token is not known."""
    forbidden: tuple[int, ...] = ()
    """Where those stand whose pools the token of this request is not for."""


class AgentRoutes:
    """The handlers. A read-only server refuses all of them, and suspects no node for being silent."""

    def __init__(self, loop: EngineLoop, *, read_only: bool = False) -> None:
        self._loop = loop
        self._read_only = read_only
        if read_only:
            loop.post(lambda engine: engine.agents.leases.close())
        else:
            # Tokens of before a restart must not be mistaken for new ones.
            epoch = secrets.randbits(30)
            loop.post(lambda engine: engine.agents.open(epoch))

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("POST", "/v1/agents/register", "Agents now report from these nodes", handler=self.register,
                      takes=RegisterBody, gives=RegisterAnswer, changes=True),
            Operation("POST", "/v1/agents/leave", "Their agents were removed on purpose", handler=self.leave,
                      takes=RegisterBody, gives=LeaveAnswer, changes=True),
            Operation("POST", "/v1/agents/heartbeats", "Heartbeats of many nodes", handler=self.heartbeats,
                      takes=BeatBody, gives=BeatAnswer, changes=True),
            Operation("POST", "/v1/agents/status", "Progress and usage of tasks", handler=self.status,
                      takes=StatusBody, gives=StatusAnswer, changes=True),
        )  # fmt: skip

    async def register(self, request: Request) -> Response:
        wanted: RegisterBody = await self._asked(request, RegisterBody)
        _limit("nodes", len(wanted.nodes))
        pools = CALLER.get().within.pools
        found = await on_engine(self._loop, lambda engine: engine.agents.register(wanted.nodes, pools))
        every_s = found.heartbeat_every_ms / 1000 / self._loop.speed
        return self._answer(
            request, RegisterAnswer(found.nodes, found.rows, found.epochs, found.refused, every_s, found.forbidden)
        )

    async def leave(self, request: Request) -> Response:
        wanted: RegisterBody = await self._asked(request, RegisterBody)
        _limit("nodes", len(wanted.nodes))
        pools = CALLER.get().within.pools
        left = await on_engine(self._loop, lambda engine: engine.agents.leave(wanted.nodes, pools))
        return self._answer(request, LeaveAnswer(left.refused, left.forbidden))

    async def heartbeats(self, request: Request) -> Response:
        batch: BeatBody = await self._asked(request, BeatBody)
        rows = _column(batch.rows, np.int32, "rows")
        _limit("rows", len(rows))
        epochs, numbers = _column(batch.epochs, np.int32, "epochs"), _column(batch.numbers, np.int32, "numbers")
        skews = _column(batch.clocks_ms, np.int64, "clocks_ms") - wall_ms()
        for name, column in (("epochs", epochs), ("numbers", numbers), ("clocks_ms", skews)):
            if len(column) != len(rows) and (name != "clocks_ms" or len(column)):
                raise SpecError(name, f"has {len(column)} entries for {len(rows)} rows", "Give one for each row")
        pools = CALLER.get().within.pools

        def take(engine: Engine) -> BeatAnswer:
            ours = engine.agents.of_pools(rows, pools) if pools else np.ones(len(rows), bool)
            at = np.flatnonzero(ours)
            given = skews[at] if len(skews) else None
            taken = engine.agents.beat(rows[at], epochs[at], numbers[at], given)
            refused, forbidden = at[taken.refused], np.flatnonzero(~ours)
            return BeatAnswer(taken.renewed, taken.repeated, tuple(refused.tolist()), tuple(forbidden.tolist()))

        return self._answer(request, await on_engine(self._loop, take))

    async def status(self, request: Request) -> Response:
        wanted: StatusBody = await self._asked(request, StatusBody)
        _limit("reports", len(wanted.reports))

        pools = CALLER.get().within.pools

        def take(engine: Engine) -> StatusAnswer:
            agents, rows = engine.agents, np.array([report.row for report in wanted.reports], np.int64)
            ours = agents.of_pools(rows, pools) if pools else np.ones(len(rows), bool)
            found = [
                agents.status(r.row, r.epoch, r.number, r.tasks, r.usage) if is_ours else -1
                for r, is_ours in zip(wanted.reports, ours.tolist(), strict=True)
            ]
            refused = tuple(i for i, n in enumerate(found) if n is None)
            return StatusAnswer(sum(max(0, n or 0) for n in found), refused, tuple(np.flatnonzero(~ours).tolist()))

        return self._answer(request, await on_engine(self._loop, take))

    async def _asked(self, request: Request, kind: type[Any]) -> Any:
        forbid_if_read_only(self._read_only)
        content = await body(request)
        return _unpacked(content, kind) if _is_msgpack(request) else decoded(content, kind)

    def _answer(self, request: Request, value: object) -> Response:
        version = {VERSION: str(self._loop.engine.version)}
        if _is_msgpack(request):
            return Response(msgspec.msgpack.encode(value), headers=version, media_type=MSGPACK)
        return Response(msgspec.json.encode(value), headers=version, media_type="application/json")


def _is_msgpack(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip() in (MSGPACK, "application/x-msgpack")


def _unpacked(content: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.ValidationError as error:
        wrong = misfit(str(error))
        raise SpecError(wrong.path.lstrip(".") or "body", wrong.problem, wrong.remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError("body", f"is not msgpack ({error})", "Send one msgpack value") from None


def _column(packed: bytes, kind: type[Any], name: str) -> Any:
    size = np.dtype(kind).itemsize
    if len(packed) % size:
        raise SpecError(
            name, f"is {len(packed)} bytes, not a multiple of {size}", "Pack the numbers one after the other"
        )
    return np.frombuffer(packed, np.dtype(kind).newbyteorder("<")).astype(np.int64)


def _limit(name: str, count: int) -> None:
    if count > MAX_BEATS:
        raise SpecError(name, f"{count} entries", f"Send at most {MAX_BEATS} in one request")
