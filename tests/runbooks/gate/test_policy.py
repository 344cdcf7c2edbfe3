"""The approval policy: who may do what, whose vote counts, which of two is stricter, and what no file can say."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.errors import SpecError
from runbooks.gate.approval_policy import (
    FLOORS,
    SOLO,
    TEAM,
    ApprovalNeed,
    ApproverGroup,
    Grant,
    Person,
    Policy,
    Rule,
    Vote,
    frozen,
    may,
    need,
    roles,
    stricter,
    tally,
    why_not_counted,
)
from runbooks.gate.policy_files import check_policy, notes, read_policy
from runbooks.gate.run_limits import (
    SOLO_LIMITS,
    ByTier,
    FreezeSpec,
    LimitUsage,
    PolicyLimits,
    Size,
    check_freeze,
    holds,
    moment_ms,
    over,
    tighter,
)
from runbooks.plans.identity import OWNER, SYSTEM, TCP, WHOLE, Actor, Role, Scope
from runbooks.plans.typed_plan import TIERS, Blast, Party, Tier
from runbooks.untrusted.stranger_texts import skeleton, why_confusing
from tests.support.people import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    ERIN,
    EVERYBODY,
    FAITH,
    NOW_MS,
    OTTO,
    actor,
    key_of,
    person,
    team,
)

HOUR = 3_600_000
PROD = Scope(tenants=("prod",))

# -- roles and deeds --------------------------------------------------------------------------------------------------

OPERATOR = {"submit", "configure", "propose", "vote", "execute", "pause", "rollback", "cancel", "freeze"}
DEEDS: dict[str, set[str]] = {
    "viewer": set(),
    "operator": OPERATOR,
    "approver": {"vote", "execute", "pause", "rollback", "cancel", "review", "freeze", "runbook"},
    "admin": {
        "configure", "pause", "cancel", "break_glass", "review", "freeze", "thaw", "policy", "redact", "export", "key",
    },
    "auditor": {"export"},
}  # fmt: skip
ALL = sorted(set().union(*DEEDS.values()) | {"read"})


@pytest.mark.parametrize("role", DEEDS)
@pytest.mark.parametrize("deed", ALL)
def test_a_role_may_do_its_deeds_and_no_others(role: Any, deed: Any) -> None:
    somebody = person("somebody", role, uid=3000)
    why_not = may(team(somebody, DAVE), actor(somebody), deed)
    assert (why_not == "") == (deed in DEEDS[role] or deed == "read")


def test_whom_the_policy_does_not_know_is_a_viewer() -> None:
    for stranger in (
        Actor(subject="unix:9", account="unix:9"),
        Actor(subject=OWNER, account=OWNER),
        Actor(subject=TCP, account=TCP),
        Actor(subject="person:nobody", account="unix:2001", signed=True),
        Actor(subject="person:alice", account="unix:9"),
        Actor(subject="person:alice", account=TCP),
        Actor(subject="", account=""),
    ):
        assert roles(team(), stranger) == {"viewer"}, stranger


def test_while_nobody_is_named_the_owner_acts_and_nobody_else() -> None:
    for policy in (TEAM, SOLO):
        assert roles(policy, Actor(subject=OWNER, account=OWNER)) >= {"operator", "approver", "admin"}
        assert roles(policy, Actor(subject="unix:9", account="unix:9")) == {"viewer"}
        assert roles(policy, Actor(subject=OWNER, account=TCP)) == {"viewer"}
        assert roles(policy, Actor(subject="unix:9", account="unix:9"), owner="unix:9") > {"operator"}
        assert roles(policy, Actor(subject=OWNER, account=OWNER, kind="llm")) == {"viewer"}


def test_services_draft_and_do_nothing_else() -> None:
    for kind, subject in (("service", "service:recommender"), ("llm", "service:llm-drafter")):
        machine = Actor(subject=subject, kind=kind, account="unix:1")  # type: ignore[arg-type]
        allowed = [deed for deed in ALL if not may(TEAM, machine, deed)]  # type: ignore[arg-type]
        assert allowed == ["propose", "read"]
    assert may(TEAM, Actor(subject="service:made-up", kind="service", account="unix:1"), "propose")
    assert may(TEAM, SYSTEM, "vote")


def test_a_signature_proves_a_person_from_any_account_and_an_account_only_its_own() -> None:
    assert "approver" in roles(team(), actor(ALICE))
    assert "approver" in roles(team(), actor(ALICE, account=TCP, signed=True))
    assert roles(team(), actor(ALICE, account="unix:2002")) == {"viewer"}
    shared = person("ann", "operator", uid=2001)
    both = team(ALICE, shared, DAVE)
    assert roles(both, actor(ALICE)) == roles(both, Actor(subject="unix:2001", account="unix:2001")) == {"viewer"}
    assert "approver" in roles(both, actor(ALICE, signed=True))


def test_a_role_in_part_of_the_cell_reaches_what_lies_inside() -> None:
    pam = Person(id="pam", accounts=("unix:5",), scoped=(Grant(roles=("operator",), scope=Scope(pools=("a", "b"))),))
    policy, who = team(pam, DAVE), Actor(subject="person:pam", account="unix:5")
    for touched, reached in (
        (Scope(pools=("a",)), True),
        (Scope(pools=("b", "a"), queues=("q",), tenants=("t",)), True),
        (Scope(pools=("a", "c")), False),
        (Scope(queues=("q",)), False),
        (WHOLE, False),
    ):
        assert ("operator" in roles(policy, who, touched)) == reached, touched
        assert (may(policy, who, "propose", "T1", touched) == "") == reached
    narrow = Scope(pools=("a",), tenants=("t",))
    assert narrow.covers(Scope(pools=("a",), tenants=("t",)))
    assert narrow.covers(Scope(pools=("a",)))
    assert not narrow.covers(Scope(pools=("a",), tenants=("t", "u")))


# -- what a plan needs ------------------------------------------------------------------------------------------------


def test_the_built_in_policies_ask_what_they_say() -> None:
    asked = {tier: need(TEAM, tier, "person") for tier in TIERS}
    assert [asked[tier].approvals for tier in TIERS] == [1, 1, 1, 2]
    assert [asked[tier].self_ok for tier in TIERS] == [True, True, False, False]
    assert [asked[tier].signed for tier in TIERS] == [False, False, True, True]
    assert [asked[tier].roles for tier in TIERS] == [("operator",), ("operator",), ("approver",), ("approver",)]
    assert [asked[tier].expiry_ms / HOUR for tier in TIERS] == [24, 4, 1, 0.5]
    assert {asked[tier].window_ms for tier in TIERS} == {HOUR // 2}
    assert asked["T3"].reason
    assert all(need(SOLO, tier, origin).self_ok for tier in TIERS for origin in ("person", "model"))  # type: ignore[arg-type]
    assert [need(SOLO, tier, "person").typed for tier in TIERS] == ["key", "key", "digest", "digest"]


@pytest.mark.parametrize("tier", TIERS)
def test_what_a_machine_drafted_is_not_its_requesters_to_approve(tier: Tier) -> None:
    assert not need(TEAM, tier, "recommender").self_ok
    assert not need(TEAM, tier, "model").self_ok
    assert not need(TEAM, tier, "person", author="llm").self_ok
    assert not need(TEAM, tier, "person", author="service").self_ok
    everything = msgspec.structs.replace(
        TEAM.rules[0], tier=tier, self_ok=("person", "runbook", "recommender", "model")
    )
    loose = msgspec.structs.replace(TEAM, rules=(everything,))
    assert not need(loose, tier, "model").self_ok


def test_a_policy_that_was_never_checked_cannot_go_below_the_floors() -> None:
    nothing = tuple(
        Rule(tier=tier, approvals=0, roles=(), expiry_ms=10**12, window_ms=10**12, self_ok=("person", "model"))
        for tier in TIERS
    )
    for policy in (Policy(name="x", rules=nothing), Policy(name="x", rules=())):
        for tier in TIERS:
            found = need(policy, tier, "person")
            assert found == stricter(found, FLOORS[tier])
            assert not need(policy, tier, "model").self_ok


def test_a_rule_for_a_part_adds_to_what_the_tier_needs() -> None:
    rule = Rule(
        tier="T2",
        scope=PROD,
        approvals=2,
        roles=("approver",),
        expiry_ms=HOUR,
        groups=(ApproverGroup(name="o", people=("bob",)),),
    )
    policy = team(rules=(*TEAM.rules, rule))
    assert need(policy, "T2", "person", Scope(tenants=("dev",))).approvals == 1
    for touched in (PROD, Scope(tenants=("dev", "prod"), pools=("a",)), WHOLE):
        assert need(policy, "T2", "person", touched).approvals == 2
        assert need(policy, "T2", "person", touched).signed
    assert need(policy, "T3", "person", PROD).groups == ()


groups = st.builds(
    ApproverGroup, name=st.sampled_from("ab"), people=st.just(("alice", "bob")), approvals=st.integers(1, 2)
)
needs = st.builds(
    ApprovalNeed,
    approvals=st.integers(0, 4),
    roles=st.sets(st.sampled_from(["operator", "approver", "admin"])).map(lambda found: tuple(sorted(found))),
    expiry_ms=st.integers(1, 100),
    window_ms=st.integers(1, 100),
    signed=st.booleans(),
    typed=st.sampled_from(["key", "digest"]),
    reason=st.booleans(),
    self_ok=st.booleans(),
    groups=st.sets(groups).map(lambda found: tuple(sorted(found, key=lambda g: (g.name, g.people, g.approvals)))),
)


@settings(max_examples=60, deadline=None)
@given(needs, needs, needs)
def test_the_stricter_of_two_is_one_order_whichever_comes_first(
    a: ApprovalNeed, b: ApprovalNeed, c: ApprovalNeed
) -> None:
    assert stricter(a, a) == a
    assert stricter(a, b) == stricter(b, a)
    assert stricter(a, stricter(b, c)) == stricter(stricter(a, b), c)
    assert stricter(stricter(a, b), b) == stricter(a, b)


PARTIES = [
    Party(subject=who.subject, kind="human", account=who.accounts[0], signed=s) for who in (ALICE, BOB) for s in (0, 1)
]  # type: ignore[arg-type]
votes = st.builds(
    Vote,
    subject=st.sampled_from([who.subject for who in EVERYBODY] + ["unix:2001", "unix:9", "service:recommender"]),
    kind=st.sampled_from(["human", "human", "human", "service", "llm"]),
    account=st.sampled_from([who.accounts[0] for who in EVERYBODY] + [TCP, "unix:9"]),
    verdict=st.sampled_from(["approve", "approve", "reject", "abstain"]),
    at_ms=st.just(0),
    key=st.sampled_from(["", *(key_of(who.id).public.fingerprint for who in EVERYBODY)]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(votes, max_size=5),
    st.sampled_from(PARTIES),
    st.sampled_from(["", "person:bob", "unix:2003"]),
    needs,
    needs,
)
def test_a_stricter_need_never_lets_more_through(
    given_votes: list[Vote], author: Party, requester: str, a: ApprovalNeed, b: ApprovalNeed
) -> None:
    weak = tally(team(), given_votes, author, requester, a)
    strong = tally(team(), given_votes, author, requester, stricter(a, b))
    assert set(strong.counted) <= set(weak.counted)
    assert strong.missing >= weak.missing


# -- whose vote counts ------------------------------------------------------------------------------------------------


def allowed_by_hand(
    voter: Person, kind: str, account: str, key: str, author: Person, author_signed: bool, requester: str, tier: Tier
) -> bool:
    """The rules as docs/approval.md has them, written down a second time."""
    mine = key_of(voter.id).public.fingerprint
    if kind != "human" or (key and key != mine):
        return False
    proved = key == mine or account == voter.accounts[0]
    role = "operator" if tier in ("T0", "T1") else "approver"
    if not proved or role not in voter.roles:
        return False
    if tier in ("T0", "T1"):
        return True
    if key != mine or voter is author or requester == voter.subject:
        return False
    suspect = account in (author.accounts[0], TCP) or (requester and account == "unix:2002")
    return bool(not suspect or author_signed)


@pytest.mark.parametrize("tier", TIERS)
def test_a_vote_counts_exactly_by_the_rules(tier: Tier) -> None:
    policy, wanted = team(), need(team(), tier, "person")
    keys = ["", *(key_of(who.id).public.fingerprint for who in (ALICE, BOB, CAROL))]
    cases = itertools.product(
        (ALICE, BOB, CAROL, OTTO, FAITH, DAVE), ("human", "service", "llm", "system"),
        ("unix:2001", "unix:2002", "unix:2003", TCP, "unix:9"), keys, (True, False), ("", "person:bob"),
    )  # fmt: skip
    for voter, kind, account, key, author_signed, requester in cases:
        vote = Vote(subject=voter.subject, kind=kind, account=account, verdict="approve", at_ms=0, key=key)  # type: ignore[arg-type]
        author = Party(subject="person:alice", kind="human", account="unix:2001", signed=author_signed)
        why_not = why_not_counted(policy, vote, author, requester, wanted)
        expected = allowed_by_hand(voter, kind, account, key, ALICE, author_signed, requester, tier)
        assert (why_not == "") == expected, (voter.id, kind, account, key, author_signed, requester, why_not)


def vote_of(who: Person, *, account: str = "", signed: bool = True, verdict: Any = "approve") -> Vote:
    key = key_of(who.id).public.fingerprint if signed else ""
    return Vote(
        subject=who.subject, kind="human", account=account or who.accounts[0], verdict=verdict, at_ms=0, key=key
    )


AUTHOR = Party(subject="person:otto", kind="human", account="unix:2006")
T3 = need(team(), "T3", "person")


def test_people_are_counted_not_votes() -> None:
    renamed = Vote(
        subject="unix:2001", kind="human", account="unix:2001", verdict="approve", at_ms=1,
        key=key_of("alice").public.fingerprint,
    )  # fmt: skip
    twice = tally(team(), (vote_of(ALICE), vote_of(ALICE, account=TCP), renamed), AUTHOR, "", T3)
    assert twice.counted == ("person:alice",)
    assert twice.missing == 1
    assert tally(team(), (vote_of(ALICE), vote_of(BOB)), AUTHOR, "", T3).missing == 0


def test_a_person_with_two_accounts_and_two_keys_is_one() -> None:
    ann = person("ann", "approver", uid=71, keys=2)
    ann = msgspec.structs.replace(ann, accounts=("unix:71", "unix:72"))
    other = msgspec.structs.replace(vote_of(ann, account="unix:72"), key=key_of("ann", 1).public.fingerprint)
    found = tally(team(ann, DAVE), (vote_of(ann), other), AUTHOR, "", T3)
    assert (found.counted, found.why_not) == (("person:ann",), ("", "has already voted"))


def test_one_key_or_one_unsigned_account_is_one_vote_whatever_it_is_called() -> None:
    ann = Person(id="ann", accounts=("unix:77",), roles=("operator",))
    abe = Person(id="abe", accounts=("unix:77",), keys=(key_of("abe").public.line,), roles=("operator",))
    wanted = ApprovalNeed(approvals=2, roles=("operator",), expiry_ms=1, window_ms=1, self_ok=True)
    signed = vote_of(abe)
    plain = Vote(subject="person:ann", kind="human", account="unix:77", verdict="approve", at_ms=0)
    assert tally(team(ann, abe, DAVE), (signed, plain), AUTHOR, "", wanted).missing == 1
    assert tally(team(ann, DAVE), (plain, msgspec.structs.replace(plain, at_ms=1)), AUTHOR, "", wanted).missing == 1


def test_a_role_or_key_that_is_taken_away_takes_its_vote_along() -> None:
    given_votes = (vote_of(ALICE), vote_of(BOB))
    demoted = person("bob", "operator", uid=2002)
    assert tally(team(ALICE, demoted, DAVE), given_votes, AUTHOR, "", T3).missing == 1
    rotated = msgspec.structs.replace(BOB, keys=(key_of("bob", 1).public.line,))
    assert tally(team(ALICE, rotated, DAVE), given_votes, AUTHOR, "", T3).missing == 1
    assert tally(team(ALICE, DAVE), given_votes, AUTHOR, "", T3).missing == 1


def test_whoever_asked_for_it_counts_as_its_author_under_any_name() -> None:
    machine = Party(subject="service:llm-drafter", kind="llm", account="system")
    wanted = need(team(), "T1", "model", author="llm")
    for requester in ("person:alice", "unix:2001"):
        assert why_not_counted(team(), vote_of(ALICE), machine, requester, wanted) == "asked for it"
        assert why_not_counted(team(), vote_of(BOB), machine, requester, wanted) == ""


def test_two_from_one_account_are_two_only_by_both_their_keys() -> None:
    both = team(ALICE, msgspec.structs.replace(BOB, accounts=("unix:2001",)), DAVE)
    wanted = need(both, "T2", "person")
    for author_signed, vote_signed, counts in ((1, 1, True), (1, 0, False), (0, 1, False), (0, 0, False)):
        author = Party(subject="person:alice", kind="human", account="unix:2001", signed=bool(author_signed))
        vote = vote_of(BOB, account="unix:2001", signed=bool(vote_signed))
        assert (why_not_counted(both, vote, author, "", wanted) == "") == counts


def test_groups_must_each_give_their_votes() -> None:
    owners = ApproverGroup(name="owners", people=("carol",))
    wanted = msgspec.structs.replace(need(team(), "T2", "person"), groups=(owners,))
    short = tally(team(), (vote_of(ALICE),), AUTHOR, "", wanted)
    assert (short.missing, "owners" in short.wanted) == (1, True)
    assert tally(team(), (vote_of(CAROL),), AUTHOR, "", wanted).missing == 0


def test_anybody_who_might_say_yes_can_say_no() -> None:
    wanted = need(team(), "T2", "person")
    assert tally(team(), (vote_of(BOB, verdict="reject", signed=False),), AUTHOR, "", wanted).why_not == ("",)
    assert tally(team(), (vote_of(FAITH, verdict="reject"),), AUTHOR, "", wanted).why_not != ("",)
    assert tally(team(), (vote_of(BOB, verdict="abstain"),), AUTHOR, "", wanted).missing == 1


# -- freezes ----------------------------------------------------------------------------------------------------------


def ms(text: str) -> int:
    return moment_ms(text, "at")


NIGHT = FreezeSpec(name="night", weekly=("sat 22:00 - sun 03:30",), zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("at", "frozen_then"),
    [
        ("2026-03-28T20:59Z", False), ("2026-03-28T21:00Z", True),  # winter: 22:00 is 21:00 UTC
        ("2026-03-29T01:29Z", True), ("2026-03-29T01:30Z", False),  # set forward at 2:00: 3:30 is 1:30 UTC
        ("2026-10-24T19:59Z", False), ("2026-10-24T20:00Z", True),  # summer: 20:00 UTC
        ("2026-10-25T02:29Z", True), ("2026-10-25T02:30Z", False),  # set back at 3:00: 3:30 is 2:30 UTC
        ("2026-07-01T23:00Z", False),
    ],
)  # fmt: skip
def test_windows_follow_the_clocks_of_their_zone(at: str, frozen_then: bool) -> None:
    assert (frozen(team(freezes=(NIGHT,)), (), ms(at), "T1") == "night") == frozen_then


def test_a_time_that_comes_twice_or_never_makes_the_window_longer() -> None:
    twice = FreezeSpec(name="w", weekly=("sun 02:30 - sun 02:45",), zone="Europe/Berlin")
    assert [holds(twice, ms(f"2026-10-25T{at}Z"), "T1", WHOLE) for at in ("00:29", "00:30", "01:44", "01:45")] == [
        False, True, True, False,
    ]  # fmt: skip
    never = FreezeSpec(name="w", weekly=("sun 02:15 - sun 02:45",), zone="Europe/Berlin")
    assert holds(never, ms("2026-03-29T01:20Z"), "T1", WHOLE)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 52 * 7 * 24 * 4),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
)
def test_a_day_is_frozen_exactly_while_its_own_clocks_show_it(quarter: int, zone: str) -> None:
    from datetime import UTC, datetime, timedelta
    from zoneinfo import ZoneInfo

    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=15 * quarter)
    spec = FreezeSpec(name="w", weekly=("sun 00:00 - sun 24:00",), zone=zone)
    assert holds(spec, int(at.timestamp() * 1000), "T1", WHOLE) == (at.astimezone(ZoneInfo(zone)).weekday() == 6)


def test_a_freeze_stops_its_tiers_and_its_part_of_the_cell() -> None:
    spec = FreezeSpec(name="w", tier="T2", scope=Scope(pools=("a",)), from_ms=10, until_ms=20)
    assert [holds(spec, at, "T2", WHOLE) for at in (9, 10, 19, 20)] == [False, True, True, False]
    assert [holds(spec, 15, tier, WHOLE) for tier in TIERS] == [False, False, True, True]
    assert holds(spec, 15, "T3", Scope(pools=("a", "b")))
    assert not holds(spec, 15, "T3", Scope(pools=("b",)))
    assert frozen(team(), (spec,), 15, "T2") == "w"


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"weekly": ("fri 16:00 - mon 08:00",), "from_ms": 1, "until_ms": 2}, {"from_ms": 1},
        {"from_ms": 2, "until_ms": 2}, {"weekly": ("fri 25:00 - mon 08:00",)}, {"weekly": ("friday 16:00 - 17:00",)},
        {"weekly": ("daily 00:00 - 24:00",)}, {"weekly": ("mon 08:00 - mon 08:00",)}, {"weekly": ("",)},
        {"weekly": ("daily 1:00 - 2:00",)}, {"weekly": ("daily ٠1:00 - 02:00",)},
        {"weekly": ("daily 01:00 - 02:00",), "zone": "Mars/Base"}, {"weekly": ("daily 01:00 - 02:00",), "zone": ""},
        {"weekly": ("daily 01:00 - 02:00",), "zone": "../../etc/passwd"},
        {"weekly": ("daily 01:00 - 02:00",), "zone": "Europe"},
    ],
)  # fmt: skip
def test_a_window_that_nobody_could_read_is_refused_and_holds_until_then(wrong: Any) -> None:
    spec = FreezeSpec(name="w", **wrong)
    with pytest.raises(SpecError):
        check_freeze(spec)


def test_a_window_whose_zone_is_gone_holds() -> None:
    assert holds(FreezeSpec(name="w", weekly=("daily 01:00 - 02:00",), zone="Mars/Base"), 0, "T1", WHOLE)


# -- limits -----------------------------------------------------------------------------------------------------------

SIZE = Size(nodes={"a": 100, "b": 4}, gpu_milli=800_000)


def test_limits_count_what_is_used_and_what_is_planned_together() -> None:
    limits = PolicyLimits(cost_microusd_hour=5_000_000)
    nothing = over(limits, LimitUsage(), "T2", Blast(nodes=(("a", 5), ("b", 1)), gpu_milli=80_000, workloads=500), SIZE)
    assert nothing == ()
    used = LimitUsage(nodes=(("a", 3),), gpu_milli=1_000, workloads=1, executions=ByTier(T2=20), cost_microusd_hour=1)
    blast = Blast(nodes=(("a", 3), ("b", 2)), gpu_milli=80_000, workloads=500, cost_microusd_hour=5_000_000)
    found = over(limits, used, "T2", blast, SIZE)
    assert [broken.rule for broken in found] == [
        "limits.executions_per_hour", "limits.nodes", "limits.nodes", "limits.gpus", "limits.workloads", "limits.cost",
    ]  # fmt: skip
    assert "3 this hour and 3 more, at most 5" in found[1].words
    assert over(limits, used, "T2", blast, SIZE, factor=2) == ()


def test_what_disturbs_nothing_breaks_no_limit_of_disturbance() -> None:
    used = LimitUsage(nodes=(("a", 99),), gpu_milli=10**9, workloads=10**6)
    assert over(PolicyLimits(), used, "T0", Blast(), SIZE) == ()


def test_the_tighter_of_two_limits_keeps_to_both() -> None:
    both = tighter(PolicyLimits(cost_microusd_hour=5), SOLO_LIMITS)
    assert both == tighter(SOLO_LIMITS, PolicyLimits(cost_microusd_hour=5)) == PolicyLimits(cost_microusd_hour=5)


# -- the file ---------------------------------------------------------------------------------------------------------


def file(more: str = "", people: str = "") -> bytes:
    keys = {who: key_of(who).public.line for who in ("alice", "bob", "dave")}
    people = people or (
        f"people:\n"
        f"  - {{id: alice, name: Alice Å, accounts: [unix:2001], keys: [{keys['alice']} a@b], "
        f"roles: [operator, approver]}}\n"
        f"  - {{id: bob, accounts: [unix:2002], keys: [{keys['bob']}], roles: [approver]}}\n"
        f"  - {{id: dave, accounts: [unix:2004], keys: [{keys['dave']}], roles: [admin]}}\n"
    )
    return f"schema: muster-policy/v1\nname: cell-a\nversion: 1\n{people}{more}".encode()


def test_a_file_says_what_differs_from_the_built_in_policy() -> None:
    policy = read_policy(
        file(
            "approvals:\n"
            "  - {tier: T2, expiry: 30m}\n"
            "  - {tier: T2, tenants: [prod], approvals: 2, groups: [{name: owners, people: [bob]}]}\n"
            "limits: {executions_per_hour: {T2: 5}, cost_usd_hour: 100}\n"
            "freezes:\n"
            "  - {name: weekend, tier: T2, weekly: [fri 16:00 - mon 08:00], zone: Europe/Berlin}\n"
            '  - {name: turn-of-year, from: "2026-12-20T18:00+01:00", until: "2027-01-02T08:00Z"}\n'
            "break_glass: {channels: [ops]}\n"
            'channels: {ops: "file:/var/log/ops.log"}\n'
        ),
        "policy.yaml",
    )
    assert need(policy, "T2", "person", Scope(tenants=("dev",))).expiry_ms == HOUR // 2
    assert need(policy, "T2", "person", PROD).approvals == 2
    assert need(policy, "T3", "person") == need(TEAM, "T3", "person")
    assert (policy.limits.executions_per_hour.T2, policy.limits.executions_per_hour.T3) == (5, 3)
    assert policy.limits.cost_microusd_hour == 100_000_000
    assert policy.freezes[1].from_ms == ms("2026-12-20T17:00Z")
    assert policy.paged() == ("ops",)
    assert policy.canonical() == rfc8785.dumps(msgspec.json.decode(policy.canonical()))
    assert policy.digest() != msgspec.structs.replace(policy, version=2).digest()


KEY = key_of("alice").public.line
DAVE_LINE = f"  - {{id: dave, accounts: [unix:2004], keys: [{key_of('dave').public.line}], roles: [admin]}}\n"


def folk(*lines: str) -> bytes:
    return file(people="people:\n" + "".join(f"  - {line}\n" for line in lines) + DAVE_LINE)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        # what no policy may go below
        (file("approvals: [{tier: T2, approvals: 0}]\n"), "T2"),
        (file("approvals: [{tier: T3, approvals: 1}]\n"), "T3"),
        (file("approvals: [{tier: T2, own_plans_of: [person]}]\n"), "own_plans_of"),
        (file("approvals: [{tier: T1, own_plans_of: [model]}]\n"), "own_plans_of"),
        (file("approvals: [{tier: T2, signed: false}]\n"), "signed"),
        (file("approvals: [{tier: T3, reason: false}]\n"), "reason"),
        (file("approvals: [{tier: T3, typed: key}]\n"), "typed"),
        (file("approvals: [{tier: T2, roles: [operator]}]\n"), "approver"),
        (file("approvals: [{tier: T1, roles: [viewer]}]\n"), "viewer"),
        (file("approvals: [{tier: T1, roles: []}]\n"), "nobody"),
        (file("approvals: [{tier: T1, roles: [drafter]}]\n"), "drafter"),
        (file("approvals: [{tier: T2, expiry: 30d}]\n"), "expiry"),
        (file("approvals: [{tier: T2, expiry: 0s}]\n"), "expiry"),
        (file("approvals: [{tier: T2, expiry: soon}]\n"), "expiry"),
        (file("approvals: [{tier: T2, window: 1d}]\n"), "window"),
        (file("approvals: [{tier: T2, tenants: [prod], approvals: 0}]\n"), "T2"),
        (file("approvals: [{tier: T2, tenants: ['*']}]\n"), "tenants"),
        (file("approvals: [{tier: T2}, {tier: T2}]\n"), "approvals[1]"),
        (file("approvals: [{tier: T2, groups: [{name: g, people: [zoe]}]}]\n"), "zoe"),
        (file("approvals: [{tier: T2, groups: [{name: g, people: [bob, bob], approvals: 2}]}]\n"), "g"),
        (file("limits: {nodes_permille: 1000}\n"), "nodes_permille"),
        (file("limits: {workloads_per_hour: -1}\n"), "workloads_per_hour"),
        (file("limits: {executions_per_hour: {T3: 1000000}}\n"), "T3"),
        (file("limits: {nodes_permille: 1.5}\n"), "1.5"),
        (file("break_glass: {factor: 9}\n"), "factor"),
        (file("break_glass: {reason_least: 0}\n"), "reason_least"),
        (file("break_glass: {channels: [nowhere]}\n"), "nowhere"),
        # shapes
        (b"", "policy.yaml"), (b"[]", "policy.yaml"), (b"schema: muster-policy/v2\n", "schema"),
        (file("audit: off\n"), "off"), (file("audit: {disabled: true}\n"), "audit"),
        (file("mode: anarchy\n"), "mode"), (file("approvals: [{tier: T4}]\n"), "tier"),
        (file().replace(b"version: 1", b"version: 0"), "version"),
        (file().replace(b"version: 1", b"version: true"), "version"),
        (file().replace(b"name: cell-a", b"name: Cell A"), "name"),
        (file("a: &x [1]\nb: *x\n"), "anchor"), (file("a: !!python/object:os.system x\n"), "tag"),
        (file("version: 2\n"), "twice"), (file("people: []\n"), "twice"),
        # people
        (folk("{id: '*', roles: [approver]}"), "people[0].id"),
        (folk("{id: everyone, roles: [approver]}"), "everyone"),
        (folk("{id: '', roles: [approver]}"), "people[0].id"),
        (folk("{id: аlice}"), "people[0].id"), (folk("{id: alice​}"), "U+200B"),
        (folk("{id: alice}", "{id: al1ce}"), "could be taken for"), (folk("{id: alice}", "{id: a-lice}"), "taken for"),
        (folk("{id: arnold}", "{id: amold}"), "taken for"), (folk("{id: bob0}", "{id: bobo}"), "taken for"),
        (folk("{id: alice}", "{id: alice}"), "twice"),
        (folk("{id: mallory, name: Dave}"), "taken for 'Dave'"), (folk("{id: m, name: 'D аve'}"), "mixes"),
        (folk("{id: m, name: 'ｄave'}"), "plain form"), (folk("{id: m, name: 'dave '}"), "plain form"),
        (folk("{id: m, roles: [root]}"), "roles"), (folk("{id: m, roles: [drafter]}"), "drafter"),
        (folk("{id: m, accounts: ['unix:*']}"), "accounts"), (folk("{id: m, accounts: [root]}"), "accounts"),
        (folk("{id: m, accounts: ['unix:01000']}"), "accounts"), (folk("{id: m, accounts: ['']}"), "accounts"),
        (folk("{id: m, keys: [ssh-rsa AAAA]}"), "keys[0]"), (folk("{id: m, keys: [ssh-ed25519 !!!]}"), "base64"),
        (folk("{id: m, keys: [ssh-ed25519 AAAA]}"), "inside"),
        (folk(f"{{id: m, keys: [{KEY}]}}", f"{{id: k, keys: [{KEY} other-comment]}}"), "key of m"),
        (folk(f"{{id: m, keys: [{KEY}, {KEY}]}}"), "key of m"),
        (folk("{id: m, scoped: [{roles: [approver]}]}"), "scoped[0]"),
        (folk("{id: m, scoped: [{roles: [admin], pools: [a]}]}"), "admin"),
        (folk("{id: m, scoped: [{roles: [approver], pools: ['h100-*']}]}"), "pools"),
        (folk("{id: m, accounts: [tcp], roles: [approver]}"), "TCP"),
        (folk("{id: m, roles: [admin]}"), "fewer than two admins have a key"),
        (file(people="people: [{id: m, roles: [approver]}]\n"), "no admin"),
        # services, channels, freezes
        (file("services: [{id: muster}]\n"), "reports as"),
        (file("services: [{id: bot, roles: [approver]}]\n"), "roles"),
        (file("services: [{id: bot, kind: human}]\n"), "kind"),
        (file("services: [{id: bot, accounts: ['unix:2001']}]\n"), "alice"),
        (file("services: [{id: bot}, {id: b0t}]\n"), "taken for"),
        (file('channels: {ops: "http://example.com/x"}\n'), "ops"),
        (file('channels: {ops: "webhook:http://example.com/x"}\n'), "ops"),
        (file('channels: {ops: "webhook:https://user:pw@example.com/"}\n'), "ops"),
        (file('channels: {ops: "file:relative"}\n'), "ops"), (file('channels: {ops: "file:/a/../etc/x"}\n'), "ops"),
        (file('channels: {ops: "shell:rm"}\n'), "ops"), (file('channels: {"o p": "log:"}\n'), "channels"),
        (file("freezes: [{name: w}]\n"), "freezes[0]"),
        (file('freezes: [{name: w, from: "2026-12-20T18:00", until: "2027-01-01T00:00Z"}]\n'), "freezes[0].from"),
        (file("freezes: [{name: w, weekly: [whenever]}]\n"), "weekly[0]"),
    ],
)  # fmt: skip
def test_what_no_policy_may_say_is_refused_by_name(text: bytes, where: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_policy(text, "policy.yaml")
    assert where in str(refused.value)


def test_solo_is_said_outright_or_not_at_all() -> None:
    solo = read_policy(file("mode: solo\napprovals: [{tier: T3, expiry: 10m}]\n"), "p")
    assert need(solo, "T3", "person").self_ok
    with pytest.raises(SpecError, match="own_plans_of"):
        check_policy(msgspec.structs.replace(SOLO, mode="team", version=1))


def test_what_is_allowed_but_unwise_is_noted() -> None:
    found = " ".join(
        notes(team(ALICE, BOB, msgspec.structs.replace(CAROL, accounts=("unix:2001",), keys=()), DAVE, ERIN))
    )
    assert "T3 needs 2 approvers with a key" in found
    assert "carol is an approver without a key" in found
    assert "unix:2001 is shared by alice and carol" in found
    assert notes(team()) == ()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("alice", "аlice"),
        ("alice", "ALICE"),
        ("bob", "b0b"),
        ("paul", "pau1"),
        ("warm", "warrn"),
        ("jose", "José"),
        ("Ａda", "ada"),
    ],
)
def test_names_that_look_alike_have_one_skeleton(a: str, b: str) -> None:
    assert skeleton(a) == skeleton(b)


def test_names_of_one_script_are_plain() -> None:
    for name in ("Alice", "José Núñez", "Ирина", "李小龍", "Ζωή", "O'Neill", "山田 Taro"):
        assert why_confusing(name) == ""
    assert len({skeleton(name) for name in ("anna", "hanna", "jan", "jon", "tom", "tim", "olga", "helga")}) == 8


def test_digests_are_of_a_domain_of_their_own() -> None:
    import hashlib

    assert TEAM.digest() != hashlib.sha256(TEAM.canonical()).hexdigest()
    assert {r for rule in TEAM.rules for r in rule.roles} <= {"operator", "approver"}
    role: Role = "admin"
    assert role not in {r for rule in SOLO.rules for r in rule.roles}
    assert NOW_MS
