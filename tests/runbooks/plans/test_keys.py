"""Keys: a signature is for one decision of one person, once, now; and private keys stay private."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from engine.model.errors import RefusedError, SpecError
from runbooks.plans import keys as key_files
from runbooks.plans.identity import AuthRefused, Signed
from runbooks.plans.keys import (
    DOMAIN,
    WINDOW_MS,
    PublicKey,
    agent_keys,
    decision_bytes,
    open_key,
    public_key,
    signed_by,
    small_order,
    verify,
    write_new_key,
)
from tests.support.people import NOW_MS, key_of, sign
from tests.support.served import socket_folder

DECISION = {"proposal": "P-7", "revision": 2, "digest": "ab" * 32, "verdict": "approve", "cell": "cell-1"}
PASSPHRASE = b"correct horse battery"


def message(signed: Signed, kind: str = "vote", **other: object) -> bytes:
    """What the gate makes of what it knows itself and what came with the signature."""
    known = {"kind": kind, "subject": signed.subject, "nonce": signed.nonce, "at_ms": signed.at_ms, **DECISION, **other}
    return decision_bytes(**{"screen": signed.screen, **known})  # type: ignore[arg-type]


def signed_vote(**more: object) -> Signed:
    return sign("alice", **{"cell": "cell-1", "proposal": "P-7", "revision": 2, "digest": "ab" * 32, **more})  # type: ignore[arg-type]


KEYS = [key_of("alice", 1).public, key_of("alice").public]


def test_a_signature_holds_for_the_decision_it_is_over() -> None:
    signed = signed_vote()
    assert verify(KEYS, signed, message(signed), NOW_MS).fingerprint == key_of("alice").public.fingerprint
    assert verify(KEYS, signed, message(signed), NOW_MS + WINDOW_MS)
    assert message(signed).startswith(DOMAIN)
    told = message(signed).removeprefix(DOMAIN)
    assert told == rfc8785.dumps(msgspec.json.decode(told))


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "breakglass"}, {"kind": "author"}, {"kind": "policy"}, {"proposal": "P-8"}, {"revision": 3},
        {"digest": "ac" * 32}, {"verdict": "reject"}, {"verdict": ""}, {"cell": "cell-2"}, {"subject": "person:bob"},
        {"screen": "00" * 32}, {"nonce": "00" * 16}, {"at_ms": NOW_MS + 1},
    ],
)  # fmt: skip
def test_a_signature_holds_for_nothing_else(other: dict[str, object]) -> None:
    signed = signed_vote()
    with pytest.raises(AuthRefused, match="not by a key of"):
        verify(KEYS, signed, message(signed, **other), NOW_MS)


def tampered(signed: Signed) -> list[Signed]:
    """The same signature with something about it changed."""
    raw = base64.b64decode(signed.signature)
    flipped = [bytes([*raw[:i], raw[i] ^ 1, *raw[i + 1 :]]) for i in (0, 31, 32, 63)]
    order = 2**252 + 27742317777372353535851937790883648493
    malleable = raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
    texts = [base64.b64encode(each).decode() for each in (*flipped, malleable, raw[:63], raw + b"\0", b"", bytes(64))]
    texts += [signed.signature + "\n", signed.signature.rstrip("="), "?" * 88, "é", signed.signature * 2]
    changed = [msgspec.structs.replace(signed, signature=text) for text in texts]
    changed += [
        msgspec.structs.replace(signed, key=key) for key in ("", key_of("bob").public.fingerprint, KEYS[0].fingerprint)
    ]
    return changed


def test_what_was_changed_on_the_way_is_refused() -> None:
    signed = signed_vote()
    for other in tampered(signed):
        with pytest.raises(AuthRefused):
            verify(KEYS, other, message(signed), NOW_MS)


@pytest.mark.parametrize("nonce", ["", "00", "0" * 31, "0" * 129, "g" * 32, "A" * 32, "٠" * 32])
def test_a_nonce_is_at_least_sixteen_bytes_in_plain_hex(nonce: str) -> None:
    signed = msgspec.structs.replace(signed_vote(), nonce=nonce)
    with pytest.raises(AuthRefused, match="nonce"):
        verify(KEYS, signed, message(signed), NOW_MS)


@pytest.mark.parametrize("off", [WINDOW_MS + 1, -WINDOW_MS - 1, 10**15, -NOW_MS])
def test_a_signature_of_another_time_is_refused(off: int) -> None:
    signed = signed_vote(at_ms=NOW_MS + off)
    with pytest.raises(AuthRefused, match="away from now"):
        verify(KEYS, signed, message(signed), NOW_MS)


def test_anothers_key_and_no_key_at_all_are_refused() -> None:
    foreign = signed_vote(key=key_of("mallory"))
    for keys in (KEYS, [], [key_of("bob").public]):
        with pytest.raises(AuthRefused):
            verify(keys, foreign, message(foreign), NOW_MS)


def test_nonces_differ() -> None:
    assert len({signed_vote().nonce for _ in range(100)}) == 100


# -- public keys ------------------------------------------------------------------------------------------------------


def test_a_public_key_reads_as_openssh_writes_it() -> None:
    key = key_of("alice").public
    assert public_key(key.line + " alice@host") == key
    assert public_key("  " + key.line) == key


P = 2**255 - 19


def points_of_small_order() -> list[int]:
    """The y of the eight points with 8 * P = 0 on edwards25519 (RFC 8032, 5.1), found by multiplying any point by the
    order of the large subgroup."""
    d = -121665 * pow(121666, -1, P) % P

    def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        k = d * a[0] * b[0] * a[1] * b[1] % P
        x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + k, -1, P) % P
        return x, (a[1] * b[1] + a[0] * b[0]) * pow(1 - k, -1, P) % P

    def times(n: int, point: tuple[int, int]) -> tuple[int, int]:
        found = (0, 1)
        while n:
            found = add(found, point) if n & 1 else found
            point, n = add(point, point), n >> 1
        return found

    order = 2**252 + 27742317777372353535851937790883648493
    found: set[int] = set()
    for y in range(2, 200):
        if len(found) == 5:
            break
        xx = (y * y - 1) * pow(d * y * y + 1, -1, P) % P
        x = pow(xx, (P + 3) // 8, P)
        x = x if (x * x - xx) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
        if (x * x - xx) % P == 0:
            point = times(order, (x, y))
            found |= {times(n, point)[1] for n in range(8)}
    return sorted(found)


def test_points_that_are_nobodys_key_are_refused() -> None:
    small = points_of_small_order()
    assert len(small) == 5
    encodings = [y + sign * 2**255 for y in (*small, P, P + 1) for sign in (0, 1)]
    for encoding in encodings:
        raw = encoding.to_bytes(32, "little")
        assert small_order(raw)
        with pytest.raises(SpecError, match="no point"):
            public_key(PublicKey(raw).line)
    with pytest.raises(SpecError, match="no point"):
        public_key(PublicKey((P + 3).to_bytes(32, "little")).line)  # another way to write the point of y = 3


@pytest.mark.parametrize(
    "line",
    ["", "ssh-ed25519", "ssh-rsa AAAAB3NzaC1yc2E=", "ssh-ed25519 AAAA", "ssh-ed25519 ####", "x" * 5000,
     "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== a", "sk-ssh-ed25519@openssh.com AAAA", "\x1b[2J"],
)  # fmt: skip
def test_what_is_no_public_key_is_refused(line: str) -> None:
    with pytest.raises(SpecError):
        public_key(line)


# -- key files --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretching that takes milliseconds: what is tested does not depend on how long it takes."""
    monkeypatch.setattr(key_files, "COST", 2**4)


