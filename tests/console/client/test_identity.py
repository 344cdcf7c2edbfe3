"""Who is at the other end: told by the socket, or proved by a signature; and what follows from it over HTTP."""

from __future__ import annotations

import base64
import grp
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import select

from console.cli.main import run
from console.client.credentials import AS, SIGNED, Identity, account_of, claim_of, key_path, request_digest
from console.client.remote import RemoteClient
from console.client.sockets import account_at, bind_tcp, bind_unix
from console.forms.settings import ConsoleSettings
from engine.loop import EngineLoop
from engine.model.commands import Cordon
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.list_queries import Query
from runbooks.audit.log import record_table
from runbooks.drafts.typed_draft import DraftAsk
from runbooks.gate.approval_policy import Caller, Person, PolicyChange, PolicyVote
from runbooks.plans import keys as key_files
from runbooks.plans.identity import OWNER, TCP, AuthRefused
from runbooks.plans.keys import signed_by, write_new_key
from runbooks.plans.queries import AuditRange
from runbooks.plans.typed_plan import Act, Request, StepRequest
from tests.support.people import key_of, person
from tests.support.served import gpu_job, running_loop, serving, socket_folder

PASSPHRASE = b"correct horse battery"


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@contextmanager
def served(loop: EngineLoop, *people: Person) -> Iterator[Path]:
    """The loop behind a Unix socket, under a policy that names these people."""
    with socket_folder() as folder:
        path = folder / "engine.sock"
        with serving(loop, bind_unix(path)):
            if people:
                name_people(path, *people)
            yield path


def name_people(path: Path, *people: Person) -> None:
    lines = [
        f"  - {{id: {each.id}, accounts: [{', '.join(each.accounts)}], keys: [{', '.join(each.keys)}], "
        f"roles: [{', '.join(each.roles)}]}}"
        for each in people
    ]
    text = "\n".join(["schema: muster-policy/v1", "name: team-a", "version: 99", "people:", *lines, ""])
    with closing(RemoteClient(str(path))) as client:
        made = client.propose_policy(PolicyChange(text=text))
        client.vote_policy(PolicyVote(candidate=made.id, digest=made.digest))


class Held(Identity):
    """An identity whose key is at hand."""

    def __init__(self, name: str, *, key: str = "") -> None:
        super().__init__(ConsoleSettings(operator=name))
        self._key = key_of(key or name)


def cordon(node: str = "n0") -> Request:
    return Request(steps=(StepRequest(act=Act(action="cordon", targets=(node,))),))


def node_of(path: Path) -> str:
    with closing(RemoteClient(str(path))) as client:
        return str(client.query(Query(kind="nodes", columns=("id",), limit=1)).rows[0][0])


ALICE = person("alice", "operator", "approver")
BOB = person("bob", "operator", "approver")
DAVE = person("dave", "admin")
ME = person("me", "operator", "admin", uid=os.getuid())
ALL = (ALICE, BOB, ME)

# -- what sockets tell ------------------------------------------------------------------------------------------------


def test_the_account_at_the_other_end_is_the_kernels_word() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert account_at(ours) == f"unix:{os.getuid()}" == OWNER
    with bind_tcp("127.0.0.1:0") as listening, socket.socket() as calling:
        listening.listen()
        calling.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert account_at(accepted) == TCP
    assert account_of(None) == TCP


def test_over_tcp_nobody_is_known_and_may_only_look(loop: EngineLoop) -> None:
    bound = bind_tcp("127.0.0.1:0")
    where = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with serving(loop, bound), closing(RemoteClient(where)) as client:
        assert client.overview().pools
        known = client.whoami()
        assert (known.subject, known.account, known.roles) == (TCP, TCP, ("viewer",))
        node = client.query(nodes_query()).rows[0][0]
        for act in (
            lambda: client.propose(cordon(str(node))),
            lambda: client.propose_policy(PolicyChange(built_in="solo")),
            lambda: client.command(submission("w")),
        ):
            with pytest.raises(RefusedError, match="may not"):
                act()
        assert client.proposals() == ()


def nodes_query() -> Any:
    from engine.model.list_queries import Query

    return Query(kind="nodes", columns=("id",), limit=1)


def submission(name: str) -> Any:
    from engine.model.commands import Submit

    return Submit(workloads=(gpu_job(name),))


