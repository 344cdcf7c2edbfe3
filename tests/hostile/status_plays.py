"""Group B, what the hostile model server does with the status of an answer: errors that lie, drip or never end, and
servers that mind one parameter of ours and take another.

As in `plays`.
"""

from __future__ import annotations

import asyncio
import json

from plays import Client, envelope, plays


def form_of(client: Client) -> str:
    form = client.request["json"].get("response_format")
    return form["type"] if form else "prompt"


async def _minds(client: Client, taken: tuple[str, ...], status: str, words: str) -> None:
    if form_of(client) in taken:
        await client.answer(envelope())
    else:
        await client.answer(json.dumps({"error": {"message": words}}), status=status)


@plays
async def minds_json_schema(client: Client) -> None:
    await _minds(client, ("json_object", "prompt"), "400 Bad Request", "response_format json_schema is unsupported")


@plays
async def minds_any_format(client: Client) -> None:
    await _minds(client, ("prompt",), "400 Bad Request", "Unrecognized request argument: response_format")


@plays
async def minds_with_422(client: Client) -> None:
    await _minds(
        client, ("json_object", "prompt"), "422 Unprocessable Entity", "body.response_format.type: literal_error"
    )


@plays
async def minds_with_500(client: Client) -> None:
    await _minds(client, ("json_object", "prompt"), "500 Internal Server Error", "response_format: input should be ...")


@plays
async def minds_for_ever(client: Client) -> None:
    await _minds(client, (), "400 Bad Request", "response_format is unsupported")


@plays
async def minds_max_tokens(client: Client) -> None:
    if "max_completion_tokens" in client.request["json"]:
        await client.answer(envelope())
    else:
        words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        await client.answer(json.dumps({"error": {"message": words}}), status="400 Bad Request")


@plays
async def echoes_key(client: Client) -> None:
    """As some do: "Incorrect API key provided: sk-…"."""
    key = client.request.get("authorization", "")
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {key}"}})
    await client.answer(body, status=client.row["status"], more=f"WWW-Authenticate: Bearer realm={key}\r\n")


@plays
async def fails_once(client: Client) -> None:
    if client.nth:
        await client.answer(envelope())
    else:
        more = "".join(f"{line}\r\n" for line in client.row.get("headers", ()))
        await client.answer("busy", status=client.row["status"], kind="text/plain", more=more)


@plays
async def error_of_10_mb(client: Client) -> None:
    await client.send("HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/html\r\n\r\n")
    for _ in range(160):
        await client.send(b"<p>" * 21845)


@plays
async def error_that_drips(client: Client) -> None:
    await client.send("HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/html\r\nContent-Length: 9999\r\n\r\n")
    while True:
        await client.send(b"x")
        await asyncio.sleep(0.02)


@plays
async def error_with_reason_of_8_kb(client: Client) -> None:
    await client.answer("", status="503 " + "\x1b[2J" * 2000)
