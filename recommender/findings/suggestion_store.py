"""The store of suggestions: what has become of each, in two tables beside the cell's journal.

It records when a suggestion was first found, who rejected it and why, who acted on it, and what was promised, so that a
restart forgets no rejection and no promise. A rejected suggestion stays silent until things change: it would act on a
target that it did not name before, it is a quarter worse, or it was gone for a day and is found again. Then it says
that it was rejected, and what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    select,
)

from engine.journal.database import put
from engine.journal.side_tables import Records
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.quantities import lasting, shortlist, utc
from recommender.findings.suggestions import (
    Followed,
    Suggestion,
    SuggestionTrial,
    Track,
    Verdict,
    foretold,
    promised,
    tracks,
)

WORSE = 1.25
"""So many times as bad as when it was rejected: told again."""
GONE_MS = 24 * 3_600_000
FORGET_MS = 90 * 24 * 3_600_000
"""What was rejected and has not been found for so long is forgotten; what nobody rejected, after two days."""
SEEN_EVERY_MS = 3_600_000
"""That something is still found is written down so often."""
MAX_REASON = 500
MAX_FOLLOWED = 2_000
"""Promises that are remembered, the latest."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    who: str
    reason: str
    severity: float
    targets: tuple[str, ...]
    value: str
    """Of the first evidence."""


class SuggestionRecord(msgspec.Struct, kw_only=True):
    """One suggestion over time. Times are cell time."""

    id: str
    kind: str
    first_ms: int
    last_ms: int
    """When it was last found."""
    rejected: Rejection | None = None
    note: str = ""
    """Why it is told again."""
    acted_ms: int = 0
    due_ms: int = 0
    """0 when it was not acted on."""
    acted_by: str = ""


class SuggestionKeeper(Protocol):
    """The place where the suggestion store is kept."""

    def load(self) -> tuple[list[SuggestionRecord], list[Followed]]: ...
    def save(
        self, standings: Sequence[SuggestionRecord], followed: Sequence[Followed], void: Sequence[Followed] = ()
    ) -> None: ...
    def forget(self, ids: Sequence[str]) -> None: ...


class InMemory:
    """Keeps nothing: for a cell without a journal."""

    def load(self) -> tuple[list[SuggestionRecord], list[Followed]]:
        return [], []

    def save(
        self, standings: Sequence[SuggestionRecord], followed: Sequence[Followed], void: Sequence[Followed] = ()
    ) -> None: ...

    def forget(self, ids: Sequence[str]) -> None: ...