def test_over_tcp_a_signature_makes_a_person(loop: EngineLoop) -> None:
    with served(loop, *ALL) as path:
        bound = bind_tcp("127.0.0.1:0")
        where = f"http://127.0.0.1:{bound.getsockname()[1]}"
        # The same engine behind a second server: what the policy says is the engine's.
        with serving(loop, bound), closing(RemoteClient(where, identity=Held("alice"))) as client:
            assert client.whoami().subject == TCP
            assert client.whoami(proved=True).subject == "person:alice"
            client.command(submission("signed"))
        assert node_of(path)


# -- what headers claim -----------------------------------------------------------------------------------------------


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 403, answer.text
    return str(answer.json()["problem"])


@pytest.fixture
def http(loop: EngineLoop) -> Iterator[httpx.Client]:
    with served(loop, *ALL) as path:
        transport = httpx.HTTPTransport(uds=str(path), verify=False)
        with httpx.Client(transport=transport, base_url="http://muster", trust_env=False, verify=False) as client:
            yield client


def caller(http: httpx.Client) -> Caller:
    return msgspec.json.decode(http.get("/v1/whoami").content, type=Caller)


def headers(http: httpx.Client, name: str, path: str, body: bytes, **changes: Any) -> dict[str, str]:
    known = caller(http)
    fields: dict[str, Any] = {
        "kind": "author", "subject": f"person:{name}", "at_ms": known.now_ms, "cell": known.cell_id,
        "digest": request_digest("POST", path, body),
    }  # fmt: skip
    signed = signed_by(key_of(changes.pop("key", name)), **{**fields, **changes})
    return {AS: name, SIGNED: base64.b64encode(msgspec.json.encode(signed)).decode()}


def test_a_name_without_a_signature_is_refused_unless_it_is_the_accounts_own(http: httpx.Client) -> None:
    for name in ("alice", "person:alice", "nobody", "everyone", "ＭＥ"):
        answer = http.get("/v1/whoami", headers={AS: name.encode()})  # type: ignore[dict-item]
        assert "not signed" in refused(answer)
    assert http.get("/v1/whoami", headers={AS: "me"}).json()["subject"] == "person:me"


def test_a_signed_request_is_taken_once_as_it_was_signed(http: httpx.Client) -> None:
    body = b'{"built_in":"team"}'
    given = headers(http, "alice", "/v1/policy/propose", body)
    # Alice is no admin: the answer is about her, so it was she who asked.
    assert "alice is not an admin" in http.post("/v1/policy/propose", content=body, headers=given).json()["problem"]
    assert "used before" in refused(http.post("/v1/policy/propose", content=body, headers=given))
    for changed in ({"content": b'{"built_in":"solo"}'}, {"url": "/v1/policy/vote"}, {"method": "PUT"}):
        given = headers(http, "alice", "/v1/policy/propose", body)
        request: dict[str, Any] = {"method": "POST", "url": "/v1/policy/propose", "content": body, **changed}
        assert "not by a key of" in refused(http.request(headers=given, **request))


FORGED: list[dict[str, Any]] = [
    {"key": "bob"}, {"cell": "another"}, {"kind": "vote"}, {"digest": "00"}, {"at_ms": 0}, {"verdict": "approve"},
    {"subject": "person:bob"}, {"subject": "alice"}, {"subject": "unix:0"}, {"subject": "service:recommender"},
]  # fmt: skip


def test_a_forged_request_is_refused_and_on_record(http: httpx.Client, loop: EngineLoop) -> None:
    body = b'{"name":"x"}'
    for changes in FORGED:
        given = headers(http, "alice", "/v1/thaw", body, **changes)
        assert refused(http.post("/v1/thaw", content=body, headers=given))
    kept = select(record_table.c.type).order_by(record_table.c.seq.desc()).limit(len(FORGED))
    types = loop.call(lambda engine: engine.recorded(lambda c: c.execute(kept).scalars().all()))
    assert set(types) == {"auth.refused"}


def test_one_persons_signature_under_anothers_name_is_refused(http: httpx.Client) -> None:
    given = headers(http, "bob", "/v1/thaw", b"{}") | {AS: "alice"}
    assert "not signed by 'person:alice'" in refused(http.post("/v1/thaw", content=b"{}", headers=given))


