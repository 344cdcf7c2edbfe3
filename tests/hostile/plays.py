"""What the hostile model server does to a connection: each function is one way to lie, stall, flood or break HTTP.

A row of cases.yaml names one of them, or has parts of an answer (`status`, `headers`, `body`, `content`, `message`,
`choice`, `envelope`), which are sent as they stand.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import re
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

GOOD = {
    "title": "Nothing is wrong",
    "summary": "No queue waits longer than it should.",
    "rationale": [],
    "steps": [],
    "risks": [],
    "questions": [],
}
"""An answer to `act` that has the form."""


PORTS: dict[str, int] = {}
"""Of the listeners, by name."""


class Client:
    """One connection, its request read as far as the case wants it read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.request: dict[str, Any] = {}
        self.row: dict[str, Any] = {}
        self.nth = 0
        """How many requests of this case came before this one."""

    async def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def answer(
        self, body: bytes | str, *, status: str = "200 OK", kind: str = "application/json", more: str = ""
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        form = f"Content-Type: {kind}\r\n" if kind else ""
        await self.send(f"HTTP/1.1 {status}\r\n{form}Content-Length: {len(data)}\r\n{more}\r\n".encode() + data)

    async def head(self, more: str = "Transfer-Encoding: chunked\r\n") -> None:
        await self.send(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{more}\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n" % len(data) + data + b"\r\n")

    async def for_ever(self) -> None:
        """Until the other side goes away."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.reader.read(65536):
                pass


def envelope(row: dict[str, Any] | None = None) -> str:
    """A chat completion with what the row changes of it."""
    row = row or {}
    content = row["content"] if "content" in row else json.dumps(GOOD)
    message = {"role": "assistant", "content": content, **row.get("message", {})}
    choice = {"index": 0, "finish_reason": "stop", "message": message, **row.get("choice", {})}
    whole = {
        "id": "x",
        "object": "chat.completion",
        "model": "made-up",
        "choices": [choice],
        "usage": {"prompt_tokens": 40, "completion_tokens": 30, "total_tokens": 70},
        **row.get("envelope", {}),
    }
    return json.dumps(whole)


def _key_of(client: Client) -> str:
    return str(client.request.get("authorization", "")).removeprefix("Bearer ")


Play = Callable[[Client], Awaitable[None]]
PLAYS: dict[str, Play] = {}


def plays(function: Play) -> Play:
    PLAYS[function.__name__] = function
    return function


@plays
async def answers(client: Client) -> None:
    row = client.row
    if "KEYESCAPED" in str(row.get("content", "")):
        escaped = "".join(f"\\u{ord(letter):04x}" for letter in _key_of(client))
        row = {**row, "content": row["content"].replace("KEYESCAPED", escaped)}
    body = row["body"] if "body" in row else envelope(row)
    data = bytes.fromhex(row["body_hex"]) if "body_hex" in row else str(body).encode()
    data = data.replace(b"KEYECHO", _key_of(client).encode())
    await client.answer(
        data,
        status=row.get("status", "200 OK"),
        kind=row.get("kind", "application/json"),
        more="".join(f"{line}\r\n" for line in row.get("headers", ())),
    )


# -- A: the connection ------------------------------------------------------------------------------------------------


@plays
async def never_answers(client: Client) -> None:
    await client.for_ever()


@plays
async def drips_head(client: Client) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + b"X-A: b\r\n" * 1000:
        await client.send(bytes([byte]))
        await asyncio.sleep(0.05)


@plays
async def drips_body(client: Client) -> None:
    await client.head("Content-Length: 100000\r\n")
    while True:
        await client.send(b" ")
        await asyncio.sleep(0.05)


@plays
async def drips_chunks(client: Client) -> None:
    await client.head()
    while True:
        await client.chunk(b"\n")
        await asyncio.sleep(0.03)


@plays
async def sse_pings(client: Client) -> None:
    await client.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while True:
        await client.send(": ping\n\n")
        await asyncio.sleep(0.01)


@plays
async def sse_good_stream(client: Client) -> None:
    delta = json.dumps({"choices": [{"index": 0, "delta": {"content": json.dumps(GOOD)}, "finish_reason": "stop"}]})
    await client.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    await client.send(f"data: {delta}\n\ndata: [DONE]\n\n")


@plays
async def done_then_more(client: Client) -> None:
    await client.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: [DONE]\n\n")
    while True:
        await client.send("data: {}\n\n" * 100)


@plays
async def endless_line(client: Client) -> None:
    await client.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\ndata: ")
    while True:
        await client.send(b"x" * 16384)


@plays
async def endless_sse_line(client: Client) -> None:
    await client.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ")
    while True:
        await client.send(b"x" * 16384)


@plays
async def body_of_300_mb(client: Client) -> None:
    await client.head()
    piece = b" " * 65536
    for _ in range(4800):
        await client.chunk(piece)
    await client.send("0\r\n\r\n")


@plays
async def close_delimited_flood(client: Client) -> None:
    await client.send("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        await client.send(b"[" * 65536)


@plays
async def claims_4_gb(client: Client) -> None:
    await client.head("Content-Length: 4294967296\r\n")
    await client.for_ever()


@plays
async def claims_10_to_30(client: Client) -> None:
    await client.head("Content-Length: 1000000000000000000000000000000\r\n")
    await client.for_ever()


def bomb() -> bytes:
    """200 MB of spaces in 200 KB: gzip files may follow one another."""
    return gzip.compress(b" " * 2**20, mtime=0) * 200


@plays
async def gzip_bomb(client: Client) -> None:
    await client.answer(bomb(), more="Content-Encoding: gzip\r\n")


@plays
async def gzip_bomb_twice(client: Client) -> None:
    await client.answer(gzip.compress(bomb()), more="Content-Encoding: gzip, gzip\r\n")


@plays
async def gzip_unsaid(client: Client) -> None:
    await client.answer(gzip.compress(envelope().encode()))


@plays
async def deflate_bomb(client: Client) -> None:
    await client.answer(zlib.compress(b" " * 2**24, 9), more="Content-Encoding: deflate\r\n")


@plays
async def transfer_gzip(client: Client) -> None:
    await client.head("Transfer-Encoding: gzip, chunked\r\n")
    await client.chunk(gzip.compress(envelope().encode()))
    await client.send("0\r\n\r\n")


@plays
async def error_bomb(client: Client) -> None:
    await client.answer(bomb(), status="400 Bad Request", more="Content-Encoding: gzip\r\n")


@plays
async def cut_length(client: Client) -> None:
    body = envelope().encode()
    await client.head(f"Content-Length: {len(body) + 500}\r\n")
    await client.send(body)


@plays
async def cut_chunk(client: Client) -> None:
    await client.head()
    await client.send(b"%x\r\n" % 5000 + envelope().encode())


@plays
async def no_last_chunk(client: Client) -> None:
    await client.head()
    await client.chunk(envelope().encode())


@plays
async def long_length_stays_open(client: Client) -> None:
    body = envelope().encode()
    await client.head(f"Content-Length: {len(body) + 1}\r\n")
    await client.send(body)
    await client.for_ever()


@plays
async def short_length(client: Client) -> None:
    body = envelope().encode()
    await client.head(f"Content-Length: {len(body) - 20}\r\n")
    await client.send(body)


@plays
async def two_lengths(client: Client) -> None:
    body = envelope().encode()
    await client.head(f"Content-Length: {len(body)}\r\nContent-Length: {len(body) - 5}\r\n")
    await client.send(body)


@plays
async def length_and_chunks(client: Client) -> None:
    body = envelope().encode()
    await client.head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")
    await client.chunk(body)
    await client.send("0\r\n\r\n")


@plays
async def negative_length(client: Client) -> None:
    await client.head("Content-Length: -1\r\n")
    await client.send(envelope())


@plays
async def reset_in_body(client: Client) -> None:
    await client.head("Content-Length: 5000\r\n")
    await client.send(envelope())
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


@plays
async def closes_unanswered(client: Client) -> None:
    client.writer.close()


@plays
async def closes_once(client: Client) -> None:
    if client.nth:
        await answers(client)


@plays
async def header_of_2_mb(client: Client) -> None:
    await client.send("HTTP/1.1 200 OK\r\nX-A: ")
    for _ in range(32):
        await client.send(b"a" * 65536)
    await client.send("\r\n\r\n")


@plays
async def headers_100_000(client: Client) -> None:
    await client.send("HTTP/1.1 200 OK\r\n")
    for _ in range(1000):
        await client.send(b"a: b\r\n" * 100)
    await client.answer(envelope())


@plays
async def headers_short_of_the_most(client: Client) -> None:
    await client.answer(envelope(), more="a:\r\n" * 3900)


@plays
async def set_cookies_thousand(client: Client) -> None:
    await client.answer(envelope(), more="".join(f"Set-Cookie: a{i}=1\r\n" for i in range(600)))


@plays
async def flood_of_1xx(client: Client) -> None:
    while True:
        await client.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 500)


@plays
async def some_1xx(client: Client) -> None:
    for _ in range(10):
        await client.send("HTTP/1.1 103 Early Hints\r\nLink: <http://127.0.0.1:1/>; rel=preload\r\n\r\n")
    await client.answer(envelope())


@plays
async def drips_1xx(client: Client) -> None:
    while True:
        await client.send("HTTP/1.1 102 Processing\r\n\r\n")
        await asyncio.sleep(0.02)


@plays
async def switches_protocol(client: Client) -> None:
    await client.send(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x05hello"
    )
    await client.for_ever()


@plays
async def raw(client: Client) -> None:
    """What the row's `raw` says, byte for byte, KEYECHO being the key that came with the request."""
    data = client.row["raw"].encode("latin-1").decode("unicode_escape").encode("latin-1")
    await client.send(data.replace(b"KEYECHO", _key_of(client).encode()))


@plays
async def raw_then_open(client: Client) -> None:
    await raw(client)
    await client.for_ever()


@plays
async def answer_then_flood(client: Client) -> None:
    await client.answer(envelope())
    while True:
        await client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 200)


@plays
async def smuggles_second_answer(client: Client) -> None:
    poisoned = envelope({"content": json.dumps({**GOOD, "title": "POISON"})}).encode()
    good = envelope().encode()
    one = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    await client.send(one % len(good) + good + one % len(poisoned) + poisoned)
    await client.for_ever()


@plays
async def trailers_flood(client: Client) -> None:
    await client.head()
    await client.chunk(envelope().encode())
    await client.send("0\r\n")
    while True:
        await client.send(b"a: b\r\n" * 500)


@plays
async def trailers_that_set(client: Client) -> None:
    await client.head("Transfer-Encoding: chunked\r\nTrailer: Content-Type, Content-Encoding\r\n")
    await client.chunk(envelope().encode())
    await client.send("0\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n")


@plays
async def chunk_extension_bomb(client: Client) -> None:
    await client.head()
    while True:
        await client.send(b"1;" + b"a" * 60000 + b"\r\nx\r\n")


@plays
async def chunk_extension_endless(client: Client) -> None:
    await client.head()
    await client.send(b"1;")
    while True:
        await client.send(b"a" * 16384)


@plays
async def tiny_chunks_few(client: Client) -> None:
    await client.head()
    await client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in envelope().encode()) + b"0\r\n\r\n")


