"""TLS of the TCP port: who is served, what is refused, and a certificate that is replaced."""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from console.client.remote import RemoteClient
from console.client.sockets import Tls, bind_tcp, parse_listen
from engine.loop import EngineLoop
from engine.model.errors import RefusedError, SpecError, UnreachableError
from tests.support.served import running_loop, serving

NOW = datetime.datetime(2020, 1, 1)
LATER = datetime.datetime(2100, 1, 1)


def certificate(folder: Path, serial: int = 1) -> Tls:
    """For localhost, signed by itself, in files that are ours alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(NOW)
        .not_valid_after(LATER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    tls = Tls(folder / "cert.pem", folder / "key.pem")
    tls.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    tls.key.write_bytes(private)
    tls.key.chmod(0o600)
    return tls


@contextmanager
def secured(loop: EngineLoop, tls: Tls) -> Iterator[int]:
    """The port of a control plane with TLS."""
    bound = bind_tcp("127.0.0.1:0", secured=True)
    port = bound.getsockname()[1]
    with serving(loop, bound, tls=tls):
        yield port


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


def test_a_client_that_trusts_the_authority_is_served(
    loop: EngineLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificate(tmp_path)
    with secured(loop, tls) as port:
        where = f"https://localhost:{port}"
        distrusts = RemoteClient(where)
        with pytest.raises(UnreachableError, match="not trusted here"):
            distrusts.health()
        distrusts.close()
        monkeypatch.setenv("SSL_CERT_FILE", os.fspath(tls.certificate))
        client = RemoteClient(where)
        with pytest.raises(RefusedError, match="no credentials"):
            client.health()
        client.close()
        with httpx.Client(verify=ssl.create_default_context(), trust_env=False) as http:
            assert http.get(f"{where}/readyz").status_code == 200
        plain = httpx.Client(trust_env=False, verify=False)
        with plain, pytest.raises(httpx.HTTPError):
            plain.get(f"http://localhost:{port}/healthz")


def test_old_protocols_are_refused(loop: EngineLoop, tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    assert tls.open().minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_certificate_that_is_replaced_is_used_and_a_broken_one_is_not(loop: EngineLoop, tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with secured(loop, tls) as port:
        assert serial(port) == 1
        assert not tls.renew()
        certificate(tmp_path, serial=2)
        assert tls.renew()
        assert serial(port) == 2
        tls.certificate.write_text("broken")
        with pytest.raises(SpecError, match=r"cert\.pem"):
            tls.renew()
        assert serial(port) == 2


def serial(port: int) -> int:
    found = ssl.get_server_certificate(("localhost", port))
    return x509.load_pem_x509_certificate(found.encode()).serial_number


@pytest.mark.parametrize("wrong", ["missing", "open", "other", "broken"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, wrong: str) -> None:
    tls = certificate(tmp_path)
    match wrong:
        case "missing":
            tls.key.unlink()
        case "open":
            tls.key.chmod(0o644)
        case "other":
            kept = tls.certificate.read_bytes()
            certificate(tmp_path)
            tls.certificate.write_bytes(kept)
        case "broken":
            tls.certificate.write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(SpecError, match=r"\.pem"):
        tls.open()


def test_other_machines_are_reached_by_tls_only() -> None:
    assert parse_listen("0.0.0.0:7373", secured=True) == ("0.0.0.0", 7373)
    with pytest.raises(RefusedError, match="tls-cert"):
        parse_listen("0.0.0.0:7373")
