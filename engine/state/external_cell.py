"""The state of a cell that another scheduler decides: its caps, its own words on work, its earlier runs, and intents.

A cap of a QOS, an account or a user is a name and the amount that may be in use at once. Each workload says which caps
it draws from. The use is counted so that a fork of a mirror starts nothing over a cap; in the mirror itself Muster
starts nothing. The columns of that scheduler's words are empty where Muster decides itself.

In such a cell a command changes nothing by itself. It becomes one journalled intent, which lives from the command to
its outcome. A driver carries it to the other scheduler, reads back, and settles it. The change itself is then observed
like any other. An intent stays open until it is known to have happened and to last, or not to, so no acknowledged
command depends on the other side's memory. Each intent has a unique token. A submitted job carries it, so the job is
found again under any id, and whether or not the answer to its submission arrived.

A person may answer an intent in doubt: done, not done, or to be carried again. Only a doubt can be answered. A
submission that is carried again keeps its token, so a first copy that comes to light is found beside the second, and
one of the two is cancelled. Any other act is proposed anew instead, because it was approved for the cell as it was;
that answers the doubt of the first.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.columns import Names, Table, view
from engine.model.errors import NotFoundError, RefusedError
from engine.model.external_cells import IntentsReport, IntentView, PastRun
from engine.model.spec_parts import DAY_MS
from engine.model.specs import WorkloadState
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.pending_work import Cause

if TYPE_CHECKING:
    from engine.admission.definitions import Checked
    from engine.state.cell_state import State


Draw = tuple[str, int]
"""(name of a cap, how much of it)"""
"""In place of a limit: there is no such cap any more."""


class Full(NamedTuple):
    """A cap that does not let a workload start now. The name is untrusted."""

    name: str
    most: int
    used: int
    wanted: int


class Caps(Table):
    columns = ("names", "most", "sets", "set_of")

    def __init__(self) -> None:
        self.names = Names()
        self.most = array("q")
        """By cap; NONE where it is gone."""
        self.sets: list[Any] = [()]
        """Each a tuple of (cap, how much): many workloads draw the same. The first is empty."""
        self.set_of = array("i")
        """Index into `sets` by workload row; rows beyond the end draw nothing."""
        self.derive()

    def derive(self) -> None:
        self.sets = [tuple((cap, amount) for cap, amount in each) for each in self.sets]
        self._index = {each: i for i, each in enumerate(self.sets)}
        self.used = array("q", bytes(8 * len(self.most)))
        """By cap, of all that is placed or runs. Counted anew by the state."""

    @property
    def any(self) -> bool:
        """True if anything draws on a cap."""
        return len(self.sets) > 1

    def limit(self, most: Iterable[Draw]) -> None:
        """All caps there are, in place of those before."""
        self.most = array("q", [NONE]) * len(self.most)
        for name, amount in most:
            self.most[self._cap(name)] = amount

    def set_number(self, row: int) -> int:
        return self.set_of[row] if row < len(self.set_of) else 0

    def draws(self, row: int) -> tuple[Draw, ...]:
        return tuple((self.names.names[cap], amount) for cap, amount in self.sets[self.set_number(row)])

    def draw(self, row: int, draws: Sequence[Draw]) -> None:
        """Set the workload's use of caps from now on. Count out one that is placed or runs before, and in after."""
        key = tuple((self._cap(name), amount) for name, amount in draws)
        number = self._index.get(key)
        if number is None:
            number = self._index[key] = len(self.sets)
            self.sets.append(key)
        missing = row + 1 - len(self.set_of)
        if missing > 0:
            self.set_of.extend([0] * missing)
        self.set_of[row] = number

    def count(self, row: int, sign: int) -> None:
        """Count a workload in when it is placed, or out when it leaves its nodes."""
        for cap, amount in self.sets[self.set_number(row)]:
            self.used[cap] += sign * amount

    def stopping(self, row: int) -> Full | None:
        """The first cap over which its start would go."""
        for cap, amount in self.sets[self.set_number(row)]:
            most = self.most[cap]
            if most != NONE and self.used[cap] + amount > most:
                return Full(self.names.names[cap], most, self.used[cap], amount)
        return None

    def _cap(self, name: str) -> int:
        cap = self.names.add(name)
        if cap == len(self.most):
            self.most.append(NONE)
            self.used.append(0)
        return cap