class SuggestionStore:
    """All suggestions of one cell. Not safe for several threads: its owner locks."""

    def __init__(self, keep: SuggestionKeeper | None = None) -> None:
        self._keep = keep or InMemory()
        standings, followed = self._keep.load()
        self.standings = {each.id: each for each in standings}
        self.followed = followed
        """Oldest first; those without a verdict are not due yet."""
        self._saved_ms = {each.id: each.last_ms for each in standings}
        self._looked_ms = max((each.last_ms for each in standings), default=0)

    # -- what is found ------------------------------------------------------------------------------------------------

    def found(self, suggestions: Iterable[Suggestion], now_ms: int) -> None:
        """Take note of all that is found now. Raises what the keeper raises; the notes are taken all the same."""
        changed: list[SuggestionRecord] = []
        promises: list[Followed] = []
        for suggestion in suggestions:
            standing = self.standings.get(suggestion.id)
            if standing is None:
                standing = SuggestionRecord(id=suggestion.id, kind=suggestion.kind, first_ms=now_ms, last_ms=now_ms)
                self.standings[suggestion.id] = standing
                changed.append(standing)
            elif self._moved(standing, suggestion, now_ms):
                changed.append(standing)
            standing.last_ms = now_ms
            if not standing.acted_ms and not self._open(suggestion.id):
                promises.append(_promise(suggestion, "left", now_ms))
            if now_ms - self._saved_ms.get(suggestion.id, 0) >= SEEN_EVERY_MS and standing not in changed:
                changed.append(standing)
        self._looked_ms = now_ms
        old = [
            each.id
            for each in self.standings.values()
            if now_ms - each.last_ms > (FORGET_MS if each.rejected else 2 * GONE_MS)
        ]
        for id_ in old:
            del self.standings[id_]
            self._saved_ms.pop(id_, None)
        if old:
            self._keep.forget(old)
        self._save(changed, promises)

    def _moved(self, standing: SuggestionRecord, suggestion: Suggestion, now_ms: int) -> bool:
        """Return whether a rejected or settled suggestion is told again, with why."""
        away_ms = self._looked_ms - standing.last_ms
        if standing.acted_ms and now_ms >= standing.due_ms:
            standing.note = f"acted on {utc(standing.acted_ms)} by {standing.acted_by}, and still found"
            standing.acted_ms = standing.due_ms = 0
            standing.first_ms = now_ms
            return True
        rejection = standing.rejected
        if rejection is None:
            if away_ms >= GONE_MS:
                standing.first_ms, standing.note = now_ms, ""
                return True
            return False
        if away_ms >= GONE_MS:
            news = f"it was gone for {lasting(away_ms)} and is back"
        elif rejection.severity > 0 and suggestion.severity >= WORSE * rejection.severity:
            news = f"{_value(suggestion)}, where it was {rejection.value}"
        elif suggestion.action != "notify" and (new := sorted(set(suggestion.targets) - set(rejection.targets))):
            news = f"it is about {shortlist(new, 3)} too"
        else:
            return False
        standing.note = (
            f"was rejected on {utc(rejection.at_ms)} by {rejection.who or 'somebody'}"
            f"{f' because {rejection.reason}' if rejection.reason else ''}; now {news}"
        )
        standing.rejected, standing.first_ms = None, now_ms
        return True

    # -- what people make of it ---------------------------------------------------------------------------------------

    def reject(self, suggestion: Suggestion, who: str, reason: str, now_ms: int) -> None:
        """Say no more of it until things change. Raises SpecError for a reason that is not one line of plain text."""
        if len(reason) > MAX_REASON or not reason.isprintable():
            raise SpecError("reason", "is not one printable line", f"Give at most {MAX_REASON} characters")
        standing = self._of(suggestion)
        if standing.rejected is not None:
            raise RefusedError(f"{suggestion.id} is already rejected", "It returns when things change")
        standing.rejected = Rejection(
            at_ms=now_ms,
            who=who,
            reason=reason,
            severity=suggestion.severity,
            targets=suggestion.targets,
            value=_value(suggestion),
        )
        standing.note = ""
        self._save([standing], [])

    def acted(self, suggestion: Suggestion, who: str, now_ms: int, trial: SuggestionTrial | None = None) -> None:
        """An approved plan did what it suggests. `trial`: how the twin saw it, with doing nothing beside it."""
        standing = self._of(suggestion)
        standing.acted_ms, standing.acted_by, standing.rejected, standing.note = now_ms, who, None, ""
        standing.due_ms = now_ms + promised(suggestion).within_ms
        # What would have come by itself can no longer be seen.
        void = [each for each in self.followed if each.id == suggestion.id and each.verdict is None]
        self.followed = [each for each in self.followed if each not in void]
        self._save([standing], [_promise(suggestion, "acted", now_ms, who, trial)], void)

    def _of(self, suggestion: Suggestion) -> SuggestionRecord:
        standing = self.standings.get(suggestion.id)
        if standing is None:
            raise NotFoundError(f"there is no suggestion {suggestion.id}", "See `muster recommend`")
        return standing

    # -- what came of it ----------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Followed]:
        """Promises that are to be judged, those that were made first before others."""
        return [each for each in self.followed if each.verdict is None and now_ms >= each.due_ms]

    def settle(self, verdicts: Sequence[tuple[Followed, Verdict]]) -> None:
        """Promises of those that are due, and what came of them."""
        settled = []
        for promise, verdict in verdicts:
            # What was acted on meanwhile is followed anew.
            if promise in self.followed:
                settled.append(msgspec.structs.replace(promise, verdict=verdict))
                self.followed[self.followed.index(promise)] = settled[-1]
        if settled:
            self._keep.save([], settled)

    def tracks(self) -> dict[str, Track]:
        return tracks(self.followed)

    def _open(self, id_: str) -> bool:
        """Return whether a promise of this suggestion is under way, or what becomes of it by itself has been seen since
        it was first found."""
        first_ms = self.standings[id_].first_ms
        return any(each.id == id_ and (each.verdict is None or each.at_ms >= first_ms) for each in self.followed)

    def _save(self, standings: list[SuggestionRecord], followed: list[Followed], void: Sequence[Followed] = ()) -> None:
        every = [*self.followed, *followed]
        self.followed = every[-MAX_FOLLOWED:]
        forgotten = every[:-MAX_FOLLOWED]
        if standings or followed or void:
            self._keep.save(standings, followed, [*void, *forgotten])
            self._saved_ms |= {each.id: each.last_ms for each in standings}


