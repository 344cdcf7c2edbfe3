"""Mutants: faults that an attacker would like, each made by hand in one place of the code that trust rests on.

`old` occurs exactly once in the file, else the suite fails: whoever changes such a line says here what its absence
would be. Where two defences stand behind each other, a mutant of one must be killed by what the other does not show.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    """From the root, without its ending."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Files of tests/runbooks most likely to kill it, without test_ and their ending; others with their folder."""

    @property
    def path(self) -> str:
        return f"{self.file}.py"

    @property
    def suite(self) -> str:
        """The folder of tests of which one must notice."""
        return "tests/hostile" if any("/" in name for name in self.tests) else "tests/runbooks"


def path_of(name: str) -> str:
    """Of a file of tests; or of one test of it, as in "hostile/library::test_every_case[A]"."""
    name, colons, test = name.partition("::")
    folder, slash, name = name.rpartition("/")
    (path,) = (TESTS / (folder if slash else "runbooks")).rglob(f"test_{name}.py")
    return f"{path.relative_to(TESTS.parent)}{colons}{test}"


def never(condition: str) -> tuple[str, str]:
    """The `if` that starts so is never taken, also one of several alternatives of which only the first is given."""
    keyword, _, rest = condition.strip().partition(" ")
    assert keyword in ("if", "elif"), condition
    return condition, condition.replace(f"{keyword} {rest}", f"{keyword} False if True else {rest}")


_OWN = "console/api::test_a_key_is_its_callers_own"
KEYS = (_OWN, f"{_OWN}_where_people_share_an_account", f"{_OWN}_at_once_too")

