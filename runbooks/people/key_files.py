"""Private keys in files: PKCS8 PEM under a passphrase, for their owner's eyes alone.

The passphrase is stretched with scrypt (RFC 7914) as PBES2 allows (RFC 8018, RFC 5958), because what `cryptography`
writes by itself takes half a millisecond for each guess. OpenSSL reads such files too.
"""

from __future__ import annotations

import base64
import os
import secrets
import textwrap
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
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

from engine.model.errors import SpecError
from runbooks.people.keys import PublicKey

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
            "Make one with `muster operator key new`; keys of ssh are used through ssh-agent: key = agent",
        )
    try:
        private = load_pem_private_key(pem, passphrase())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SpecError("key", f"{path} does not open with this passphrase", "Try again") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise SpecError("key", f"{path} is not an ed25519 key", "Make one with `muster operator key new`")
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