@plays
async def tiny_chunks_many(client: Client) -> None:
    await client.head()
    while True:
        await client.send(b"1\r\n \r\n" * 4000)


@plays
async def chunk_size_overflows(client: Client) -> None:
    await client.head()
    await client.send(b"FFFFFFFFFFFFFFFFF\r\n" + envelope().encode())
    await client.for_ever()


@plays
async def reads_nothing(client: Client) -> None:
    """It has not read the question, nor will it."""
    await asyncio.sleep(30)


@plays
async def answers_unasked(client: Client) -> None:
    """It answers before it has read the question."""
    await client.answer(envelope())


@plays
async def answers_after_deadline(client: Client) -> None:
    await asyncio.sleep(1.2)
    await client.answer(envelope({"content": json.dumps({**GOOD, "title": "LATE"})}))


@plays
async def head_then_silence(client: Client) -> None:
    await client.head("Content-Length: 500\r\n")
    await client.for_ever()


@plays
async def half_then_silence(client: Client) -> None:
    await client.head("Content-Length: 500\r\n")
    await client.send(envelope()[:100])
    await client.for_ever()


@plays
async def redirect(client: Client) -> None:
    """`to` of the row; {self}, {other} stand for this server and the other one."""
    host = client.request.get("host", "")
    to = client.row["to"].format(self=f"http://{host}", other=f"http://127.0.0.1:{PORTS['other']}")
    await client.answer("", status=client.row["status"], kind="", more=f"Location: {to}\r\n")


