"""Incidents: opened by alerts or by a person, claimed, handed over, resolved and closed.

A source owns what it reports: a report with a key that the same source used before updates that incident. Sources never
claim, close or write notes; people do, one owner at a time. Every change is on the audit record in the transaction that
makes it, and its rows are told there, so that `runbooks/audit/verify.py` checks who did what. What people write is kept
apart, where it can be erased.

Call it on the engine's thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast, get_args

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    func,
    insert,
    inspect,
    select,
)

from engine.journal.database import create_tables
from engine.model.errors import BusyError, NotFoundError, RefusedError, SpecError
from engine.model.quantities import utc
from runbooks.audit.log import Audit, Rows, kept, reread
from runbooks.gate.approval_policy import Deed
from runbooks.gate.policy_versions import Policies
from runbooks.gate.store import new_id
from runbooks.plans import incidents as reports
from runbooks.plans.identity import Actor, Scope
from runbooks.plans.incidents import (
    MAX_ALERTS,
    MAX_NOTE,
    MAX_OBJECTS,
    UNCLOSED,
    AlertLine,
    AlertReceipt,
    AlertReport,
    EntryKind,
    Incident,
    IncidentEntry,
    IncidentObject,
    IncidentState,
    NewIncident,
    ObjectKind,
    Reported,
    number_of,
    unknown,
)
from runbooks.plans.typed_plan import Sealed, check_line

if TYPE_CHECKING:
    from engine.control import Engine

T = TypeVar("T")
METADATA = MetaData()
INCIDENT = Table(
    "incident", METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True), Column("key", String, nullable=False, index=True),
    Column("source", String, nullable=False), Column("title", String, nullable=False),
    Column("severity", String, nullable=False), Column("state", String, nullable=False, index=True),
    Column("owner", String, nullable=False), Column("owned_ms", BigInteger, nullable=False),
    Column("follows", Integer, nullable=False), Column("began_ms", BigInteger, nullable=False),
    Column("opened_ms", BigInteger, nullable=False), Column("since_ms", BigInteger, nullable=False),
    Column("cell_ms", BigInteger, nullable=False), Column("firing", Integer, nullable=False),
    Column("alerts", Integer, nullable=False), Column("more", Integer, nullable=False),
    Column("objects", LargeBinary, nullable=False), Column("unmatched", LargeBinary, nullable=False),
)  # fmt: skip
ALERT = Table(
    "incident_alert", METADATA,
    Column("number", Integer, primary_key=True), Column("fingerprint", String, primary_key=True),
    Column("state", String, nullable=False), Column("alert", LargeBinary, nullable=False),
)  # fmt: skip
ENTRY = Table(
    "incident_entry", METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("number", Integer, nullable=False, index=True), Column("at_ms", BigInteger, nullable=False),
    Column("kind", String, nullable=False), Column("subject", String, nullable=False),
    Column("target", String, nullable=False), Column("text", LargeBinary, nullable=True),
)  # fmt: skip

MAX_FIRING = 500
"""Incidents that are open or claimed at a time; a report that would open one more is to come again."""
MAX_LISTED = 1_000
MIN_FOUND = 10
"""Characters in which closing must say what was found."""
REAL_TIME_MS = 3_600_000
"""A cell whose clock is no further from the wall's runs in real time."""
_FIRING: tuple[IncidentState, ...] = ("open", "claimed")
Refuse = Callable[[Actor, Deed, Scope | None], None]
"""Raises RefusedError, on record, for somebody who may not do that."""


