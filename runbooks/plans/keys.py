"""Keys of people: ed25519 signatures over decisions, with private keys in files or in an ssh-agent.

A decision is signed as canonical JSON under `DOMAIN`, so a signature for one thing is valid for nothing else. Public
keys have OpenSSH's form.

Key files are PKCS8 PEM under a passphrase, readable by their owner alone. The passphrase is stretched with scrypt (RFC
7914) in PBES2 (RFC 8018, RFC 5958), because the default of `cryptography` takes half a millisecond for each guess.
OpenSSL reads such files too.

The agent client speaks draft-ietf-sshm-ssh-agent, for ed25519 only. The private key never leaves the agent. No message
of the SSH protocol begins with `DOMAIN`, so a signature made here cannot log anybody in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import socket
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol, TypedDict, Unpack

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from engine.model.errors import RefusedError, SpecError
from runbooks.plans.identity import AuthRefused, Signed

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
    remedy = "Give the line of an ed25519 public key file, as `muster policy operator new-key` or ssh-keygen writes it"
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


class DecisionFields(TypedDict, total=False):
    """The fields of a decision that not every kind has; empty, or 0, where they are left out."""

    proposal: str
    revision: int
    digest: str
    verdict: str
    screen: str
    cell: str


def decision_bytes(
    *, kind: DecisionKind, subject: str, nonce: str, at_ms: int, **about: Unpack[DecisionFields]
) -> bytes:
    """The bytes that are signed. `cell` is the identity of the cell (`Policies.cell`): a signature for one cell is
    invalid in another. For kind "author" the digest is that of the request."""
    fields = {
        "kind": kind, "subject": subject, "nonce": nonce, "at_ms": at_ms, "proposal": "", "revision": 0, "digest": "",
        "verdict": "", "screen": "", "cell": "", **about,
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
    """True when the encoded point is one of the eight of small order: its y is 0, 1, -1 or that of a point of order
    8."""
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
    key: SigningKey, *, kind: DecisionKind, subject: str, at_ms: int, **about: Unpack[DecisionFields]
) -> Signed:
    """A decision signed now, under a fresh nonce."""
    nonce = secrets.token_hex(_NONCE_BYTES[0])
    message = decision_bytes(kind=kind, subject=subject, nonce=nonce, at_ms=at_ms, **about)
    return Signed(
        subject=subject, nonce=nonce, at_ms=at_ms, key=key.public.fingerprint,
        signature=base64.b64encode(key.sign(message)).decode(), screen=about.get("screen", ""),
    )  # fmt: skip


MIN_PASSPHRASE = 12
MAX_BYTES = 16 * 1024
COST, BLOCK, LANES = 2**14, 8, 5
"""Of scrypt: 16 MiB, a fifth of a second for each guess. More memory OpenSSL refuses by default."""
_BEGIN, _END = "-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----"
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_SCRYPT = bytes.fromhex("06092b06010401da47040b")
_AES_256_CBC = bytes.fromhex("060960864801650304012a")


class FileKey:
    """A private key read from a file, in memory as long as this lives."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = PublicKey(private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def write_new_key(path: Path, passphrase: bytes) -> PublicKey:
    """Makes a key and writes it to a new file, mode 0600. Raises SpecError for a passphrase that is too short and for a
    file that is there already."""
    if len(passphrase) < MIN_PASSPHRASE:
        raise SpecError("passphrase", "is too short", f"Give at least {MIN_PASSPHRASE} characters")
    private = Ed25519PrivateKey.generate()
    pem = _encrypted(private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), passphrase)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise SpecError("key", f"{path} cannot be made ({error.strerror})", "Name a file that is not there") from None
    with open(file, "wb") as writing:
        writing.write(pem)
    return PublicKey(private.public_key().public_bytes_raw())


def read_secret(path: Path, what: str) -> bytes:
    """The content of a file that nobody else may read. Raises SpecError."""
    try:
        with open(path, "rb") as reading:
            found = os.fstat(reading.fileno())
            content = reading.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(what, f"{path} cannot be read ({error.strerror})", "See docs/approval.md, Keys") from None
    if found.st_mode & 0o077 or found.st_uid != os.getuid():
        raise SpecError(what, f"{path} can be read by others than you", "chmod 600, and own it")
    if len(content) > MAX_BYTES:
        raise SpecError(what, f"{path} is larger than {MAX_BYTES} bytes", "Name the file of a key")
    return content


def open_key(path: Path, passphrase: Callable[[], bytes]) -> FileKey:
    """Reads a private key. The passphrase is asked for once the file is known to be a key under one. Raises SpecError:
    not yours alone, no key, not ed25519, without a passphrase, or under another."""
    pem = read_secret(path, "key")
    if _BEGIN.encode() not in pem:
        raise SpecError(
            "key",
            f"{path} is not a private key under a passphrase (PKCS8 PEM)",
            "Make one with `muster policy operator new-key`; keys of ssh are used through ssh-agent: key = agent",
        )
    try:
        private = load_pem_private_key(pem, passphrase())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SpecError("key", f"{path} does not open with this passphrase", "Try again") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise SpecError("key", f"{path} is not an ed25519 key", "Make one with `muster policy operator new-key`")
    return FileKey(private)


