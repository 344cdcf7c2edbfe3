"""Hand-over and incident summary: sentences made from facts, each citing the facts that it rests on.

Nothing is looked up here and nothing is concluded. An absence is stated only as a count of zero. The most urgent
sentence comes first under each heading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from engine.model.quantities import utc
from runbooks.drafts.model_answer import HEADINGS
from runbooks.drafts.typed_draft import Brief, Draft, Fact, Part, Sentence, Span
from runbooks.drafts.vocabulary import ACTED_ON, METRICS, lasting, with_unit

SOON_MS = 12 * 3_600_000
"""What ends or begins within that time is said to be about to."""
DAY_MS = 24 * 3_600_000


class HandoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """A hand-over or a summary: title, summary and parts."""

    title: str
    summary: tuple[Sentence, ...]
    """In a sentence or two."""
    parts: tuple[Part, ...]


def report_of(brief: Brief) -> HandoverReport:
    """The report for the tasks `handover` and `incident`, from the facts of `runbooks.drafts.shift_facts` and
    `runbooks.drafts.facts`."""
    told = ShiftFacts(brief)
    handover = brief.task == "handover"
    happened, second, third, fourth = HEADINGS["handover" if handover else "incident"]
    listed: tuple[tuple[str, Iterable[Sentence]], ...]
    if handover:
        listed = (
            (happened, (*told.done(), *told.events())), (second, told.open()), (third, told.waiting()),
            (fourth, told.ahead()),
        )  # fmt: skip
    else:
        listed = (
            (happened, told.course()), (second, told.affected()), (third, told.done()),
            (fourth, (*told.waiting(), *told.open())),
        )  # fmt: skip
    parts = tuple(Part(heading=heading, sentences=made) for heading, of in listed if (made := _each_once(of)))
    return HandoverReport(title=told.title(handover), summary=_each_once(told.summary()), parts=parts)


def draft_of(brief: Brief) -> Draft:
    """The report as a draft by rule, with the facts that it cites."""
    report = report_of(brief)
    said_ = (*report.summary, *(sentence for part in report.parts for sentence in part.sentences))
    cited = {id_ for sentence in said_ for id_ in sentence.cites}
    return Draft(
        drafter="rule", task=brief.task, title=report.title, summary=report.summary, parts=report.parts,
        facts=tuple(fact for fact in brief.facts if fact.id in cited), kind=brief.task, version=brief.version,
    )  # fmt: skip


def _each_once(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
    return tuple({sentence.text: sentence for sentence in sentences}.values())


class ShiftFacts:
    """The facts of a brief by metric and subject, and what they come to in words."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._by: dict[str, dict[str, list[Fact]]] = {}
        for fact in brief.facts:
            self._by.setdefault(fact.metric, {}).setdefault(fact.subject, []).append(fact)

    # -- finding facts ------------------------------------------------------------------------------------------------

    def one(self, metric: str, subject: str = "") -> Fact | None:
        found = self._by.get(metric, {}).get(subject)
        return found[0] if found else None

    def all(self, metric: str, subject: str = "") -> list[Fact]:
        return self._by.get(metric, {}).get(subject, [])

    def subjects(self, metric: str) -> tuple[str, ...]:
        return tuple(self._by.get(metric, {}))

    def count(self, metric: str, subject: str = "") -> int:
        fact = self.one(metric, subject)
        return fact.value if fact is not None and isinstance(fact.value, int) else 0

    def when(self, at_ms: int) -> str:
        """A time as people of the same day write it."""
        text = utc(at_ms)
        same_day = abs(at_ms - self._brief.now_ms) < DAY_MS and text[:10] == utc(self._brief.now_ms)[:10]
        return f"{text[11:16]} UTC" if same_day else f"{text[:16]} UTC"

    # -- what was done ------------------------------------------------------------------------------------------------

    def title(self, handover: bool) -> str:
        since = self.one("shift_since")
        what = "Hand-over" if handover else "Incident"
        return f"{what}: {self._brief.cell}, since {self.when(int(since.value))}" if since is not None else what

    def summary(self) -> Iterator[Sentence]:
        proposed, verified = self.one("shift_proposed"), self.one("shift_verified")
        lost, failed = self.one("shift_nodes_lost"), self.one("shift_work_failed")
        if proposed is not None and verified is not None and lost is not None:
            bad = [fact for metric in _BAD if (fact := self.one(metric)) is not None and fact.value]
            if not any(fact.value for fact in (proposed, verified, lost, *bad)):
                yield _say("Nothing was proposed or executed, and no node was lost.", proposed, verified, lost)
            else:
                words = [f"{_of(proposed, 'plan')} proposed", f"{verified.value:,} executed and verified"]
                words += [f"{fact.value:,} {fact.metric.removeprefix('shift_').replace('_', ' ')}" for fact in bad]
                words.append(f"{_of(lost, 'loss', 'losses')} of nodes" if lost.value else "no node lost")
                yield _say(f"{_listed(words)}.", proposed, verified, *bad, lost)
        waits, oldest = self.one("cell_waiting"), self.one("cell_oldest_wait_s")
        runs = self.one("cell_running")
        if waits is not None and runs is not None:
            longest = f", the longest for {with_unit(oldest.value, 'seconds')}" if oldest is not None else ""
            yield _say(f"Now {_of(runs, 'workload runs', 'workloads run')} and {waits.value:,} wait{longest}.",
                       runs, waits, oldest)  # fmt: skip
        if failed is not None and failed.value:
            yield _say(f"{_of(failed, 'workload')} failed.", failed)

    def done(self) -> Iterator[Sentence]:
        """Incidents and plans that have ended: what, by whom, and how that went."""
        yield from self._incidents("closed")
        for id_ in self._plans(*_ENDED):
            yield self._ended(id_)
        proposed, verified = self.one("shift_proposed"), self.one("shift_verified")
        if not self._plans(*_ENDED) and verified is not None and not verified.value and proposed is not None:
            yield _say("No plan was executed." if proposed.value else "Nothing was proposed or executed.",
                       proposed, verified)  # fmt: skip

    def _plans(self, *states: str) -> tuple[str, ...]:
        kept = [id_ for id_ in self.subjects("proposal_state") if (fact := self.one("proposal_state", id_))
                and fact.value in states]  # fmt: skip
        never = 2**62

        def order(id_: str) -> tuple[int, int, str]:
            """Begun plans in their order; others by expiry."""
            return self.count("proposal_executed", id_) or never, self.count("proposal_expires", id_) or never, id_

        return tuple(sorted(kept, key=order))

    def _named(self, id_: str) -> tuple[str, list[Fact | None]]:
        """A plan by its name and what it is, with what that rests on."""
        title, state = self.one("proposal_title", id_), self.one("proposal_state", id_)
        on = [fact for kind in ACTED_ON for fact in self.all(f"proposal_on_{kind}", id_)]
        names = [str(fact.value) for fact in on]
        if title is None:
            return id_, [state]
        missing = [name for name in names if name not in str(title.value)][:5]
        why = self.one("proposal_reason", id_)
        text = f"{id_} ({title.value}{': ' if missing else ''}{', '.join(missing)})"
        return f"{text} because: {why.value}" if why is not None else text, [state, title, *on[:5], why]

    def _by_whom(self, id_: str) -> tuple[str, list[Fact | None]]:
        author, requester = self.one("proposal_author", id_), self.one("proposal_requester", id_)
        yes = self.all("proposal_approver", id_)
        words = [f"proposed by {_who(author)}" if author is not None else ""]
        words.append(f"for {_who(requester)}" if requester is not None else "")
        approved = f"approved by {_listed([_who(fact) for fact in yes])}" if yes else ""
        glass, breaker = self.one("proposal_breakglass", id_), self.one("proposal_broken_by", id_)
        broke = "its votes skipped by break-glass" if glass is not None else ""
        broke += f" of {_who(breaker)}" if glass is not None and breaker is not None else ""
        text = ", ".join(part for part in (" ".join(word for word in words if word), approved, broke) if part)
        return text, [author, requester, *yes, glass, breaker]

    def _ended(self, id_: str) -> Sentence:
        named, cites = self._named(id_)
        by, more = self._by_whom(id_)
        state = self.one("proposal_state", id_)
        began = self.one("proposal_executed", id_)
        at = f", started at {self.when(int(began.value))}" if began is not None else ""
        checks, note = self.one("proposal_checks", id_), self.one("proposal_note", id_)
        how = _HOW[str(state.value)] if state is not None else ""
        tail: list[Fact | None] = []
        if state is not None and state.value == "verified" and checks is not None:
            how += f" ({_of(checks, 'thing')} read back)"
            tail.append(checks)
        against = self.all("proposal_rejecter", id_)
        if against:
            how += f" by {_listed([_who(fact) for fact in against])}"
        elif note is not None and not tail:
            how += f": {note.value}"
            tail.append(note)
        return _say(f"{named}: {by}{at}; {how}.", *cites, *more, began, *tail, *against)

    # -- what happened ------------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Sentence]:
        yield from self._downtimes()
        yield from self._nodes_lost()
        yield from self._work()
        yield from self._rules()
        for metric, text in (
            ("shift_refused_votes", "{} did not count"), ("shift_refused_logins", "{} had a false sender"),
            ("shift_messages_failed", "{} could not be delivered"),
        ):  # fmt: skip
            fact, nouns = self.one(metric), _NOUNS[metric]
            if fact is not None:
                yield _say(f"{text.format(_of(fact, *nouns))}.", fact)

    def _downtimes(self) -> Iterator[Sentence]:
        for began, ended in zip(self.all("downtime_began"), self.all("downtime_ended"), strict=True):
            times = f"from {self.when(int(began.value))} to {self.when(int(ended.value))}"
            yield _say(f"No engine ran {times}: nothing was scheduled.", began, ended)

    def _nodes_lost(self) -> Iterator[Sentence]:
        lost = self.one("shift_nodes_lost")
        for id_ in self.subjects("node_lost_at"):
            at, now = self.one("node_lost_at", id_), self.one("node_state", id_)
            if at is not None:
                state = f"; it is {now.value} now" if now is not None else ""
                yield _say(f"Node {id_} was lost at {self.when(int(at.value))}{state}.", at, now)
        shown = len(self.subjects("node_lost_at"))
        if lost is not None and isinstance(lost.value, int) and lost.value > shown > 0:
            yield _say(f"Nodes were lost {lost.value:,} times in all.", lost)
        if lost is not None and lost.value == 0:
            yield _say("No node was lost.", lost)

    def _work(self) -> Iterator[Sentence]:
        started, finished = self.one("shift_started"), self.one("shift_finished")
        failed, cancelled = self.one("shift_work_failed"), self.one("shift_work_cancelled")
        if started is not None and finished is not None:
            yield _say(f"{_of(started, 'workload')} started and {finished.value:,} finished.", started, finished)
        queues = [fact for id_ in self.subjects("queue_failed") for fact in self.all("queue_failed", id_)]
        if failed is not None and failed.value:
            most = f", most of them in queue {queues[0].subject} ({queues[0].value:,})" if queues else ""
            yield _say(f"{_of(failed, 'workload')} failed{most}.", failed, *queues[:1])
        if cancelled is not None and cancelled.value:
            yield _say(f"{_of(cancelled, 'workload')} {_was(cancelled)} cancelled.", cancelled)
        before, use = self.one("shift_use_before_permille"), self.one("shift_use_permille")
        queued, now = self.one("shift_waiting_before"), self.one("cell_waiting")
        if before is not None and use is not None and queued is not None and now is not None:
            yield _say(
                f"At the start {with_unit(before.value, 'permille')} of the capacity was in use and "
                f"{queued.value:,} waited; now it is {with_unit(use.value, 'permille')} and {now.value:,}.",
                before, use, queued, now,
            )  # fmt: skip

    def _rules(self) -> Iterator[Sentence]:
        for kind, verb, what in (
            ("policy", "changed", "put in force"), ("freeze", "set", "set"), ("freeze", "ended", "ended"),
        ):  # fmt: skip
            for id_ in self.subjects(f"{kind}_{verb}"):
                at, by = self.one(f"{kind}_{verb}", id_), self.one(f"{kind}_{verb}_by", id_)
                if at is not None and by is not None:
                    name = "The approval policy" if kind == "policy" else f"Freeze {id_}"
                    which = f" ({id_})" if kind == "policy" else ""
                    yield _say(f"{name}{which} was {what} by {_who(by)} at {self.when(int(at.value))}.", at, by)
        for deed in ("approved", "retired"):
            for id_ in self.subjects(f"runbook_{deed}_by"):
                by = self.one(f"runbook_{deed}_by", id_)
                if by is not None:
                    yield _say(f"Runbook {id_} was {deed} by {_who(by)}.", by)

    def course(self) -> Iterator[Sentence]:
        """Events with a time in their order; then the rest."""
        began = [int(fact.value) for fact in self.all("downtime_began")]
        timed = [(at_ms, "", said_) for at_ms, said_ in zip(began, self._downtimes(), strict=True)]
        for id_ in self.subjects("node_lost_at"):
            at, now = self.one("node_lost_at", id_), self.one("node_state", id_)
            if at is not None:
                state = f"; it is {now.value} now" if now is not None else ""
                said_ = _say(f"{self.when(int(at.value))}: node {id_} was lost{state}.", at, now)
                timed.append((int(at.value), id_, said_))
        for id_ in self.subjects("proposal_executed"):
            at = self.one("proposal_executed", id_)
            named, cites = self._named(id_)
            if at is not None:
                timed.append((int(at.value), id_, _say(f"{self.when(int(at.value))}: {named} started.", at, *cites)))
        for id_ in self.subjects("freeze_set"):
            at, by = self.one("freeze_set", id_), self.one("freeze_set_by", id_)
            if at is not None and by is not None:
                text = f"{self.when(int(at.value))}: freeze {id_} was set by {_who(by)}."
                timed.append((int(at.value), id_, _say(text, at, by)))
        yield from (sentence for _, _, sentence in sorted(timed, key=lambda one: one[:2]))
        if not timed:
            lost, verified = self.one("shift_nodes_lost"), self.one("shift_verified")
            if lost is not None and verified is not None and not lost.value and not verified.value:
                yield _say("No node was lost and no plan was executed.", lost, verified)
        yield from self._work()
        yield from self._clocks()

    def affected(self) -> Iterator[Sentence]:
        yield from self._waits()
        for id_ in self.subjects("queue_failed"):
            fact = self.one("queue_failed", id_)
            if fact is not None:
                yield _say(f"{_of(fact, 'workload')} of queue {id_} failed.", fact)
        for pool in self.subjects("pool_nodes"):
            yield from self._pool(pool)

    def _waits(self) -> Iterator[Sentence]:
        waits, oldest = self.one("cell_waiting"), self.one("cell_oldest_wait_s")
        which = self.one("cell_oldest_waiting")
        if waits is not None and waits.value and oldest is not None and which is not None:
            yield _say(f"{_of(waits, 'workload waits', 'workloads wait')}; the longest, {which.value}, for "
                       f"{with_unit(oldest.value, 'seconds')}.", waits, oldest, which)  # fmt: skip
        elif waits is not None and not waits.value:
            yield _say("Nothing waits.", waits)
        for metric in self._by:
            if metric.startswith("cell_waiting_") and self.count(metric):
                fact = self.one(metric)
                assert fact is not None
                token = METRICS[metric].says.rsplit(" ", 1)[1]
                yield _say(f"{fact.value:,} of them for the reason {token}.", fact)
        for queue in self.subjects("queue_oldest_wait_s"):
            queued, wait = self.one("queue_waiting", queue), self.one("queue_oldest_wait_s", queue)
            if queued is not None and queued.value and wait is not None:
                yield _say(f"Queue {queue}: {queued.value:,} wait, the oldest for {with_unit(wait.value, 'seconds')}.",
                           queued, wait)  # fmt: skip

    def _pool(self, pool: str) -> Iterator[Sentence]:
        nodes, ready = self.one("pool_nodes", pool), self.one("pool_ready", pool)
        if nodes is not None and ready is not None and nodes.value != ready.value:
            odd = [fact for metric in _ODD if (fact := self.one(f"pool_{metric}", pool)) is not None]
            words = [f"{fact.value:,} {fact.metric.removeprefix('pool_')}" for fact in odd]
            yield _say(f"Pool {pool}: {ready.value:,} of {nodes.value:,} nodes take work"
                       f"{f' ({_listed(words)})' if words else ''}.", ready, nodes, *odd)  # fmt: skip

    # -- what is open -------------------------------------------------------------------------------------------------

    def open(self) -> Iterator[Sentence]:
        yield from self._incidents("open", "claimed")
        for id_ in self._plans("rollback_failed", "paused", "executing", "verifying", "rolling_back"):
            yield self._under_way(id_)
        trouble = self.one("audit_trouble")
        if trouble is not None:
            yield _say(f"The audit has a problem: {trouble.value}.", trouble)
        for id_ in self.subjects("node_state"):
            yield from self._node(id_)
        for pool in self.subjects("pool_nodes"):
            yield from self._pool(pool)
        for queue in self.subjects("queue_mode"):
            mode, queued = self.one("queue_mode", queue), self.one("queue_waiting", queue)
            if mode is not None and mode.value != "open":
                there = f"; {_of(queued, 'workload waits', 'workloads wait')} there" if queued is not None else ""
                plan, by = self._made_so("queue", queue, ("hold_queue", "drain_queue"))
                yield _say(f"Queue {queue} is {mode.value}{by}{there}.", mode, plan, queued)
        for name in self.subjects("freeze_holds"):
            yield from self._freeze(name, "yes")
        for budget in self.subjects("budget_stage"):
            yield from self._budget(budget)
        for pool in self.subjects("pool_backed_off"):
            until, failures = self.one("pool_backed_off", pool), self.one("pool_failures", pool)
            if until is not None:
                times = f" after {_of(failures, 'failure')} to deliver" if failures is not None else ""
                yield _say(
                    f"Pool {pool} is not asked for nodes until {self.when(int(until.value))}{times}.", until, failures
                )

    def _incidents(self, *states: str) -> Iterator[Sentence]:
        """Incidents in these states: since when, and who has them."""
        for id_ in self.subjects("incident_state"):
            state, since = self.one("incident_state", id_), self.one("incident_since", id_)
            title, owner = self.one("incident_title", id_), self.one("incident_owner", id_)
            severity, opened = self.one("incident_severity", id_), self.one("incident_opened", id_)
            if state is None or since is None or title is None or opened is None or state.value not in states:
                continue
            ended, began = self.when(int(since.value)), self.when(int(opened.value))
            how = f"has been open since {began}"
            if state.value == "closed":
                how = f"was closed at {ended}"
            elif state.value == "resolved":
                how = f"has been resolved since {ended} and is not closed"
            whose = f"; claimed by {_who(owner)}" if owner is not None else "; claimed by nobody"
            grave = f" ({severity.value})" if severity is not None else ""
            text = f"Incident {id_}{grave} {how}{whose}: {str(title.value).rstrip('.')}."
            yield _say(text, state, severity, since, opened, owner, title)

    def _made_so(self, kind: str, name: str, actions: tuple[str, ...]) -> tuple[Fact | None, str]:
        """The last plan of this shift that left an object as it is, where there is one."""
        for id_ in reversed(self._plans("verified")):
            on = next((fact for fact in self.all(f"proposal_on_{kind}", id_) if fact.value == name), None)
            if on is not None and any(fact.value in actions for fact in self.all("proposal_action", id_)):
                return on, f" by {id_}"
        return None, ""

    def _under_way(self, id_: str) -> Sentence:
        named, cites = self._named(id_)
        by, more = self._by_whom(id_)
        state, note = self.one("proposal_state", id_), self.one("proposal_note", id_)
        steps, done = self.one("proposal_steps", id_), self.one("proposal_steps_done", id_)
        how = str(state.value).replace("_", " ") if state is not None else ""
        if steps is not None and done is not None:
            how += f" after {done.value} of {_of(steps, 'step')}"
        why = f": {note.value}" if note is not None else ""
        return _say(f"{named}: {by}; {how}{why}.", *cites, *more, steps, done, note)

    def _node(self, id_: str) -> Iterator[Sentence]:
        state, since = self.one("node_state", id_), self.one("node_since_s", id_)
        work, note = self.one("node_workloads", id_), self.one("node_note", id_)
        if state is None or state.value in ("ready", "booting"):
            return
        for_ = f" for {with_unit(since.value, 'seconds')}" if since is not None else ""
        there = f"; {_of(work, 'workload is', 'workloads are')} on it" if work is not None and work.value else ""
        why = f" ({note.value})" if note is not None else ""
        how = "silent" if state.value == "suspect" else state.value
        plan, by = self._made_so("node", id_, ("cordon", "drain"))
        yield _say(f"Node {id_} has been {how}{for_}{by}{why}{there}.", state, since, plan, note, work)

    def _freeze(self, name: str, holds: str) -> Iterator[Sentence]:
        now, text = self.one("freeze_holds", name), self.one("freeze_text", name)
        until = self.one("freeze_until", name)
        if now is not None and now.value == holds:
            what = f": {text.value}" if text is not None else ""
            verb = "stops plans now" if holds == "yes" else "is set, not in effect now"
            yield _say(f"Freeze {name} {verb}{what}.", now, text, until)

    def _budget(self, name: str) -> Iterator[Sentence]:
        stage, spent = self.one("budget_stage", name), self.one("budget_spent_microusd", name)
        limit, waiting = self.one("budget_limit_microusd", name), self.one("budget_waiting", name)
        end = self.one("budget_end", name)
        if stage is not None and stage.value != "open" and spent is not None and limit is not None:
            held = ""
            if waiting is not None and waiting.value:
                held = f"; {_of(waiting, 'workload waits', 'workloads wait')} for it"
            until = f", until {self.when(int(end.value))}" if end is not None else ""
            how = "is spent" if stage.value == "spent" else "runs out"
            spent_of = f"{with_unit(spent.value, 'microusd')} of {with_unit(limit.value, 'microusd')}"
            yield _say(f"Budget {name} {how}: {spent_of}{until}{held}.", stage, spent, limit, end, waiting)  # fmt: skip

    # -- what waits for somebody --------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[Sentence]:
        yield from self._incidents("resolved")
        for id_ in self.subjects("review_opened"):
            forced, about = self.one("review_forced", id_), self.one("review_by", id_)
            opened, text = self.one("review_opened", id_), self.one("review_text", id_)
            if opened is not None and about is not None and text is not None:
                who = f", which {_who(about)} did; somebody else must close it" if self._is(forced, "yes") else ""
                since = self.when(int(opened.value))
                yield _say(f"Review {id_} open since {since}: {text.value}{who}.", opened, text, about, forced)
        for id_ in self._plans("awaiting", "approved"):
            yield self._waits_for(id_)
        for id_ in self.subjects("policy_needs"):
            needs, until = self.one("policy_needs", id_), self.one("policy_expires", id_)
            if needs is not None and until is not None:
                yield _say(f"{id_} lacks {_of(needs, 'vote')} and expires at {self.when(int(until.value))}.",
                           needs, until)  # fmt: skip

    def _waits_for(self, id_: str) -> Sentence:
        named, cites = self._named(id_)
        by, more = self._by_whom(id_)
        needs, whose = self.one("proposal_needs", id_), self.one("proposal_waits_for", id_)
        until = self.one("proposal_expires", id_)
        if self._is(self.one("proposal_state", id_), "approved"):
            what = "approved and not executed yet"
        else:
            of = f" ({whose.value})" if whose is not None else ""
            what = f"lacks {_of(needs, 'vote')}{of}" if needs is not None else "waits for votes"
        ends = f" and expires at {self.when(int(until.value))}" if until is not None else ""
        return _say(f"{named}: {by}; {what}{ends}.", *cites, *more, needs, whose, until)

    @staticmethod
    def _is(fact: Fact | None, value: str) -> bool:
        return fact is not None and fact.value == value

    # -- what to watch ------------------------------------------------------------------------------------------------

    def ahead(self) -> Iterator[Sentence]:
        """Sentences about what ends soon, what was found, and what waits."""
        for _, sentence in sorted(self._soon(), key=lambda one: (one[0], one[1].text)):
            yield sentence
        for id_ in self.subjects("finding_text"):
            text, action = self.one("finding_text", id_), self.one("finding_action", id_)
            if text is not None:
                words = f" It suggests: {str(action.value).replace('_', ' ')}." if action is not None else ""
                yield _say(f"{id_}: {str(text.value).rstrip('.')}.{words}", text, action)
        yield from self._waits()
        for name in self.subjects("freeze_holds"):
            yield from self._freeze(name, "no")
        yield from self._clocks()

    def _clocks(self) -> Iterator[Sentence]:
        apart = self.one("shift_wall_apart_s")
        if apart is not None and isinstance(apart.value, int):
            yield _say(f"The cell's clock and the wall clock are {lasting(apart.value)} apart: times of plans and "
                       "votes are of the wall clock, those of nodes and work of the cell's.", apart)  # fmt: skip

    def _soon(self) -> Iterator[tuple[int, Sentence]]:
        for metric, text in _ENDS.items():
            for subject in self.subjects(metric):
                at = self.one(metric, subject)
                if at is not None and isinstance(at.value, int) and 0 <= at.value - self._brief.now_ms <= SOON_MS:
                    work = self.one("node_workloads", subject) if metric == "node_ends" else None
                    there = f", with {_of(work, 'workload')} on it" if work is not None and work.value else ""
                    yield at.value, _say(f"{text.format(subject)} at {self.when(at.value)}{there}.", at, work)


