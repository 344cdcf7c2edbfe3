"""Stand-alone verifier of an audit log: one file, Python only (`cryptography` for signatures).

    python verify.py journal.db                       the log of a cell, also while its engine runs
    python verify.py one.jsonl two.jsonl              consecutive exports
    python verify.py export.jsonl --against note.txt  against checkpoints that were remembered elsewhere
    python verify.py export.jsonl --key KEY           by a public key that you know
    python verify.py postgresql://HOST/DB?schema=S    the log of a cell in PostgreSQL (with `psycopg`)

It imports nothing of Muster, so a checker need not trust, or have, the program that wrote the log. The writer takes the
formats from here:

    body    the record as JSON in the one form that RFC 8785 allows: keys sorted, no spaces; no floats at all
    hash    SHA-256(0x02 || hash of the record before || body); before the first: 32 zero bytes
    leaf    SHA-256(0x00 || hash), the leaf of a Merkle tree as RFC 6962 has it; inner nodes SHA-256(0x01 || l || r)
    note    size and root of that tree as a C2SP checkpoint, signed with Ed25519

Exit codes: 0 valid, 2 usage or no such log, 3 the chain is broken, 4 a checkpoint does not fit, 5 records are cut off,
6 a signature is bad, 7 an action, or a row of the gate's tables, is not authorised by the records.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

USAGE, CHAIN, CHECKPOINT, TRUNCATED, SIGNATURE, AUTHORISATION = 2, 3, 4, 5, 6, 7
FIRST_LINK = bytes(32)
"""Stands for the hash before the first record."""
UNSIGNED = "none"
"""Stands for the public key where nothing is signed."""
MAX_DEPTH = 16
MAX_INTEGER = 2**53 - 1
"""Beyond this JSON numbers differ from reader to reader."""
MAX_LINE = 4 * 1024 * 1024
"""Bytes of a line of a bundle."""
MAX_PROBLEMS = 20
FIELDS = (
    "actor", "at_ms", "data", "log", "plan", "policy", "private", "proposal", "revision", "seq", "step", "type", "v",
)  # fmt: skip


class QueryFailed(Exception):
    """A server's error in place of rows."""


DAMAGE = (sqlite3.Error, QueryFailed, UnicodeDecodeError, OverflowError, SystemError)
"""What reading a damaged database raises: also where the driver cannot even read the message of the error."""


class Flaw(Exception):
    """A defect of the log, with the number of the record."""

    def __init__(self, code: int, record: int | None, what: str) -> None:
        super().__init__(what)
        self.code = code
        self.record = record
        self.what = what


# -- the form of a record ---------------------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """JSON as RFC 8785 has it, for values without floats. Raises ValueError for what has no such form."""
    return json.dumps(_ordered(value, MAX_DEPTH), ensure_ascii=False, separators=(",", ":")).encode()


def _ordered(value: Any, depth: int) -> Any:
    """The value with keys in order. Raises ValueError naming what cannot be written."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            value.encode()
        return value
    if kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ValueError(f"an integer of {value.bit_length()} bits")
        return value
    if value is None or kind is bool:
        return value
    if depth == 0:
        raise ValueError(f"more than {MAX_DEPTH} levels")
    if kind is dict:
        if not all(type(key) is str for key in value):
            raise ValueError("a key that is no text")
        # RFC 8785 sorts by UTF-16 code units, which is another order than that of code points.
        by = None if all(map(str.isascii, value)) else _utf16
        return {key: _ordered(value[key], depth - 1) for key in sorted(value, key=by)}
    if kind is list or kind is tuple:
        return [_ordered(item, depth - 1) for item in value]
    raise ValueError(f"a {kind.__name__}")


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be")


_in_order: set[tuple[str, ...]] = set()
"""Keys of objects that are known to be in order: few kinds of them make up a log."""


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    names = tuple(found)
    if names not in _in_order or len(names) != len(pairs):
        if len(names) != len(pairs):
            raise ValueError("a key twice")
        if names != tuple(sorted(names, key=_utf16)):
            raise ValueError("keys out of order")
        if len(_in_order) < 1_000:
            _in_order.add(names)
    return found


def _no_float(text: str) -> Any:
    raise ValueError(f"the number {text[:20]}")


_decoder = json.JSONDecoder(object_pairs_hook=_strict_object, parse_float=_no_float, parse_constant=_no_float)
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]
"""`raw_decode` without a second look for blanks: that takes as long as the reading."""


def parse(body: bytes) -> dict[str, Any]:
    """A record from its body. Raises ValueError for what no writer of a log would write."""
    try:
        text = body.decode()
        found, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    except RecursionError:
        raise ValueError("too many levels") from None
    if end != len(text) or type(found) is not dict or tuple(found) != FIELDS:
        raise ValueError("other fields than a record has")
    return found


class RecordContent(NamedTuple):
    """The fields of a record that are checked."""

    seq: Any
    log: Any
    type: Any
    subject: Any
    proposal: Any
    at_ms: Any
    data: Any
    private: Any
    kind: Any
    account: Any
    key: Any
    """Which signed the request; empty: it was not signed."""
    plan: Any
    policy: Any
    revision: Any

    @property
    def copies(self) -> tuple[Any, Any, Any, Any]:
        """The columns that a database keeps beside the body, to find the record by."""
        return self.type, self.subject, self.proposal, self.at_ms


_TEXT = r'"([ !#-\[\]-~]*)"'
_NUMBER = r"(0|[1-9][0-9]{0,14})"
_HEAD = re.compile(
    rf'\{{"actor":\{{"account":{_TEXT},"key":{_TEXT},"kind":{_TEXT},"session":{_TEXT},"signed":(true|false),'
    rf'"subject":{_TEXT}\}},"at_ms":{_NUMBER},"data":'
).match
_TAIL = re.compile(
    rf',"log":{_TEXT},"plan":{_TEXT},"policy":{_TEXT},"private":\[\],"proposal":{_TEXT},"revision":{_NUMBER},'
    rf'"seq":{_NUMBER},"step":{_TEXT},"type":{_TEXT},"v":{_NUMBER}\}}'
).fullmatch


def content_of(body: bytes) -> RecordContent:
    """The fields of a record. Raises ValueError as `parse`, and KeyError or TypeError for other fields."""
    found = _plain_content(body)
    if found is None:
        record = parse(body)
        actor = record["actor"]
        key = actor["key"] if actor["signed"] is True else ""
        found = RecordContent(
            record["seq"], record["log"], record["type"], actor["subject"], record["proposal"], record["at_ms"],
            record["data"], record["private"], actor["kind"], actor["account"], key, record["plan"], record["policy"],
            record["revision"],
        )  # fmt: skip
    return found


def _plain_content(body: bytes) -> RecordContent | None:
    """The same of a record as nearly all are: its texts have nothing to decode, and only `data` has parts. Half the
    work, as the rest needs no JSON reader; None for all others, and for what is no record."""
    try:
        text = body.decode()
        head = _HEAD(text)
        if head is None:
            return None
        data, end = _scan(text, head.end())
        tail = _TAIL(text, end)
    except (ValueError, StopIteration, RecursionError):
        return None
    if tail is None:
        return None
    log, plan, policy, proposal, revision, seq, _, type_, _ = tail.groups()
    account, key, kind, _, signed, subject, at_ms = head.groups()
    return RecordContent(
        int(seq), log, type_, subject, proposal, int(at_ms), data, [], kind, account,
        key if signed == "true" else "", plan, policy, int(revision),
    )  # fmt: skip


def link(before: bytes, body: bytes) -> bytes:
    """Hash of a record."""
    return hashlib.sha256(b"\x02" + before + body).digest()


# -- the Merkle tree of RFC 6962 --------------------------------------------------------------------------------------


def leaf_of(hash_: bytes) -> bytes:
    """The leaf of the record with that hash."""
    return hashlib.sha256(b"\x00" + hash_).digest()


def node_of(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Frontier:
    """The state from which a Merkle tree grows: the roots of its complete subtrees, largest first."""

    def __init__(self, size: int = 0, nodes: Iterable[bytes] = ()) -> None:
        """Raises ValueError if there are not as many nodes as a tree of that size has."""
        self.size = size
        self.nodes = list(nodes)
        if size < 0 or len(self.nodes) != bin(size).count("1") or any(len(node) != 32 for node in self.nodes):
            raise ValueError(f"{len(self.nodes)} nodes for a tree of {size} leaves")

    @classmethod
    def of(cls, size: int, nodes: bytes) -> Frontier:
        """A frontier from its nodes, one after the other."""
        return cls(size, (nodes[i : i + 32] for i in range(0, len(nodes), 32)))

    def push(self, leaf: bytes) -> None:
        node, size = leaf, self.size
        while size & 1:
            node = node_of(self.nodes.pop(), node)
            size >>= 1
        self.nodes.append(node)
        self.size += 1

    def root(self) -> bytes:
        if not self.nodes:
            return hashlib.sha256(b"").digest()
        root = self.nodes[-1]
        for node in reversed(self.nodes[:-1]):
            root = node_of(node, root)
        return root


# -- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint."""

    text: str
    """What is signed."""
    origin: str
    size: int
    root: bytes
    prev: str
    """Of the checkpoint before: SHA-256 of its text in base64, or `-`."""
    at_ms: int
    signatures: tuple[tuple[str, bytes], ...] = field(repr=False)
    """(name, hash of the key and signature)"""


_NOTE = re.compile(
    r"([!-~]{1,200})\n(0|[1-9][0-9]{0,17})\n([A-Za-z0-9+/]{43}=)\nprev (-|[A-Za-z0-9+/]{43}=)\nat (\d{1,18})\n"
)
_SIGNATURE = re.compile(r"— ([!-~]{1,200}) ([A-Za-z0-9+/]+={0,2})")