def draw(state: State, row: int, draws: Sequence[Draw]) -> None:
    """Set the use of caps as `Caps.draw` does, in any state of the workload."""
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    bound = state.is_bound(row)
    if queued:
        state.dequeue(row)
    if bound:
        state.caps.count(row, -1)
    state.caps.draw(row, draws)
    if bound:
        state.caps.count(row, 1)
    if queued:
        state.enqueue(row)


SILENT = -1


class Outside(Table):
    """Its words by workload row. They are shown and explained; no decision goes by them. And which nodes it has powered
    down: what a fork starts there takes a boot to begin."""

    columns = ("words", "word", "boot_ms")

    def __init__(self) -> None:
        self.words = Names()
        self.word = array("i")
        """Index into `words`; SILENT where it says nothing, and for rows beyond the end."""
        self.boot_ms: dict[int, int] = {}
        """Row of a node that is powered down -> how long its boot is likely to take."""

    def word_of(self, row: int) -> str:
        """The reason why the workload waits or ended, in that scheduler's word; empty where it says nothing."""
        said = self.word[row] if row < len(self.word) else SILENT
        return "" if said == SILENT else self.words.names[said]

    def forget(self) -> None:
        """Drop the words in a fork, where time goes on without that scheduler."""
        self.words = Names()
        self.word = array("i")

    def powered_down(self, nodes: Iterable[int], boot_ms: int) -> None:
        """0: they are on."""
        for node in nodes:
            self.boot_ms.pop(node, None)
            if boot_ms:
                self.boot_ms[node] = boot_ms

    def say(self, said: Iterable[tuple[int, str]]) -> None:
        for row, word in said:
            missing = row + 1 - len(self.word)
            if missing > 0:
                self.word.extend([SILENT] * missing)
            self.word[row] = self.words.add(word) if word else SILENT


class PastRuns(Table):
    columns = ("runs", "until_ms")

    def __init__(self) -> None:
        self.runs: list[Any] = []
        """PastRun records, in the order of their ends."""
        self.until_ms = 0
        """Time up to which ends are among them; 0: nothing was reported."""

    def derive(self) -> None:
        self.runs = [msgspec.convert(run, PastRun) for run in self.runs]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"runs": msgspec.to_builtins(self.runs)}

    def tell(self, runs: Iterable[PastRun], until_ms: int) -> None:
        """Replace all earlier records."""
        self.runs, self.until_ms = list(runs), until_ms


_ENDS = (wl.FINISHED, wl.FAILED, wl.CANCELLED, wl.VANISHED)


def dated(state: State, event: ev.Dated) -> None:
    _date(state, event.row, event.what, min(event.at_ms, state.now_ms))


def dated_many(state: State, event: ev.DatedMany) -> None:
    for row, at_ms in zip(array("i", event.rows), array("q", event.at_ms), strict=True):
        _date(state, row, event.what, min(at_ms, state.now_ms))


def _date(state: State, row: int, what: int, at_ms: int) -> None:
    w = state.workloads
    if what == wl.SUBMITTED:
        w.submitted[row] = at_ms
        if w.state[row] in (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.WAITING):
            w.since[row] = at_ms
    elif what == wl.RUNNING:
        w.started[row] = at_ms
        if w.state[row] == WorkloadState.RUNNING:
            w.rated[row] = w.since[row] = at_ms
            state.ends.add(w.expected_end(row, state.now_ms), row)
            state.timers.watch(state, row)
    elif what in _ENDS and WorkloadState(w.state[row]).terminal:
        w.ended[row] = w.since[row] = at_ms
        if what == wl.FINISHED and w.started[row] >= 0 and not w.kept[row]:
            # It may have been seen for a moment only, or not at all.
            w.done[row] = max(at_ms - w.started[row], 1)
            w.note_finished(row)
    entry = w.history[row]
    while entry != NONE and w.history_what[entry] != what:
        entry = w.history_previous[entry]
    if entry != NONE:
        w.history_at[entry] = at_ms


