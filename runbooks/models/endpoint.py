"""The endpoint of a model, checked once when it is configured.

The egress class decides what the server may be told: `local` is on this machine or our network, `trusted` has a
contract, `external` is a stranger.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

import msgspec

from engine.model.errors import SpecError

Egress = Literal["local", "trusted", "external"]

MAX_URL = 500
MAX_RESPONSE_BYTES = 256 * 1024
"""Of an answer's body: 20 times the longest draft."""
MAX_TOKENS = 32_768
MAX_CA_BYTES = 256 * 1024
DEADLINE_MS = 20_000
MIN_DEADLINE_MS, MAX_DEADLINE_MS = 100, 300_000
TOKENS = 2_048

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")
_LAST_NUMERIC = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
_MODEL = re.compile(r"[!-~]{1,128}")
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(address) for address in ("100.100.100.200", "192.0.0.192", "fd00:ec2::254", "168.63.129.16")
)
_CARRIES_IPV4 = (ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b::/96"))
_PORTS = {"http": 80, "https": 443}
_EGRESS: dict[str, Egress] = {name: name for name in get_args(Egress)}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One server and the model asked of it. Holds no key. Made by `endpoint_of`."""

    scheme: Literal["http", "https"]
    host: str
    """Lower case; an IPv6 address without brackets."""
    port: int
    path: str
    """Of the base URL, such as /v1; empty for none. `/chat/completions` goes behind it."""
    model: str
    aliases: tuple[str, ...] = ()
    """Other names by which that model may answer: a vendor may call what was asked for by its version."""
    egress: Egress = "external"
    deadline_ms: int = DEADLINE_MS
    """Wall time of one call, from when it is sent until the last byte, retries included."""
    max_tokens: int = TOKENS
    """Of an answer, unless the call asks for fewer."""
    most_bytes: int = MAX_RESPONSE_BYTES
    ca_pem: str = ""
    """Certificates that vouch for the server, in place of the machine's own; empty: the machine's."""

    @property
    def origin(self) -> str:
        """Scheme, host and port: http://127.0.0.1:8000, https://api.example.com."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    @property
    def base_url(self) -> str:
        return self.origin + self.path


def endpoint_of(
    url: str,
    model: str,
    *,
    aliases: tuple[str, ...] = (),
    egress: str = "external",
    deadline_ms: int = DEADLINE_MS,
    max_tokens: int = TOKENS,
    most_bytes: int = MAX_RESPONSE_BYTES,
    ca_file: str = "",
) -> Endpoint:
    """The endpoint that these settings describe. Reads `ca_file`, opens no connection.

    Raises SpecError, its `where` being the setting's name (model_url, model, model_aliases, model_egress,
    model_deadline, model_max_tokens, model_ca_file). No error repeats what stands before an @ in the URL, for that may
    be a password.
    """
    told = _EGRESS.get(egress)
    if told is None:
        raise SpecError("model_egress", f"{egress[:40]!r} is no egress class", "Use local, trusted or external")
    if not _MODEL.fullmatch(model):
        raise SpecError(
            "model",
            "empty" if not model else "not a model's name",
            "Give its name as the server knows it, such as qwen3:8b: up to 128 characters of ASCII without spaces",
        )
    for alias in aliases:
        if not _MODEL.fullmatch(alias):
            raise SpecError("model_aliases", f"{alias[:40]!a} is not a model's name", "Copy the name that was refused")
    if not MIN_DEADLINE_MS <= deadline_ms <= MAX_DEADLINE_MS:
        raise SpecError("model_deadline", f"{deadline_ms} ms", "Use 100 ms to 5 min, such as 20s")
    if not 1 <= max_tokens <= MAX_TOKENS:
        raise SpecError("model_max_tokens", str(max_tokens), f"Use 1 to {MAX_TOKENS}")
    scheme, host, port, path = _split(url)
    if scheme == "http" and told != "local" and not _is_loopback(host):
        raise SpecError(
            "model_url",
            f"http to {host} would send prompts and the key readable by anyone on the way",
            'Use https, or model_egress = "local" if all of that network is yours',
        )
    ca_pem = _certificates(ca_file) if ca_file else ""
    if ca_pem and scheme != "https":
        raise SpecError("model_ca_file", "there is no certificate to check with http", "Use https, or leave it out")
    return Endpoint(
        scheme=scheme,
        host=host,
        port=port,
        path=path,
        model=model,
        aliases=aliases,
        egress=told,
        deadline_ms=deadline_ms,
        max_tokens=max_tokens,
        most_bytes=most_bytes,
        ca_pem=ca_pem,
    )


def _split(url: str) -> tuple[Literal["http", "https"], str, int, str]:
    """(scheme, host, port, path) of a base URL."""
    usual = "Give the base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1"
    if not url:
        raise SpecError("model_url", "empty", usual)
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise SpecError("model_url", f"not a URL of up to {MAX_URL} printable ASCII characters without spaces", usual)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SpecError("model_url", "its host or port cannot be read", usual) from None
    if parts.scheme not in _PORTS:
        raise SpecError("model_url", "neither http nor https", usual)
    scheme: Literal["http", "https"] = "http" if parts.scheme == "http" else "https"
    if "@" in parts.netloc:
        raise SpecError(
            "model_url", "it holds a user or a password", "Give the key as MUSTER_MODEL_KEY or in model_key_file"
        )
    if "?" in url or "#" in url:
        raise SpecError("model_url", "it has a query or a fragment", "Leave out all from the ? or # on")
    if port == 0 or parts.netloc.endswith(":"):
        raise SpecError("model_url", "its port is missing or 0", usual)
    return scheme, _host(parts), port or _PORTS[scheme], _base_path(parts.path)


def _host(parts: SplitResult) -> str:
    # A name may end in a point, and so may an address: it is looked at without.
    host = (parts.hostname or "").lower().removesuffix(".")
    if not host:
        raise SpecError("model_url", "it names no host", "Such as http://127.0.0.1:8000/v1")
    address = _address(host)
    bracketed = parts.netloc.startswith("[")
    if bracketed and (address is None or re.fullmatch(r"\[[^\]]*\](:[0-9]+)?", parts.netloc) is None):
        raise SpecError("model_url", "what stands in brackets is no IPv6 address alone", "Write it as [::1]:8000")
    # 2130706433, 0x7f.1 and 127.1 are addresses to a resolver and names to whoever reads them.
    if address is None and (
        not _HOST_NAME.fullmatch(host) or len(host) > 253 or _LAST_NUMERIC.fullmatch(host.rpartition(".")[2])
    ):
        raise SpecError(
            "model_url",
            f"{host[:60]!r} is no host name and no address",
            "Write an address as 127.0.0.1 or [::1], and other letters than ASCII as xn--",
        )
    if host in _METADATA_NAMES or (address is not None and _is_nobodys(address)):
        raise SpecError(
            "model_url",
            f"{host} is no server's address: link-local, multicast, unspecified, or a cloud's metadata",
            "Give the address of the model's server",
        )
    return str(address) if address is not None else host


def _base_path(path: str) -> str:
    if not _PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        raise SpecError("model_url", "its path has more than plain names between slashes", "Such as /v1 or /openai/v1")
    path = path.rstrip("/")
    if path.endswith("/completions"):
        raise SpecError(
            "model_url", "it is the URL of one call", "Give what comes before /chat/completions, such as …/v1"
        )
    return path


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_nobodys(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    plain = _inner(address) if isinstance(address, ipaddress.IPv6Address) else address
    return (
        plain.is_link_local
        or plain.is_multicast
        or plain.is_unspecified
        or plain in _METADATA_ADDRESSES
        or plain == ipaddress.ip_address("255.255.255.255")
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that a network takes out of it: mapped, compatible, 6to4, or by NAT64."""
    found = address.ipv4_mapped or address.sixtofour
    if found is None and any(address in network for network in _CARRIES_IPV4):
        found = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return found if found is not None and int(address) > 1 else address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address is not None else host == "localhost"


def _certificates(file: str) -> str:
    where = "model_ca_file"
    try:
        with Path(file).expanduser().open("rb") as reading:
            data = reading.read(MAX_CA_BYTES + 1)
    except OSError as error:
        raise SpecError(where, f"{file[:200]!r}: {error.strerror}", "Name a PEM file that can be read") from None
    if len(data) > MAX_CA_BYTES:
        raise SpecError(where, f"over {MAX_CA_BYTES // 1024} KiB", "Name the file of the certificates that you need")
    try:
        pem = data.decode("ascii")
        ssl.create_default_context(cadata=pem)
    except (ValueError, ssl.SSLError):
        raise SpecError(where, "it holds no certificates in PEM", "Name the file of the CA's certificate") from None
    return pem
