"""A model server that lies, stalls, floods and breaks HTTP, in a process of its own: `python server.py CASES CANARY…`.

What it plays is said by the model's name, or by `case=ID` in a message of the user: the row of that id in cases.yaml,
played by `plays.py`. It writes one line of JSON with its ports when it is ready, and one with what it has seen since
the last time for each line that it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import re
import socket
import ssl
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from plays import PLAYS, PORTS, Client
from status_plays import form_of


@dataclass
class Seen:
    """What came in since it was last asked for."""

    connections: dict[str, int] = field(default_factory=dict)
    """By listener."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    canaries: list[str] = field(default_factory=list)
    """Of those named on the command line, any that was in what came in."""


SEEN = Seen()
ASKED: dict[str, int] = {}
ROWS: dict[str, dict[str, Any]] = {}
CANARIES: list[str] = []
UNREAD = ("reads_nothing", "answers_unasked")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: str) -> None:
    SEEN.connections[listener] = SEEN.connections.get(listener, 0) + 1
    client = Client(reader, writer)
    try:
        if not await _read_request(client, listener):
            return
        await PLAYS[client.row.get("server", "answers")](client)
    except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
        pass
    finally:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            writer.close()
            async with asyncio.timeout(0.5):
                await writer.wait_closed()


async def _read_request(client: Client, listener: str) -> bool:
    head = await client.reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    client.request = dict(headers)
    # Cases that do not read the question are named by its path: /v1/ID/chat/completions.
    named = re.search(r"/case/([A-Za-z0-9_-]+)/", lines[0])
    body = b""
    if named is None or ROWS.get(named[1], {}).get("server") not in UNREAD:
        body = await client.reader.readexactly(int(headers.get("content-length", "0")))
        client.request["json"] = json.loads(body) if body else {}
    else:
        client.request["json"] = {}
    told = "".join(str(message.get("content", "")) for message in client.request["json"].get("messages", ()))
    found = re.search(r"case=([A-Za-z0-9_-]+)", told)
    case = named[1] if named else found[1] if found else str(client.request["json"].get("model", ""))
    client.row = ROWS.get(case, {})
    client.nth = ASKED.get(case, 0)
    ASKED[case] = client.nth + 1
    everything = head + body
    SEEN.canaries += [canary for canary in CANARIES if canary.encode() in everything]
    SEEN.requests.append(
        {
            "listener": listener,
            "case": case,
            "line": lines[0],
            "headers": headers,
            "bytes": len(body),
            "form": form_of(client) if body else "",
            "model": client.request["json"].get("model", ""),
        }
    )
    return True


async def _mute(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, listener: str) -> None:
    """A TLS server that never shakes hands."""
    SEEN.connections[listener] = SEEN.connections.get(listener, 0) + 1
    await asyncio.sleep(20)


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: str) -> None:
    """A TLS server whose hello comes byte by byte."""
    SEEN.connections[listener] = SEEN.connections.get(listener, 0) + 1
    with contextlib.suppress(ConnectionError):
        for byte in b"\x16\x03\x03\x40\x00" + b"\x02" * 500:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)
    writer.close()


async def _resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: str) -> None:
    """Breaks the connection as soon as it is made."""
    SEEN.connections[listener] = SEEN.connections.get(listener, 0) + 1
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main() -> None:
    ROWS.update({row["id"]: row for row in yaml.load(Path(sys.argv[1]).read_text(), yaml.CSafeLoader)})
    CANARIES.extend(sys.argv[2:])
    authority, contexts = _authority()

    async def listen(name: str, handler: Any = serve, context: ssl.SSLContext | None = None) -> None:
        async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await handler(reader, writer, name)

        server = await asyncio.start_server(handled, "127.0.0.1", 0, ssl=context, limit=2**20)
        PORTS[name] = server.sockets[0].getsockname()[1]
        servers.append(server)

    servers: list[asyncio.Server] = []
    await listen("http")
    await listen("other")
    for name, context in contexts.items():
        await listen(name, context=context)
    await listen("tls_mute", _mute)
    await listen("tls_drip", _drip)
    await listen("resets", _resets)
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))  # bound and never listening: nobody else can have the port meanwhile
    PORTS["closed"] = closed.getsockname()[1]
    # The other end goes away in the middle of everything: that is what is asked for here.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    print(json.dumps({"ports": PORTS, "ca": authority}), flush=True)
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while line := await stdin.readline():
        if line.strip():
            # What was sent just before has to be read first.
            await asyncio.sleep(0.002)
        print(json.dumps(SEEN.__dict__), flush=True)
        SEEN.connections, SEEN.requests, SEEN.canaries = {}, [], []
        ASKED.clear()


def _authority() -> tuple[str, dict[str, ssl.SSLContext]]:
    """(PEM of a CA, contexts of servers by name)."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
    day = datetime.timedelta(days=1)

    def signed(name: str, by: Any, by_key: Any, of: Any, host: str, until: datetime.datetime) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by.subject if by else subject)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * day)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        )
        if host:
            alternative: x509.GeneralName = (
                x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            )
            builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        if by is None:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(of.public_key()), critical=False)
        issuer_key = by_key.public_key()
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        return builder.sign(by_key, hashes.SHA256())

    ca = signed("test CA", None, key, key, "", now + day)
    contexts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, host, until, own in (
            ("tls", "127.0.0.1", now + day, False),
            ("tls_wrong_host", "models.example", now + day, False),
            ("tls_expired", "127.0.0.1", now - day, False),
            ("tls_self_signed", "127.0.0.1", now + day, True),
        ):
            of = ec.generate_private_key(ec.SECP256R1())
            certificate = signed(host, None if own else ca, of if own else key, of, host, until)
            file = Path(folder, name)
            file.write_bytes(
                of.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                + certificate.public_bytes(serialization.Encoding.PEM)
            )
            contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            contexts[name].load_cert_chain(file)
    return ca.public_bytes(serialization.Encoding.PEM).decode(), contexts


if __name__ == "__main__":
    asyncio.run(main())