def parked(state: State, event: ev.Parked) -> None:
    row, w = event.row, state.workloads
    if w.state[row] == WorkloadState.QUEUED:
        state.dequeue(row)
    if w.state[row] != WorkloadState.WAITING:
        w.set_state(row, WorkloadState.WAITING, wl.WAITING, state.now_ms)
    w.wake[row] = event.wake_at_ms
    state.timers.watch(state, row)


def vanished(state: State, event: ev.Vanished) -> None:
    state.end(event.row, WorkloadState.CANCELLED, wl.VANISHED)


def reestimated(state: State, event: ev.Reestimated) -> None:
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.dequeue(row)
    w = state.workloads
    w.reestimate(row, event.estimate_ms, state.capacity)
    if queued:
        state.enqueue(row)
    elif state.is_bound(row):
        state.ends.add(w.expected_end(row, state.now_ms), row)


def boots_told(state: State, event: ev.BootsTold) -> None:
    state.outside.powered_down(array("i", event.nodes), event.boot_ms)


def outside_said(state: State, event: ev.OutsideSaid) -> None:
    state.outside.say(zip(array("i", event.rows), event.words, strict=True))


def runs_told(state: State, event: ev.RunsTold) -> None:
    state.past.tell(event.runs, event.until_ms)


def caps_told(state: State, event: ev.CapsTold) -> None:
    if event.most is not None:
        state.caps.limit(event.most)
        state.reconsider.ask(Cause.RULES)
    for row, draws in zip(array("i", event.rows), event.draws, strict=True):
        draw(state, row, draws)


ENDED_KEPT = 500
"""Settled intents that are remembered, for people and for the gate, besides those in doubt."""
DOUBTS_KEPT = 1000
"""Number of intents in doubt that are kept: they wait for a person, however many others were settled since."""
WORDS_KEPT = 8
"""Statements kept of one intent: the last ones, with their times."""
NAMED_KEPT_MS = 7 * DAY_MS
"""Time after its end for which a workload is still found by its token: Slurm has dropped the job by then (MinJobAge in
slurm.conf, minutes as a rule).
"""
SWEEP_EVERY = 1000
"""Intents between two looks for tokens that nobody needs any more."""


class Phase(IntEnum):
    """The phase of an intent."""

    OPEN = 0
    """It has not reached the other scheduler."""
    SENT = 1
    """Being carried there: it may have arrived."""
    ACCEPTED = 2
    """The other scheduler took it, and might still forget it in a crash."""
    DONE = 3
    REFUSED = 4
    """The other scheduler would not."""
    NEEDLESS = 5
    """It was so already, or its object had gone."""
    IN_DOUBT = 6
    """It is not known whether it happened: a person has to look."""
    EXPIRED = 7
    """It could not be carried there in time; nothing of it was done."""
    UNDONE = 8
    """It was in doubt, and a person says that it did not happen."""
    RETRIED = 9
    """It was in doubt, and the same was wanted again since."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")

    @property
    def settled(self) -> bool:
        return self >= Phase.DONE


MAYBE_CARRIED = (Phase.DONE, Phase.NEEDLESS, Phase.IN_DOUBT)
"""Settled ones after which things at the other scheduler are, or may be, as they were wanted."""


class IntentStatement(msgspec.Struct, frozen=True, array_like=True):
    """A statement about an intent at some time."""

    at_ms: int
    phase: int
    text: str = ""


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """One wanted change, and its progress."""

    number: int
    token: str
    at_ms: int
    """Cell time at which it was journalled."""
    command: bytes
    phase: int = Phase.OPEN
    job: int = 0
    """Job id of a submission that the other scheduler gave; 0: none yet."""
    submit_s: int = 0
    """Submission time of that job, Unix seconds; 0: not read back yet."""
    text: str = ""
    """The last statement about it, by Muster or by the other scheduler."""
    changed_ms: int = 0
    tries: int = 0
    """Number of times it was lost there and carried anew."""
    words: tuple[IntentStatement, ...] = ()
    """Statements about it, the newest last."""
    boot: str = ""
    """The run of the other scheduler it was read back from, by that one's word; empty: not known."""
    before: str = ""
    """The previous value of the setting, where it was the same for all; empty: not known."""