def test_a_header_that_cannot_be_read_is_refused(http: httpx.Client) -> None:
    for text in ("x", "e30=", "!!!!", "A" * 5_000, base64.b64encode(b'{"subject":1}').decode()):
        assert "cannot be read" in refused(http.post("/v1/thaw", content=b"{}", headers={SIGNED: text}))
        with pytest.raises(AuthRefused):
            claim_of(TCP, {SIGNED: text}, "POST", "/v1/thaw", b"{}")


# -- two people, one account ------------------------------------------------------------------------------------------


def test_two_people_at_one_account_need_two_keys(loop: EngineLoop) -> None:
    uid = os.getuid()
    both = [person(name, "operator", "approver", uid=uid) for name in ("alice", "bob")]
    admin = person("dave", "admin")
    with served(loop, *both, admin) as path:
        node = node_of(path)
        with closing(RemoteClient(str(path))) as plain:
            assert plain.whoami().shared_with == ("alice", "bob")
            with pytest.raises(RefusedError, match="use --as NAME"):
                plain.propose(cordon(node))
        alice, bob = (RemoteClient(str(path), identity=Held(name)) for name in ("alice", "bob"))
        with closing(alice), closing(bob), closing(RemoteClient(str(path))) as plain:
            request = Request(steps=(StepRequest(act=Act(action="drain", targets=(node,))),))
            made = alice.propose(request)
            assert made.plan.author.signed
            with pytest.raises(RefusedError, match="is the author"):
                alice.approve(made.id, made.digest, signed=signed(alice, "alice", made))
            with pytest.raises(RefusedError, match="not an approver"):
                plain.approve(made.id, made.digest)
            with pytest.raises(RefusedError, match="not by a key"):
                bob.approve(made.id, made.digest, signed=signed(bob, "bob", made, key="alice"))
            assert bob.approve(made.id, made.digest, signed=signed(bob, "bob", made)).state != "awaiting"
            (line,) = alice.proposal(made.id).votes
            assert (line.subject, line.counts, line.one_account) == ("person:bob", "", True)


def test_a_draft_is_proposed_in_the_name_that_was_signed_for(loop: EngineLoop) -> None:
    uid = os.getuid()
    both = [person(name, "operator", "approver", uid=uid) for name in ("alice", "bob")]
    with served(loop, *both, person("dave", "admin")) as path:
        node = node_of(path)
        loop.call(lambda engine: engine.command(Cordon(ids=(node,))))
        loop.call(lambda engine: engine.advance(engine.now_ms + 2 * 3_600_000))
        alice, bob = (RemoteClient(str(path), identity=Held(name)) for name in ("alice", "bob"))
        with closing(alice), closing(bob), closing(RemoteClient(str(path))) as plain:
            run = plain.draft(DraftAsk(question=f"node {node} is cordoned", pick="cordoned", model=True))
            while not run.over:
                run = plain.draft_run(run.id, run.serial, 5)
            assert (run.who, run.reason) == (f"unix:{uid}", "policy_denied")
            assert "use --as NAME" in run.why
            assert run.rule is not None
            with pytest.raises(RefusedError, match="use --as NAME"):
                plain.propose_draft(run.id, "rule")
            made = alice.propose_draft(run.id, "rule")
            assert (made.plan.requester, made.plan.author.subject) == ("person:alice", "service:recommender")
            with pytest.raises(RefusedError, match="asked for it"):
                alice.approve(made.id, made.digest, signed=signed(alice, "alice", made))
            with pytest.raises(RefusedError):
                plain.approve(made.id, made.digest)
            assert bob.approve(made.id, made.digest, signed=signed(bob, "bob", made)).state == "verified"
            asked = alice.draft(DraftAsk(question="why?", task="explain", model=True))
            assert asked.who == "person:alice"


def test_who_has_the_account_signs_too_so_that_a_person_without_one_can_vote(loop: EngineLoop) -> None:
    with served(loop, ME, BOB, DAVE) as path:
        request = Request(steps=(StepRequest(act=Act(action="drain", targets=(node_of(path),))),))
        with (
            closing(RemoteClient(str(path))) as unsigned,
            closing(RemoteClient(str(path), identity=Held("me"))) as mine,
            closing(RemoteClient(str(path), identity=Held("bob"))) as bob,
        ):
            made = unsigned.propose(request)
            with pytest.raises(RefusedError, match=r"two signatures.*muster --as AUTHOR proposal new"):
                bob.approve(made.id, made.digest, signed=signed(bob, "bob", made))
            again = mine.propose(request)
            assert (made.plan.author.signed, again.plan.author.signed) == (False, True)
            assert bob.approve(again.id, again.digest, signed=signed(bob, "bob", again)).state != "awaiting"
            assert (bob.whoami().subject, bob.whoami().me) == ("person:me", "person:bob")