def read_note(note: str) -> Checkpoint:
    """Raises ValueError for what is no checkpoint."""
    text, blank, rest = note.partition("\n\n")
    found = _NOTE.fullmatch(text + "\n" if blank else text)
    if found is None:
        raise ValueError("is not a checkpoint")
    signatures = []
    for line in rest.splitlines():
        signed = _SIGNATURE.fullmatch(line)
        if signed is None:
            raise ValueError("has a line that is no signature")
        signatures.append((signed[1], base64.b64decode(signed[2])))
    return Checkpoint(
        text=found[0], origin=found[1], size=int(found[2]), root=base64.b64decode(found[3]), prev=found[4],
        at_ms=int(found[5]), signatures=tuple(signatures),
    )  # fmt: skip


_ONE_LINE = re.compile(r"(muster-audit/[!-~]{1,200}) (0|[1-9][0-9]{0,17}) ([A-Za-z0-9+/]{43}=)")


def read_notes(text: str) -> list[Checkpoint]:
    """All checkpoints of a file to which they were appended, whole or, as in a system's log, as one line each: origin,
    size and root. Raises ValueError for one that is damaged."""
    starts = [found.start() for found in re.finditer(r"(?m)^[!-~]{1,200}\n\d{1,18}\n", text)]
    ends = [*starts[1:], len(text)]
    whole = [read_note(text[start:end].rstrip("\n") + "\n") for start, end in zip(starts, ends, strict=False)]
    lines = [
        Checkpoint("", found[1], int(found[2]), base64.b64decode(found[3]), "-", 0, ())
        for found in _ONE_LINE.finditer(text)
    ]
    return whole + lines


def hash_of(text: str) -> str:
    """SHA-256 of the text of a checkpoint, as the next one names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def read_key(key: str) -> tuple[str, bytes, bytes]:
    """(name, hash, public key) of a key as signed notes have it, `name+hash+key`. Raises ValueError."""
    name, hash_, rest = [*key.strip().split("+", 2), "", ""][:3]
    raw = base64.b64decode(rest, validate=True)
    found = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
    if len(raw) != 33 or raw[0] != 1 or hash_ != found.hex():
        raise ValueError("is not an Ed25519 key of the form name+hash+key")
    return name, found, raw[1:]


def signed_by(note: Checkpoint, key: str) -> bool:
    """True when that public key signed the note. Raises ImportError without `cryptography`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        name, hash_, public = read_key(key)
        verifier = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        return False
    for signer, signature in note.signatures:
        if signer == name and signature[:4] == hash_:
            with contextlib.suppress(InvalidSignature):
                verifier.verify(signature[4:], note.text.encode())
                return True
    return False


# -- who agreed -------------------------------------------------------------------------------------------------------
#
# The rules of the approval policy as the gate applies them (`runbooks/gate/approval_policy.py`,
# `runbooks/gate/policy_changes.py`), written down a second time for the JSON that is on record: who checks a log
# need not trust what enforced them.

GATE_TABLES: dict[str, tuple[str, ...]] = {
    "cell_identity": ("one",), "policy_version": ("seq",), "policy_candidate": ("number",), "policy_vote": ("id",),
    "policy_key": ("key",), "signature_nonce": ("nonce",), "freeze_by_hand": ("id",), "runbook_vote": ("id",),
    "proposal": ("number",), "proposal_revision": ("number", "revision"), "vote": ("id",), "effect": ("key",),
    "proposal_step": ("number", "revision", "step"), "confirmation": ("number", "revision", "step"),
    "review": ("id",), "outbox": ("key",), "incident": ("number",), "incident_alert": ("number", "fingerprint"),
    "incident_entry": ("id",),
}  # fmt: skip
"""Tables whose rows are on record, each with its key. The field `rows` of a record's data has, for each row that was
written with it, the row's name and its digest."""
START = "policy.start"
"""The record from which on authorisation is on record: the cell, who owns the engine, and the policy in force then."""
POLICY = "policy"
"""The field `proposal` of every record of the policy, by which they are found."""


def row_name(table: str, row: Mapping[str, Any]) -> str:
    """As in "proposal_revision:3:1"."""
    return ":".join((table, *(str(row[column]) for column in GATE_TABLES[table])))


def row_digest(row: Mapping[str, Any]) -> str:
    """SHA-256 of a row: its columns by name, bytes by their SHA-256. Empty for what no writer of rows would write."""
    try:
        body = canonical({str(name): _stored(value) for name, value in row.items()})
    except ValueError:
        return ""
    return hashlib.sha256(b"muster/row/v1\n" + body).hexdigest()


def _stored(value: Any) -> Any:
    """SQLite has no booleans, PostgreSQL has."""
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    return int(value) if isinstance(value, bool) else value


class VoteNeed(NamedTuple):
    """Votes that a plan needs before it may run."""

    approvals: int
    roles: frozenset[str]
    signed: bool
    self_ok: bool
    """Author and requester may vote."""
    groups: frozenset[tuple[tuple[str, ...], int]] = frozenset()
    """(people, how many of the votes must be theirs)"""
    own: bool = False
    """It is about its author's own work: their vote is enough."""


_APPROVER = frozenset(("approver",))
FLOORS = {
    "T0": VoteNeed(1, frozenset(), False, True), "T1": VoteNeed(1, frozenset(), False, True),
    "T2": VoteNeed(1, _APPROVER, True, False), "T3": VoteNeed(2, _APPROVER, True, False),
}  # fmt: skip
"""Below this no policy of a team goes."""
SOLO_FLOOR = VoteNeed(1, frozenset(), False, True)
_FLOORS_OF = {
    "solo": dict.fromkeys(FLOORS, SOLO_FLOOR),
    "pair": FLOORS | {"T2": VoteNeed(1, _APPROVER, True, True), "T3": VoteNeed(1, _APPROVER, True, False)},
    "team": FLOORS,
}
OWN_ACTIONS = frozenset(("cancel", "hold", "release", "requeue", "suspend", "resume"))
"""All that any policy may let owners do with their own work alone, and (`MAX_OWN`) with how much at once."""
MAX_OWN = 1_000
_OWNER_ROLES = frozenset(("viewer", "operator", "approver", "admin"))
_PARTS = ("pools", "queues", "tenants")
WHOLE: dict[str, list[str]] = {part: [] for part in _PARTS}
"""The scope of what touches the cell as a whole."""


class ProvenActor(NamedTuple):
    """The author of a record, as far as the records prove it."""

    subject: str
    kind: str
    account: str
    key: str = ""
    """Fingerprint of the key whose signature over it holds; empty: not signed."""


def _covers(mine: Any, touched: Any) -> bool:
    limited = [(set(mine[part]), touched[part]) for part in _PARTS if mine[part]]
    return not limited or (any(theirs for _, theirs in limited) and all(own.issuperset(x) for own, x in limited))


def _meets(mine: Any, touched: Any) -> bool:
    if not any(mine[part] for part in _PARTS) or not any(touched[part] for part in _PARTS):
        return True
    return any(set(mine[part]).intersection(touched[part]) for part in _PARTS)


def _stands_for(account: str) -> str:
    return account.removeprefix("token:")


def _same_account(a: str, b: str) -> bool:
    return _stands_for(a) == _stands_for(b) or "tcp" in (a, b)


def _holders(policy: Any, account: str) -> list[Any]:
    behind = _stands_for(account)
    return [
        person
        for person in policy["people"]
        if behind in person["accounts"] or (behind != account and behind == f"person:{person['id']}")
    ]


def _subject_of(policy: Any, subject: str, account: str) -> str:
    """The subject that counts: the person whose account it is, where the account belongs to one person alone."""
    if subject.startswith("person:") or subject != _stands_for(account):
        return subject
    mine = _holders(policy, account)
    return f"person:{mine[0]['id']}" if len(mine) == 1 else subject


def _person_of(policy: Any, actor: ProvenActor) -> Any:
    mine = _holders(policy, actor.account)
    if not actor.subject.startswith("person:"):
        return mine[0] if len(mine) == 1 else None
    found = next((person for person in policy["people"] if f"person:{person['id']}" == actor.subject), None)
    return found if actor.key or mine == [found] else None


def _roles(policy: Any, owner: str, actor: ProvenActor, scope: Any) -> frozenset[str]:
    if actor.kind != "human":
        return frozenset()
    if not policy["people"] and _stands_for(actor.account) == actor.subject == owner:
        return _OWNER_ROLES
    person = _person_of(policy, actor)
    if person is None:
        return frozenset()
    scoped = (role for grant in person["scoped"] if _covers(grant["scope"], scope) for role in grant["roles"])
    return frozenset((*person["roles"], *scoped))


def _somewhere(policy: Any, owner: str, actor: ProvenActor) -> frozenset[str]:
    """Roles in any part of the cell."""
    person = _person_of(policy, actor) if actor.kind == "human" else None
    scoped = (role for grant in person["scoped"] for role in grant["roles"]) if person is not None else ()
    return frozenset((*_roles(policy, owner, actor, WHOLE), *scoped))


def is_own(policy: Any, facts: Mapping[str, Any]) -> bool:
    """True when a plan, by the record of its simulation, is its author's own affair: all that it touches is work that
    they submitted, and the policy lets owners do that."""
    rule, own, author = policy.get("own_work"), facts.get("own"), facts["author"]
    if not rule or not own or author["kind"] != "human" or facts["origin"] not in ("person", "runbook"):
        return False
    return bool(
        own["workloads"] <= min(rule["workloads"], MAX_OWN)
        and OWN_ACTIONS.intersection(rule["actions"]).issuperset(own["actions"])
        and facts["requester"] in ("", author["subject"])
        and _subject_of(policy, author["subject"], author["account"]) == _subject_of(policy, own["owner"], own["owner"])
    )


def need_of(policy: Any, tier: str, origin: str, scope: Any, author_kind: str, *, own: bool = False) -> VoteNeed:
    """The strictest of the floor and of all rules that concern it; less for what is the author's `own` affair."""
    if own:
        return VoteNeed(1, frozenset(), False, True, own=True)
    solo = policy["mode"] == "solo"
    found = _FLOORS_OF[policy["mode"]][tier]
    machine = author_kind != "human" or origin in ("recommender", "model")
    for rule in policy["rules"]:
        if rule["tier"] == tier and _meets(rule["scope"], scope):
            self_ok = origin in rule["self_ok"] and (solo or not machine)
            groups = frozenset((tuple(group["people"]), int(group["approvals"])) for group in rule["groups"])
            found = _stricter(
                found, VoteNeed(rule["approvals"], frozenset(rule["roles"]), rule["signed"], self_ok, groups)
            )
    return found._replace(self_ok=False) if machine and not solo else found