def test_a_key_file_opens_with_its_passphrase_alone_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key.pem"
    made = write_new_key(path, PASSPHRASE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    key = open_key(path, lambda: PASSPHRASE)
    assert key.public == made
    signed = signed_by(key, kind="vote", subject="person:alice", at_ms=NOW_MS, **DECISION)  # type: ignore[arg-type]
    assert verify([made], signed, message(signed), NOW_MS) == made
    for wrong in (b"", b"correct horse batterz", PASSPHRASE + b"\n"):
        with pytest.raises(SpecError, match="does not open"):
            open_key(path, lambda wrong=wrong: wrong)
    with pytest.raises(SpecError, match="File exists"):
        write_new_key(path, PASSPHRASE)
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(SpecError, match="read by others"):
            open_key(path, lambda: pytest.fail("asked before the file was looked at"))


def test_a_short_passphrase_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="too short"):
        write_new_key(tmp_path / "k", b"hunter2")
    assert not (tmp_path / "k").exists()


def test_files_that_are_no_such_key_are_refused(tmp_path: Path) -> None:
    plain = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    other = generate_private_key(SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSPHRASE)
    )
    begin, end = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", b"\n-----END ENCRYPTED PRIVATE KEY-----\n"
    for content in (b"", plain, other, begin + b"AAAA" + end, begin + b"@@" + end, b"x" * 20_000, b"\0" * 100):
        path = tmp_path / "k"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(SpecError):
            open_key(path, lambda: PASSPHRASE)
    with pytest.raises(SpecError, match="cannot be read"):
        open_key(tmp_path / "none", lambda: PASSPHRASE)
    with pytest.raises(SpecError, match="cannot be read"):
        open_key(tmp_path, lambda: PASSPHRASE)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_reads_a_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    path = tmp_path / "k"
    made = write_new_key(path, PASSPHRASE)
    command = [
        "openssl",
        "pkey",
        "-in",
        str(path),
        "-passin",
        f"pass:{PASSPHRASE.decode()}",
        "-pubout",
        "-outform",
        "DER",
    ]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout[-32:] == made.raw