def test_what_is_exported_is_exported_in_the_name_given(loop: EngineLoop) -> None:
    with served(loop, person("me", "operator", uid=os.getuid()), DAVE) as path:
        with closing(RemoteClient(str(path))) as mine, pytest.raises(RefusedError, match="me is not an auditor"):
            mine.audit_part(AuditRange())
        with closing(RemoteClient(str(path), identity=Held("dave"))) as dave:
            assert dave.audit_part(AuditRange()).lines


def signed(client: RemoteClient, name: str, made: Any, key: str = "") -> Any:
    return signed_by(
        key_of(key or name), kind="vote", subject=f"person:{name}", at_ms=client.whoami().now_ms, proposal=made.id,
        revision=made.revision, digest=made.digest, verdict="approve", cell=client.whoami().cell_id,
    )  # fmt: skip


# -- the caller's side ------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(key_files, "COST", 2**4)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    write_new_key(tmp_path / "key.pem", PASSPHRASE)
    (tmp_path / "pass").write_bytes(PASSPHRASE + b"\n")
    (tmp_path / "pass").chmod(0o600)
    return tmp_path / "key.pem"


def known_to(*keys: str) -> Caller:
    return Caller(
        subject=OWNER,
        kind="human",
        account=OWNER,
        roles=("viewer",),
        cell_id="c",
        now_ms=1,
        keys={"person:alice": keys},
    )


def fingerprint(path: Path) -> str:
    return key_files.open_key(path, lambda: PASSPHRASE).public.fingerprint


def test_the_passphrase_comes_from_its_file_or_is_asked_for_once(key_file: Path) -> None:
    asked: list[str] = []
    by_hand = Identity(
        ConsoleSettings(operator="alice", key=str(key_file)), lambda prompt: asked.append(prompt) or PASSPHRASE.decode()
    )
    caller = known_to(fingerprint(key_file))
    for _ in range(3):
        assert by_hand.sign(caller, kind="vote").subject == "person:alice"
    assert len(asked) == 1
    settings = ConsoleSettings(operator="alice", key=str(key_file), key_passphrase_file=str(key_file.parent / "pass"))
    by_file = Identity(settings, lambda _: pytest.fail("asked"))
    assert by_file.sign(caller, kind="vote").key == fingerprint(key_file)
    (key_file.parent / "pass").chmod(0o644)
    with pytest.raises(SpecError, match="read by others"):
        Identity(settings).sign(caller, kind="vote")


def test_who_cannot_sign_is_told_why(key_file: Path) -> None:
    settings = ConsoleSettings(operator="alice", key=str(key_file), key_passphrase_file=str(key_file.parent / "pass"))
    for given, caller, problem in (
        (settings, known_to(), "no key of alice"),
        (settings, known_to("SHA256:other"), "not enrolled"),
        (ConsoleSettings(), known_to(), "not in the policy"),
        (ConsoleSettings(operator="alice", key="agent"), known_to("x"), "no ssh-agent"),
        (ConsoleSettings(operator="alice", key=str(key_file.parent / "none")), known_to("x"), "cannot be read"),
        (ConsoleSettings(operator="alice", key=str(key_file)), known_to(fingerprint(key_file)), "without a terminal"),
    ):
        with pytest.raises(MusterError, match=problem):
            Identity(given).sign(caller, kind="vote")


def test_what_was_unlocked_asks_for_nothing_later(key_file: Path) -> None:
    identity = Identity(ConsoleSettings(operator="alice", key=str(key_file)), lambda _: PASSPHRASE.decode())
    identity.unlock()
    assert identity.sign(known_to(fingerprint(key_file)), kind="vote").key == fingerprint(key_file)
    late = Identity(ConsoleSettings(key=str(key_file)), lambda _: pytest.fail("asked"))
    late.unlock()
    with pytest.raises(RefusedError, match="no terminal to ask on"):
        late.sign(msgspec.structs.replace(known_to(fingerprint(key_file)), subject="person:alice"), kind="vote")


def test_the_key_lies_beside_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.toml"))
    assert key_path(ConsoleSettings()) == tmp_path / "key.pem"
    assert key_path(ConsoleSettings(key="~/k")) == Path.home() / "k"