class Incidents:
    """The incidents of one engine. `clock` gives wall time in Unix milliseconds; `labels` are labels that name objects,
    besides those of `runbooks.plans.incidents.LABELS`."""

    def __init__(
        self,
        engine: Engine,
        audit: Audit,
        policies: Policies,
        clock: Callable[[], int],
        refuse: Refuse,
        labels: Mapping[str, ObjectKind],
    ) -> None:
        self._engine = engine
        self._audit = audit
        self._policies = policies
        self._clock = clock
        self._refuse = refuse
        self._labels = dict(labels)

    # -- what sources say ---------------------------------------------------------------------------------------------

    def report(self, actor: Actor, report: AlertReport) -> AlertReceipt:
        """Open an incident, or update the one that this source reported under the same key. A report that changes
        nothing writes nothing. Raises SpecError; RefusedError for somebody who may not; BusyError while too many
        incidents fire."""
        self._refuse(actor, "alert", None)
        said = reports.reported(report, self._clock())

        def write(connection: Connection) -> AlertReceipt:
            there = self._newest(connection, said.key, actor.subject)
            if there is not None and there["state"] != "closed":
                return self._update(connection, actor, there, said)
            if not any(alert.state == "firing" for alert in said.alerts):
                return AlertReceipt(incident="", change="ignored")
            return self._open_of(connection, actor, said, there["number"] if there is not None else 0)

        return self._record(write)

    def _newest(self, connection: Connection, key: str, source: str) -> RowMapping | None:
        where = (INCIDENT.c.key == key) & (INCIDENT.c.source == source)
        newest = select(INCIDENT).where(where).order_by(INCIDENT.c.number.desc()).limit(1)
        return connection.execute(newest).mappings().first()

    def _open_of(self, connection: Connection, actor: Actor, said: Reported, follows: int) -> AlertReceipt:
        firing = tuple(alert for alert in said.alerts if alert.state == "firing")
        objects, unmatched = self._matched(firing)
        number = self._open(
            connection, actor, key=said.key, title=said.title, severity=said.severity, follows=follows,
            began_ms=min(alert.starts_ms for alert in firing), objects=objects, unmatched=unmatched, alerts=firing,
            more=said.more,
        )  # fmt: skip
        return AlertReceipt(incident=f"I-{number}", change="opened", state="open")

    def _update(self, connection: Connection, actor: Actor, there: RowMapping, said: Reported) -> AlertReceipt:
        number, id_, now_ms = there["number"], f"I-{there['number']}", self._clock()
        known = self._alerts(connection, number)
        after, left_out = merged(known, said, now_ms)
        more = 0 if said.over else max(said.more, left_out)
        changed = {mark: alert for mark, alert in after.items() if known.get(mark) != alert}
        if not changed and more == there["more"]:
            return AlertReceipt(incident=id_, change="unchanged", state=there["state"])
        firing = [alert for alert in after.values() if alert.state == "firing"]
        state: IncidentState = "claimed" if there["owner"] else "open"
        if not firing and not more:
            state = "resolved"
        event: EntryKind = "fired"
        if state == "resolved" and there["state"] != "resolved":
            event = "resolved"
        elif state != "resolved" and there["state"] == "resolved":
            event = "reopened"
        rows = self._write_alerts(connection, number, changed, known)
        objects, unmatched = self._matched(after.values())
        values = {
            "firing": len(firing), "alerts": len(after), "more": more, "objects": encoded(objects, there["objects"]),
            "unmatched": msgspec.json.encode(unmatched),
            "severity": said.severity if firing else there["severity"],
            "since_ms": there["since_ms"] if state == there["state"] else now_ms,
        }  # fmt: skip
        self._move(connection, actor, there, event, state, values, rows=rows)
        change = {"fired": "updated", "resolved": "resolved", "reopened": "reopened"}[event]
        return msgspec.convert({"incident": id_, "change": change, "state": state}, AlertReceipt)

    def _write_alerts(
        self, connection: Connection, number: int, changed: Mapping[str, AlertLine], known: Mapping[str, AlertLine]
    ) -> Rows:
        rows: dict[str, str] = {}
        for mark, alert in changed.items():
            values = {
                "number": number, "fingerprint": mark, "state": alert.state, "alert": msgspec.json.encode(alert)
            }  # fmt: skip
            if mark in known:
                mine = (ALERT.c.number == number) & (ALERT.c.fingerprint == mark)
                rows |= self._audit.rewrite(connection, ALERT, mine, values, f"I-{number}")
            else:
                connection.execute(insert(ALERT).values(**values))
                rows |= kept(ALERT, values)
        return rows

    def _matched(
        self, alerts: Iterable[AlertLine]
    ) -> tuple[tuple[IncidentObject, ...], tuple[IncidentObject, ...]]:  # fmt: skip
        """Objects of this cell that the labels name, and what they name that is not here."""
        there: dict[tuple[str, str], IncidentObject] = {}
        not_there: list[IncidentObject] = []
        for named in reports.objects_in(alerts, self._labels):
            found = next((id_ for id_ in reports.spellings(named) if self._is_there(named.kind, id_)), "")
            if found:
                there.setdefault((named.kind, found), IncidentObject(named.kind, found, named.label))
            else:
                not_there.append(named)
        return tuple(there.values())[:MAX_OBJECTS], tuple(not_there)[:MAX_OBJECTS]

    def _is_there(self, kind: str, id_: str) -> bool:
        return any(hit.id == id_ for hit in self._engine.find(id_, (kind,), 1))

    # -- what people do -----------------------------------------------------------------------------------------------

    def open(self, actor: Actor, new: NewIncident) -> Incident:
        """Open one by hand. Raises SpecError, NotFoundError for an object that is not here, RefusedError."""
        self._refuse(actor, "respond", None)
        check_line(new.title, "title", reports.MAX_TITLE)
        if not new.title.strip():
            raise SpecError("title", "is empty", "Say in a line what is wrong")
        if len(new.objects) > MAX_OBJECTS:
            raise SpecError("objects", f"{len(new.objects)} objects", f"Name at most {MAX_OBJECTS}")
        objects = tuple(dict.fromkeys(self._given(text) for text in new.objects))

        def write(connection: Connection) -> int:
            return self._open(
                connection, actor, key=secrets.token_hex(32), title=new.title.strip(), severity=new.severity,
                began_ms=self._clock(), objects=objects,
            )  # fmt: skip

        return self.incident(f"I-{self._record(write)}")

    def _given(self, text: str) -> IncidentObject:
        kind, colon, id_ = text.partition(":")
        if not colon or kind not in get_args(ObjectKind):
            raise SpecError("objects", f"{text[:60]!a} is not KIND:NAME", "Write it like queue:research")
        if not self._is_there(kind, id_):
            raise NotFoundError(f"there is no {kind} {id_[:60]!a}", f"See `muster get {kind}s`")
        return IncidentObject(cast("ObjectKind", kind), id_)

    def claim(self, actor: Actor, incident_id: str, *, over: bool = False) -> Incident:
        """Make it the actor's. `over`: although somebody else has it. Raises NotFoundError, and RefusedError saying
        who has it since when."""

        def write(connection: Connection) -> None:
            there = self._unclosed(connection, incident_id)
            if there["owner"] == actor.subject:
                raise RefusedError(f"you have {incident_id} already", "Hand it over, or close it")
            if there["owner"] and not over:
                since = f"{plain_name(there['owner'])} has had {incident_id} since {utc(there['owned_ms'])}"
                raise RefusedError(since, f"Ask them to hand it over, or: muster incident claim {incident_id} --over")
            self._own(connection, actor, there, "claimed", actor.subject, "")

        return self._done(actor, incident_id, write)

    def hand_over(self, actor: Actor, incident_id: str, to: str, note: str = "") -> Incident:
        """Make it somebody else's: its owner may, an admin, and anybody while nobody has claimed it. Raises
        NotFoundError, SpecError for nobody of the policy, RefusedError."""
        check_line(note, "note", MAX_NOTE)
        subject = f"person:{to.removeprefix('person:')}"

        def write(connection: Connection) -> None:
            there = self._unclosed(connection, incident_id)
            if there["owner"]:
                self._refuse_other(connection, actor, there, "hand over")
            if subject not in {person.subject for person in self._policies.current(connection).people}:
                raise SpecError("to", f"the policy names no {to[:60]!a}", "See `muster policy operator list`")
            if subject == there["owner"]:
                raise RefusedError(f"{plain_name(subject)} has {incident_id} already", "Name somebody else")
            self._own(connection, actor, there, "handed_over", subject, note)

        return self._done(actor, incident_id, write)

    def note(self, actor: Actor, incident_id: str, text: str) -> Incident:
        """Write a line beside it. Raises NotFoundError, SpecError, RefusedError."""
        check_line(text, "note", MAX_NOTE)
        if not text.strip():
            raise SpecError("note", "is empty", "Say in a line what you saw or did")

        def write(connection: Connection) -> None:
            there = self._found(connection, incident_id)
            self._move(connection, actor, there, "noted", there["state"], {}, text=text)

        return self._done(actor, incident_id, write)

    def close(self, actor: Actor, incident_id: str, found: str) -> Incident:
        """End it, saying what was found: its owner may, an admin, and anybody while nobody has claimed it. Raises
        NotFoundError, SpecError, RefusedError."""
        check_line(found, "found", MAX_NOTE)
        if len(found.strip()) < MIN_FOUND:
            raise SpecError("found", "is too short", f"Say what it was, in {MIN_FOUND} characters or more")

        def write(connection: Connection) -> None:
            there = self._unclosed(connection, incident_id)
            if there["owner"]:
                self._refuse_other(connection, actor, there, "close")
            self._move(connection, actor, there, "closed", "closed", {"since_ms": self._clock()}, text=found)

        return self._done(actor, incident_id, write)

    def proposed(self, actor: Actor, incident_id: str, proposal: str) -> None:
        """Note that a proposal was made of it. Raises NotFoundError."""

        def write(connection: Connection) -> None:
            there = self._found(connection, incident_id)
            mine = (ENTRY.c.number == there["number"]) & (ENTRY.c.target == proposal)
            if connection.execute(select(ENTRY.c.id).where(mine)).first() is None:
                self._move(connection, actor, there, "proposed", there["state"], {}, to=proposal)

        self._engine.record(write)

    def _done(self, actor: Actor, incident_id: str, write: Callable[[Connection], None]) -> Incident:
        self._refuse(actor, "respond", None)
        self._engine.record(write)
        return self.incident(incident_id)

    def _refuse_other(self, connection: Connection, actor: Actor, there: RowMapping, verb: str) -> None:
        """Raises RefusedError for somebody who neither owns it nor is an admin."""
        if there["owner"] == actor.subject or not self._policies.why_not(connection, actor, "policy", scope=None):
            return
        name = f"I-{there['number']}"
        raise RefusedError(
            f"you may not {verb} {name}: {plain_name(there['owner'])} has it",
            f"Ask them, or take it over first: muster incident claim {name} --over",
        )

    def _record(self, write: Callable[[Connection], T]) -> T:
        """`write` in a transaction, with the tables there."""

        def with_tables(connection: Connection) -> T:
            create_tables(connection, METADATA)
            return write(connection)

        return self._engine.record(with_tables)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _open(
        self, connection: Connection, actor: Actor, *, key: str, title: str, severity: str, began_ms: int,
        objects: tuple[IncidentObject, ...], unmatched: tuple[IncidentObject, ...] = (),
        alerts: tuple[AlertLine, ...] = (), more: int = 0, follows: int = 0,
    ) -> int:  # fmt: skip
        where = INCIDENT.c.state.in_(_FIRING)
        if connection.execute(select(func.count()).select_from(INCIDENT).where(where)).scalar_one() >= MAX_FIRING:
            raise BusyError(f"{MAX_FIRING} incidents are open", "Close some, or group alerts at the source")
        now_ms = self._clock()
        values = {
            "key": key, "source": actor.subject, "title": title, "severity": severity, "state": "open", "owner": "",
            "owned_ms": 0, "follows": follows, "began_ms": began_ms, "opened_ms": now_ms, "since_ms": now_ms,
            "cell_ms": self._cell_ms(began_ms, now_ms), "firing": len(alerts), "alerts": len(alerts), "more": more,
            "objects": msgspec.json.encode(objects), "unmatched": msgspec.json.encode(unmatched),
        }  # fmt: skip
        number = new_id(connection.execute(insert(INCIDENT).values(**values)))
        rows = {
            **reread(connection, INCIDENT, INCIDENT.c.number == number),
            **self._write_alerts(connection, number, {alert.fingerprint: alert for alert in alerts}, {}),
            **self._entry(connection, number, "opened", actor, "", None),
        }
        data = {"to": "open", "owner": "", "severity": severity, "alerts": len(alerts)}
        self._audit.append(connection, "incident.opened", actor, proposal=f"I-{number}", data=data, rows=rows)
        return number

    def _cell_ms(self, began_ms: int, now_ms: int) -> int:
        """When it began on the clock of the cell; where that is another than the wall's, now."""
        cell_ms = self._engine.now_ms
        return cell_ms - (now_ms - began_ms) if abs(cell_ms - now_ms) <= REAL_TIME_MS else cell_ms

    def _own(
        self, connection: Connection, actor: Actor, there: RowMapping, kind: EntryKind, owner: str, note: str
    ) -> None:
        state = "claimed" if there["state"] == "open" else there["state"]
        now_ms = self._clock()
        since_ms = there["since_ms"] if state == there["state"] else now_ms
        values = {"owner": owner, "owned_ms": now_ms, "since_ms": since_ms}
        self._move(connection, actor, there, kind, state, values, to=owner if kind == "handed_over" else "", text=note)

    def _move(
        self, connection: Connection, actor: Actor, there: RowMapping, kind: EntryKind, state: str,
        values: Mapping[str, object], *, to: str = "", text: str = "", rows: Rows | None = None,
    ) -> None:  # fmt: skip
        """Change it, with an entry and a record."""
        number, id_ = there["number"], f"I-{there['number']}"
        changes = {"state": state, **values}
        told = {
            **(rows or {}), **self._audit.rewrite(connection, INCIDENT, INCIDENT.c.number == number, changes, id_)
        }  # fmt: skip
        sealed = self._audit.seal(connection, text) if text else None
        if kind != "fired":
            told |= self._entry(connection, number, kind, actor, to, sealed)
        owner = str(values.get("owner", there["owner"]))
        data: dict[str, object] = {"from": there["state"], "to": state, "owner": owner}
        if to and kind == "proposed":
            data["made"] = to
        if kind in ("fired", "resolved", "reopened"):
            data |= {"alerts": values["alerts"], "firing": values["firing"]}
        private = (sealed,) if sealed else ()
        self._audit.append(
            connection, f"incident.{kind}", actor, proposal=id_, data=data, private=private, rows=told
        )  # fmt: skip

    def _entry(
        self, connection: Connection, number: int, kind: EntryKind, actor: Actor, to: str, text: Sealed | None
    ) -> Rows:
        values = {
            "number": number, "at_ms": self._clock(), "kind": kind, "subject": actor.subject, "target": to,
            "text": msgspec.json.encode(text) if text is not None else None,
        }  # fmt: skip
        made = connection.execute(insert(ENTRY).values(**values))
        return kept(ENTRY, {**values, "id": new_id(made)})

    # -- looking ------------------------------------------------------------------------------------------------------

    def incident(self, incident_id: str) -> Incident:
        """As it stands, with its alerts and all that happened to it. Raises NotFoundError."""

        def read(connection: Connection) -> Incident:
            row = self._found(connection, incident_id)
            alerts = sorted(self._alerts(connection, row["number"]).values(), key=_alert_order)
            return told_of(row, tuple(alerts), self._entries(connection, row["number"]))

        return self._engine.recorded(read)

    def incidents(self, states: Sequence[str] = (), limit: int = 200) -> tuple[Incident, ...]:
        """Those in these states, or all, newest first, without their alerts and entries."""
        wanted = select(INCIDENT).order_by(INCIDENT.c.number.desc()).limit(min(limit, MAX_LISTED))
        if states:
            wanted = wanted.where(INCIDENT.c.state.in_(list(states)))

        def read(connection: Connection) -> tuple[Incident, ...]:
            if not exist(connection):
                return ()
            return tuple(told_of(row) for row in connection.execute(wanted).mappings())

        return self._engine.recorded(read)

    def count(self, connection: Connection) -> int:
        """How many are open or claimed."""
        where = INCIDENT.c.state.in_(_FIRING)
        if not exist(connection):
            return 0
        return connection.execute(select(func.count()).select_from(INCIDENT).where(where)).scalar_one()

    def _found(self, connection: Connection, incident_id: str) -> RowMapping:
        where = INCIDENT.c.number == number_of(incident_id)
        row = connection.execute(select(INCIDENT).where(where)).mappings().first() if exist(connection) else None
        if row is None:
            raise unknown(incident_id)
        return row

    def _unclosed(self, connection: Connection, incident_id: str) -> RowMapping:
        """Raises NotFoundError, RefusedError."""
        row = self._found(connection, incident_id)
        if row["state"] not in UNCLOSED:
            raise RefusedError(f"{incident_id} was closed at {utc(row['since_ms'])}", "Open another if it is back")
        return row

    def _alerts(self, connection: Connection, number: int) -> dict[str, AlertLine]:
        rows = connection.execute(select(ALERT.c.fingerprint, ALERT.c.alert).where(ALERT.c.number == number))
        return {mark: msgspec.json.decode(alert, type=AlertLine) for mark, alert in rows}

    def _entries(self, connection: Connection, number: int) -> tuple[IncidentEntry, ...]:
        rows = connection.execute(select(ENTRY).where(ENTRY.c.number == number).order_by(ENTRY.c.id)).mappings()
        return tuple(
            IncidentEntry(
                at_ms=row["at_ms"], kind=row["kind"], subject=row["subject"], to=row["target"],
                text=self._text(connection, row["text"]),
            )
            for row in rows
        )  # fmt: skip

    def _text(self, connection: Connection, sealed: bytes | None) -> str:
        if sealed is None:
            return ""
        text = self._audit.reveal(connection, msgspec.json.decode(sealed, type=Sealed).ref)
        return "(erased)" if text is None else text


