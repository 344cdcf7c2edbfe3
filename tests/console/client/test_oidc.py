"""Logging in with an OpenID provider: its tokens verified, exchanged once, and the device flow from end to end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from console.cli.main import run
from console.client.credentials import kept, token_for
from console.client.oidc import OpenIdProvider, check_url
from console.commands.tokens import id_token_of
from console.forms.settings import ConsoleSettings
from engine.model.errors import MusterError, RefusedError, SpecError, UnreachableError
from runbooks.gate.approval_policy import Person
from runbooks.plans.identity import Unauthenticated
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.oidc_issuer import CLIENT, Issuer, issuing
from tests.support.people import person, team
from tests.support.served import running_loop


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as there:
        yield there


@pytest.fixture(autouse=True)
def _well_behaved(issuer: Issuer) -> Iterator[None]:
    kept_keys = dict(issuer.keys)
    yield
    issuer.keys = kept_keys
    issuer.says_issuer, issuer.pending, issuer.slow_downs, issuer.subject = "", 1, 0, "alice-7"
    issuer.denies = issuer.redirects = issuer.floods = False


def provider(issuer: Issuer) -> OpenIdProvider:
    return OpenIdProvider(issuer.url, CLIENT)


def test_a_good_token_names_its_subject_at_its_issuer(issuer: Issuer) -> None:
    proof = provider(issuer).proved(issuer.token())
    assert proof.account == f"oidc:{issuer.url}#alice-7"
    assert provider(issuer).proved(issuer.token(aud=[CLIENT])).account == proof.account
    assert provider(issuer).proved(issuer.token(aud=[CLIENT, "b"], azp=CLIENT)).account == proof.account


BAD: dict[str, dict[str, Any]] = {
    "audience": {"aud": "somebody-else"},
    "several audiences, not given to us": {"aud": [CLIENT, "b"]},
    "given to another": {"azp": "b"},
    "issuer": {"iss": "https://evil.example"},
    "expired": {"exp": int(time.time()) - 120},
    "issued long ago": {"iat": int(time.time()) - 3_600},
    "from the future": {"iat": int(time.time()) + 3_600},
    "not yet": {"nbf": int(time.time()) + 3_600},
    "no expiry": {"exp": None},
    "no subject": {"sub": None},
    "no moment of issue": {"iat": None},
    "subject of another type": {"sub": 7},
    "subject that breaks lines": {"sub": "alice\n#root"},
    "subject without end": {"sub": "a" * 300},
    "expiry that is none": {"exp": True},
    "unknown key": {"headers": {"kid": "k9"}},
    "key of another": {"key": ec.generate_private_key(ec.SECP256R1())},
}


@pytest.mark.parametrize("what", BAD)
def test_a_token_that_does_not_hold_is_refused(issuer: Issuer, what: str) -> None:
    with pytest.raises(Unauthenticated):
        provider(issuer).proved(issuer.token(**BAD[what]))


def test_algorithms_that_anybody_could_sign_with_are_not_taken(issuer: Issuer) -> None:
    public = issuer.key_set()["keys"][0]["x"]
    for algorithm, key in (("none", None), ("HS256", public.ljust(64, "A"))):
        forged = jwt.encode(
            {"iss": issuer.url, "aud": CLIENT, "sub": "alice-7", "iat": int(time.time()), "exp": int(time.time()) + 60},
            key, algorithm=algorithm, headers={"kid": "k1"},
        )  # fmt: skip
        with pytest.raises(Unauthenticated, match="not accepted"):
            provider(issuer).proved(forged)
    for text in ("", "a.b.c", "a" * 20_000, "é.é.é", issuer.token()[:-4], issuer.token() + ".x"):
        with pytest.raises(Unauthenticated):
            provider(issuer).proved(text)


def test_a_new_key_is_looked_for_once_and_made_up_ones_ask_no_more(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = provider(issuer)
    asking.proved(issuer.token())
    issuer.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
    before = len(issuer.asked)
    for number in range(20):
        with pytest.raises(Unauthenticated):
            asking.proved(issuer.token(headers={"kid": f"made-up-{number}"}))
    assert len(issuer.asked) == before
    monkeypatch.setattr("console.client.oidc.AGAIN_S", 0.0)
    assert asking.proved(issuer.token("k2")).account


def test_a_provider_that_is_another_redirects_or_floods_is_not_believed(issuer: Issuer) -> None:
    token = issuer.token()
    for field, value in (("says_issuer", "https://evil.example"), ("redirects", True), ("floods", True)):
        setattr(issuer, field, value)
        with pytest.raises(UnreachableError):
            provider(issuer).proved(token)
        setattr(issuer, field, type(value)())
    assert provider(issuer).proved(token)


@pytest.mark.parametrize("url", ["http://example.com", "ftp://x", "https://a:b@c", "https://x/?q", "https://", "x"])
def test_an_issuer_is_asked_by_tls_or_here(url: str) -> None:
    with pytest.raises(SpecError):
        check_url(url, "oidc_issuer")


# -- from end to end --------------------------------------------------------------------------------------------------


@pytest.fixture
def line(issuer: Issuer) -> Iterator[Line]:
    alice = Person(id="alice", accounts=(f"oidc:{issuer.url}#alice-7",), roles=("operator", "approver"))
    with running_loop() as loop:
        gate = gate_of(loop.engine, team(alice, person("dave", "admin")))
        with reached(loop, gate, provider(issuer)) as there:
            yield there


@pytest.mark.thorough
def test_what_a_provider_signed_is_exchanged_once(line: Line, issuer: Issuer) -> None:
    with closing(line.client()) as client:
        token = issuer.token()
        made = client.log_in(token)
        assert made.line.subject == "person:alice"
        header, body, signature = token.split(".")
        # The other signature that ECDSA has for the same key and text.
        raw = jwt.utils.base64url_decode(signature)
        order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
        other = raw[:32] + (order - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
        twin = f"{header}.{body}.{jwt.utils.base64url_encode(other).decode()}"
        for again in (token, twin):
            with pytest.raises(RefusedError, match="used before"):
                client.log_in(again)
        issuer.subject = "mallory"
        with pytest.raises(RefusedError, match="no person with account"):
            client.log_in(issuer.token())
    with closing(line.client(token=made.token)) as alice:
        assert alice.whoami().subject == "person:alice"


@pytest.mark.thorough
def test_login_and_logout_from_the_shell(
    line: Line, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "c" / "muster.toml"))
    assert run(["--connect", line.url, "token", "login"]) == 0
    told = capsys.readouterr().err
    assert "WDJB" in told
    assert "\x1b" not in told
    assert "person:alice" in told
    file = tmp_path / "c" / "credentials.json"
    assert file.stat().st_mode & 0o777 == 0o600
    token = kept({"MUSTER_CONFIG": str(tmp_path / "c" / "muster.toml")})[line.url]
    assert token.rpartition("_")[2] not in told
    assert run(["--connect", line.url, "policy", "whoami"]) == 0
    assert "person" in (shown := capsys.readouterr().out) or "alice" in shown
    # Within the first minutes of a login its holder may make a token that lasts.
    assert run(["--connect", line.url, "token", "create", "ci", "--out", str(tmp_path / "t")]) == 0
    assert run(["--connect", line.url, "token", "logout"]) == 0
    assert line.url not in kept({"MUSTER_CONFIG": str(tmp_path / "c" / "muster.toml")})
    with line.http(token) as http:
        assert http.get("/v1/overview").status_code == 401


def test_a_no_a_slow_provider_and_one_that_waits_for_ever(issuer: Issuer) -> None:
    pauses: list[float] = []
    issuer.slow_downs = 2
    told: list[str] = []
    assert id_token_of(issuer.url, CLIENT, tell=told.append, pause=pauses.append).count(".") == 2
    assert pauses == [0, 5, 10, 10]
    assert "enter the code" in told[0]
    issuer.denies = True
    with pytest.raises(RefusedError, match="access_denied"):
        id_token_of(issuer.url, CLIENT, tell=told.append, pause=pauses.append)
    with pytest.raises(UnreachableError, match="invalid_client"):
        id_token_of(issuer.url, "somebody", tell=told.append, pause=pauses.append)


# -- where a token is kept and shown ----------------------------------------------------------------------------------


def test_a_token_is_shown_only_where_it_is_for_and_never_in_the_clear(tmp_path: Path) -> None:
    env = {"MUSTER_CONFIG": str(tmp_path / "muster.toml"), "MUSTER_TOKEN": "muster_a_b"}
    assert token_for("https://far.example:7373", ConsoleSettings(), env) == "muster_a_b"
    assert token_for("http://127.0.0.1:7373", ConsoleSettings(), env) == "muster_a_b"
    assert token_for("/run/muster.sock", ConsoleSettings(), env) == ""
    with pytest.raises(RefusedError, match="in the clear"):
        token_for("http://far.example:7373", ConsoleSettings(), env)
    with pytest.raises(SpecError, match="not a token"):
        token_for("https://far.example", ConsoleSettings(), {**env, "MUSTER_TOKEN": "a\nb"})
    file = tmp_path / "t"
    file.write_text("muster_c_d\n")
    file.chmod(0o644)
    del env["MUSTER_TOKEN"]
    with pytest.raises(SpecError, match="read by others"):
        token_for("https://far.example", ConsoleSettings(token_file=str(file)), env)
    file.chmod(0o600)
    assert token_for("https://far.example", ConsoleSettings(token_file=str(file)), env) == "muster_c_d"
    assert token_for("https://far.example", ConsoleSettings(), env) == ""
    (tmp_path / "credentials.json").write_text("[")
    (tmp_path / "credentials.json").chmod(0o600)
    with pytest.raises(MusterError, match="not what"):
        token_for("https://far.example", ConsoleSettings(), env)