def _promise(
    suggestion: Suggestion, way: str, now_ms: int, who: str = "", trial: SuggestionTrial | None = None
) -> Followed:
    expected = promised(suggestion)
    return Followed(
        id=suggestion.id,
        kind=suggestion.kind,
        finding=suggestion.finding,
        way="acted" if way == "acted" else "left",
        at_ms=now_ms,
        due_ms=now_ms + expected.within_ms,
        who=who,
        expected=expected,
        alone=foretold(expected, trial),
    )


def _value(suggestion: Suggestion) -> str:
    first = suggestion.evidence[0]
    return f"{first.metric} is {first.value}"


Matches = Callable[[Suggestion], bool]


def done_by(action: str, targets: Sequence[str], reason: str) -> Matches:
    """Return whether an approved plan does what a suggestion suggests: its id stands in the plan's reason, or it is the
    same action for at least all the same targets."""
    named, had = reason.lower(), set(targets)

    def matches(suggestion: Suggestion) -> bool:
        if suggestion.action != action:
            return False
        if suggestion.id.lower() in named:
            return True
        return bool(suggestion.targets) and set(suggestion.targets) <= had

    return matches


T = TypeVar("T")

META = MetaData()
STANDING = Table(
    "suggestion",
    META,
    Column("id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
FOLLOWED = Table(
    "suggestion_promise",
    META,
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String, primary_key=True),
    Column("way", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
DROP_FOLLOWED = delete(FOLLOWED).where(
    FOLLOWED.c.at_ms == bindparam("at"), FOLLOWED.c.id == bindparam("of"), FOLLOWED.c.way == bindparam("by")
)

_encode = msgspec.json.Encoder().encode


class SuggestionRows:
    """A shelf's keeper over `Records`. Raises RecordsError. A row that does not decode, as from another version, is
    left out."""

    def __init__(self, records: Records) -> None:
        self._records = records
        records.create([STANDING, FOLLOWED])

    def load(self) -> tuple[list[SuggestionRecord], list[Followed]]:
        with self._records.reading() as connection:
            standings = connection.execute(select(STANDING.c.body).order_by(STANDING.c.id)).scalars().all()
            newest = select(FOLLOWED.c.body).order_by(FOLLOWED.c.at_ms.desc(), FOLLOWED.c.id).limit(MAX_FOLLOWED)
            followed = connection.execute(newest).scalars().all()
        return _decoded(standings, SuggestionRecord), _decoded(followed, Followed)[::-1]

    def save(
        self, standings: Sequence[SuggestionRecord], followed: Sequence[Followed], void: Sequence[Followed] = ()
    ) -> None:
        standing_rows = [{"id": each.id, "body": _encode(each)} for each in standings]
        followed_rows = [
            {"at_ms": each.at_ms, "id": each.id, "way": each.way, "body": _encode(each)} for each in followed
        ]

        void_rows = [{"at": each.at_ms, "of": each.id, "by": each.way} for each in void]

        def saved(connection: Connection) -> None:
            if void_rows:
                connection.execute(DROP_FOLLOWED, void_rows)
            if standing_rows:
                put(connection, STANDING, standing_rows)
            if followed_rows:
                put(connection, FOLLOWED, followed_rows)

        self._records.write(saved)

    def forget(self, ids: Sequence[str]) -> None:
        gone = list(ids)
        self._records.write(lambda connection: connection.execute(delete(STANDING).where(STANDING.c.id.in_(gone))))


def _decoded(bodies: Sequence[bytes], kind: type[T]) -> list[T]:
    found = []
    for body in bodies:
        try:
            found.append(msgspec.json.decode(body, type=kind))
        except msgspec.DecodeError:
            continue
    return found