def exist(connection: Connection) -> bool:
    return inspect(connection).has_table(INCIDENT.name)


def merged(known: Mapping[str, AlertLine], said: Reported, now_ms: int) -> tuple[dict[str, AlertLine], int]:
    """The alerts as a report leaves them, and how many there was no room for. One that resolves what is not known is
    left aside. Where the source says that all is over, none fires any more."""
    after, left_out = dict(known), 0
    for alert in said.alerts:
        if alert.fingerprint not in after and alert.state == "resolved":
            continue
        if alert.fingerprint not in after and len(after) >= MAX_ALERTS:
            left_out += 1
            continue
        after[alert.fingerprint] = alert
    if said.over:
        after = {
            mark: msgspec.structs.replace(alert, state="resolved", ends_ms=now_ms) if alert.state == "firing" else alert
            for mark, alert in after.items()
        }
    return after, left_out


def encoded(objects: tuple[IncidentObject, ...], before: bytes) -> bytes:
    """Objects with those that were known before: what an alert named stays, also when it is gone."""
    was = msgspec.json.decode(before, type=tuple[IncidentObject, ...])
    named = {(each.kind, each.id): each for each in (*was, *objects)}
    return msgspec.json.encode(tuple(named.values())[:MAX_OBJECTS])


def told_of(
    row: RowMapping, alerts: tuple[AlertLine, ...] = (), entries: tuple[IncidentEntry, ...] = ()
) -> Incident:  # fmt: skip
    """An incident as it is kept."""
    return Incident(
        id=f"I-{row['number']}", title=row["title"], severity=row["severity"], state=row["state"], owner=row["owner"],
        source=row["source"], follows=f"I-{row['follows']}" if row["follows"] else "", began_ms=row["began_ms"],
        opened_ms=row["opened_ms"], since_ms=row["since_ms"], cell_ms=row["cell_ms"],
        objects=msgspec.json.decode(row["objects"], type=tuple[IncidentObject, ...]),
        unmatched=msgspec.json.decode(row["unmatched"], type=tuple[IncidentObject, ...]),
        firing=row["firing"], alert_count=row["alerts"], more_alerts=row["more"], alerts=alerts, entries=entries,
    )  # fmt: skip


def _alert_order(alert: AlertLine) -> tuple[bool, int, str]:
    return alert.state != "firing", alert.starts_ms, alert.fingerprint


def plain_name(subject: str) -> str:
    """A person as colleagues call them."""
    return subject.removeprefix("person:")