@plays
async def points_elsewhere(client: Client) -> None:
    """A good answer whose headers name the other server in every way there is."""
    other = f"127.0.0.1:{PORTS['other']}"
    lines = (
        f'Alt-Svc: h2="{other}"; ma=86400',
        f"Refresh: 0; url=http://{other}/",
        f"Location: http://{other}/",
        f"Content-Location: http://{other}/",
        f"Link: <http://{other}/>; rel=preload",
        "Set-Cookie: session=POISON; Path=/; Max-Age=99999",
        "Strict-Transport-Security: max-age=99999",
        "Authentication-Info: nextnonce=x",
        f'NEL: {{"report_to":"x"}}\r\nReport-To: {{"endpoints":[{{"url":"http://{other}/"}}]}}',
    )
    await client.answer(envelope(), more="\r\n".join(lines) + "\r\n")


@plays
async def fuzz(client: Client) -> None:
    """A good answer with some bytes changed, cut out or doubled, as `seed=N` in the question says."""
    told = "".join(str(message["content"]) for message in client.request["json"]["messages"])
    chance = random.Random(int(re.search(r"seed=(\d+)", told)[1]))  # type: ignore[index]
    body = envelope().encode()
    if chance.random() < 0.5:
        size = chance.randrange(1, 400)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in pieces)
        framing, body = b"Transfer-Encoding: chunked", chunks + b"0\r\n\r\n"
    else:
        framing = b"Content-Length: %d" % len(body)
    data = bytearray(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n" + body)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 30))):
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 20)]
            case 2:
                data[at:at] = data[at : at + chance.randrange(1, 60)]
            case 3:
                data[at:at] = chance.choice((b"\r\n", b"\0", b"\r\n\r\n", b"{", b'"', b"9" * 40, b"\xff", b"[" * 99))
            case _:
                data[at] ^= 1 << chance.randrange(8)
    await client.send(bytes(data))


# -- C, D: what is too much to write down -----------------------------------------------------------------------------


@plays
async def many(client: Client) -> None:
    """The row's `body` with REPEAT(text, n) written out."""
    repeated = re.sub(
        r"REPEAT\((.*?), (\d+)\)", lambda found: found[1] * int(found[2]), client.row["body"], flags=re.DOTALL
    )
    await client.answer(repeated.replace("KEYECHO", _key_of(client)))


@plays
async def many_in_content(client: Client) -> None:
    """The same for `content`."""
    repeated = re.sub(
        r"REPEAT\((.*?), (\d+)\)", lambda found: found[1] * int(found[2]), client.row["content"], flags=re.DOTALL
    )
    await client.answer(envelope({"content": repeated}))


@plays
async def tool_calls_1500(client: Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "drain", "arguments": "{}"}}
    await client.answer(envelope({"message": {"tool_calls": [call] * 1500}}))