def _stricter(a: VoteNeed, b: VoteNeed) -> VoteNeed:
    return VoteNeed(
        max(a.approvals, b.approvals), a.roles | b.roles, a.signed or b.signed, a.self_ok and b.self_ok,
        a.groups | b.groups, a.own and b.own,
    )  # fmt: skip


def change_need_of(policy: Any) -> VoteNeed:
    """Votes that another policy needs, by the policy in force."""
    admins = [person for person in policy["people"] if "admin" in person["roles"]]
    approvers = [person for person in policy["people"] if "approver" in person["roles"] and person["keys"]]
    need = VoteNeed(1, frozenset(("admin",)), True, False)
    if len(admins) >= 2:
        return need
    if any(person not in admins for person in approvers):
        return need._replace(roles=_APPROVER)
    return need._replace(self_ok=True, signed=any(person["keys"] for person in admins))


def missing_votes(
    policy: Any, owner: str, votes: Sequence[ProvenActor], author: Any, requester: str, need: VoteNeed, scope: Any
) -> int:
    """The number of approvals still missing. People are counted, not votes: one for each subject, key and, where
    nothing is signed, account."""
    counted: dict[str, ProvenActor] = {}
    for vote in votes:
        subject = _subject_of(policy, vote.subject, vote.account)
        if _counts(policy, owner, vote._replace(subject=subject), author, requester, need, scope) and not any(
            subject == other or (vote.key == by.key if vote.key and by.key else _same_account(vote.account, by.account))
            for other, by in counted.items()
        ):
            counted[subject] = vote
    lacking = (
        least - sum(subject.removeprefix("person:") in people for subject in counted) for people, least in need.groups
    )
    return max(0, need.approvals - len(counted), *lacking)


def _counts(
    policy: Any, owner: str, vote: ProvenActor, author: Any, requester: str, need: VoteNeed, scope: Any
) -> bool:
    if vote.kind != "human" or (vote.key and vote.key not in _fingerprints(policy, vote.subject)):
        return False
    if need.own:
        if vote.subject == _subject_of(policy, author["subject"], author["account"]):
            return bool(_somewhere(policy, owner, vote).intersection(("operator", "submitter")))
        return "operator" in _roles(policy, owner, vote, scope)
    if not need.roles <= _roles(policy, owner, vote, scope) or (need.signed and not vote.key):
        return False
    if need.self_ok:
        return True
    if vote.subject == _subject_of(policy, author["subject"], author["account"]):
        return False
    if requester and vote.subject == _subject_of(policy, requester, requester):
        return False
    asked = {requester, *(a for p in policy["people"] if f"person:{p['id']}" == requester for a in p["accounts"])}
    shares = (author["kind"] == "human" and _same_account(vote.account, author["account"])) or (
        bool(requester) and _stands_for(vote.account) in asked
    )
    return not shares or bool(vote.key and author["signed"])


