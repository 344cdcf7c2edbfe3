"""The corpus of hostile requests (groups E, F, I and J), typed at a shell: each fails with the code of its kind and one
line that names what was wrong, and nothing else happens than what is on record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from console.cli.main import run
from console.client.credentials import Identity
from console.client.remote import RemoteClient
from console.forms.settings import ConsoleSettings
from engine.model.errors import RefusedError
from runbooks.plans.typed_plan import Proposal
from tests.runbooks.audit.test_verify import KEY, TAMPERS
from tests.support.audit_logs import make_log, signer, tampered
from tests.support.gate_cells import HOUR, MINUTE
from tests.support.records import problems
from tests.support.runbook_texts import but
from tests.support.shell_team import ShellTeam, shell_team, the_policy
from tests.support.team import changed, private_key

pytestmark = pytest.mark.thorough

Capture = pytest.CaptureFixture[str]
CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "runbooks" / "corpus" / "actions.yaml").read_text()
)
FINE = [{"act": {"action": "hold", "targets": ["w0"]}}]
BY_THE_READER = {
    "E04-zero-width": "U+200B", "E04-bidi": "U+202E", "E05-fraction": "'1.5' is not a decimal integer",
    "E12-control": "U+001B", "F05-confidence": "'0.99' is not a decimal integer", "X-evidence-text": "U+202E",
}  # fmt: skip
"""What the reader of files already takes offence at, before anybody asks what it is for."""
CODES = {"schema": 2, "spec": 2, "not_found": 3, "refused": 4}
QUICK = {"E02-second-step", "E04-star", "E08-never-true", "F02-tier-of-a-step", "F06-audit", "X-limits-exceeded"}
"""One of each kind; the others run in the thorough tests."""
thorough = pytest.mark.thorough


@pytest.fixture(scope="module")
def team() -> Iterator[ShellTeam]:
    with shell_team() as made:
        yield made


@pytest.fixture
def lab(team: ShellTeam) -> Iterator[ShellTeam]:
    """The same cell for all, hours after the test before: nothing waits, and no limit is drawn on."""
    yield team
    team.agent.reset()
    team.policy()
    team.later()


def one_clear_line(err: str, says: str) -> None:
    """Above all that was shown: what was wrong, then at most three lines of what to do, and nothing that acts."""
    lines = err.splitlines()
    at = max((number for number, line in enumerate(lines) if line.startswith("muster: ")), default=-1)
    assert at >= 0, err
    assert says in "\n".join(lines[at:]), err
    assert all(line.startswith("  ") for line in lines[at + 1 :]), err
    assert len(lines) - at <= 4, err
    assert all(line.isprintable() for line in lines), err
    assert "defect of Muster" not in err


def refused(
    lab: ShellTeam, capsys: Capture, words: Sequence[str], who: str, code: int, says: str, *on_record: str
) -> None:
    """It fails like that, has no effect, and leaves exactly these records."""
    marks, before = lab.marks(), lab.newest()
    capsys.readouterr()
    assert lab.run(words, who) == code, capsys.readouterr().err
    said = capsys.readouterr()
    one_clear_line(said.err, says)
    assert said.out == ""
    assert lab.types(before) == list(on_record)
    assert lab.marks() == marks


def approve(shown: Proposal, *more: str) -> tuple[str, ...]:
    return ("proposal", "approve", shown.id, "--digest", shown.digest, "--comment", "seen and wanted", *more)


# -- E and F: what is asked for ---------------------------------------------------------------------------------------


def plan_file(case: dict[str, Any]) -> dict[str, Any]:
    """As a person would write it."""
    steps = [
        {**step.get("act", {}), **{key: value for key, value in step.items() if key != "act"}}
        for step in case.get("steps", FINE)
    ]
    return {"steps": steps, **case.get("request", {})}


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=one["id"], marks=() if one["id"] in QUICK else thorough) for one in CASES]
)
def test_a_plan_file_of_the_corpus(lab: ShellTeam, capsys: Capture, tmp_path: Path, case: dict[str, Any]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan_file(case), allow_unicode=True))
    says = BY_THE_READER.get(case["id"], case["says"])
    refused(lab, capsys, ("proposal", "new", "-f", str(path)), "ann", CODES[case["error"]], says)


def test_the_same_without_what_is_wrong_is_taken(lab: ShellTeam, capsys: Capture, tmp_path: Path) -> None:
    """Else the cases would show nothing."""
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan_file({"request": {"reason": "{{ 7 * 7 }} $(id)"}})))
    before = lab.newest()
    assert lab.run(("proposal", "new", "-f", str(path))) == 0
    assert lab.types(before) == ["proposal.drafted", "proposal.simulated", "proposal.submitted"]
    made = capsys.readouterr().out.strip()
    assert lab.base.proposal(made).reason == "{{ 7 * 7 }} $(id)"


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
TEXTS = {
    "aliases": (BOMB, "anchor"),
    "a tag": ("steps: [{action: hold, targets: !!python/object/apply:os.system [id]}]\n", "tag"),
    "a key twice": ("steps: [{action: hold, targets: [w0]}]\nsteps: [{action: cancel, targets: [r0]}]\n", "twice"),
    "200 levels": ("steps: " + "[" * 200 + "]" * 200 + "\n", "deep"),
    "a merge": ("steps: [{<<: {action: hold}, targets: [w0]}]\n", "<<"),
    "two documents": ("steps: [{action: hold, targets: [w0]}]\n---\nsteps: []\n", "document"),
    "a Cyrillic key": ("st\u0435ps: [{action: hold, targets: [w0]}]\n", "\\u0435"),
    "nothing": ("", "plan.yaml"),
    "a NUL": ("steps: [{action: hold, targets: [w0\0]}]\n", "plan.yaml"),
    "not UTF-8": (b"steps: \xff\n", "UTF-8"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=() if one in ("aliases", "a tag") else thorough) for one in TEXTS]
)
def test_a_plan_file_that_is_an_attack_on_its_reader(
    lab: ShellTeam, capsys: Capture, tmp_path: Path, what: str
) -> None:
    text, says = TEXTS[what]
    path = tmp_path / "plan.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(lab, capsys, ("proposal", "new", "-f", str(path)), "ann", 2, says)


LINES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "E01 shell": (("run_shell", "r0"), 2, ""),
    "E01 prefix": (("canc", "r0"), 2, ""),
    "E01 confusable": (("c\u0430ncel", "r0"), 2, ""),
    "E02 ghost": (("cancel", "ghost"), 3, "ghost"),
    "E02 other kind": (("node", "drain", "r0"), 3, "r0"),
    "E02 one of two": (("workload", "hold", "w0", "ghost"), 3, "ghost"),
    "E04 star": (("cancel", "*"), 2, "'*' is not a valid id"),
    "E04 regex": (("cancel", ".*"), 2, "'.*' is not a valid id"),
    "E04 empty": (("cancel", ""), 2, "targets"),
    "E04 none": (("cancel",), 2, ""),
    "E04 zero width": (("cancel", "r0\u200b"), 2, "\\u200b"),
    "E04 full width": (("cancel", "\uff52\uff10"), 2, "targets"),
    "E05 negative": (("pool", "scale", "p", "-1"), 2, ""),
    "E05 huge": (("pool", "scale", "p", "1000000000000"), 2, "nodes"),
    "E05 words": (("pool", "scale", "p", "many"), 2, ""),
    "E10 template": (("cancel", "{{ self.__init__ }}"), 2, "targets"),
    "E10 backticks": (("workload", "move", "w0", "--to", "`id`"), 2, "to"),
    "E10 escape": (("cancel", "r0\x1b[2J"), 2, "targets"),
    "E11 url": (("cell", "notify", "https://evil.example/x", "--text", "hello"), 2, "targets"),
    "E12 lines": (("cell", "notify", "ops", "--text", "one\ntwo"), 2, "note"),
    "F06 policy": (("cell", "set-policy", "solo"), 2, ""),
    "F06 roles": (("set-roles", "mallory"), 2, ""),
}  # fmt: skip


@pytest.mark.parametrize("way", ["propose", "direct"])
@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=() if one in ("E02 ghost", "E04 star") else thorough) for one in LINES]
)
def test_an_action_of_the_corpus_as_words(lab: ShellTeam, capsys: Capture, what: str, way: str) -> None:
    words, code, says = LINES[what]
    marks, before = lab.marks(), lab.newest()
    capsys.readouterr()
    assert lab.run(("proposal", "new", *words) if way == "propose" else (*words, "--yes")) == code
    said = capsys.readouterr()
    assert said.out == ""
    if says:
        one_clear_line(said.err, says)
    else:  # what cannot be typed at all is told by its usage, a wrong value by the name of its argument
        assert "error: " in said.err or said.err.startswith("muster: ")
    assert "\x1b" not in said.err
    assert (lab.marks(), lab.types(before)) == (marks, [])


@thorough
def test_a_channel_that_the_policy_does_not_name(lab: ShellTeam, capsys: Capture) -> None:
    """E11: kept as denied, with its reason."""
    kept = ("proposal.drafted", "proposal.simulated", "proposal.denied")
    refused(
        lab,
        capsys,
        ("proposal", "new", "cell", "notify", "evil", "--text", "hello"),
        "ann",
        4,
        "no channel evil",
        *kept,
    )
    denied = lab.base.proposals(("denied",), 1)[0]
    refused(lab, capsys, approve(denied), "cat", 4, "denied", "vote.refused")
    refused(lab, capsys, ("proposal", "execute", denied.id), "ann", 4, "denied")


@thorough
def test_the_same_again_and_again_is_bounded(lab: ShellTeam, capsys: Capture) -> None:
    """E14."""
    limits = msgspec.structs.replace(the_policy().limits, proposals_per_author_hour=2)
    lab.policy(msgspec.structs.replace(the_policy(), limits=limits))
    for _ in range(2):
        assert lab.run(("proposal", "new", "workload", "hold", "w0"), "pat") == 0
    kept = ("proposal.drafted", "proposal.simulated", "proposal.denied")
    refused(
        lab, capsys, ("proposal", "new", "workload", "hold", "w0"), "pat", 4, "limits.proposals_per_author_hour", *kept
    )
    assert lab.run(("proposal", "new", "workload", "hold", "w1"), "ben") == 0, "another's flood is not mine"


RUNBOOKS: dict[str, tuple[bytes, str]] = {
    "E07 a step twice": (but(("    rollback: inverse\n", "    rollback: inverse\n  - {id: drain, action: cordon}\n")),
                         "duplicate-step"),
    "E08 always true": (but(('op: "==", value: 0, within: 10m', 'op: ">=", value: 0, within: 10m')), "vacuous-check"),
    "E08 never true": (but(('op: "==", value: 0, within: 10m', 'op: "<", value: 0, within: 10m')), "vacuous-check"),
    "E01 shell": (but(("action: drain", "action: run_shell")), "unknown-action"),
    "F02 tier": (but(("    rollback: inverse", "    tier: T0\n    rollback: inverse")), "tier"),
    "F01 approved": (but(("owner: team-capacity", "owner: team-capacity\nstatus: approved")), "status"),
}  # fmt: skip


@thorough
@pytest.mark.parametrize("what", RUNBOOKS)
def test_a_runbook_of_the_corpus_is_named_by_lint(lab: ShellTeam, capsys: Capture, tmp_path: Path, what: str) -> None:
    body, says = RUNBOOKS[what]
    path = tmp_path / "x.md"
    path.write_bytes(body)
    capsys.readouterr()
    assert run(["runbook", "lint", str(path)]) == 2
    out = capsys.readouterr().out
    assert out.startswith(f"{path}:")
    assert says in out


@thorough
def test_words_that_claim_authority_are_words(lab: ShellTeam, capsys: Capture) -> None:
    """F01."""
    claim = "break-glass active, already approved by cat and dan 2/2 [@click=app.quit]ok[/]"
    assert lab.run(("proposal", "new", "workload", "suspend", "r1", "--reason", claim), "ben") == 0
    made = lab.base.proposal(capsys.readouterr().out.strip())
    assert (made.state, made.needs, made.votes) == ("awaiting", 1, ())
    refused(lab, capsys, ("proposal", "execute", made.id), "ann", 4, "is awaiting")
    refused(lab, capsys, (*approve(made)[:-1], claim), "ben", 4, "is the author", "vote.refused")
    capsys.readouterr()
    assert lab.run(("proposal", "show", made.id)) == 0
    out = capsys.readouterr().out
    assert "no votes yet" in out
    assert all(line.lstrip().startswith("┃") for line in out.splitlines() if "already approved" in line)


# -- I: whose yes to what ---------------------------------------------------------------------------------------------


@thorough
def test_nobody_approves_their_own_and_a_revision_has_no_votes(lab: ShellTeam, capsys: Capture) -> None:
    """I03."""
    made = lab.propose("ben", "suspend", "r0", start="asked")
    for keys in (("ben",), ("ben-2",)):
        lab.agent.keys = keys
        refused(lab, capsys, approve(made), "ben", 4, "it is the author", "vote.refused")
    lab.agent.reset()
    assert lab.run(approve(made), "cat") == 0
    assert lab.run(("proposal", "revise", made.id), "ben") == 0
    again = lab.base.proposal(made.id)
    assert (again.revision, again.votes, again.state) == (2, (), "awaiting")
    refused(lab, capsys, ("proposal", "execute", made.id), "ann", 4, "is awaiting")
    refused(lab, capsys, approve(made), "cat", 4, "does not match the digest")
    refused(lab, capsys, approve(again), "ben", 4, "it is the author", "vote.refused")
    refused(lab, capsys, ("proposal", "revise", made.id), "ann", 4, "person:ben's")


def test_one_person_counts_once_by_whatever_name_and_key(lab: ShellTeam, capsys: Capture) -> None:
    """I04."""
    made = lab.propose("ann", "cancel", "r1")
    assert made.needs == 2
    assert lab.run(approve(made), "ben") == 0
    for keys in (("ben",), ("ben-2",)):
        lab.agent.keys = keys
        for name in ("ben", "person:ben"):
            refused(lab, capsys, approve(made), name, 4, "voted so", "vote.refused")
    refused(lab, capsys, approve(made), "Ben", 4, "the policy has no key of Ben")
    refused(lab, capsys, approve(made), "b\u0435n", 4, "the policy has no key of")
    assert lab.base.proposal(made.id).needs == 1


@thorough
def test_a_yes_to_one_plan_is_none_to_another(lab: ShellTeam, capsys: Capture) -> None:
    """I06."""
    one, other = lab.propose("ann", "suspend", "r2"), lab.propose("ann", "suspend", "r3")
    for digest in (one.digest, one.digest[:6], "", other.digest[:5], f"{other.digest[:6]}zz", "[0-9a-f]*"):
        words = ("proposal", "approve", other.id, "--digest", digest)
        says = "no terminal to ask on" if not digest else "does not match the digest"
        refused(lab, capsys, words, "cat", 4, says)


def test_forged_replayed_and_foreign_signatures(lab: ShellTeam, capsys: Capture) -> None:
    """I07: an agent that signs with another key, with what was signed before, or has no key that is enrolled."""
    made = lab.propose("ann", "suspend", "r4")
    on_record: tuple[str, ...] = ("auth.refused",)
    heard: list[bytes] = []

    def kept(message: bytes, key: Any) -> bytes:
        heard.append(key.sign(message))
        return heard[-1]

    lab.agent.signs = kept
    assert lab.run(("proposal", "new", "workload", "hold", "w1"), "ann") == 0
    lab.agent.signs = lambda message, _: private_key("mallory").sign(message)
    refused(lab, capsys, approve(made), "cat", 4, "not by a key of", *on_record)
    lab.agent.signs = lambda message, _: heard[0]
    refused(lab, capsys, approve(made), "cat", 4, "not by a key of", *on_record)
    lab.agent.reset()
    lab.agent.keys = ("mallory", "ann")
    refused(lab, capsys, approve(made), "cat", 4, "holds none of your enrolled keys")
    lab.agent.reset()
    refused(lab, capsys, approve(made), "", 4, "is not in the policy")
    assert lab.base.proposal(made.id).votes == ()


def test_a_yes_after_expiry_or_with_the_clock_set_back(lab: ShellTeam, capsys: Capture) -> None:
    """I08."""
    made, other = lab.propose("ann", "suspend", "r5"), lab.propose("ann", "suspend", "r6")
    lab.later(made.expires_ms - lab.clock.now_ms)
    refused(lab, capsys, approve(made), "cat", 4, "expired", "vote.refused")
    lab.clock.now_ms -= HOUR - MINUTE
    for shown in (made, other):
        marks = lab.marks()
        assert lab.run(approve(shown), "cat") == 4
        one_clear_line(capsys.readouterr().err, "expired")
        assert (lab.base.proposal(shown.id).state, lab.marks()) == ("expired", marks)
    lab.clock.now_ms += HOUR - MINUTE


@thorough
def test_what_changes_elsewhere_makes_no_plan_stale(lab: ShellTeam, capsys: Capture) -> None:
    """I10."""
    made = lab.propose("ann", "cordon", "n0", start="asked")
    assert lab.run(approve(made), "ben") == 0
    assert lab.run(("node", "cordon", "n1", "--yes"), "pat") == 0
    before, effects = lab.newest(), lab.marks()[2]
    assert lab.run(("proposal", "execute", made.id), "ann") == 0
    assert lab.types(before) == [
        "proposal.claimed", "exec.effect", "proposal.acted", "exec.verify", "proposal.verified",
    ]  # fmt: skip
    assert lab.marks()[2] == effects + 1
    refused(lab, capsys, ("proposal", "execute", made.id), "ann", 4, "is verified: it cannot be executed")


@thorough
def test_where_nothing_can_be_recorded_every_deed_fails_and_every_look_works(lab: ShellTeam, capsys: Capture) -> None:
    """I13."""
    awaits = lab.propose("ann", "suspend", "r7")
    ready = lab.propose("ann", "hold", "w0", start="asked")
    lab.yes("ben", ready)
    marks, before = lab.marks(), lab.newest()

    def turn(on: str) -> None:
        lab.loop.call(lambda engine: engine.recorded(lambda c: c.exec_driver_sql(f"PRAGMA query_only={on}")))

    turn("ON")
    try:
        for words, who in (
            (approve(awaits), "cat"), (("proposal", "execute", ready.id), "ann"), (("proposal", "new", "workload",
            "hold", "w1"), "ann"), (("node", "cordon", "n2", "--yes"), "ann"), (("proposal", "reject", awaits.id,
            "--reason", "not now"), "cat"), (("proposal", "withdraw", awaits.id), "ann"), (("proposal", "revise",
            awaits.id), "ann"), (("policy", "freeze", "x", "--for", "1h"), "sue"), (("proposal", "break-glass",
            awaits.id, "--reason", "the rack is on fire", "--digest", awaits.digest), "sue"),
        ):  # fmt: skip
            capsys.readouterr()
            assert lab.run(words, who) == 6, words
            said = capsys.readouterr()
            assert said.out == ""
            one_clear_line(said.err, "")
        for words in (
            (
                "proposal",
                "list",
            ),
            ("proposal", "show", awaits.id),
            (
                "proposal",
                "reviews",
            ),
            ("overview",),
            ("policy", "show"),
        ):
            assert lab.run(words, "") == 0, words
        assert awaits.id in capsys.readouterr().out
    finally:
        turn("OFF")
    assert (lab.marks(), lab.types(before)) == (marks, [])


@pytest.mark.parametrize("lost", [{"roles": ("operator",)}, pytest.param({"keys": ()}, marks=thorough)])
def test_a_vote_falls_with_the_role_or_the_key_of_who_gave_it(
    lab: ShellTeam, capsys: Capture, lost: dict[str, Any]
) -> None:
    """I14."""
    made = lab.propose("ann", "suspend", "r8", start="asked")
    assert lab.run(approve(made), "cat") == 0
    lab.policy(changed(the_policy(), "cat", **lost))
    marks = lab.marks()
    assert lab.run(("proposal", "execute", made.id), "ann") == 4
    one_clear_line(capsys.readouterr().err, "no longer counts")
    assert (lab.base.proposal(made.id).state, lab.marks()) == ("awaiting", marks)
    refused(lab, capsys, ("proposal", "execute", made.id), "ann", 4, "is awaiting")


def test_who_acts_in_a_name_that_is_not_their_accounts_signs_each_yes(lab: ShellTeam, capsys: Capture) -> None:
    """Also where the tier asks for no signature: a yes that nothing proves is refused at once, not kept and never
    counted."""
    made = lab.propose("ann", "hold", "w2", start="asked")
    assert not made.signed
    marks, before = lab.marks(), lab.newest()
    client = RemoteClient(lab.socket, identity=Identity(ConsoleSettings(operator="ben", key="agent")))
    with closing(client), pytest.raises(RefusedError, match="is not signed, and comes from an OS account"):
        client.approve(made.id, made.digest, "seen and wanted")
    assert (lab.marks(), lab.types(before)) == (marks, ["vote.refused"])
    assert lab.run(approve(made), "ben") == 0
    assert lab.base.proposal(made.id).state == "approved"
    assert lab.run(("workload", "hold", "w1", "--yes"), "pat") == 0
    assert lab.loop.call(lambda engine: engine.workload("w1").state) == "held"
    assert lab.run(("workload", "release", "w1", "--yes"), "pat") == 0


@thorough
def test_a_freeze_stops_what_is_approved_and_the_next_step(lab: ShellTeam, capsys: Capture, tmp_path: Path) -> None:
    """I15."""
    path = tmp_path / "plan.yaml"
    steps = [{"action": "cordon", "targets": ["n3"]}, {"action": "cordon", "targets": ["n4"], "confirm": "operator"}]
    path.write_text(yaml.safe_dump({"when_asked": True, "steps": steps}))
    capsys.readouterr()
    assert lab.run(("proposal", "new", "-f", str(path))) == 0
    made = lab.base.proposal(capsys.readouterr().out.strip())
    assert lab.run(approve(made), "cat") == 0
    assert lab.run(("policy", "freeze", "night", "--for", "1h", "--reason", "launch"), "sue") == 0
    marks = lab.marks()
    assert lab.run(("proposal", "execute", made.id), "ann") == 4
    one_clear_line(capsys.readouterr().err, "freeze 'night'")
    assert (lab.base.proposal(made.id).state, lab.marks()) == ("approved", marks)
    assert lab.run(("policy", "thaw", "night"), "eve") == 4
    assert lab.run(("policy", "thaw", "night"), "sue") == 0
    assert lab.run(("proposal", "execute", made.id), "ann") == 4, "begun, and it waits for a word"
    assert lab.run(("policy", "freeze", "again", "--for", "1h"), "sue") == 0
    marks = lab.marks()
    capsys.readouterr()
    assert lab.run(("proposal", "confirm", made.id, "2"), "ann") == 4
    assert "again" in capsys.readouterr().err
    assert (lab.base.proposal(made.id).state, lab.marks()) == ("paused", marks)
    lab.later(HOUR)
    assert lab.run(("proposal", "resume", made.id), "ann") == 0
    assert lab.base.proposal(made.id).state == "verified"


@thorough
def test_the_glass_breaks_for_few_with_a_reason_and_once(lab: ShellTeam, capsys: Capture) -> None:
    """I16."""
    one, two = lab.propose("ann", "suspend", "r9"), lab.propose("ann", "suspend", "r10")

    def broken(shown: Proposal, reason: str) -> tuple[str, ...]:
        return ("proposal", "break-glass", shown.id, "--reason", reason, "--digest", shown.digest)

    for who, reason, says in (
        ("cat", "the rack is on fire", "neither an admin nor"), ("sue", "", "reason"), ("sue", "  fire   ", "reason"),
    ):  # fmt: skip
        refused(lab, capsys, broken(one, reason), who, 4, says, "breakglass.refused")
    assert lab.run(("proposal", "break-glass", one.id, "--digest", one.digest), "sue") == 2, "no reason at all"
    capsys.readouterr()
    assert lab.run(broken(one, "the rack is on fire"), "sue") == 0
    assert "another person must close the review" in capsys.readouterr().err
    refused(lab, capsys, broken(two, "the rack burns still"), "sue", 4, "not reviewed", "breakglass.refused")
    [review] = lab.base.reviews()
    close = ("proposal", "close-review", str(review.id), "--comment", "it did burn, and this was right")
    assert lab.run(close, "sue") == 4
    one_clear_line(capsys.readouterr().err, "your own action")
    assert lab.run(close, "cat") == 0
    assert lab.run(broken(two, "the rack burns still"), "sue") == 0


# -- J: the audit -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """33 records with checkpoints at 10, 20 and 30."""
    path = tmp_path_factory.mktemp("log") / "journal.db"
    made = make_log(path, signer())
    made.engine.close()
    return path.read_bytes()


DONE = (
    "a record is edited", "a record is deleted", "two records are swapped", "the end is cut off",
    "all is written anew", "a fork after a checkpoint, with another key", "all is written anew with another key",
    "a body becomes a number", "a record type is changed", "a checkpoint is taken out",
)  # fmt: skip


@pytest.mark.parametrize("what", DONE)
def test_verify_names_the_first_bad_record(capsys: Capture, tmp_path: Path, log: bytes, what: str) -> None:
    """J05."""
    path = tmp_path / "journal.db"
    path.write_bytes(log)
    if what == DONE[0]:
        assert run(["audit", "verify", str(path), "--key", KEY]) == 0
        assert "BAD" not in capsys.readouterr().out
    tamper, code, record = TAMPERS[what]
    tampered(path, tamper)
    assert run(["audit", "verify", str(path), "--key", KEY]) == code
    said = capsys.readouterr()
    bad = next(line for line in said.out.splitlines() if "BAD" in line)
    assert str(record) in bad
    assert "Traceback" not in said.err


def test_after_all_that_the_log_is_in_order(lab: ShellTeam, tmp_path: Path) -> None:
    assert lab.loop.call(lambda engine: problems(engine, tmp_path)) == []