_ENDED = ("verified", "failed", "rolled_back", "rejected", "expired", "cancelled", "superseded", "stale", "denied")
_HOW = {
    "verified": "executed and verified", "failed": "it failed", "rolled_back": "executed and rolled back",
    "rejected": "rejected", "expired": "expired without enough votes", "cancelled": "withdrawn",
    "superseded": "replaced by another", "stale": "stale: the cell changed before it ran", "denied": "denied",
}  # fmt: skip
_BAD = ("shift_failed", "shift_rolled_back", "shift_rollback_failed", "shift_rejected", "shift_expired")
_ODD = ("suspect", "down", "draining", "cordoned", "booting")
_NOUNS = {
    "shift_refused_votes": ("vote",), "shift_refused_logins": ("request",), "shift_messages_failed": ("message",),
}  # fmt: skip
_ENDS = {
    "node_ends": "The provider reclaims node {}",
    "reservation_start": "Reservation {} begins",
    "reservation_end": "Reservation {} ends",
    "freeze_until": "Freeze {} ends",
    "budget_gone": "Budget {} is spent, at the current rate,",
    "budget_end": "The window of budget {} ends",
    "workload_deadline": "Workload {} should have ended",
}


def _say(text: str, *cites: Fact | None) -> Sentence:
    ids = dict.fromkeys(fact.id for fact in cites if fact is not None)
    return Sentence(spans=(Span(text=text),), cites=tuple(ids))


def _of(fact: Fact, one: str, many: str = "") -> str:
    """As in "1 vote", "2 votes"."""
    return f"{fact.value:,} {one if fact.value == 1 else many or one + 's'}"


def _who(fact: Fact) -> str:
    """A person as colleagues call them."""
    return str(fact.value).removeprefix("person:")


def _was(fact: Fact) -> str:
    return "was" if fact.value == 1 else "were"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