class Intents(Table):
    """All that are under way, and the last that were settled."""

    columns = ("issued", "open", "ended", "named")

    def __init__(self) -> None:
        self.issued = 1
        """The number that is given next; none is ever given twice."""
        self.open: dict[int, Any] = {}
        """Intents that are not settled, by number."""
        self.ended: list[Any] = []
        """Settled ones, the newest last."""
        self.named: dict[str, str] = {}
        """Token of a submission -> workload id that was asked for: under this id it is observed."""
        self.derive()

    def derive(self) -> None:
        self.open = {number: msgspec.convert(intent, Intent) for number, intent in self.open.items()}
        self.ended = [msgspec.convert(intent, Intent) for intent in self.ended]
        self.ids = set(self.named.values())
        """Workload ids that were asked for."""
        self.doubts = sum(intent.phase == Phase.IN_DOUBT for intent in self.ended)
        """Number of settled ones in doubt."""

    def dump(self) -> dict[str, Any]:
        plain = msgspec.to_builtins
        rows = {"open": [(n, _row(i)) for n, i in sorted(self.open.items())], "ended": [_row(i) for i in self.ended]}
        return super().dump() | {name: plain(value, builtin_types=(bytes,)) for name, value in rows.items()}

    def found(self, number: int) -> Intent:
        """The intent under way of that number. Raises NotFoundError."""
        intent = self.open.get(number)
        if intent is None:
            raise NotFoundError(f"no intent {number} is in progress", "It is settled, or never was")
        return msgspec.convert(intent, Intent)

    def known(self, number: int) -> Intent | None:
        """The intent of that number, under way or settled lately."""
        found = self.open.get(number) or next((each for each in self.ended if each.number == number), None)
        return None if found is None else msgspec.convert(found, Intent)

    def free(self, token: str) -> None:
        """Free the id of a submission that came to nothing: there is no such workload."""
        if token in self.named:
            self.ids.discard(self.named.pop(token))

    def report(self, now_ms: int, limit: int = 200) -> IntentsReport:
        phases = Counter(intent.phase for intent in self.open.values())
        under_way = islice(reversed(self.open.values()), limit)  # they are in the order of their numbers
        doubtful = [intent for intent in reversed(self.ended) if intent.phase == Phase.IN_DOUBT]
        others = [intent for intent in reversed(self.ended) if intent.phase != Phase.IN_DOUBT]
        return IntentsReport(
            at_ms=now_ms,
            open=phases[Phase.OPEN],
            sent=phases[Phase.SENT],
            accepted=phases[Phase.ACCEPTED],
            in_doubt=len(doubtful),
            items=tuple(view_of(intent) for intent in [*under_way, *doubtful, *others][:limit]),
        )


def _row(intent: Intent) -> list[Any]:
    return [getattr(intent, name) for name in Intent.__struct_fields__]


_decoder: msgspec.msgpack.Decoder[cmd.AnyCommand] = msgspec.msgpack.Decoder(cmd.AnyCommand)


def wanted(intent: Intent) -> cmd.AnyCommand:
    """The command it stands for."""
    return _decoder.decode(intent.command)


def wording_of(command: bytes) -> str:
    """The wanted change, in a few words."""
    wish = _decoder.decode(command)
    subjects = subjects_of(wish)
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return f"{str(wish.__struct_config__.tag).replace('_', ' ')} {subjects[0] if subjects else ''}{more}"


def view_of(intent: Intent) -> IntentView:
    command = wanted(intent)
    subjects = subjects_of(command)
    return IntentView(
        id=f"i{intent.number}",
        what=str(command.__struct_config__.tag),
        subjects=subjects[:20],
        count=len(subjects),
        phase=Phase(intent.phase).label,
        job=intent.job,
        text=intent.text,
        at_ms=intent.at_ms,
        changed_ms=intent.changed_ms,
        tries=intent.tries,
        token=intent.token,
    )


