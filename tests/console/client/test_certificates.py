"""Who shows a client certificate over real TLS is who the policy says, and nobody else."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from console.client.credentials import Identity
from console.client.remote import RemoteClient
from console.client.sockets import Tls, bind_tcp
from console.forms.settings import ConsoleSettings
from engine.model.commands import Submit
from engine.model.errors import MusterError, RefusedError, UnreachableError
from runbooks.gate.approval_policy import Person, ServiceIdentity
from tests.support.cells import workload
from tests.support.certificates import Authority
from tests.support.gates import gate_of
from tests.support.network import reached
from tests.support.people import person, team
from tests.support.served import running_loop, serving

pytestmark = pytest.mark.thorough
PEOPLE = team(
    Person(id="alice", accounts=("cert:alice",), roles=("operator",)), person("dave", "admin"),
    services=(ServiceIdentity(id="exporter", accounts=("cert:exporter.lab",)),),
)  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def url(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    tls = Tls(*authority.signs("server", server=True), authority.file)
    bound = bind_tcp("127.0.0.1:0")
    with running_loop() as loop, serving(loop, bound, gate=gate_of(loop.engine, PEOPLE), tls=tls):
        yield f"https://127.0.0.1:{bound.getsockname()[1]}"


def shows(files: tuple[Path, Path] | None) -> Identity:
    certificate, key = files or ("", "")
    return Identity(ConsoleSettings(client_cert=str(certificate), client_key=str(key)))


def test_a_certificate_names_a_person_or_a_service_of_the_policy(url: str, authority: Authority) -> None:
    with closing(RemoteClient(url, identity=shows(authority.signs("alice")))) as alice:
        known = alice.whoami()
        assert (known.subject, known.account, known.roles) == ("person:alice", "cert:alice", ("operator", "viewer"))
        alice.command(Submit(workloads=(workload("w"),)))
    with closing(RemoteClient(url, identity=shows(authority.signs("exporter.lab")))) as exporter:
        assert exporter.whoami().subject == "service:exporter"
        with pytest.raises(RefusedError, match="may not submit"):
            exporter.command(Submit(workloads=(workload("x"),)))


def test_who_shows_none_or_one_of_nobody_is_refused(url: str, authority: Authority) -> None:
    for files, problem in (
        (None, "no credentials"),
        (authority.signs("mallory"), "the policy has no person"),
        (authority.signs("alice 127.0.0.1"), "no credentials"),
    ):
        with closing(RemoteClient(url, identity=shows(files))) as client, pytest.raises(RefusedError, match=problem):
            client.overview()


def test_what_another_authority_signed_or_has_run_out_ends_the_connection(
    url: str, authority: Authority, tmp_path: Path
) -> None:
    for files in (Authority(tmp_path).signs("alice"), authority.signs("alice", days=-1)):
        with closing(RemoteClient(url, identity=shows(files))) as client, pytest.raises(MusterError):
            client.overview()


def test_a_server_that_is_not_trusted_is_told_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with closing(RemoteClient(url)) as client, pytest.raises(UnreachableError, match="not trusted"):
        client.overview()


def test_a_token_does_by_tls_and_old_versions_do_not(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    tls, bound = Tls(*authority.signs("server", server=True)), bind_tcp("127.0.0.1:0")
    with running_loop() as loop:
        gate = gate_of(loop.engine, team(person("alice", "operator"), person("dave", "admin")))
        with reached(loop, gate) as near:
            token = near.make_token("alice", "submit").token
        with serving(loop, bound, gate=gate, tls=tls):
            where = f"https://127.0.0.1:{bound.getsockname()[1]}"
            monkeypatch.setenv("MUSTER_TOKEN", "muster_0_0")
            with (
                closing(RemoteClient(where, identity=Identity(ConsoleSettings()))) as wrong,
                pytest.raises(RefusedError),
            ):
                wrong.overview()
            monkeypatch.setenv("MUSTER_TOKEN", token)
            with closing(RemoteClient(where, identity=Identity(ConsoleSettings()))) as alice:
                assert alice.whoami().subject == "person:alice"
            old = ssl.create_default_context(cafile=authority.file)
            old.minimum_version = ssl.TLSVersion.TLSv1_2
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with httpx.Client(base_url=where, verify=old, trust_env=False) as http:
                assert http.get("/healthz", headers={"host": "cell.example.com"}).status_code == 200
                assert http.get("/v1/overview").status_code == 401
                page = {"authorization": f"Bearer {token}", "origin": "https://evil.example"}
                assert http.get("/v1/overview", headers=page).status_code == 403