def _public(line: str) -> tuple[str, bytes]:
    """(fingerprint, key) of a public key as OpenSSH writes it."""
    blob = base64.b64decode(line.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("="), blob[-32:]


def _fingerprints(policy: Any, subject: str) -> set[str]:
    return {_public(line)[0] for p in policy["people"] if f"person:{p['id']}" == subject for line in p["keys"]}


def _bindings(policy: Any) -> dict[str, str]:
    """Fingerprint -> whose."""
    return {_public(line)[0]: f"person:{person['id']}" for person in policy["people"] for line in person["keys"]}


def _verifies(public: bytes, signature: bytes, message: bytes) -> bool:
    """Raises ImportError without `cryptography`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass
class PolicyInForce:
    """A policy from the record that put it in force on."""

    seq: int
    digest: str
    body: Any
    """None: it is too long for a record, and not here."""
    owner: str
    """The account that owns the engine's process."""
    voted: bool


@dataclass
class PolicyCandidate:
    """A policy that was put to the vote."""

    digest: str
    based_on: str
    body: Any
    author: dict[str, Any]
    votes: dict[str, ProvenActor] = field(default_factory=dict)


@dataclass
class ReplayedProposal:
    """A proposal at its present revision, by its records."""

    state: str = "drafted"
    revision: int = 0
    digest: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the record of the simulation says of the plan: author, requester, origin, tier, scope, policy."""
    votes: dict[str, tuple[str, ProvenActor]] = field(default_factory=dict)
    """By subject: verdict, and who."""
    glass: bool = False
    """Somebody who may broke the glass for this revision."""
    reviewed: bool = False
    """A review of that was opened."""
    claimed: bool = False
    effects: set[str] = field(default_factory=set)


_AFTER_CLAIM = frozenset(
    ("executing", "verifying", "paused", "verified", "failed", "rolling_back", "rolled_back", "rollback_failed")
)  # fmt: skip
"""States that only a claim leads to."""


@dataclass
class ReplayedIncident:
    """An incident, by its records."""

    state: str
    owner: str = ""


_INCIDENT_MOVES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fired": (("open", "claimed"), ("open", "claimed")),
    "resolved": (("open", "claimed"), ("resolved",)),
    "reopened": (("resolved",), ("open", "claimed")),
    "claimed": (("open", "claimed", "resolved"), ("claimed", "resolved")),
    "handed_over": (("open", "claimed", "resolved"), ("claimed", "resolved")),
    "closed": (("open", "claimed", "resolved"), ("closed",)),
}
"""What happens to an incident -> states from which, and to which, it leads. Anything else leaves it in its state."""
_OF_SOURCES = ("opened", "fired", "resolved", "reopened", "proposed")
"""What somebody other than a person may do to an incident."""
_ON_CALL = frozenset(("operator", "approver", "admin"))


class AuthorisationReplay:
    """Replay of the records, in order, to find what they authorise. `problems` has (record, problem)."""

    def __init__(self, policy_body: Callable[[str], bytes | None] = lambda digest: None, *, signatures: bool = True):
        """`policy_body`: digest -> canonical bytes of a policy that is too long for a record."""
        self.since = 0
        """Record from which on authorisation is on record; 0: there is none yet."""
        self.whole = False
        """No record before what was read can have told of anything."""
        self.cell = ""
        self.policies: list[PolicyInForce] = []
        self.bodies: dict[str, Any] = {}
        self.needs: dict[tuple[Any, ...], VoteNeed | None] = {}
        self.bound: dict[str, str] = {}
        """Whose a key was, in any policy."""
        self.candidates: dict[str, PolicyCandidate] = {}
        self.proposals: dict[str, ReplayedProposal] = {}
        self.before: set[str] = set()
        """Proposals that were begun before authorisation was on record."""
        self.incidents: dict[str, ReplayedIncident] = {}
        self.glasses: dict[int, str] = {}
        """Review of a break-glass that is open -> about whom."""
        self.rows: dict[str, tuple[str, int]] = {}
        """Name of a row -> its digest, and the record that tells it."""
        self.texts: set[str] = set()
        """Texts kept apart that records have."""
        self.moved: set[Any] = set()
        """The last of records that are said to have been moved to a file."""
        self.problems: list[tuple[int, str]] = []
        self.claimed = self.broke_glass = self.not_replayed = 0
        self._policy_body = policy_body
        self._signatures = signatures
        self._takers: dict[str, Callable[[int, RecordContent], object]] = {
            START: self._start, "policy.proposed": self._policy_proposed, "policy.vote": self._policy_vote,
            "policy.changed": self._policy_changed, "vote.approve": self._vote, "vote.reject": self._vote,
            "vote.abstain": self._vote, "breakglass.used": self._glass, "review.opened": self._review_opened,
            "review.closed": self._review_closed, "exec.effect": self._effect, "proposal.drafted": self._drafted,
            "proposal.simulated": self._simulated, "proposal.claimed": self._claimed,
        }  # fmt: skip

    def of_proposal(self) -> AuthorisationReplay:
        """Another that begins with the policies of this one, for the records of one proposal alone."""
        other = AuthorisationReplay(self._policy_body, signatures=self._signatures)
        other.since, other.whole, other.cell = self.since, self.whole, self.cell
        other.policies, other.bodies = self.policies, self.bodies
        return other

    def take(self, seq: int, record: RecordContent) -> None:
        """The next record. Whatever is in it, nothing is raised but ImportError."""
        type_ = record.type
        if not self.since and type_ != START:
            if record.proposal:
                self.before.add(record.proposal)
            return
        taker = self._takers.get(type_)
        if taker is None and type_.startswith("proposal."):
            taker = self._moved
        elif taker is None and type_.startswith("incident."):
            taker = self._incident
        try:
            if taker is not None:
                taker(seq, record)
            if rows := record.data.get("rows"):
                for name, digest in rows.items():
                    self.rows[name] = (digest, seq)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self._wrong(seq, f"it cannot be replayed: {_plain(str(error))}")

    def _wrong(self, seq: int, what: str) -> None:
        self.problems.append((seq, f"record {seq}: {what}"))

    # -- policies --

    def in_force(self, seq: int) -> PolicyInForce:
        """The policy in force when that record was written."""
        return next((each for each in reversed(self.policies) if each.seq < seq), self.policies[0])

    def _start(self, seq: int, record: RecordContent) -> None:
        data = record.data
        now = PolicyInForce(seq, record.policy, self._body(record), str(data["owner"]), bool(data["voted"]))
        if not self.since:
            self.since, self.cell = seq, str(data["cell"])
        last = self.policies[-1] if self.policies else None
        if last is not None and (last.voted or now.voted) and last.digest != now.digest:
            self._wrong(seq, f"policy {_short(now.digest)} is said to be in force, but no votes put it there")
        elif data["cell"] != self.cell:
            self._wrong(seq, "the cell has another identity than before")
        else:
            self._put(now)

    def _put(self, now: PolicyInForce) -> None:
        self.policies.append(now)
        self.bodies[now.digest] = now.body
        self.needs.clear()
        self.bound |= _bindings(now.body) if now.body is not None else {}

    def _body(self, record: RecordContent) -> Any:
        """The policy a record is about, as JSON. Raises ValueError for another than the digest names."""
        body = record.data["body"]
        if "omitted_bytes" not in body:
            kept = canonical(body)
        elif (found := self._policy_body(record.policy)) is not None:
            kept = found
        else:
            return None
        if hashlib.sha256(b"muster/policy/v1\n" + kept).hexdigest() != record.policy:
            raise ValueError("the policy is not the one that its digest names")
        return json.loads(kept)

    def _policy_proposed(self, seq: int, record: RecordContent) -> None:
        data = record.data
        body = self._body(record)
        actor = self._asker(
            record, self._actor(seq, record, "policy", "", body["version"] if body else 0, record.policy, "propose")
        )
        author = {"subject": actor.subject, "kind": actor.kind, "account": actor.account, "signed": bool(actor.key)}
        self.candidates[data["candidate"]] = PolicyCandidate(record.policy, data["based_on"], body, author)
        now = self.in_force(seq)
        if now.body is not None and "admin" not in _roles(now.body, now.owner, actor, WHOLE):
            self._wrong(seq, f"{_plain(actor.subject)} was no admin and proposed a policy")

    def _policy_vote(self, seq: int, record: RecordContent) -> None:
        data = record.data
        one = self.candidates.get(data["candidate"])
        if one is None:
            return self._wrong(seq, f"a vote on {_plain(data['candidate'])}, which nobody proposed")
        if data["verdict"] == "approve" and one.body is not None:
            actor = self._actor(seq, record, "policy", data["candidate"], one.body["version"], one.digest, "approve")
            one.votes[actor.subject] = actor
        return None

    def _policy_changed(self, seq: int, record: RecordContent) -> None:
        now, one = self.in_force(seq), self.candidates.pop(record.data["candidate"], None)
        if one is None or one.digest != record.policy or one.based_on != now.digest:
            return self._wrong(seq, f"policy {_short(record.policy)} came into force and was not proposed for this one")
        if now.body is None or one.body is None:
            self.not_replayed += 1
        elif missing_votes(
            now.body, now.owner, list(one.votes.values()), one.author, "", change_need_of(now.body), WHOLE
        ):
            return self._wrong(seq, f"policy {_short(record.policy)} came into force without its votes")
        elif one.body["version"] <= now.body["version"]:
            return self._wrong(seq, f"policy {_short(record.policy)} is no later version than the one before it")
        elif any(self.bound.get(key, whose) != whose for key, whose in _bindings(one.body).items()):
            return self._wrong(seq, f"policy {_short(record.policy)} gives one person the key of another")
        return self._put(PolicyInForce(seq, one.digest, one.body, now.owner, True))

    @staticmethod
    def _asker(record: RecordContent, actor: ProvenActor) -> ProvenActor:
        """The asker, where the request as a whole was signed and the gate has checked that."""
        return actor._replace(key=actor.key or record.key)

    def _actor(
        self, seq: int, record: RecordContent, kind: str, proposal: str, revision: int, digest: str, verdict: str
    ) -> ProvenActor:
        """The author of a record; with a key when the signature on record covers exactly this."""
        bare = ProvenActor(record.subject, record.kind, record.account)
        signed = record.data.get("signed")
        now = self.in_force(seq)
        if signed is None or signed["subject"] != record.subject or now.body is None:
            return bare
        enrolled = [
            raw for p in now.body["people"] for line in p["keys"] for f, raw in (_public(line),) if f == signed["key"]
        ]
        message = {
            "kind": kind, "subject": record.subject, "nonce": signed["nonce"], "at_ms": signed["at_ms"],
            "proposal": proposal, "revision": revision, "digest": digest, "verdict": verdict,
            "screen": signed["screen"], "cell": self.cell,
        }  # fmt: skip
        over = b"muster/decision/v1\n" + canonical(message)
        signature = base64.b64decode(signed["signature"], validate=True)
        if self._signatures and not any(_verifies(raw, signature, over) for raw in enrolled):
            return bare
        return bare._replace(key=signed["key"])

    # -- plans --

    def _drafted(self, seq: int, record: RecordContent) -> None:
        self.proposals[record.proposal] = ReplayedProposal()

    def _known(self, record: RecordContent) -> ReplayedProposal | None:
        """A proposal; None when its beginning was not read, or precedes authorisation on record."""
        return self.proposals.get(record.proposal)

    def _simulated(self, seq: int, record: RecordContent) -> None:
        one = self._moved(seq, record)
        if one is not None:
            fresh = ReplayedProposal(
                one.state, record.revision, record.plan, {**record.data["of"], "policy": record.policy}
            )
            self.proposals[record.proposal] = fresh

    def _moved(self, seq: int, record: RecordContent) -> ReplayedProposal | None:
        one = self._known(record)
        if one is None and self.whole and record.proposal not in self.before:
            self._wrong(seq, f"{_plain(record.proposal)} is {_plain(record.data['to'])} and was never drafted")
        if one is not None and record.data["from"] != one.state:
            self._wrong(seq, f"{_plain(record.proposal)} was {one.state}, not {_plain(str(record.data['from']))}")
        if one is not None:
            one.state = record.data["to"]
            if one.state in _AFTER_CLAIM and not one.claimed:
                self._wrong(seq, f"{_plain(record.proposal)} is {one.state} and was never claimed")
        return one

    def _vote(self, seq: int, record: RecordContent) -> None:
        one = self._known(record)
        if one is not None and (record.revision, record.plan) == (one.revision, one.digest):
            verdict = record.type.removeprefix("vote.")
            actor = self._actor(seq, record, "vote", record.proposal, record.revision, record.plan, verdict)
            one.votes[actor.subject] = (verdict, actor)

    def _need(self, now: PolicyInForce, one: ReplayedProposal) -> VoteNeed | None:
        """The need by the stricter of the policy in force and the plan's own; None when one of the two is missing."""
        facts = one.facts
        first, second = self._need_of(now.digest, facts), self._need_of(facts["policy"], facts)
        return None if first is None or second is None else _stricter(first, second)

    def _need_of(self, policy: str, facts: dict[str, Any]) -> VoteNeed | None:
        """The need by one policy, cached: many plans are of few kinds."""
        scope, kind, body = facts["scope"], facts["author"]["kind"], self.bodies.get(policy)
        own = body is not None and is_own(body, facts)
        about = (policy, facts["tier"], facts["origin"], kind, own, *(tuple(scope[part]) for part in _PARTS))
        if about not in self.needs:
            found = None if body is None else need_of(body, facts["tier"], facts["origin"], scope, kind, own=own)
            self.needs[about] = found
        return self.needs[about]

    def _glass(self, seq: int, record: RecordContent) -> None:
        one = self._known(record)
        if one is None:
            return
        now = self.in_force(seq)
        need = self._need(now, one)
        actor = self._actor(seq, record, "breakglass", record.proposal, record.revision, record.plan, "approve")
        if need is None:
            self.not_replayed += 1
        else:
            who = self._asker(record, actor)
            held = _roles(now.body, now.owner, who, one.facts["scope"])
            person = _person_of(now.body, who)
            on_call = person is not None and person["on_call"] and "operator" in held
            if not ("admin" in held or on_call) or (need.signed and not actor.key):
                return self._wrong(seq, f"{_plain(actor.subject)} may not break the glass, or did not sign")
            if actor.subject in self.glasses.values():
                return self._wrong(
                    seq, f"{_plain(actor.subject)} used break-glass while an earlier one was not reviewed"
                )
        one.glass = one.state == "awaiting" and (record.revision, record.plan) == (one.revision, one.digest)
        return None

    def _review_opened(self, seq: int, record: RecordContent) -> None:
        if record.data["forced"]:
            self.glasses[record.data["review"]] = record.subject
            if (one := self._known(record)) is not None:
                one.reviewed = True

    def _review_closed(self, seq: int, record: RecordContent) -> None:
        about = self.glasses.pop(record.data["review"], "")
        now = self.in_force(seq)
        if not about or now.body is None:
            return
        if _subject_of(now.body, record.subject, record.account) == _subject_of(now.body, about, about):
            self._wrong(seq, f"{_plain(record.subject)} closed the review of what they did themselves")

    def why_not_claim(self, seq: int, proposal: str) -> str:
        """Empty when what is on record authorises that it is carried out; else what it lacks."""
        one = self.proposals.get(proposal)
        if one is None or not self.policies:
            return "its beginning is not among the records"
        if one.state != "approved":
            return f"it was {one.state}, not approved"
        now = self.in_force(seq)
        if one.glass:
            return "" if one.reviewed else "break-glass was used for it, and no review was opened"
        need = self._need(now, one)
        if need is None:
            self.not_replayed += 1
            return ""
        votes = [actor for verdict, actor in one.votes.values() if verdict == "approve"]
        facts = one.facts
        short = missing_votes(now.body, now.owner, votes, facts["author"], facts["requester"], need, facts["scope"])
        return f"it lacks {counted(short, 'vote')} that count" if short else ""

    def _claimed(self, seq: int, record: RecordContent) -> None:
        one = self._known(record)
        if one is None and (record.proposal in self.before or not self.whole):
            self.not_replayed += 1
            return
        why_not = self.why_not_claim(seq, record.proposal)
        if why_not:
            self._wrong(seq, f"{_plain(record.proposal)} was executed without authority: {why_not}")
        if one is not None:
            self.claimed += 1
            self.broke_glass += one.glass
            one.claimed = True
            self._moved(seq, record)

    def _effect(self, seq: int, record: RecordContent) -> None:
        one, key = self._known(record), record.data["key"]
        if one is None:
            if self.whole and record.proposal not in self.before:
                self._wrong(seq, f"an effect of {_plain(record.proposal) or 'no proposal'}, which was never claimed")
            return
        back = ":back:" in key
        in_order = one.claimed and one.state == ("rolling_back" if back else "executing")
        if not in_order or not key.startswith(f"{one.digest}:{one.revision}:"):
            self._wrong(seq, f"an effect of {_plain(record.proposal)}, which was {one.state}: it belongs to no claim")
        own = one.facts.get("own")
        beyond = own and (record.data["action"] not in own["actions"] or len(record.data["targets"]) > own["workloads"])
        if beyond and not back:
            self._wrong(seq, f"an effect of {_plain(record.proposal)} on more than the work of its author")
        if key in one.effects:
            self._wrong(seq, f"an effect of {_plain(record.proposal)} that it had already")
        one.effects.add(key)

    # -- incidents --

    def _incident(self, seq: int, record: RecordContent) -> None:
        """One step of an incident: in order, by somebody who may, and its owner by a claim or a hand-over alone."""
        kind, name, data = record.type.removeprefix("incident."), record.proposal, record.data
        if kind not in _OF_SOURCES and not self._is_on_call(seq, record):
            self._wrong(seq, f"{_plain(record.subject)} was not on call and {kind.replace('_', ' ')} {_plain(name)}")
        one = self.incidents.get(name)
        if kind == "opened":
            if one is not None:
                self._wrong(seq, f"{_plain(name)} is opened a second time")
            self.incidents[name] = ReplayedIncident(data["to"])
            return
        if one is None:
            if self.whole:
                self._wrong(seq, f"{_plain(name)} was never opened")
            one = self.incidents[name] = ReplayedIncident(data["from"], data["owner"])
        befores, afters = _INCIDENT_MOVES.get(kind, ((one.state,), (one.state,)))
        if data["from"] != one.state or one.state not in befores or data["to"] not in afters:
            self._wrong(seq, f"{_plain(name)} was {one.state} and is said to become {_plain(str(data['to']))}")
        owner = {"claimed": record.subject, "handed_over": data["owner"]}.get(kind, one.owner)
        if data["owner"] != owner:
            self._wrong(seq, f"{_plain(name)} has an owner who neither claimed it nor was handed it")
        if (
            kind in ("handed_over", "closed")
            and one.owner not in ("", record.subject)
            and not self._is_admin(seq, record)
        ):
            self._wrong(seq, f"{_plain(record.subject)} {kind.replace('_', ' ')} {_plain(name)} of {one.owner}")
        one.state, one.owner = data["to"], data["owner"]

    def _is_on_call(self, seq: int, record: RecordContent) -> bool:
        """True for a person with a role of those on call, in any part of the cell."""
        return bool(_ON_CALL & self._somewhere(seq, record)) or self.in_force(seq).body is None

    def _is_admin(self, seq: int, record: RecordContent) -> bool:
        return "admin" in self._somewhere(seq, record) or self.in_force(seq).body is None

    def _somewhere(self, seq: int, record: RecordContent) -> frozenset[str]:
        """Roles of who wrote a record, in any part of the cell."""
        now = self.in_force(seq)
        if now.body is None:
            return frozenset()
        return _somewhere(
            now.body, now.owner, ProvenActor(record.subject, record.kind, record.account, record.key)
        )  # fmt: skip

    # -- rows --

    def differs(self, table: str, row: Mapping[str, Any]) -> str:
        """Empty when a row is as the records left it; else what is wrong."""
        name = row_name(table, row)
        digest, seq = self.rows.get(name, ("", 0))
        if not seq:
            return f"no record tells of the row {_plain(name)} of the table {table}" if self.whole else ""
        return "" if row_digest(row) == digest else f"the row {_plain(name)} is not as record {seq} left it"


def _owned_by_one(steps: Any) -> dict[str, Any] | None:
    """The work that steps touch, where all of it is one person's."""
    touched = [target for step in steps for target in (*step["shown"], *step["stops"])]
    owners = {target.get("owner", "") for target in touched}
    if len(owners) != 1 or "" in owners:
        return None
    actions = list(dict.fromkeys(step["act"]["action"] for step in steps))
    return {"owner": owners.pop(), "actions": actions, "workloads": len({target["id"] for target in touched})}


def plan_differs(plan: Any, facts: Mapping[str, Any]) -> bool:
    """True when a plan differs from the record of its simulation, or what it says of its author's work is not what its
    steps say."""
    own = plan["blast"].get("own")
    if own != facts.get("own") or (own and own != _owned_by_one(plan["steps"])):
        return True
    return any(plan[name] != facts[name] for name in ("author", "requester", "origin", "tier")) or (
        plan["policy_digest"] != facts["policy"]
    )


def _short(digest: str) -> str:
    return _plain(str(digest)[:12])


# -- what is read -----------------------------------------------------------------------------------------------------


class StoredRecord(NamedTuple):
    seq: int
    body: bytes
    hash: bytes
    copies: tuple[Any, ...] = ()
    """What the database says besides of type, subject, proposal and time."""
    content: RecordContent | None = None
    """What the body says, where it was read already."""


@dataclass
class LogSource:
    """A log, or a part of one, in the order it was written: records, and each checkpoint after its last record."""

    name: str
    log: str
    first: int
    hash: bytes
    """Of the record before the first."""
    frontier: Frontier
    keys: list[tuple[int, str]]
    """(record that tells it, public key) of those that signed before the first record."""
    events: Iterator[StoredRecord | Checkpoint | list[bytes]]
    """A list has leaves of records that are not told, up to a checkpoint."""
    last: int = 0
    """Of a bundle, the last record it promises; 0: nobody promises."""
    private: Callable[[str], tuple[bytes, str] | None] = lambda ref: None
    """ref -> (key, text)"""
    database: Database | None = None
    """Where all else is that the journal has beside the records; none for an export."""
    close: Callable[[], None] = lambda: None


def open_source(path: Path | str, since: int = 1) -> LogSource:
    """Raises Flaw for a file that is no log. A text is the URL of a PostgreSQL database."""
    if isinstance(path, str):
        server = PostgresDatabase(path)
        return _of_database(server.name, server, since)
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        raise Flaw(USAGE, None, f"cannot be read: {error.strerror}") from None
    if start.startswith(b"SQLite format 3\0"):
        return open_database(path, since)
    if since > 1:
        raise Flaw(USAGE, None, "only a database can be read from some record on")
    if start.startswith(b'{"muster_audit":"log"'):
        return open_bundle(path)
    raise Flaw(USAGE, None, "is neither a cell's journal nor an export of its audit")


def open_database(path: Path, since: int) -> LogSource:
    """The log in the journal of a cell, read as of one moment; the engine may go on meanwhile."""
    # A database that was left clean, in a folder that cannot be written, can only be read as one that never changes.
    if not path.with_name(path.name + "-wal").exists():
        with contextlib.suppress(Flaw):
            return _of_database(str(path), _sqlite(path, "mode=ro"), since)
        return _of_database(str(path), _sqlite(path, "mode=ro&immutable=1"), since)
    return _of_database(str(path), _sqlite(path, "mode=ro"), since)


def _sqlite(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None, timeout=5)


class PostgresDatabase:
    """A PostgreSQL database with the records of a cell, asked as SQLite is, for what is there at one moment."""

    def __init__(self, url: str) -> None:
        """Raises Flaw. Of the URL, `schema` is for us, the rest for PostgreSQL's client."""
        base, _, query = url.partition("?")
        options = [option for option in query.split("&") if option]
        rest = "&".join(option for option in options if not option.startswith("schema="))
        schema = next((option[7:] for option in options if option.startswith("schema=")), "muster")
        try:
            import psycopg
        except ImportError:
            raise Flaw(USAGE, None, "a database server cannot be asked without the package `psycopg`") from None
        self._failure = psycopg.Error
        self.name = f"schema {schema} of the database"
        try:
            self._connection = psycopg.connect(f"{base}?{rest}" if rest else base, connect_timeout=5)
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
            self._connection.execute("SELECT set_config('search_path', %s, true)", (f'"{schema}"',))
        except psycopg.Error as error:
            raise Flaw(USAGE, None, f"the database cannot be reached: {_plain(str(error))}") from None

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        try:
            return self._connection.execute(sql.replace("?", "%s"), values)
        except self._failure as error:
            raise QueryFailed(str(error)) from None

    def stream(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """The rows, not all of them at once."""
        try:
            with self._connection.cursor(name="rows") as cursor:
                cursor.itersize = 1_000
                yield from cursor.execute(sql.replace("?", "%s"), values)
        except self._failure as error:
            raise QueryFailed(str(error)) from None

    def close(self) -> None:
        self._connection.close()


Database = sqlite3.Connection | PostgresDatabase


def _of_database(name: str, database: Database, since: int) -> LogSource:
    """The log that a database has. Raises Flaw, and then the database is closed."""
    try:
        if isinstance(database, sqlite3.Connection):
            database.execute("BEGIN")
        return _from_checkpoint(name, database, since)
    except DAMAGE as error:
        database.close()
        if re.search(r'no such table: audit_|relation "audit_', str(error)):
            raise Flaw(USAGE, None, f"{name} is a database without an audit") from None
        raise Flaw(CHAIN, None, f"the database cannot be read: {_plain(str(error))}") from None
    except BaseException:
        database.close()
        raise


def _from_checkpoint(name: str, database: Database, since: int) -> LogSource:
    """The records after the last checkpoint before a record. Raises Flaw and the errors in DAMAGE."""
    log = database.execute("SELECT log FROM audit_log").fetchone()
    if log is None:
        raise Flaw(USAGE, None, "has an audit without a name")
    moved, hash_ = _moved_to_files(database)
    start = database.execute(
        "SELECT size, frontier FROM audit_checkpoint WHERE size >= ? AND size < ? ORDER BY size DESC LIMIT 1",
        (moved, since),
    ).fetchone()
    if start is None and moved:
        start = database.execute("SELECT size, frontier FROM audit_checkpoint WHERE size = ?", (moved,)).fetchone()
        if start is None:
            raise Flaw(CHECKPOINT, moved, f"the checkpoint of the records up to {moved}, which were moved, is missing")
    size, nodes = start or (0, b"")
    if size > moved:
        found = database.execute("SELECT hash FROM audit_record WHERE seq = ?", (size,)).fetchone()
        hash_ = found[0] if found else None
    try:
        if type(hash_) is not bytes or type(nodes) is not bytes:
            raise ValueError("it is not stored as bytes")
        frontier = Frontier.of(size, nodes)
    except (ValueError, TypeError) as error:
        raise Flaw(CHECKPOINT, size, f"nothing can go on from the checkpoint of {size} records: {error}") from None
    return LogSource(
        name=name, log=str(log[0]), first=size + 1, hash=hash_, frontier=frontier,
        keys=[(seq, str(key)) for seq, key in database.execute(
            "SELECT seq, key FROM audit_key WHERE seq <= ? ORDER BY seq", (size,))],
        events=_rows(database, size), private=_private_in(database), close=database.close, database=database,
    )  # fmt: skip


def _moved_to_files(database: Database) -> tuple[int, Any]:
    """(last record, its hash) of what versions before this one moved from the log to files; 0: nothing."""
    found = None
    if "audit_segment" in _tables(database):
        found = database.execute("SELECT last, hash FROM audit_segment ORDER BY last DESC LIMIT 1").fetchone()
    return found or (0, FIRST_LINK)


def _nodes_in(database: Database, size: int) -> Any:
    """The frontier stored with a checkpoint, from which the next one continues."""
    return database.execute("SELECT frontier FROM audit_checkpoint WHERE size = ?", (size,)).fetchone()[0]


def _tables(database: Database) -> set[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if isinstance(database, PostgresDatabase):
        query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    return {name for (name,) in database.execute(query)}


def _rows_of(database: Database, table: str) -> Iterator[dict[str, Any]]:
    """All columns of the rows of a table."""
    query = f"SELECT * FROM {table}"
    found = database.execute(query)
    names = [column[0] for column in found.description]
    for row in found:
        yield dict(zip(names, row, strict=True))


def _policy_in(database: Database | None) -> Callable[[str], bytes | None]:
    """Policies that are too long for a record, by their digest."""

    def find(digest: str) -> bytes | None:
        if database is None:
            return None
        for table in {"policy_version", "policy_candidate"} & _tables(database):
            query = f"SELECT body FROM {table} WHERE digest = ?"
            found = database.execute(query, (digest,)).fetchone()
            if found is not None and type(found[0]) is bytes:
                return bytes(found[0])
        return None

    return find


def _private_in(database: Database) -> Callable[[str], tuple[bytes, str] | None]:
    def find(ref: str) -> tuple[bytes, str] | None:
        found: tuple[bytes, str] | None = database.execute(
            "SELECT key, text FROM audit_private WHERE ref = ?", (ref,)
        ).fetchone()
        return found

    return find


def _rows(database: Database, after: int) -> Iterator[StoredRecord | Checkpoint | list[bytes]]:
    """Raises Flaw where the database is damaged."""
    seq = after
    try:
        notes = database.execute("SELECT size, note FROM audit_checkpoint WHERE size >= ? ORDER BY size", (after,))
        query = "SELECT seq, body, hash, type, subject, proposal, at_ms FROM audit_record WHERE seq > ? ORDER BY seq"
        ask = database.stream if isinstance(database, PostgresDatabase) else database.execute
        records = ask(query, (after,))
        waiting = notes.fetchone()
        for seq, body, hash_, type_, subject, proposal, at_ms in records:
            while waiting is not None and waiting[0] < seq:
                yield _note(*waiting)
                waiting = notes.fetchone()
            if type(body) is not bytes or type(hash_) is not bytes:
                raise Flaw(CHAIN, seq, f"record {seq} is not stored as bytes")
            yield StoredRecord(seq, body, hash_, (type_, subject, proposal, at_ms))
        while waiting is not None:
            yield _note(*waiting)
            waiting = notes.fetchone()
    except DAMAGE as error:
        raise Flaw(
            CHAIN, seq + 1, f"the database cannot be read from record {seq + 1} on: {_plain(str(error))}"
        ) from None


def _note(size: int, text: str) -> Checkpoint:
    try:
        note = read_note(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise Flaw(CHECKPOINT, size, f"what is kept as the checkpoint of {size} records {error}") from None
    if note.size != size:
        raise Flaw(CHECKPOINT, size, f"the checkpoint of {size} records says {note.size}")
    return note


def open_bundle(path: Path) -> LogSource:
    """An export: lines of JSON."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by the source
    except OSError as error:
        raise Flaw(USAGE, None, f"{path.name} cannot be read: {error.strerror}") from None
    try:
        head = _line(file.readline(MAX_LINE))
        if head["muster_audit"] != "log" or head["v"] != 1:
            raise ValueError("another version")
        frontier = Frontier(head["first"] - 1, map(bytes.fromhex, head["before"]["frontier"]))
        kept: dict[str, tuple[bytes, str]] = {}
        return LogSource(
            name=str(path), log=str(head["log"]), first=head["first"], last=int(head["last"]),
            hash=bytes.fromhex(head["before"]["hash"]), frontier=frontier,
            keys=[(int(seq), str(key)) for seq, key in head["keys"]],
            events=_lines(file, kept), private=kept.get, close=file.close,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        file.close()
        raise Flaw(USAGE, None, f"has no head that can be read: {_plain(str(error))}") from None


def _line(line: bytes) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(line.decode(), object_pairs_hook=_strict_object_any_order, parse_float=_no_float)
    except RecursionError:
        raise ValueError("too many levels") from None


def _strict_object_any_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _lines(file: IO[bytes], kept: dict[str, tuple[bytes, str]]) -> Iterator[StoredRecord | Checkpoint | list[bytes]]:
    """The lines of a bundle after the first; private texts go into `kept`. Raises Flaw."""
    seq, number = None, 1
    while line := file.readline(MAX_LINE):
        number += 1
        where = f"line {number}" if seq is None else f"line {number}, after record {seq},"
        try:
            if line.startswith(b'{"hash":"') and line[73:84] == b'","record":' and line.endswith(b"}}\n"):
                content = content_of(body := line[84:-2])
                seq = int(content.seq)
                yield StoredRecord(seq, body, bytes.fromhex(line[9:73].decode()), (), content)
                continue
            found = _line(line)
            if "record" in found:
                seq = int(found["record"]["seq"])
                yield StoredRecord(seq, canonical(found["record"]), bytes.fromhex(found["hash"]))
            elif "checkpoint" in found:
                yield read_note(found["checkpoint"])
            elif "private" in found:
                private = found["private"]
                kept[private["ref"]] = (bytes.fromhex(private["key"]), private["text"])
            elif "leaves" in found:
                yield [bytes.fromhex(leaf) for leaf in found["leaves"]]
            elif "end" in found:
                return
            else:
                raise ValueError("is of no kind that there is")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Flaw(
                CHAIN, None if seq is None else seq + 1, f"{where} cannot be read: {_plain(str(error))}"
            ) from None
    raise Flaw(TRUNCATED, None if seq is None else seq + 1, "the file is cut off: its last line is missing")


# -- the check --------------------------------------------------------------------------------------------------------


@dataclass
class LogReport:
    """The findings of one file."""

    name: str
    log: str = ""
    first: int = 0
    last: int = 0
    start: bytes = b""
    """Hash of the record before the first."""
    hash: bytes = b""
    """Of the last record."""
    records: int = 0
    checkpoints: int = 0
    signed: int = 0
    looked: bool = True
    """Signatures were checked."""
    newest: Checkpoint | None = None
    """The last checkpoint that fits."""
    private: int = 0
    """Texts kept apart that are still there and fit."""
    erased: int = 0
    absent: int = 0
    """Texts that a bundle does not have."""
    keys: list[tuple[int, str]] = field(default_factory=list)
    problems: list[Flaw] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=dict)
    """By size, of what was remembered."""
    whole: bool = False
    """It was read to the end of the log as it is now."""
    compared: int = 0
    """Remembered checkpoints that were compared."""
    replay: AuthorisationReplay = field(default_factory=AuthorisationReplay, repr=False)
    """What the records authorise."""

    @property
    def code(self) -> int:
        return self.problems[0].code if self.problems else 0


@dataclass(frozen=True)
class Trust:
    """Checkpoints and keys known from elsewhere."""

    notes: tuple[Checkpoint, ...] = ()
    """Checkpoints that were remembered."""
    keys: tuple[str, ...] = ()
    """Public keys."""
    signatures: bool = True
    """Check them."""


def check(
    source: LogSource, trust: Trust = Trust(), until: int = 0, replay: AuthorisationReplay | None = None
) -> LogReport:
    """Read it all, or up to the first checkpoint at `until` or later. What is found is in `problems`, the first first;
    nothing is raised. `replay`: of the records before."""
    report = LogReport(name=source.name, log=source.log, first=source.first, last=source.first - 1)
    report.start = report.hash = source.hash
    report.looked = trust.signatures
    report.keys = list(source.keys)
    report.replay = replay or AuthorisationReplay(_policy_in(source.database), signatures=trust.signatures)
    report.replay.whole = source.first == 1 or (replay is not None and replay.whole)
    reading = _LogReading(source, trust, report, until)
    try:
        reading.run()
    except Flaw as bad:
        report.problems.append(bad)
    except (*DAMAGE, OSError) as error:
        report.problems.append(Flaw(CHAIN, report.last + 1, f"the file cannot be read: {_plain(str(error))}"))
    finally:
        source.close()
    return report


def key_for(keys: Sequence[tuple[int, str]], size: int) -> str:
    """The key that signs a checkpoint of that size. A change of key is signed by the key before."""
    return next((key for seq, key in reversed(keys) if seq < size), keys[0][1] if keys else UNSIGNED)


class _LogReading:
    """One file, read from its first event to its last."""

    def __init__(self, source: LogSource, trust: Trust, report: LogReport, until: int) -> None:
        self.source, self.trust, self.report, self.until = source, trust, report, until
        self.replay = report.replay
        self.tree = source.frontier
        self.hash = source.hash
        self.fits = source.frontier.size
        """Records up to which the tree is what was signed."""
        self.before: Checkpoint | None = None
        self.broken = 0
        """A record that does not follow from the one before: what is wrong is known at the next checkpoint."""
        self.replaced = False
        """The record after the broken one follows from it as it is stored."""
        self.new_key: tuple[int, str, str] | None = None
        """(record, key, key before) of a change of key that no checkpoint has confirmed yet."""
        self.wanted = {note.size for note in trust.notes if note.origin == f"muster-audit/{source.log}"}
        self.gone: dict[str, int] = {}
        """Private text that is not there -> the first record that has it."""
        self.redacted: set[str] = set()
        self._remember()

    def run(self) -> None:
        report = self.report
        done = False
        for event in self.source.events:
            if isinstance(event, StoredRecord):
                self._record(event)
            elif isinstance(event, Checkpoint):
                self._checkpoint(event)
                if self.until and event.size >= self.until:
                    done = True
                    break
            else:
                for leaf in event:
                    self.tree.push(leaf)
                    self._remember()
        self._settle(None)
        if report.last < self.source.last:
            lost = report.last + 1
            raise Flaw(TRUNCATED, lost, f"record {lost} and all after it, up to {self.source.last}, are missing")
        self._confirm(report.last + 1)
        self._texts(done)
        report.whole = not done and not self.source.last
        if self.source.database is not None and not done:
            self._beside(self.source.database)

    # -- records --

    def _record(self, record: StoredRecord) -> None:
        report, expected = self.report, self.report.last + 1
        if record.seq != expected:
            self._settle(None)
            raise Flaw(CHAIN, expected, f"record {expected} is missing: the next is {record.seq}")
        if self.new_key is not None and self.new_key[0] < record.seq:
            self._confirm(record.seq)
        hash_ = record.hash
        follows = link(self.hash, record.body) == hash_
        if not self.broken:
            content = self._content(record)
            if not follows:
                self.broken = record.seq
            else:
                if content.private or content.type.startswith("audit."):
                    self._take(record, content)
                self.replay.take(record.seq, content)
                if self.replay.problems:
                    self._unauthorised()
        elif record.seq == self.broken + 1:
            self.replaced = follows
        self.hash = report.hash = hash_
        self.tree.push(leaf_of(hash_))
        if self.wanted:
            self._remember()
        report.last = record.seq
        report.records += 1

    def _content(self, record: StoredRecord) -> RecordContent:
        """The fields of a record. Raises Flaw for a record that is not in its form."""
        seq = record.seq
        try:
            found = content_of(record.body) if record.content is None else record.content
            if type(found.type) is not str or type(found.private) is not list or type(found.data) is not dict:
                raise TypeError("a field of another type")
        except (ValueError, KeyError, TypeError) as error:
            raise Flaw(CHAIN, seq, f"record {seq} is not in the form of one: {_plain(str(error))}") from None
        if found.seq != seq:
            raise Flaw(CHAIN, seq, f"record {seq} was swapped: it says of itself that it is {_plain(str(found.seq))}")
        if found.log != self.source.log:
            raise Flaw(CHAIN, seq, f"record {seq} is of another log: {_plain(str(found.log))}")
        if record.copies and record.copies != found.copies:
            raise Flaw(
                CHAIN, seq, f"record {seq} is filed under what it does not say (type, subject, proposal or time)"
            )
        return found

    def _take(self, record: StoredRecord, found: RecordContent) -> None:
        """Keys and texts of a record that is in order."""
        try:
            type_ = found.type
            if type_ in ("audit.opened", "audit.key"):
                self._announced(record.seq, str(found.data["key"]))
            elif type_ == "audit.redacted":
                self.redacted.add(str(found.data["ref"]))
            elif type_ == "audit.sealed":
                self.replay.moved.add(found.data["last"])
            for private in found.private:
                self._private(record.seq, private["ref"], private["mac"])
        except (KeyError, TypeError) as error:
            raise Flaw(CHAIN, record.seq, f"record {record.seq} lacks {_plain(str(error))}") from None

    def _unauthorised(self) -> None:
        found = list(self.replay.problems)
        self.replay.problems.clear()
        for seq, what in found:
            self._add(Flaw(AUTHORISATION, seq, what))

    def _private(self, seq: int, ref: str, mac: str) -> None:
        if type(ref) is not str:
            raise TypeError("the name of a text")
        self.replay.texts.add(ref)
        kept = self.source.private(ref)
        if kept is None:
            self.gone.setdefault(ref, seq)
            return
        key, text = kept
        try:
            same = hmac.compare_digest(hmac.new(key, text.encode(), "sha256").hexdigest(), mac)
        except (TypeError, ValueError, AttributeError):
            same = False
        if not same:
            raise Flaw(CHAIN, seq, f"the text kept apart of record {seq} ({_plain(ref)}) was changed")
        self.report.private += 1

    def _texts(self, stopped: bool) -> None:
        for ref, seq in self.gone.items():
            if ref in self.redacted:
                self.report.erased += 1
            elif self.source.database is not None and not stopped:
                raise Flaw(
                    CHAIN, seq, f"the text kept apart of record {seq} ({_plain(ref)}) is gone and no record says so"
                )
            else:
                self.report.absent += 1

    # -- tables beside the records --

    def _beside(self, database: Database) -> None:
        """Rows that are not as the records left them."""
        replay = self.replay
        self._of_audit(database)
        if not replay.since:
            return
        seen: set[str] = set()
        for table in sorted(GATE_TABLES.keys() & _tables(database)):
            for row in _rows_of(database, table):
                name = row_name(table, row)
                seen.add(name)
                what = replay.differs(table, row)
                if not what and table == "proposal_revision" and self._other_plan(row):
                    what = f"the plan of {_plain(name)} is not the plan that was voted on"
                if what:
                    self._add(Flaw(AUTHORISATION, replay.rows.get(name, ("", None))[1], what))
        for name in sorted(replay.rows.keys() - seen):
            seq = replay.rows[name][1]
            self._add(Flaw(AUTHORISATION, seq, f"the row {_plain(name)}, which record {seq} tells of, is gone"))

    def _other_plan(self, row: dict[str, Any]) -> bool:
        one = self.replay.proposals.get(f"P-{row['number']}")
        if one is None or one.revision != row["revision"]:
            return False
        digest = hashlib.sha256(b"muster/plan/v1\n" + row["plan"]).hexdigest()
        return digest != one.digest or plan_differs(json.loads(row["plan"]), one.facts)

    def _of_audit(self, database: Database) -> None:
        """Rows of the audit's own tables that no record tells of."""
        replay = self.replay
        if [tuple(row) for row in database.execute("SELECT id, v FROM audit_log")] != [(1, 1)]:
            self._add(Flaw(CHAIN, None, "the table audit_log is not that of one log in this form"))
        moved, _ = _moved_to_files(database)
        if moved and self.source.first == moved + 1 and moved not in replay.moved:
            self._add(Flaw(CHAIN, None, f"no record says that the records up to {moved} were moved to a file"))
        if not replay.whole:
            return
        if [(seq, str(key)) for seq, key in database.execute("SELECT seq, key FROM audit_key ORDER BY seq")] != (
            sorted(self.report.keys)
        ):
            self._add(Flaw(SIGNATURE, None, "the table audit_key has other keys than the records announce"))
        for (ref,) in database.execute("SELECT ref FROM audit_private"):
            if ref not in replay.texts:
                self._add(Flaw(CHAIN, None, f"no record has the text kept apart {_plain(str(ref))}"))

    # -- what breaks the chain --

    def _settle(self, root_fits: bool | None) -> None:
        """Name the record that breaks the chain. `root_fits`: whether the hashes as stored, at the next checkpoint, are
        those that were signed; None: there is none."""
        seq = self.broken
        if not seq:
            return
        if root_fits:
            raise Flaw(CHAIN, seq, f"record {seq} was changed: its text is not what its hash, which was signed, is of")
        if root_fits is False and self.replaced and seq - 1 > self.fits:
            raise Flaw(
                CHAIN, seq - 1,
                f"record {seq - 1} was written anew: record {seq} does not follow from it, and the checkpoint after "
                f"them does not fit (at the earliest the change is in record {self.fits + 1})",
            )  # fmt: skip
        raise Flaw(CHAIN, seq, f"record {seq} does not follow from the one before it: it, or that one, was changed")

    # -- keys and checkpoints --

    def _announced(self, seq: int, key: str) -> None:
        if self.report.keys:
            self.new_key = (seq, key, self.report.keys[-1][1])
        self.report.keys.append((seq, key))

    def _confirm(self, now: int) -> None:
        """A change of key stands when the key before has signed it, or when somebody knows the new one."""
        if self.new_key is None:
            return
        seq, key, before = self.new_key
        self.new_key = None
        if before != UNSIGNED and key not in self.trust.keys:
            self._add(Flaw(SIGNATURE, seq, f"record {seq} changes the key, and the key before did not sign that"))

    def _checkpoint(self, note: Checkpoint) -> None:
        report, size = self.report, note.size
        if size > self.tree.size:
            self._settle(None)
            lost = report.last + 1
            raise Flaw(TRUNCATED, lost, f"record {lost} and all after it are missing: the log had {size} records")
        root_fits = size == self.tree.size and note.root == self.tree.root()
        self._settle(root_fits)
        if note.origin != f"muster-audit/{report.log}":
            raise Flaw(CHECKPOINT, size, f"the checkpoint of {size} records is of another log: {note.origin}")
        if self.before is not None and note.prev != hash_of(self.before.text):
            self._add(Flaw(
                CHECKPOINT, size,
                f"the checkpoint before that of {size} records is not the one that it was made after: one between "
                f"{self.before.size} and {size} records was taken out, or one of the two was changed",
            ))  # fmt: skip
        elif self.before is None and self.source.first == 1 and note.prev != "-":
            self._add(Flaw(CHECKPOINT, size, f"a checkpoint before that of {size} records was taken out"))
        signed = self._signature(note)
        if not root_fits:
            some = f"record {size}" if size == self.fits + 1 else f"one of the records {self.fits + 1} to {size}"
            raise Flaw(CHECKPOINT, self.fits + 1, f"the checkpoint of {size} records does not fit: {some} was changed")
        if self.source.database is not None and _nodes_in(self.source.database, size) != b"".join(self.tree.nodes):
            self._add(Flaw(CHECKPOINT, size, f"what the checkpoint of {size} records goes on from does not fit it"))
        if signed and self.new_key is not None and self.new_key[0] == size:
            self.new_key = None
        self.fits = size
        self.before = report.newest = note
        report.checkpoints += 1
        report.signed += signed

    def _signature(self, note: Checkpoint) -> bool:
        """True when the checkpoint is signed; False when nothing is signed."""
        key = key_for(self.report.keys, note.size)
        if key == UNSIGNED or not self.trust.signatures:
            return False
        if not signed_by(note, key):
            what = "is not signed" if not note.signatures else "is not signed by the key of the log"
            self._add(Flaw(SIGNATURE, note.size, f"the checkpoint of {note.size} records {what}"))
            return False
        return True

    def _add(self, bad: Flaw) -> None:
        self.report.problems.append(bad)
        if len(self.report.problems) >= MAX_PROBLEMS:
            raise Flaw(bad.code, None, "and more; the rest was not read")

    # -- what was remembered --

    def _remember(self) -> None:
        if self.tree.size in self.wanted:
            self.report.roots[self.tree.size] = self.tree.root()


# -- the command ------------------------------------------------------------------------------------------------------


def verify(paths: Sequence[Path | str], trust: Trust, since: int = 1, until: int = 0) -> tuple[int, list[LogReport]]:
    """Check files, which may be parts of one log, and how they join. Returns the exit code, and what was found."""
    reports: list[LogReport] = []
    for path in paths:
        reports.append(_check_file(path, trust, reports, since, until))
    reports.sort(key=lambda report: (report.log, report.first, report.last))
    for one, two in pairwise(reports):
        if one.log == two.log and two.first == one.last + 1 and not one.problems and one.hash != two.start:
            two.problems.insert(0, Flaw(CHAIN, two.first, f"record {two.first} does not follow from {one.name}"))
    if not any(report.problems for report in reports):
        _compare(reports, trust)
    return next((report.code for report in reports if report.problems), 0), reports


def _before(source: LogSource, reports: list[LogReport]) -> AuthorisationReplay | None:
    """The replay of the records before those of a source, where they were read."""
    return next(
        (
            report.replay
            for report in reports
            if (report.log, report.last + 1, report.hash) == (source.log, source.first, source.hash)
        ),
        None,
    )


def _compare(reports: list[LogReport], trust: Trust) -> None:
    """All sources together against what is known from elsewhere. The last file gets the problems."""
    told = reports[-1].problems
    for note in sorted(trust.notes, key=lambda note: note.size):
        ours = [report for report in reports if note.origin == f"muster-audit/{report.log}"]
        lost = max((report.last for report in ours if report.whole), default=note.size) + 1
        if note.size >= lost:
            what = f"record {lost} and all after it are missing: a remembered checkpoint is of {note.size} records"
            told.append(Flaw(TRUNCATED, lost, what))
        for report in ours:
            if (root := report.roots.get(note.size)) is None:
                continue
            report.compared += 1
            if root != note.root:
                what = f"the remembered checkpoint of {note.size} records does not fit: the log forked at or before it"
                told.append(Flaw(CHECKPOINT, None, what))
            elif note.signatures and trust.signatures and not signed_by(note, key_for(report.keys, note.size)):
                what = f"the remembered checkpoint of {note.size} records has another signature"
                told.append(Flaw(SIGNATURE, None, what))
    if trust.notes and not told and not any(report.compared for report in reports):
        # Several logs may be remembered in one place.
        told.append(Flaw(CHECKPOINT, None, "none of the remembered checkpoints is of this log and of what was read"))
    if trust.keys and not any(key in trust.keys for report in reports for _, key in report.keys):
        told.append(Flaw(SIGNATURE, None, "the log was never signed by the key given"))


def _check_file(path: Path | str, trust: Trust, before: list[LogReport], since: int, until: int) -> LogReport:
    """Check one file, after those that hold the records before."""
    try:
        source = open_source(path, since)
        return check(source, trust, until, _before(source, before))
    except OSError as error:
        return LogReport(name=str(path), problems=[Flaw(USAGE, None, f"cannot be read: {error.strerror}")])
    except Flaw as bad:
        return LogReport(name="the database" if isinstance(path, str) else str(path), problems=[bad])


def as_data(report: LogReport) -> dict[str, Any]:
    """A report as JSON."""
    newest = report.newest
    return {
        "file": report.name, "log": report.log, "code": report.code, "first": report.first, "last": report.last,
        "records": report.records, "checkpoints": report.checkpoints, "signed": report.signed,
        "newest_checkpoint": newest and {"size": newest.size, "at_ms": newest.at_ms, "root": newest.root.hex()},
        "after_newest": report.last - newest.size if newest else report.records,
        "private": {"checked": report.private, "erased": report.erased, "absent": report.absent},
        "keys": [{"from": seq, "key": key} for seq, key in report.keys],
        "remembered": report.compared, "authorisation": _authority(report),
        "problems": [{"code": bad.code, "record": bad.record, "what": bad.what} for bad in report.problems],
    }  # fmt: skip


def _authority(report: LogReport) -> dict[str, Any]:
    replay = report.replay
    return {
        "since": replay.since, "plans": replay.claimed, "break_glass": replay.broke_glass,
        "policies": len(replay.policies), "not_replayed": replay.not_replayed,
    }  # fmt: skip


def _authority_text(report: LogReport) -> str:
    replay = report.replay
    if not replay.since:
        why = "they were written before authorisation was on record" if replay.whole else "it is read from the first on"
        return f"who agreed to what is not replayed from these records: {why}"
    text = (
        f"from record {replay.since:,} on, {counted(replay.claimed, 'plan')} executed, {replay.broke_glass:,} of "
        f"them by break-glass, under {counted(len(replay.policies), 'policy').replace('policys', 'policies')}"
    )
    if replay.not_replayed:
        text += f"; {replay.not_replayed:,} not replayed, as what they rest on is not in these records"
    return text


def as_text(report: LogReport) -> Iterator[str]:
    """A report for people."""
    if report.records:
        which = (
            f"records {report.first:,} to {report.last:,}" if report.last > report.first else f"record {report.last:,}"
        )
        yield f"{report.name}: log {report.log}, {which}"
    else:
        yield f"{report.name}: no records were read"
    newest = report.newest
    if newest is not None:
        how = "signed" if report.signed == report.checkpoints else f"{report.signed:,} of them signed"
        how = how if report.signed else "none signed: who can write the file can write it all anew"
        how = how if report.looked else "their signatures were not checked"
        yield f"  {counted(report.checkpoints, 'checkpoint')}, {how}; the newest is of {newest.size:,} records"
    if report.records and (rest := report.last - (newest.size if newest else report.first - 1)) > 0:
        yield f"  {counted(rest, 'record')} after the newest checkpoint: nothing shows yet whether that is all"
    if report.private or report.erased or report.absent:
        told = f"{report.private:,} as they were, {report.erased:,} erased"
        yield f"  texts kept apart: {told}" + (f", {report.absent:,} not in this file" if report.absent else "")
    if report.records:
        yield f"  {_authority_text(report)}"
    for bad in report.problems:
        yield f"  BAD: {bad.what}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verify.py", description="Check an audit log of Muster.", allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=named, metavar="FILE", help="journal, export, or URL")
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


def named(text: str) -> Path | str:
    """The source that a command line names: a file, or a database by URL."""
    return text if "://" in text else Path(text)


def add_arguments(parser: Any) -> None:
    """Adds the options besides the files."""
    parser.add_argument("--against", type=Path, metavar="NOTEFILE", help="checkpoints that were remembered elsewhere")
    parser.add_argument(
        "--key", dest="keys", action="append", default=[], metavar="KEY", help="a public key that you know"
    )
    parser.add_argument(
        "--from", dest="since", type=int, default=1, metavar="N", help="from the checkpoint before N on"
    )
    parser.add_argument("--to", dest="until", type=int, default=0, metavar="N", help="up to the checkpoint after N")
    parser.add_argument("--no-signatures", action="store_true", help="do not check them (no `cryptography` here)")


def run(files: Sequence[Path | str], given: argparse.Namespace) -> tuple[int, list[LogReport]]:
    """Check as the command line says. Raises Flaw for what is given besides files."""
    notes: list[Checkpoint] = []
    if given.against is not None:
        try:
            notes = read_notes(given.against.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Flaw(USAGE, None, f"{given.against} cannot be read: {_plain(str(error))}") from None
        if not notes:
            raise Flaw(USAGE, None, f"{given.against} has no checkpoint")
    for key in given.keys:
        try:
            read_key(key)
        except ValueError as error:
            raise Flaw(USAGE, None, f"--key {_plain(str(error))}") from None
    trust = Trust(tuple(notes), tuple(given.keys), not given.no_signatures)
    try:
        return verify(files, trust, given.since, given.until)
    except ImportError:
        raise Flaw(
            SIGNATURE,
            None,
            "signatures cannot be checked without the package `cryptography`; --no-signatures leaves it",
        ) from None


def _plain(text: str) -> str:
    """One short line of ASCII that can be shown on a terminal."""
    return ascii(text[:200])[1:-1]


def main() -> int:
    given = arguments().parse_args()
    try:
        code, reports = run(given.files, given)
    except Flaw as bad:
        print(f"verify: {bad.what}", file=sys.stderr)
        return bad.code
    if given.json:
        print(json.dumps({"code": code, "files": [as_data(report) for report in reports]}, indent=1))
        return code
    for report in reports:
        for line in as_text(report):
            print(line)
    known = given.keys or given.against
    if code == 0:
        print("ok" if known else "ok, by the log's own word: compare --key or --against with what you know")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