def subjects_of(command: cmd.AnyCommand) -> tuple[str, ...]:
    """Ids of what it is about."""
    if isinstance(command, cmd.Submit):
        return tuple(spec.id for spec in command.workloads)
    if isinstance(command, cmd.Reserve):
        return (command.reservation.name,)
    if isinstance(command, cmd.ChangeQueue):
        return (command.queue.name,)
    if isinstance(command, cmd.ScalePool):
        return (command.pool,)
    return tuple(getattr(command, "ids", ()) or getattr(command, "names", ()))


# -- what drivers say --------------------------------------------------------------------------------------------------


def settle(state: State, command: cmd.SettleIntents) -> Checked:
    """The events of a driver's report. Changes of settled intents are passed over: a driver may repeat itself."""
    events: list[ev.AnyEvent] = []
    numbers: list[str] = []
    for change in command.changes:
        intent = state.intents.open.get(change.number)
        told = ("phase", "job", "submit_s", "text", "boot", "before")
        same = intent is not None and all(getattr(change, name) == getattr(intent, name) for name in told)
        if intent is None or same:
            continue
        numbers.append(f"i{change.number}")
        if change.phase == Phase.OPEN:
            events.append(ev.IntentReopened(change.number, change.text))
        elif change.phase == Phase.SENT:
            events.append(ev.IntentSent(change.number))
        elif change.phase == Phase.ACCEPTED:
            known = (change.job, change.submit_s, change.text, change.boot, change.before)
            events.append(ev.IntentAccepted(change.number, *known))
        else:
            events.append(ev.IntentSettled(change.number, change.phase, change.text))
    return events, tuple(numbers)


# -- what events change -----------------------------------------------------------------------------------------------


def intended(state: State, event: ev.Intended) -> None:
    intents = state.intents
    intents.issued = event.number + 1
    # A token is given once: where it is known it is carried again.
    tries = repeats_of(state, event.token) if event.token in intents.named else 0
    intent = Intent(event.number, event.token, state.now_ms, event.command, changed_ms=state.now_ms, tries=tries)
    intents.open[event.number] = intent
    command = wanted(intent)
    if isinstance(command, cmd.Submit):
        for spec in command.workloads:
            intents.named[event.token] = spec.id
            intents.ids.add(spec.id)
    if event.number % SWEEP_EVERY == 0:
        _forget_ended(state)


def _forget_ended(state: State) -> None:
    """Tokens of workloads that ended long ago. By the state alone, so that a replay forgets the same."""
    intents, w = state.intents, state.workloads
    ended = view(w.ended)
    lately = (ended < 0) | (ended >= state.now_ms - NAMED_KEPT_MS)
    arrays = set(np.unique(view(w.array)[lately]).tolist())
    for token, name in list(intents.named.items()):
        row, array = w.row_of.get(name), w.array_names.index.get(name)
        # One that was not observed yet has neither.
        if (row is not None and not lately[row]) or (array is not None and array not in arrays):
            intents.ids.discard(intents.named.pop(token))


def sent(state: State, event: ev.IntentSent) -> None:
    _replace(state, event.number, phase=Phase.SENT)


def accepted(state: State, event: ev.IntentAccepted) -> None:
    _replace(
        state, event.number, phase=Phase.ACCEPTED, job=event.job, submit_s=event.submit_s, text=event.text,
        boot=event.boot, before=event.before,
    )  # fmt: skip


def reopened(state: State, event: ev.IntentReopened) -> None:
    intent = state.intents.open[event.number]
    _replace(
        state, event.number, phase=Phase.OPEN, job=0, submit_s=0, text=event.text,
        tries=intent.tries + 1,
    )  # fmt: skip