MUTANTS: tuple[Mutant, ...] = (
    # -- votes
    Mutant(
        "a vote on another digest counts",
        "runbooks/gate/decisions",
        *never("if digest != row.digest:\n            since ="),
        ("gate",),
    ),
    Mutant(
        "what does not count is taken as a vote",
        "runbooks/gate/decisions",
        *never('if why_not:\n            return RefusedError(f"your vote'),
        ("gate_rules",),
    ),
    Mutant(
        "a yes need not say why",
        "runbooks/gate/decisions",
        *never('if verdict == "approve" and need.reason and not comment.strip():'),
        ("gate_rules",),
    ),
    Mutant(
        "votes on another revision count",
        "runbooks/gate/proposal_status",
        "(VOTE.c.number == row.number) & (VOTE.c.revision == row.revision) & (VOTE.c.digest == row.digest)",
        "VOTE.c.number == row.number",
        ("gate_rules",),
    ),
    Mutant(
        "votes are counted, not people",
        "runbooks/gate/approval_policy",
        "            counted[subject] = vote",
        "            counted[f'{subject}#{len(counted)}'] = vote",
        ("policy",),
    ),
    Mutant(
        "one key is several votes",
        "runbooks/gate/approval_policy",
        "return a.key == b.key",
        "return False",
        ("gate_rules",),
    ),
    Mutant(
        "one unsigned account is several votes",
        "runbooks/gate/approval_policy",
        "return stands_for(a) == stands_for(b) or TCP in (a, b)",
        "return False",
        ("gate_rules",),
    ),
    Mutant(
        "the author votes",
        "runbooks/gate/approval_policy",
        *never('if subject == subject_of(policy, author.subject, author.account):\n        return "is the author"'),
        ("policy",),
    ),
    Mutant(
        "others' work is one's own",
        "runbooks/gate/approval_policy",
        "and mine == subject_of(policy, own.owner, own.owner)",
        "and True",
        ("own_work",),
    ),
    Mutant(
        "a submission says whose it is",
        "runbooks/gate/decisions",
        'owner=actor.subject if known and not by_fleet else "")',
        "owner=command.owner or actor.subject)",
        ("own_work",),
    ),
    Mutant(
        "whoever asked for it votes",
        "runbooks/gate/approval_policy",
        *never("if requester and subject == subject_of(policy, requester, requester):"),
        ("policy",),
    ),
    Mutant(
        "a service votes",
        "runbooks/gate/approval_policy",
        *never('if vote.kind != "human":\n        return not_human(vote.kind)\n    if vote.verdict'),
        ("policy",),
    ),
    Mutant(
        "a role that was taken away still votes",
        "runbooks/gate/approval_policy",
        "    missing = [role for role in need.roles if role not in held]",
        "    missing: list[Role] = []",
        ("policy",),
    ),
    Mutant(
        "a key that was taken away still signs",
        "runbooks/gate/approval_policy",
        *never("if vote.key and vote.key not in fingerprints(policy, subject):"),
        ("policy",),
    ),
    Mutant(
        "an unsigned vote counts",
        "runbooks/gate/approval_policy",
        *never("if need.signed and not vote.key:"),
        ("policy",),
    ),
    Mutant(
        "two from one account are two without their keys",
        "runbooks/gate/approval_policy",
        *never("if shares_account(policy, vote.account, author, requester) and not (vote.key and author.signed):"),
        ("policy",),
    ),
    Mutant(
        "a machine's draft is for its requester to approve",
        "runbooks/gate/approval_policy",
        *never('if machine and policy.mode != "solo":'),
        ("gate_rules",),
    ),
    Mutant(
        "a policy goes below the floors",
        "runbooks/gate/approval_policy",
        "return _FLOORS_OF[policy.mode][tier]",
        "return SOLO_FLOORS[tier]",
        ("policy",),
    ),
    Mutant(
        "the policy of the plan is forgotten",
        "runbooks/gate/proposal_status",
        "return approval_policy.stricter(found, approval_policy.need_of(was, plan, scope))",
        "return found",
        ("gate_rules",),
    ),
    Mutant(
        "a machine passes for a person",
        "runbooks/gate/approval_gate",
        *never('if actor.kind != "human":\n        return Source(kind="service", id=name)'),
        ("gate_rules",),
    ),
    # -- signatures
    Mutant("a signature is not checked", "runbooks/plans/keys", " and key.verifies(signature, message)", "", ("keys",)),
    Mutant(
        "a signature holds for another plan",
        "runbooks/plans/keys",
        '"cell": "", **about,',
        '"cell": "", **about, "digest": "",',
        ("keys",),
    ),
    Mutant(
        "an old signature holds",
        "runbooks/plans/keys",
        *never("if abs(now_ms - signed.at_ms) > WINDOW_MS:"),
        ("keys",),
    ),
    Mutant(
        "a nonce is used twice",
        "runbooks/gate/policy_versions",
        *never(
            "if connection.execute(select(NONCE.c.nonce).where(NONCE.c.nonce == signed.nonce)).first() is not None:"
        ),
        ("policies",),
    ),
    Mutant(
        "anybody's key signs for anybody",
        "runbooks/gate/policy_versions",
        "map(public_key, person.keys)",
        "(public_key(line) for one in self.current(connection).people for line in one.keys)",
        ("policies",),
    ),
    # -- from approved to done
    Mutant(
        "what has expired is voted on",
        "runbooks/gate/approval_gate",
        *never("if row.state in typed_plan.OPEN and now_ms >= row.expires_ms:"),
        ("gate",),
    ),
    Mutant(
        "what has expired is executed",
        "runbooks/gate/executor",
        *never("if now_ms >= row.expires_ms:"),
        ("gate_rules",),
    ),
    Mutant(
        "a clock that is set back revives",
        "runbooks/gate/approval_gate",
        *never("if now_ms < self._latest_ms - CLOCK_TOLERANCE_MS:"),
        ("gate",),
    ),
    Mutant(
        "nothing is looked at again before the first step",
        "runbooks/gate/executor",
        *never("if differences:\n            raise self._stale("),
        ("staleness",),
    ),
    Mutant(
        "nothing is looked at again before later steps",
        "runbooks/gate/executor",
        *never("if differences:\n                why ="),
        ("gate_rules",),
    ),
    Mutant(
        "a tier that has risen does not matter",
        "runbooks/gate/proposal_status",
        *never("if tier > step.tier:"),
        ("gate_rules",),
    ),
    Mutant(
        "votes that no longer count begin a plan",
        "runbooks/gate/executor",
        *never("if found.lacks or (not row.breakglass and self._status.tally(connection, row, plan).missing):"),
        ("gate_rules",),
    ),
    Mutant(
        "votes that no longer count carry a plan on",
        "runbooks/gate/executor",
        *never("elif not row.breakglass and self._status.tally(connection, row, plan).missing:"),
        ("gate_rules",),
    ),
    Mutant(
        "freezes and limits do not stop a claim",
        "runbooks/gate/executor",
        *never(
            'if why_not is not None:\n                store.add_record(connection, self._audit, row, "exec.refused"'
        ),
        ("gate_rules",),
    ),
    Mutant(
        "freezes and limits do not stop a later step",
        "runbooks/gate/executor",
        *never(
            "elif (refused := why_not_now(connection, self._policies, self._status, row, plan, now_ms)) is not None:"
        ),
        ("gate_rules",),
    ),
    Mutant("anybody executes", "runbooks/gate/approval_gate", *never("if not by_vote:"), ("gate_rules",)),
    Mutant(
        "a step need not be told to go",
        "runbooks/gate/executor",
        *never('if step.confirm != "none" and not'),
        ("gate_rules", "crash"),
    ),
    Mutant(
        "what is paused is not looked at again",
        "runbooks/gate/executor",
        *never('if verdict != "success":\n                raise RefusedError('),
        ("gate_rules",),
    ),
    Mutant(
        "a step that cannot be verified is well",
        "runbooks/gate/executor",
        *never('if "failure" in verdicts:'),
        ("gate_rules",),
    ),
    # -- once
    Mutant(
        "who is second moves it all the same",
        "runbooks/gate/store",
        " & (PROPOSAL.c.serial == row.serial) & (PROPOSAL.c.state == row.state)",
        "",
        ("race",),
    ),
    Mutant("who is second is not told", "runbooks/gate/store", ".rowcount != 1:", ".rowcount > 1:", ("race",)),
    Mutant(
        "a step is done again",
        "runbooks/gate/store",
        *never("if has_effect(connection, key):\n        raise"),
        ("gate_rules",),
    ),
    Mutant(
        "an effect has another key each time",
        "runbooks/gate/executor",
        "key = store.effect_key(row, number)\n        store.refuse",
        'key = f"{store.effect_key(row, number)}:{row.serial}"\n        store.refuse',
        ("crash", "race"),
    ),
    Mutant(
        "the effect and its record are two transactions",
        "runbooks/gate/executor",
        "self._engine.command(catalogue.command(act), audit=entry, beside=beside)",
        "self._engine.command(catalogue.command(act), audit=entry); self._engine.record(beside)",
        ("unwritable", "crash"),
    ),
    Mutant(
        "a way back is taken twice",
        "runbooks/gate/aftermath",
        *never("if self._has_effect(key):\n            return"),
        ("crash",),
    ),
    Mutant(
        "after a crash everything goes on by itself",
        "runbooks/gate/executor",
        'row.tier <= "T1" and self._now() - row.since_ms < RESUME_WITHIN_MS',
        "True",
        ("crash",),
    ),
    Mutant(
        "what was left under way is forgotten",
        "runbooks/gate/approval_gate",
        "            self._executor.recover(started=True)\n",
        "            pass\n",
        ("crash",),
    ),
    Mutant(
        "a record that cannot be written does not matter",
        "runbooks/audit/log",
        "        connection.execute(_INSERT, {",
        "        with contextlib.suppress(Exception): connection.execute(_INSERT, {",
        ("unwritable", "audit"),
    ),
    Mutant(
        "an edge too many",
        "runbooks/plans/typed_plan",
        '    ("approved", "claimed"): "executing",\n',
        '    ("approved", "claimed"): "executing",\n    ("awaiting", "claimed"): "executing",\n',
        ("gate_rules",),
    ),
    Mutant(
        "a message is sent as often as it is written",
        "runbooks/gate/store",
        "where(OUTBOX.c.key == key)).first() is None:",
        "where(OUTBOX.c.key == key)).first() is not True:",
        ("gate_rules",),
    ),
    # -- limits
    Mutant(
        "limits are of each plan alone",
        "runbooks/gate/run_limits",
        "if more > 0 and have + more > most * factor:",
        "if more > 0 and more > most * factor:",
        ("policy",),
    ),
    Mutant(
        "what is approved does not count against limits",
        "runbooks/gate/proposal_status",
        '(*typed_plan.LIVE, "approved")',
        "tuple(typed_plan.LIVE)",
        ("gate_rules",),
    ),
    Mutant(
        "the tighter limits of the plan's policy are forgotten",
        "runbooks/gate/proposal_status",
        "most = run_limits.tighter(most, self._policies.get(connection, plan.policy_digest).limits)",
        "pass",
        ("gate_rules",),
    ),
    Mutant(
        "a freeze stops its own tier alone",
        "runbooks/gate/run_limits",
        "if TIERS.index(tier) < TIERS.index(spec.tier)",
        "if TIERS.index(tier) != TIERS.index(spec.tier)",
        ("policy",),
    ),
    Mutant(
        "a freeze of a zone that is gone does not hold",
        "runbooks/gate/run_limits",
        "    except SpecError:\n        return True",
        "    except SpecError:\n        return False",
        ("policy",),
    ),
    # -- break-glass
    Mutant(
        "the glass is broken again before the review",
        "runbooks/gate/decisions",
        *never("if any(self._is_same(in_force, actor, subject) for subject in"),
        ("gate_rules",),
    ),
    Mutant(
        "anybody breaks the glass",
        "runbooks/gate/decisions",
        *never('if why_not:\n            return RefusedError(f"you may not use break-glass'),
        ("gate_rules",),
    ),
    Mutant(
        "the glass is broken for another digest",
        "runbooks/gate/decisions",
        *never('if digest != row.digest:\n            return RefusedError(f"the digest given'),
        ("gate_rules",),
    ),
    Mutant(
        "one closes the review of oneself",
        "runbooks/gate/decisions",
        *never('if not why_not and kept["forced"] and self._is_same('),
        ("gate_rules",),
    ),
    # -- plans
    Mutant(
        "a stored plan is not hashed again",
        "runbooks/gate/store",
        'plan_digest(found["plan"]) == row.digest == found["digest"]',
        'row.digest == found["digest"]',
        ("gate_rules",),
    ),
    Mutant(
        "others revise a proposal",
        "runbooks/gate/approval_gate",
        *never("if row.author != actor.subject:\n                raise RefusedError(f\"{row.id} is {row.author}'s"),
        ("gate_rules",),
    ),
    Mutant(
        "others withdraw a proposal",
        "runbooks/gate/approval_gate",
        *never('if why_not:\n                    raise RefusedError(f"you may not withdraw'),
        ("gate_rules",),
    ),
    Mutant(
        "the first step's tier is that of the plan",
        "runbooks/gate/composition",
        "highest = max(step.tier for step in steps)",
        "highest = steps[0].tier",
        ("gate_rules",),
    ),
    Mutant(
        "many small steps are milder than one large",
        "runbooks/gate/composition",
        *never("if large and not alone:"),
        ("gate_rules",),
    ),
    Mutant(
        "a way back may be anything",
        "runbooks/gate/composition",
        *never('if wrong:\n            raise SpecError(f"steps[{number}].rollback"'),
        ("gate_rules",),
    ),
    Mutant(
        "a plan's own limits are forgotten",
        "runbooks/gate/composition",
        "    refuse_beyond(request.limits, whole)\n",
        "",
        ("gate_rules",),
    ),
    Mutant(
        "preconditions are not looked at",
        "runbooks/gate/composition",
        "    refuse_unmet(source, asked, number)\n",
        "",
        ("gate_rules",),
    ),
    Mutant("a way back may leave targets as they are", "runbooks/actions/wording", *never("if left:"), ("inverse",)),
    Mutant(
        "a way back may give something else",
        "runbooks/actions/wording",
        *never("if wanted[id_] != effects:"),
        ("inverse",),
    ),
    # -- policies
    Mutant(
        "a new policy comes into force by votes that do not count",
        "runbooks/gate/policy_versions",
        'if counted.why_not[-1]:\n                raise RefusedError(f"your vote on',
        "counted = msgspec.structs.replace(counted, missing=0)\n            if False:\n"
        '                raise RefusedError(f"your vote on',
        ("policies",),
    ),
    Mutant(
        "a new policy for an older one is taken",
        "runbooks/gate/policy_versions",
        *never("if row.based_on != now.digest():"),
        ("policies",),
    ),
    # -- what the records authorise
    Mutant(
        "what the records do not authorise is claimed",
        "runbooks/gate/executor",
        *never("if found.changed or (found.lacks and row.breakglass):"),
        ("authorisation",),
    ),
    Mutant(
        "what the records do not authorise goes on, and back",
        "runbooks/gate/executor",
        *never('if row.state != "approved" and (changed :='),
        ("authorisation",),
    ),
    Mutant(
        "the newest row is the policy in force",
        "runbooks/gate/policy_versions",
        "return self.get(connection, chain.policies[-1].digest) if chain.policies else self._default",
        "newest = select(VERSION.c.digest).order_by(VERSION.c.seq.desc()).limit(1)\n"
        "        return self._kept(connection, connection.execute(newest).scalar() or chain.policies[-1].digest)",
        ("authorisation", "policies"),
    ),
    Mutant(
        "a policy that cannot be proved does not matter",
        "runbooks/gate/authority",
        *never("if chain.problems:"),
        ("authorisation",),
    ),
    Mutant(
        "a policy needs no votes on record",
        "runbooks/audit/verify",
        "elif missing_votes(\n            now.body, now.owner, list(one.votes.values())",
        "elif False and missing_votes(\n            now.body, now.owner, list(one.votes.values())",
        ("authorisation",),
    ),
    Mutant(
        "a signature on record is not looked at",
        "runbooks/audit/verify",
        *never("if self._signatures and not any("),
        ("authorisation",),
    ),
    Mutant(
        "on record the author votes",
        "runbooks/audit/verify",
        *never('if vote.subject == _subject_of(policy, author["subject"], author["account"]):\n        return False'),
        ("authorisation",),
    ),
    Mutant(
        "on record others' work is one's own",
        "runbooks/audit/verify",
        '== _subject_of(policy, own["owner"], own["owner"])',
        "is not None",
        ("own_work", "authorisation"),
    ),
    Mutant(
        "a row is not compared with its record",
        "runbooks/audit/verify",
        'return "" if row_digest(row) == digest else',
        'return "" if True else',
        ("authorisation",),
    ),
    Mutant(
        "a row that was put in is not named",
        "runbooks/audit/verify",
        'of the table {table}" if self.whole else ""',
        'of the table {table}" if False else ""',
        ("authorisation",),
    ),
    Mutant(
        "a row that was taken out is not named",
        "runbooks/audit/verify",
        "for name in sorted(replay.rows.keys() - seen):",
        "for name in ():",
        ("authorisation",),
    ),
    Mutant(
        "a plan may say otherwise than was put to the vote",
        "runbooks/gate/authority",
        *never('if one.facts != facts_of(plan) | {"policy": plan.policy_digest} or one.digest != row.digest:'),
        ("authorisation",),
    ),
    Mutant(
        "what was changed becomes right by being written again",
        "runbooks/audit/log",
        "return bool(told == digest)",
        "return True",
        ("authorisation",),
    ),
    # -- the audit
    Mutant(
        "a record does not hold the hash of the one before",
        "runbooks/audit/verify",
        'hashlib.sha256(b"\\x02" + before + body)',
        'hashlib.sha256(b"\\x02" + body)',
        ("verify",),
    ),
    Mutant(
        "the signature of a checkpoint is not checked",
        "runbooks/audit/verify",
        *never("if not signed_by(note, key):\n            what ="),
        ("verify",),
    ),
    Mutant(
        "the root of a checkpoint is not checked", "runbooks/audit/verify", *never("if not root_fits:"), ("verify",)
    ),
    Mutant(
        "a beginning is called moved",
        "runbooks/audit/verify",
        *never("if moved and self.source.first == moved + 1"),
        ("audit",),
    ),
    Mutant("records can be changed", "runbooks/audit/log", "for trigger in _SQLITE:", "for trigger in ():", ("audit",)),
    # -- keys of requests
    Mutant(
        "a key of a request is everybody's",
        "console/server/request_handler",
        "return idempotency.key_of(text, caller_of(CALLER.get()), request",
        'return idempotency.key_of(text, "", request',
        KEYS,
    ),
    Mutant(
        "a key of a request is its account's, whoever signs",
        "console/server/request_handler",
        'return f"{actor.account} {actor.subject}{part}"',
        "return actor.account",
        KEYS,
    ),
    Mutant(
        "a request is answered with what another caller's key was",
        "console/server/idempotency",
        "return {(caller, key): (digest, answer) for caller, key, digest, answer in rows if (caller, key) in wanted}",
        "return {(w, key): (digest, answer) for _, key, digest, answer in rows for w, k in wanted if k == key}",
        KEYS,
    ),
    Mutant(
        "what two ask at once with the same key is done for one",
        "console/server/idempotency",
        "place = (key.caller, key.key)\n        if place in self._running",
        'place = ("", key.key)\n        if place in self._running',
        KEYS,
    ),
    # -- incidents
    Mutant(
        "a source resolves what another one reported",
        "runbooks/gate/incidents",
        "where = (INCIDENT.c.key == key) & (INCIDENT.c.source == source)",
        "where = INCIDENT.c.key == key",
        ("incidents",),
    ),
    Mutant(
        "an incident that somebody has is anybody's",
        "runbooks/gate/incidents",
        *never('if there["owner"] and not over:'),
        ("incidents",),
    ),
    Mutant(
        "anybody closes the incident that another has",
        "runbooks/gate/incidents",
        'self._refuse_other(connection, actor, there, "close")',
        "pass",
        ("incidents",),
    ),
    Mutant(
        "the verifier takes anybody's word for a claim",
        "runbooks/audit/verify",
        "if kind not in _OF_SOURCES and not self._is_on_call(seq, record):",
        "if False:",
        ("incidents",),
    ),
    Mutant(
        "a token for alerts is for everything",
        "console/server/authentication",
        'if path == ALERTS and "alert" in (actor.deeds or ()):',
        'if "alert" in (actor.deeds or ()):',
        ("console/alerts",),
    ),
    # -- files
    Mutant(
        "YAML with aliases",
        "runbooks/untrusted/strict_formats",
        *never("if isinstance(event, yaml.AliasEvent):"),
        ("strict_yaml",),
    ),
    Mutant(
        "YAML with tags",
        "runbooks/untrusted/strict_formats",
        *never('if getattr(event, "tag", None) is not None:'),
        ("strict_yaml",),
    ),
    Mutant("YAML with a key twice", "runbooks/untrusted/strict_formats", *never("if key in found:"), ("strict_yaml",)),
    Mutant(
        "YAML with what nobody sees",
        "runbooks/untrusted/strict_formats",
        *never("if hidden:\n            _refuse(name, number"),
        ("strict_yaml",),
    ),
    Mutant(
        "YAML as deep as it likes",
        "runbooks/untrusted/strict_formats",
        *never("if len(path) >= MAX_DEPTH and"),
        ("strict_yaml",),
    ),
)