# -- ssh-agent --------------------------------------------------------------------------------------------------------

needs_agent = pytest.mark.skipif(
    not all(map(shutil.which, ("ssh-agent", "ssh-add", "ssh-keygen"))), reason="ssh-agent is not installed"
)


@pytest.fixture
def agent() -> Iterator[Path]:
    """A real agent with an ed25519 key and one of another kind."""
    with socket_folder() as folder:
        path = folder / "agent"
        with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it says where it listens once it does
            for kind in ("ecdsa", "ed25519"):
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "mine", "-f", folder / kind], check=True
                )
                environment = {**os.environ, "SSH_AUTH_SOCK": str(path)}
                subprocess.run(["ssh-add", "-q", folder / kind], env=environment, check=True, capture_output=True)
            yield path
            process.terminate()


@needs_agent
def test_an_agents_key_signs_decisions(agent: Path) -> None:
    (key,) = agent_keys(str(agent))
    assert key.comment == "mine"
    assert key.public == public_key((agent.parent / "ed25519.pub").read_text().strip())
    signed = signed_by(key, kind="vote", subject="person:alice", at_ms=NOW_MS, **DECISION)  # type: ignore[arg-type]
    assert verify([key.public], signed, message(signed), NOW_MS) == key.public
    with pytest.raises(SpecError, match="not a decision"):
        key.sign(b"\0\0\0\x20 what ssh would have signed")
    environment = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", "-D"], env=environment, check=True, capture_output=True)
    with pytest.raises(RefusedError, match="declines"):
        key.sign(DOMAIN)
    assert agent_keys(str(agent)) == []


ANSWERS = [
    b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\1\5", b"\0\0\0\1\14", b"\0\0\0\5\14\0\0\0\1", b"\0\0\0\x09\x0c",
    b"\0\0\0\5\x0c\xff\xff\xff\xff", b"\0\0\0\x0d\x0c\0\0\0\1\0\0\0\0\xff\xff\xff\xff",
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_agent_that_answers_nonsense_is_refused(answer: bytes) -> None:
    with socket_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(folder / "agent"))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RefusedError):
            agent_keys(str(folder / "agent"))
        thread.join()


@pytest.mark.parametrize("path", ["/nowhere/agent", "", "x" * 300, "/dev/null"])
def test_where_no_agent_answers_is_told(path: str) -> None:
    with pytest.raises(RefusedError, match="no ssh-agent answers"):
        agent_keys(path)