def _encrypted(key: bytes, passphrase: bytes) -> bytes:
    """EncryptedPrivateKeyInfo of a PKCS8 key, as PEM."""
    salt, start = secrets.token_bytes(16), secrets.token_bytes(16)
    stretched = Scrypt(salt=salt, length=32, n=COST, r=BLOCK, p=LANES).derive(passphrase)
    padder, encryptor = PKCS7(128).padder(), Cipher(AES(stretched), CBC(start)).encryptor()
    content = encryptor.update(padder.update(key) + padder.finalize()) + encryptor.finalize()
    stretching = _sequence(_SCRYPT, _sequence(_octets(salt), *map(_number, (COST, BLOCK, LANES, 32))))
    scheme = _sequence(_PBES2, _sequence(stretching, _sequence(_AES_256_CBC, _octets(start))))
    body = base64.b64encode(_sequence(scheme, _octets(content))).decode()
    return "\n".join((_BEGIN, *textwrap.wrap(body, 64), _END, "")).encode()


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = size.to_bytes(1 if size < 256 else 2, "big")
    return bytes([tag]) + (length if size < 128 else bytes([0x80 + len(length)]) + length) + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _octets(content: bytes) -> bytes:
    return _der(0x04, content)


def _number(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


REQUEST_IDENTITIES, IDENTITIES, SIGN, SIGNATURE = 11, 12, 13, 14
MAX_REPLY_BYTES = 256 * 1024
PATIENCE_S = 60.0
"""How long the agent may ask its owner before it signs."""


class AgentKey:
    """A key inside an agent."""

    def __init__(self, path: str, public: PublicKey, comment: str) -> None:
        self.public = public
        self.comment = comment
        self._path = path

    def sign(self, message: bytes) -> bytes:
        """Raises RefusedError when the agent or its owner declines."""
        if not message.startswith(DOMAIN):
            raise SpecError("message", "is not a decision", "Sign decisions alone")
        body = bytes([SIGN]) + ssh_string(self.public.blob) + ssh_string(message) + (0).to_bytes(4, "big")
        answer = _Reader(_ask(self._path, body, SIGNATURE))
        inner = _Reader(answer.string())
        algorithm, signature = inner.string(), inner.string()
        if algorithm != ALGORITHM.encode() or len(signature) != 64:
            raise RefusedError("the agent answered with a signature of another kind", "Use an ed25519 key")
        return signature


def agent_path() -> str:
    """The socket of the agent; empty when there is none."""
    return os.environ.get("SSH_AUTH_SOCK", "")


def agent_keys(path: str) -> list[AgentKey]:
    """The ed25519 keys of the agent at `path`, in its order. Raises RefusedError when none answers there."""
    answer = _Reader(_ask(path, bytes([REQUEST_IDENTITIES]), IDENTITIES))
    found = []
    for _ in range(answer.number()):
        blob, comment = answer.string(), answer.string()
        head = ssh_string(ALGORITHM.encode()) + (32).to_bytes(4, "big")
        if blob.startswith(head) and len(blob) == len(head) + 32:
            found.append(AgentKey(path, PublicKey(blob[len(head) :]), comment.decode("utf-8", "replace")))
    return found


class _Reader:
    """Reads what an agent sent, piece by piece. Raises RefusedError where it ends too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def string(self) -> bytes:
        return self._take(self.number())

    def _take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise RefusedError("the agent's answer ends early", "See that SSH_AUTH_SOCK names an ssh-agent")
        self._at += count
        return taken


def _ask(path: str, body: bytes, expected: int) -> bytes:
    """One question to the agent, and its answer without the type, which must be `expected`."""
    remedy = "See that SSH_AUTH_SOCK names a running ssh-agent, and `ssh-add -l`"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(PATIENCE_S)
        try:
            agent.connect(path)
            agent.sendall(ssh_string(body))
            length = int.from_bytes(_exactly(agent, 4), "big")
            if not 1 <= length <= MAX_REPLY_BYTES:
                raise RefusedError(f"the agent at {path} answers with {length:,} bytes", remedy)
            answer = _exactly(agent, length)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise RefusedError(f"no ssh-agent answers at {path!a} ({why})", remedy) from None
    if answer[0] != expected:
        raise RefusedError("the agent declines", "It may hold the key no more, or its owner said no")
    return answer[1:]


def _exactly(agent: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = agent.recv(count - len(parts))
        if not part:
            raise OSError(0, "it closed the connection")
        parts += part
    return parts