# -- another OS account -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")
def test_a_group_may_connect_and_each_account_is_told_apart(loop: EngineLoop) -> None:
    group = grp.getgrgid(65534).gr_name
    with socket_folder() as folder:
        path = folder / "door" / "engine.sock"
        folder.chmod(0o711)
        with serving(loop, bind_unix(path, group)):
            assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o660, 0o710)
            asking = (
                "import os, socket; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
                f"s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); "
                "s.sendall(b'GET /v1/whoami HTTP/1.1\\r\\nHost: muster\\r\\nConnection: close\\r\\n\\r\\n'); "
                "print(b''.join(iter(lambda: s.recv(4096), b'')).decode())"
            )
            told = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True).stdout
            assert '"subject":"unix:65534"' in told
            assert '"roles":["viewer"]' in told
            outside = asking.replace("setgid(65534)", "setgid(65533)")
            assert subprocess.run([sys.executable, "-c", outside], capture_output=True, check=False).returncode


# -- the shell --------------------------------------------------------------------------------------------------------


def shell(path: Path, *words: str) -> int:
    return run([*words, "--connect", str(path)])


def test_the_shell_names_people_and_puts_a_policy_in_force(
    loop: EngineLoop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with served(loop) as path:
        assert shell(path, "policy", "whoami") == 0
        assert OWNER in capsys.readouterr().out
        key = key_of("dave").public.line
        give = ["--role", "admin", "--role", "operator", "--account", OWNER, "--key", key]
        assert shell(path, "policy", "operator", "add", "dave", *give, "--print") == 0
        (tmp_path / "p.yaml").write_text(capsys.readouterr().out)
        assert shell(path, "policy", "check", str(tmp_path / "p.yaml")) == 0
        assert "dave is new" in capsys.readouterr().out
        assert shell(path, "policy", "propose", str(tmp_path / "p.yaml"), "--json") == 0
        made = msgspec.json.decode(capsys.readouterr().out)
        assert shell(path, "policy", "approve", made["id"]) == 4  # nobody can be asked here
        assert shell(path, "policy", "approve", made["id"], "--digest", made["digest"][:6]) == 0
        assert "in force" in capsys.readouterr().out
        assert shell(path, "policy", "whoami") == 0
        assert "dave" in capsys.readouterr().out
        assert shell(path, "policy", "operator", "list") == 0
        assert "SHA256:" in capsys.readouterr().out
        assert shell(path, "policy", "show") == 0
        shown = capsys.readouterr().out
        assert "no two-person rule holds" in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert shell(path, "policy", "operator", "remove", "dave") == 0
        assert "! nobody is named" in capsys.readouterr().out
        assert shell(path, "policy", "approve", "policy-9") == 3


def test_the_shell_freezes_and_thaws(loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    with served(loop) as path:
        assert (
            shell(path, "policy", "freeze", "night", "--weekly", "daily 22:00 - 06:00", "--zone", "Europe/Berlin") == 0
        )
        assert shell(path, "policy", "freeze", "now", "--for", "1h", "--tier", "T2", "--reason", "a release") == 0
        assert "now in effect" in capsys.readouterr().out
        assert shell(path, "policy", "freezes") == 0
        assert "T2 and above" in capsys.readouterr().out
        assert shell(path, "policy", "freeze", "now", "--for", "1h") == 4
        assert shell(path, "policy", "freeze", "bad") == 2
        assert shell(path, "policy", "freeze", "\x1b[2J", "--for", "1h") == 2
        assert shell(path, "policy", "thaw", "now") == 0
        assert shell(path, "policy", "thaw", "now") == 3


def test_the_shell_makes_a_key_that_only_its_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(key_files, "COST", 2**4)
    secret = tmp_path / "pass"
    secret.write_bytes(PASSPHRASE)
    secret.chmod(0o600)
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.toml"))
    monkeypatch.setenv("MUSTER_KEY_PASSPHRASE_FILE", str(secret))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert run(["policy", "operator", "keys"]) == 3
    assert run(["policy", "operator", "new-key"]) == 0
    assert capsys.readouterr().out.startswith("ssh-ed25519 ")
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert run(["policy", "operator", "new-key"]) == 2
    assert run(["policy", "operator", "keys"]) == 0
    monkeypatch.delenv("MUSTER_KEY_PASSPHRASE_FILE")
    assert run(["policy", "operator", "new-key", str(tmp_path / "other")]) == 2
