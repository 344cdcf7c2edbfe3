"""Keys of people: ed25519 signatures over decisions, and public keys as OpenSSH writes them. Private keys are in files
(`runbooks.people.key_files`) or in an ssh-agent (`runbooks.people.ssh_agent`).

A decision is signed as canonical JSON in a domain of its own, so that a signature for one thing is none for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from engine.model.errors import SpecError
from runbooks.people.identity import AuthRefused, Signed

DecisionKind = Literal["vote", "author", "breakglass", "policy"]
DOMAIN = b"muster/decision/v1\n"
WINDOW_MS = 5 * 60_000
"""How far the moment of signing may be from the gate's clock."""
ALGORITHM = "ssh-ed25519"
_NONCE_BYTES = (16, 64)


class PublicKey(msgspec.Struct, frozen=True):
    """An ed25519 public key."""

    raw: bytes

    @property
    def blob(self) -> bytes:
        """As SSH sends it."""
        return ssh_string(ALGORITHM.encode()) + ssh_string(self.raw)

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def line(self) -> str:
        """As a public key file has it, without a comment."""
        return f"{ALGORITHM} {base64.b64encode(self.blob).decode()}"

    def verifies(self, signature: bytes, message: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def public_key(line: str, where: str = "key") -> PublicKey:
    """Reads "ssh-ed25519 AAAA… comment". Raises SpecError for anything else, and for a point of small order, with which
    anybody's signature could be made to fit."""
    remedy = "Give the line of an ed25519 public key file, as `muster operator key new` or ssh-keygen writes it"
    words = line.split()
    if len(words) < 2 or words[0] != ALGORITHM or not line.isprintable() or len(line) > 1_000:
        raise SpecError(where, f"{line[:40]!a} is not an ed25519 public key", remedy)
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        raise SpecError(where, f"{words[1][:40]!a} is not base64", remedy) from None
    head = ssh_string(ALGORITHM.encode()) + (32).to_bytes(4, "big")
    if not blob.startswith(head) or len(blob) != len(head) + 32:
        raise SpecError(where, "is not an ed25519 public key inside", remedy)
    key = PublicKey(blob[len(head) :])
    if small_order(key.raw) or int.from_bytes(key.raw, "little") % 2**255 >= _PRIME:
        raise SpecError(where, "is no point that a key could be", remedy)
    return key


def decision_bytes(
    *,
    kind: DecisionKind,
    subject: str,
    nonce: str,
    at_ms: int,
    proposal: str = "",
    revision: int = 0,
    digest: str = "",
    verdict: str = "",
    screen: str = "",
    cell: str = "",
) -> bytes:
    """What is signed. `cell` is the identity of the cell (`Policies.cell`): a signature for one cell is none for
    another. For kind "author" the digest is that of the request."""
    fields = {
        "kind": kind, "subject": subject, "nonce": nonce, "at_ms": at_ms, "proposal": proposal, "revision": revision,
        "digest": digest, "verdict": verdict, "screen": screen, "cell": cell,
    }  # fmt: skip
    return DOMAIN + msgspec.json.encode(fields, order="sorted")


def verify(keys: Iterable[PublicKey], signed: Signed, message: bytes, now_ms: int) -> PublicKey:
    """The one of a person's enrolled keys that made the signature. Raises AuthRefused, saying what does not hold. That
    the nonce was not used before is for `runbooks.gate.policy_versions` to say."""
    remedy = "Look at it again and sign what it shows"
    if not _plain_hex(signed.nonce):
        raise AuthRefused("the nonce of the signature is not 16 to 64 bytes in hex", remedy)
    if abs(now_ms - signed.at_ms) > WINDOW_MS:
        raise AuthRefused(
            f"the signature was made {abs(now_ms - signed.at_ms) // 1000:,} s away from now and at most "
            f"{WINDOW_MS // 1000} s are taken", "Sign again; see that the clocks of both machines are right",
        )  # fmt: skip
    try:
        signature = base64.b64decode(signed.signature, validate=True)
    except (binascii.Error, ValueError):
        raise AuthRefused("the signature is not base64", remedy) from None
    for key in keys:
        if key.fingerprint == signed.key and key.verifies(signature, message):
            return key
    raise AuthRefused(f"the signature is not by a key of {signed.subject[:80]!a} over this decision", remedy)


def small_order(raw: bytes) -> bool:
    """Whether the encoded point is one of the eight of small order: its y is 0, 1, -1 or that of a point of order 8."""
    y = int.from_bytes(raw, "little") % 2**255 % _PRIME
    return y in (0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8)


_PRIME = 2**255 - 19
_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
"""A y with which 8 * (x, y) is the neutral element of edwards25519; the test computes it."""


def _plain_hex(text: str) -> bool:
    least, most = _NONCE_BYTES
    return 2 * least <= len(text) <= 2 * most and all(char in "0123456789abcdef" for char in text)


def ssh_string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


class SigningKey(Protocol):
    """A private key that can be used, wherever it is kept."""

    public: PublicKey

    def sign(self, message: bytes) -> bytes:
        """64 bytes. Raises SpecError or RefusedError when it cannot."""
        ...


def signed_by(
    key: SigningKey,
    *,
    kind: DecisionKind,
    subject: str,
    at_ms: int,
    proposal: str = "",
    revision: int = 0,
    digest: str = "",
    verdict: str = "",
    screen: str = "",
    cell: str = "",
) -> Signed:
    """A decision signed now, under a fresh nonce."""
    nonce = secrets.token_hex(_NONCE_BYTES[0])
    message = decision_bytes(
        kind=kind, subject=subject, nonce=nonce, at_ms=at_ms, proposal=proposal, revision=revision, digest=digest,
        verdict=verdict, screen=screen, cell=cell,
    )  # fmt: skip
    return Signed(
        subject=subject, nonce=nonce, at_ms=at_ms, key=key.public.fingerprint,
        signature=base64.b64encode(key.sign(message)).decode(), screen=screen,
    )  # fmt: skip