def settled(state: State, event: ev.IntentSettled) -> None:
    intents = state.intents
    _replace(state, event.number, phase=event.phase, text=event.text)
    intent = intents.open.pop(event.number)
    intents.ended.append(intent)
    intents.doubts += intent.phase == Phase.IN_DOUBT
    while len(intents.ended) - intents.doubts > ENDED_KEPT:
        del intents.ended[next(at for at, each in enumerate(intents.ended) if each.phase != Phase.IN_DOUBT)]
    if intents.doubts > DOUBTS_KEPT:
        del intents.ended[next(at for at, each in enumerate(intents.ended) if each.phase == Phase.IN_DOUBT)]
        intents.doubts -= 1
    if event.phase in (Phase.REFUSED, Phase.EXPIRED):
        intents.free(intent.token)


def _replace(state: State, number: int, **changed: Any) -> None:
    intents = state.intents
    intents.open[number] = replaced(intents.open[number], state.now_ms, **changed)


def replaced(intent: Intent, now_ms: int, **changed: Any) -> Intent:
    """The intent with the new statement among its words."""
    new = msgspec.structs.replace(intent, changed_ms=now_ms, **changed)
    words = (*intent.words, IntentStatement(now_ms, new.phase, new.text))[-WORDS_KEPT:]
    return msgspec.structs.replace(new, words=words)


def repeats_of(state: State, token: str) -> int:
    """The number of earlier carries of a submission, by its token."""
    return max((intent.tries + 1 for intent in state.intents.ended if intent.token == token), default=0)


def in_doubt(state: State, number: int) -> Intent:
    """The intent, if it waits for a person. Raises NotFoundError, and RefusedError for one that does not."""
    intent = state.intents.known(number)
    if intent is None:
        raise NotFoundError(
            f"there is no intent i{number}", "The last 500 that were settled are kept: muster intent list"
        )
    phase = Phase(intent.phase)
    if phase != Phase.IN_DOUBT:
        why = "it is settled" if phase.settled else "it is in progress, and Muster will find out the result"
        raise RefusedError(f"i{number} is {phase.label}: {why}", "Only an intent in doubt can be settled")
    return intent


def answer(state: State, command: cmd.AnswerIntent) -> Checked:
    """Raises NotFoundError and RefusedError."""
    intent = in_doubt(state, command.number)
    changed = (f"i{command.number}",)
    if command.outcome == "done":
        return [ev.IntentAnswered(command.number, Phase.DONE, f"{command.by} says that it is done")], changed
    if command.outcome == "undone":
        return [ev.IntentAnswered(command.number, Phase.UNDONE, f"{command.by} says that it is not done")], changed
    submission = wanted(intent)
    if not isinstance(submission, cmd.Submit):
        raise RefusedError(
            f"i{command.number} is an action, approved for the state at that time",
            f"Propose it again: muster intent retry i{command.number} does that",
        )
    name = submission.workloads[0].id
    if name in state.intents.ids and state.intents.named.get(intent.token) != name:
        raise RefusedError(
            f"'{name}' is now another workload", f"Submit it under a name of its own; i{command.number}: settle it"
        )
    again = state.intents.issued
    told = f"{command.by} sent it again, as i{again}"
    return [
        ev.IntentAnswered(command.number, Phase.RETRIED, told),
        ev.Intended(again, intent.token, intent.command),
    ], (*changed, f"i{again}")


def answered_by(state: State, number: int, command: bytes) -> list[ev.AnyEvent]:
    """The same act is wanted again, as intent `number`: whether it happened the first time no longer matters."""
    told = f"requested again, as i{number}"
    return [
        ev.IntentAnswered(intent.number, Phase.RETRIED, told)
        for intent in state.intents.ended
        if intent.phase == Phase.IN_DOUBT and intent.command == command
    ]


def answered(state: State, event: ev.IntentAnswered) -> None:
    intents = state.intents
    at = next((at for at, intent in enumerate(intents.ended) if intent.number == event.number), None)
    if at is None:
        return  # a snapshot of a release that dropped doubts is without it, though a replay of all had it
    intents.doubts -= intents.ended[at].phase == Phase.IN_DOUBT
    intent = intents.ended[at] = replaced(intents.ended[at], state.now_ms, phase=event.phase, text=event.text)
    if event.phase == Phase.UNDONE:
        intents.free(intent.token)
