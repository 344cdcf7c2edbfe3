"""The description of the HTTP control plane, OpenAPI 3.1, made of the same rows and types as the routes themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from console.client.questions import PLACE
from console.server import idempotency
from console.server.operations import Number, Operation, Parameter
from console.server.request_handler import AT_LEAST, kind_of
from console.server.responses import MAX_BODY_BYTES, STATUS, VERSION
from console.version import VERSION as SOFTWARE

REFERENCES = "#/components/schemas/{name}"
_WORDS = {
    400: "What was asked for is malformed: the problem names the place",
    401: "Nobody says who asks, or what they show does not hold",
    403: "Whoever asks may not, whatever the state",
    404: "It names something that does not exist",
    409: "Well-formed, but not possible in the present state",
    413: f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB",
    429: "Too much at once from one caller: nothing was done",
    500: "A defect of the service",
    502: "The engine did not answer in time",
    503: "Too much at once, or the journal cannot be written: nothing was done",
}


class Problem(msgspec.Struct, frozen=True):
    """Every answer that is not 200."""

    code: str
    """Stable; see `engine.model.errors`."""
    problem: str
    remedy: str


class Described:
    """The description of these operations and of its own."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET", "/v1/openapi.json", "This description", handler=self.told, gives=dict[str, Any], open=False
            ),
        )  # fmt: skip

    async def told(self, request: Request) -> Response:
        return Response(self._encoded, media_type="application/json")

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(document((*self._operations, *self.operations())))


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1 as JSON would have it."""
    told = [operation for operation in operations if operation.media == "application/json"]
    types: list[Any] = [Problem]
    for operation in operations:
        types += [operation.takes] if operation.takes is not None else []
        types += [operation.gives] if operation in told else []
    schemas, components = msgspec.json.schema_components(types, schema_hook=_other, ref_template=REFERENCES)
    coming = iter(schemas)
    problem = next(coming)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        takes = next(coming) if operation.takes is not None else None
        gives = next(coming) if operation in told else {"type": "string"}
        path = paths.setdefault(PLACE.sub(r"{\1}", operation.path), {})
        path[operation.method.lower()] = _described(operation, takes, gives, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muster",
            "version": SOFTWARE,
            "summary": "The control plane of one cell",
            "description": "Fields may be added to answers within /v1: take no notice of what you do not know. "
            "What a request may have in it is checked, and what is not known there is refused.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
        "security": [{}, {"token": []}, {"certificate": []}],
    }


def _other(kind: Any) -> dict[str, Any]:
    """Of a type that says nothing of what is in it."""
    if kind is object:
        return {"description": "Any JSON"}
    raise NotImplementedError


_SHOWN = {VERSION: {"description": "State version that it shows, at least", "schema": {"type": "integer"}}}
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token made with `muster token create`"},
    "certificate": {"type": "mutualTLS", "description": "Where the service was started with --tls-client-ca"},
}


def _described(operation: Operation, takes: Any, gives: Any, problem: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.says,
        "parameters": [
            *(_path_parameter(name) for name in PLACE.findall(operation.path)),
            *(_query_parameter(each) for each in operation.query),
            *_headers(operation),
        ],
        "responses": {
            "200": {"description": "Done", "headers": _SHOWN, "content": {operation.media: {"schema": gives}}},
            **{str(status): _refused(status, problem) for status in _statuses(operation)},
        },
    }
    if takes is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": takes}}}
    if operation.open:
        told["security"] = [{}]
    return told


def _statuses(operation: Operation) -> list[int]:
    """What else it may answer. 500 is a defect and not among them."""
    if operation.open:
        return [403, 503]
    found = {400, 401, 403, 429, 502, 503, *(STATUS[code] for code in ("not_found", "refused"))}
    return sorted(found | ({413} if operation.takes is not None else set()))


def _refused(status: int, problem: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"description": _WORDS[status], "headers": dict(_SHOWN)}
    told["content"] = {"application/json": {"schema": problem}}
    if status in (429, 503):
        told["headers"]["retry-after"] = {"description": "Seconds", "schema": {"type": "integer"}}
    return told


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameter(each: Parameter) -> dict[str, Any]:
    told: dict[str, Any] = {"name": each.name, "in": "query", "description": each.says}
    if isinstance(each, Number):
        kind = "integer" if each.whole else "number"
        return {
            **told,
            "schema": {"type": kind, "minimum": each.least, "maximum": each.most, "default": each.default},
        }
    return {**told, "schema": {"type": "string", "default": each.default}}


def _headers(operation: Operation) -> list[dict[str, Any]]:
    if operation.open or kind_of(operation) == "agent":
        return []
    if operation.changes:
        schema = {"type": "string", "minLength": 1, "maxLength": idempotency.LONGEST_KEY, "pattern": "^[ -~]+$"}
        says = "A new random text for each change: sent again, the request takes effect once"
        return [{"name": idempotency.HEADER, "in": "header", "description": says, "schema": schema}]
    if (operation.question is not None and operation.question.copied) or operation.follows:
        says = f"Show at least this state version, as {VERSION} of another answer told it"
        schema = {"type": "integer", "minimum": 0}
        return [{"name": AT_LEAST, "in": "header", "description": says, "schema": schema}]
    return []
