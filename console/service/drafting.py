"""Drafts beside a live engine: requests, the rules' answer and the model's side by side, and proposals made of them.

Requests are brought within bounds (`tidied`), and the objects they point at are looked up in the cell. Lives in the
engine's process and only reads the engine; long work is done by a few threads of its own. A draft never proposes
itself: `propose` does when a person asks, and the result is an ordinary proposal.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError, nearest
from engine.model.list_queries import Kind, Query
from engine.model.specs import HOUR_MS
from runbooks.drafts.facts import gather
from runbooks.drafts.rule_drafter import Preview, RuleDrafter
from runbooks.drafts.shift_facts import shift_facts
from runbooks.drafts.store import DraftStore
from runbooks.drafts.typed_draft import (
    MAX_EXCERPTS,
    MAX_QUESTION,
    Brief,
    Draft,
    DraftAsk,
    Drafter,
    DraftRejected,
    DraftRun,
    Excerpt,
    Fact,
    ModelStanding,
    Observation,
    Phase,
    Record,
    ReportedFinding,
    Thinking,
)
from runbooks.gate.approval_policy import may
from runbooks.gate.composition import Composed
from runbooks.models.drafter import MODEL, ModelDrafter, ModelSetup
from runbooks.plans.identity import TCP, Actor
from runbooks.plans.incidents import Incident, ObjectKind
from runbooks.plans.typed_plan import (
    ENDED,
    MAX_COMMENT,
    MAX_PERSON,
    EvidenceRef,
    Proposal,
    Request,
    RunbookRef,
    Source,
    check_line,
)
from runbooks.procedures.registry import RunbookRegistry
from runbooks.untrusted.stranger_texts import MARGIN, MARKER, applied, says_secret, secrets_in, visible

if TYPE_CHECKING:
    from console.service.recommendations import Recommender
    from engine.control import Engine
    from engine.loop import EngineLoop
    from recommender.findings.suggestions import Suggestion
    from runbooks.gate.approval_gate import Gate


MAX_TEXTS_OF = 8
MAX_NAMES = 10_000
"""Queues, or pools, among which a name is looked for."""
MAX_MISSPELT = 64
"""Longest name whose one-letter variants are looked up."""
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz-./_"
MAX_ID = 300
KEPT_TEXT = 200
"""Characters of a text of strangers that stay with the request: fifty requests may each come with megabytes."""


def tidied(ask: DraftAsk) -> tuple[DraftAsk, tuple[str, ...]]:
    """The request within its bounds, and what was left out of it."""
    notes: list[str] = []
    question = " ".join(_whole(ask.question).split())
    if len(question) > MAX_QUESTION:
        notes.append(f"the question has {len(question):,} characters; only the first {MAX_QUESTION:,} are read")
        question = question[:MAX_QUESTION]
    if not question and not ask.finding and ask.task in ("act", "explain", "runbook") and not ask.runbook:
        notes.append("no question given; the draft is about the main findings in the cell")
    excerpts = tuple(
        Excerpt(field=_whole(one.field[:MAX_ID]), text=_whole(one.text)) for one in ask.excerpts[:MAX_EXCERPTS]
    )
    texts = tuple(_whole(one[:MAX_ID]) for one in ask.texts_of[:MAX_TEXTS_OF])
    if len(excerpts) < len(ask.excerpts) or len(texts) < len(ask.texts_of):
        given = len(ask.excerpts) + len(ask.texts_of)
        notes.append(f"{given} texts were given; only the first {MAX_EXCERPTS} of each kind are read")
    finding = _whole(ask.finding).strip()
    if len(finding) > MAX_ID:
        notes.append(f"the finding's id has {len(finding):,} characters, more than any id has")
        finding = ""
    since_ms = max(0, ask.since_ms)
    ask = msgspec.structs.replace(
        ask, question=question, finding=finding, excerpts=excerpts, texts_of=texts, since_ms=since_ms,
        pick=_whole(ask.pick[:MAX_ID]).strip(), runbook=_whole(ask.runbook[:MAX_ID]),
    )  # fmt: skip
    return ask, tuple(notes)


def _whole(text: str) -> str:
    """The text without halves of characters, which no file, socket or record takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def shortened(ask: DraftAsk) -> DraftAsk:
    """The request as it stays with the run, which everybody may read: with secrets removed."""
    excerpts = tuple(
        Excerpt(
            field=_without_secrets(one.field, KEPT_TEXT),
            text=MARKER if says_secret(one.field) else _without_secrets(one.text, KEPT_TEXT),
        )
        for one in ask.excerpts
    )
    return msgspec.structs.replace(ask, question=_without_secrets(ask.question, MAX_QUESTION), excerpts=excerpts)


def _without_secrets(text: str, most: int) -> str:
    """Beginning of a text without secrets; one that crosses the cut is recognised whole."""
    shown = visible(text[: most + MARGIN])
    found = secrets_in(shown, personal=False)
    return applied(shown, found, upto=most) if found else text[:most]


def finding_of(suggestion: Suggestion) -> ReportedFinding:
    """A finding of the recommender as the drafters know it."""
    return ReportedFinding(
        id=suggestion.id,
        kind=suggestion.kind,
        text=suggestion.finding,
        about=suggestion.about or (suggestion.targets[0] if suggestion.targets else ""),
        targets=suggestion.targets,
        action=suggestion.action,
        parameters=suggestion.parameters,
        observed=tuple(
            Observation(metric=seen.metric, window=seen.window, value=seen.value) for seen in suggestion.evidence
        ),
    )


def finding_about(engine: Engine, wanted: str) -> ReportedFinding:
    """An object of the cell as a finding of kind `about_queue`, `about_pool`, `about_node` or `about_workload`,
    looked for in that order. Raises NotFoundError."""
    for word in ("queue", "pool", "node", "workload"):
        if _is_there(engine, word, wanted):
            return ReportedFinding(
                id=wanted, kind=f"about_{word}", text=f"{word} {wanted}, current state", about=wanted, targets=(wanted,)
            )
    names = [name for word in ("queue", "pool") for name in _names(engine, word)]
    close = _one_off(engine, wanted) or nearest(wanted, names)
    raise NotFoundError(
        f"there is no finding, queue, pool, node or workload {ascii(wanted)[:62]}{_meant(close)}",
        "See `muster recommend`",
    )


def finding_of_incident(engine: Engine, incident: Incident) -> ReportedFinding:
    """The object that an incident is about, as a finding: a queue before a workload, a node, a pool. Raises
    NotFoundError where it names none."""
    kinds: tuple[ObjectKind, ...] = ("queue", "workload", "node", "pool")
    named = next((id_ for kind in kinds for id_ in incident.named(kind)), "")
    if not named:
        raise NotFoundError(f"{incident.id} names no queue, node, pool or workload", "Ask about one: --from NAME")
    return msgspec.structs.replace(finding_about(engine, named), id=incident.id)


def _meant(name: str) -> str:
    return f" (did you mean {ascii(name)[1:-1][:60]}?)" if name else ""


def finding_alike(wanted: str, ids: Sequence[str]) -> str:
    """Hint such as " (did you mean R-k3vq7?)"; empty where no id is alike."""
    return _meant(nearest(wanted, ids))


def _one_off(engine: Engine, wanted: str) -> str:
    """A node or workload whose name differs by one letter, or by case; empty for none. Variants are looked up, because
    a cell may have millions of names."""
    if len(wanted) > MAX_MISSPELT:
        return ""
    cuts = [(wanted[:at], wanted[at:]) for at in range(len(wanted) + 1)]
    ways = [wanted.lower(), wanted.upper(), *(head + tail[1:] for head, tail in cuts if tail)]
    ways += [head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1]
    ways += [head + letter + rest for head, tail in cuts for letter in LETTERS for rest in (tail, tail[1:])]
    known = (engine.state.capacity.row_of, engine.state.workloads.row_of)
    return next((way for rows in known for way in ways if way != wanted and way in rows), "")


def _names(engine: Engine, word: str) -> list[str]:
    kind: Kind = "queues" if word == "queue" else "pools"
    return [row[0] for row in engine.query(Query(kind=kind, columns=("name",), limit=MAX_NAMES)).rows]


def _is_there(engine: Engine, word: str, name: str) -> bool:
    if word in ("queue", "pool"):
        return name in _names(engine, word)
    try:
        (engine.state.capacity if word == "node" else engine.state.workloads).row(name)
    except NotFoundError:
        return False
    return True


def texts_of(engine: Engine, workload_id: str) -> list[Excerpt]:
    """Name and labels of a workload. Raises NotFoundError."""
    found = engine.workload(workload_id)
    labels = [Excerpt(field=f"workload {found.id}: label {key}", text=value) for key, value in found.tags.items()]
    return [Excerpt(field=f"workload {found.id}: name", text=found.name), *labels]


MAX_KEPT = 50
"""Requests that can still be read, the last ones."""
MAX_AT_ONCE = 4
"""Drafts that are being made, of each drafter; more wait for their turn."""
SINCE_MS = 8 * HOUR_MS
"""Of a hand-over or a summary that names no beginning."""
TELL_EVERY_S = 0.1
"""Wall seconds between two reports of mere progress."""
RULES_FIRST_S = 2.0
"""For so long the model's side waits until the rules are done: they share the processor, and a person waits for them.
"""
CLOSE_S = 4.0
"""Longest wait, when the engine stops, for calls that were broken off to be settled."""

RULES = Actor(subject="service:recommender", kind="service", account="system")
"""Author of drafts by rule, in whose name they are tried and proposed."""
AUTHORS: dict[Drafter, Actor] = {"rule": RULES, "model": MODEL}


class Drafting:
    """The drafts of one engine. Any thread may ask, but not the engine's own.

    `recommender` knows the findings; `model` asks a model, None: none is configured; `registry` holds the runbooks.
    """

    def __init__(
        self,
        loop: EngineLoop,
        gate: Gate,
        recommender: Recommender,
        model: ModelDrafter | None = None,
        registry: RunbookRegistry | None = None,
    ) -> None:
        self._loop = loop
        self._gate = gate
        self._recommender = recommender
        self._registry = registry or RunbookRegistry(loop.engine, gate, call=loop.call, call_beside=loop.call_beside)
        self._model = model or ModelDrafter(
            ModelSetup(), str, call=loop.call, audit=gate.audit, wall_ms=gate.policies.clock
        )
        self._store = DraftStore(loop.engine)
        self._runs: dict[str, DraftRun] = {}
        self._stops: dict[str, threading.Event] = {}
        """For each run whose model thinks: set to have it stop."""
        self._askers: dict[str, Actor] = {}
        self._begun_s: dict[str, float] = {}
        """When the model of each run was begun with, monotonic."""
        self._count = -1
        """Of the last request; -1: what the books say has not been read."""
        self._changed = threading.Condition()
        self._closed = False
        self._by_rule = ThreadPoolExecutor(MAX_AT_ONCE, "draft-rule")
        self._by_model = ThreadPoolExecutor(MAX_AT_ONCE, "draft-model")

    def open(self) -> None:
        """Repair what another process left, and connect to the model. Call once the engine runs."""
        with contextlib.suppress(JournalError):
            self._model.open()
        self._model.warm()

    # -- asking -------------------------------------------------------------------------------------------------------

    def begin(self, actor: Actor, ask: DraftAsk) -> DraftRun:
        """Start a draft. Unusable parts of the request are named in the run's notes, and the rules draft from the
        rest. Raises RefusedError while too many are under way."""
        ask, notes = tidied(ask)
        now_ms = self._loop.call(lambda engine: engine.now_ms)
        # Asked before the lock is taken, which the engine's own thread may want.
        newest = self._loop.call(lambda _: self._store.newest()) if self._count < 0 else 0
        with self._changed:
            self._count = max(self._count, newest)
            run_id = self._noted(actor, ask, notes, now_ms)
            stop = self._stops.get(run_id)
            briefed = _ComputedOnce(lambda: self._brief(run_id, ask, now_ms))
            self._by_rule.submit(self._draft_by_rule, run_id, briefed, actor)
            if stop is not None:
                self._by_model.submit(self._draft_by_model, run_id, briefed, actor, stop)
            return self._found(run_id)

    def _noted(self, actor: Actor, ask: DraftAsk, notes: tuple[str, ...], now_ms: int) -> str:
        if self._closed:
            raise RefusedError("the engine is stopping", "Try again when it is back")
        under_way = sum(not run.over for run in self._runs.values())
        if under_way >= MAX_KEPT:
            raise RefusedError(f"{under_way} drafts are already in progress", "Wait for one of them")
        self._count += 1
        run_id = f"D-{self._count}"
        if ask.model:
            self._stops[run_id] = threading.Event()
            self._begun_s[run_id] = time.monotonic()
        self._askers[run_id] = actor
        self._runs[run_id] = DraftRun(
            id=run_id,
            serial=1,
            ask=shortened(ask),
            asked_ms=now_ms,
            who=actor.subject,
            notes=notes,
            model_state="thinking" if ask.model else "off",
            thinking=Thinking(deadline_ms=self._model.deadline_ms) if ask.model else None,
        )
        self._forget_old()
        return run_id

    def run(self, draft_id: str, after: int = -1, wait_s: float = 0.0) -> DraftRun:
        """The run once its serial is above `after`, it is over, or the time is up. Raises NotFoundError."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._found(draft_id).serial > after or self._found(draft_id).over, wait_s
            )
            return self._timed(self._found(draft_id))

    def runs(self) -> tuple[DraftRun, ...]:
        """Newest first."""
        with self._changed:
            return tuple(self._timed(run) for run in reversed(self._runs.values()))

    def cancel(self, actor: Actor, draft_id: str) -> DraftRun:
        """Stop the model of a draft; nothing happens when it is not asked. For the requester, and for people who
        could have asked. Raises NotFoundError, RefusedError."""
        with self._changed:
            self._found(draft_id)
            asker = self._askers[draft_id]
        # Of one account of this machine are all who could end the asker's own process.
        theirs = actor.subject == asker.subject or (actor.account == asker.account != TCP)
        why_not = "" if theirs else self._why_not(actor)
        if why_not:
            raise RefusedError(f"{draft_id} was asked for by {asker.subject}: {why_not}", "Use --as NAME")
        return self._broken_off(draft_id)

    def _broken_off(self, draft_id: str) -> DraftRun:
        with self._changed:
            stop = self._stops.pop(draft_id, None)
            if stop is not None:
                stop.set()
                self._note(
                    draft_id, model_state="cancelled", thinking=None, reason="cancelled",
                    why="cancelled; the draft by rule stands",
                )  # fmt: skip
            return self._found(draft_id)

    def standing(self) -> ModelStanding:
        """Model that is configured, and whether it can be asked now."""
        try:
            record = self._loop.call(lambda _: self._store.record("model"))
        except JournalError:
            record = None
        return msgspec.structs.replace(self._model.standing(), record=record)

    def close(self) -> None:
        """Stop everything under way, and wait a little until it has ended."""
        with self._changed:
            self._closed = True
            for draft_id in list(self._stops):
                self._broken_off(draft_id)
            self._changed.notify_all()
        # What is submitted is submitted under the lock, so nothing comes after this.
        self._by_rule.shutdown(wait=False, cancel_futures=True)
        ended = threading.Thread(target=self._by_model.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        ended.start()
        ended.join(CLOSE_S)
        self._model.close()

    # -- drafting, on threads of its own ------------------------------------------------------------------------------

    def _draft_by_rule(self, run_id: str, briefed: _ComputedOnce, actor: Actor) -> None:
        try:
            brief = briefed()
            draft = self._ruled(brief, actor.subject)
            self._kept(run_id, draft, actor)
            draft = msgspec.structs.replace(draft, record=self._record(draft))
        except MusterError as error:
            self._tell(run_id, rule_state="failed", rule_why=str(error))
        except Exception as error:
            traceback.print_exc()
            self._tell(run_id, rule_state="failed", rule_why=_defect(error))
        else:
            self._tell(run_id, rule_state="done", rule=draft)

    def _ruled(self, brief: Brief, requester: str) -> Draft:
        return RuleDrafter(self._loop.call, self._preview_by(RULES)).draft(brief, requester)

    def _draft_by_model(self, run_id: str, briefed: _ComputedOnce, actor: Actor, stop: threading.Event) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: stop.is_set() or run_id not in self._runs or self._runs[run_id].rule_state != "drafting",
                RULES_FIRST_S,
            )
        try:
            draft = self._model.draft(
                self.run(run_id).ask.task,
                lambda: self._with_facts(briefed()),
                actor,
                run_id,
                preview=self._preview_by(MODEL),
                cancelled=stop,
                tell=lambda phase, count: self._progress(run_id, phase, count),
                refused=self._why_not_asked(actor),
            )
            self._kept(run_id, draft, actor)
            draft = msgspec.structs.replace(draft, record=self._record(draft))
        except DraftRejected as error:
            self._model_over(run_id, model_state="rejected", reason=error.reason, why=str(error))
        except MusterError as error:
            self._model_over(run_id, model_state="rejected", reason="worker", why=str(error))
        except Exception as error:
            traceback.print_exc()
            self._model_over(run_id, model_state="rejected", reason="worker", why=_defect(error))
        else:
            self._model_over(run_id, model_state="done", model=draft)

    def _model_over(self, run_id: str, **changes: object) -> None:
        """Note the model's result, unless the run was cancelled meanwhile."""
        with self._changed:
            if self._stops.pop(run_id, None) is not None:
                self._note(run_id, thinking=None, **changes)

    def _preview_by(self, author: Actor) -> Preview:
        def preview(request: Request, runbook: RunbookRef | None = None) -> Proposal:
            composed = self._loop.call_beside(lambda _: self._gate.composition(request), Composed)
            return self._loop.call(lambda _: self._gate.preview(author, request, runbook=runbook, composed=composed))

        return preview

    def _why_not_asked(self, actor: Actor) -> str:
        """Reason why somebody may not ask a model, which costs money and discloses facts; empty where they may."""
        why_not = self._why_not(actor)
        return f"you may not use the model: {why_not}" if why_not else ""

    def _why_not(self, actor: Actor) -> str:
        """Reason why somebody may propose nothing; empty where they may."""

        def read(engine: Engine) -> str:
            policies = self._gate.policies
            return may(engine.recorded(policies.current), actor, "propose", scope=None, owner=policies.owner)

        return self._loop.call(read)

    def _brief(self, run_id: str, ask: DraftAsk, now_ms: int) -> Brief:
        """Brief for both drafters. Objects that cannot be found are noted, and left out."""
        finding, runbook_text = None, ""
        notes: list[str] = []
        if ask.finding:
            try:
                finding = self._finding(ask.finding)
                if not finding.kind.startswith("about_"):
                    self._tell(run_id, about=finding.text)
            except NotFoundError as error:
                notes.append(f"{error.problem}; drafted without it")
        if ask.runbook:
            try:
                runbook_text = self._registry.text(ask.runbook)
            except NotFoundError as error:
                notes.append(f"{error.problem}; drafting a new one")
        excerpts = list(ask.excerpts)
        for workload_id in ask.texts_of:
            try:
                excerpts += self._texts_of(workload_id)
            except NotFoundError as error:
                notes.append(error.problem)
        if notes:
            self._tell(run_id, notes=(*self.run(run_id).notes, *notes))
        name, version, at_ms = self._loop.call(
            lambda engine: (engine.overview(brief=True).cell, engine.version, engine.now_ms)
        )
        brief = Brief(
            task=ask.task,
            question=ask.question,
            pick=ask.pick,
            finding=finding,
            excerpts=tuple(excerpts),
            runbook=ask.runbook if runbook_text else "",
            runbook_text=runbook_text,
            cell=name,
            version=version,
            now_ms=at_ms,
            since_ms=ask.since_ms or max(0, now_ms - SINCE_MS),
        )
        return brief if ask.task == "act" else self._with_facts(brief)

    def _with_facts(self, brief: Brief) -> Brief:
        """The brief with its facts. The rules read the cell themselves, so they need not wait for this."""
        if brief.facts:
            return brief
        found = gather(
            self._loop.call,
            question=brief.question,
            finding=brief.finding,
            findings=[finding_of(each.suggestion) for each in self._recommender.recommendations().open],
            channels=tuple(self._loop.call(lambda _: self._gate.channels())),
            excerpts=brief.excerpts,
            more=self._of_shift(brief),
        )
        return msgspec.structs.replace(brief, facts=found.facts, version=found.version, now_ms=found.now_ms)

    def _of_shift(self, brief: Brief) -> tuple[Fact, ...]:
        if brief.task not in ("handover", "incident"):
            return ()
        return shift_facts(self._loop.call, self._gate, since_ms=brief.since_ms, speed=self._loop.speed)

    def _texts_of(self, workload_id: str) -> list[Excerpt]:
        return self._loop.call(lambda engine: texts_of(engine, workload_id))

    def _finding(self, wanted: str) -> ReportedFinding:
        """A recommendation, or an object of the cell as a finding. Raises NotFoundError."""
        if wanted.upper().startswith("R-"):
            try:
                return finding_of(self._recommender.recommendation(wanted).suggestion)
            except NotFoundError as error:
                ids = [each.suggestion.id for each in self._recommender.recommendations().open]
                raise NotFoundError(f"{error.problem}{finding_alike(wanted, ids)}", error.remedy) from None
        if wanted.startswith("I-"):
            return self._loop.call(lambda engine: finding_of_incident(engine, self._gate.incidents.incident(wanted)))
        return self._loop.call(lambda engine: finding_about(engine, wanted))

    # -- proposing ----------------------------------------------------------------------------------------------------

    def propose(self, actor: Actor, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        """Put one of the two drafts to the vote: its author is the drafter's service, its requester whoever asks.
        Repeating the call returns the same proposal while it is open. Raises NotFoundError, RefusedError, SpecError."""
        if drafter not in AUTHORS:
            raise SpecError("drafter", f"{str(drafter)[:40]!a} is not a drafter", "Give rule or model")
        check_line(reason, "reason", MAX_COMMENT)
        run = self.run(draft_id)
        draft = run.rule if drafter == "rule" else run.model
        if draft is None or draft.request is None:
            raise _nothing_to_propose(run, draft, drafter)
        request = msgspec.structs.replace(
            draft.request,
            source=Source(kind=drafter, id=draft_id, by=drafted_by(draft)),
            requester=actor.subject,
            reason=_reason(reason.strip() or draft.request.reason, run.ask.finding),
            evidence=(*draft.request.evidence, _evidence(draft_id, draft), *self._of_incident(run.ask.finding)),
        )
        number, runbook = int(draft_id.removeprefix("D-")), self._approved(draft)

        def there(_: Engine) -> Proposal | None:
            """The proposal that was made of it already, if it is open."""
            # The service may propose; so must whoever has it do that.
            self._gate.refuse_unless(actor, "propose", None)
            for by, proposal_id in self.run(draft_id).proposed:
                if by == drafter and (made := self._gate.proposal(proposal_id)).state not in ENDED:
                    return made
            return None

        def put(engine: Engine) -> Proposal:
            made = there(engine)
            if made is not None:
                return made
            # Where whoever asks has signed for it, nobody can take a colleague on the same account for them.
            author = msgspec.structs.replace(
                AUTHORS[drafter], account=actor.account, signed=actor.signed, key=actor.key, within=actor.within
            )
            shown = self._gate.propose(author, request, runbook=runbook, composed=composed)
            self._store.proposed(number, drafter, shown.id)
            if run.ask.finding.startswith("I-"):
                self._gate.incidents.proposed(actor, run.ask.finding, shown.id)
            self._tell(draft_id, proposed=(*self.run(draft_id).proposed, (drafter, shown.id)))
            return shown

        open_ = self._loop.call(there)
        if open_ is not None:
            return open_
        composed = self._loop.call_beside(lambda _: self._gate.composition(request), Composed)
        return self._loop.call(put)

    def _of_incident(self, finding: str) -> tuple[EvidenceRef, ...]:
        """A reference to the incident that a draft was asked for, by its alerts. Raises NotFoundError."""
        if not finding.startswith("I-"):
            return ()
        incident = self._loop.call(lambda _: self._gate.incidents.incident(finding))
        return (EvidenceRef(id=finding, sha256=hashlib.sha256(msgspec.json.encode(incident.alerts)).hexdigest()),)

    def _approved(self, draft: Draft) -> RunbookRef | None:
        """Runbook that a draft was made from, if it may be run here. A draft from another one is proposed as its
        plain actions."""
        ref = draft.preview.plan.runbook if draft.preview is not None else None
        if ref is None:
            return None
        approved = {(line.id, line.sha256) for line in self._registry.lines() if line.status == "approved"}
        return ref if (ref.id, ref.sha256) in approved else None

    # -- what is remembered -------------------------------------------------------------------------------------------

    def _kept(self, run_id: str, draft: Draft, actor: Actor) -> None:
        """Store a draft. It is of use also where nothing can be written."""
        number, at_ms = int(run_id.removeprefix("D-")), self._gate.policies.clock()
        try:
            self._loop.call(lambda _: self._store.keep(number, draft, actor.subject, at_ms))
        except JournalError:
            return

    def _record(self, draft: Draft) -> Record | None:
        """Track record of drafts like it; none for one that proposes nothing."""
        if draft.request is None:
            return None
        try:
            return self._loop.call(lambda _: self._store.record(draft.drafter, draft.kind))
        except JournalError:
            return None

    def _progress(self, run_id: str, phase: Phase, count: int) -> None:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None or run.thinking is None or run_id not in self._stops:
                return
            elapsed_ms = self._elapsed_ms(run_id)
            mere = run.thinking.phase == phase and elapsed_ms - run.thinking.elapsed_ms < TELL_EVERY_S * 1000
            if not mere:
                told = msgspec.structs.replace(run.thinking, phase=phase, elapsed_ms=elapsed_ms, bytes=count)
                self._note(run_id, thinking=told)

    def _elapsed_ms(self, run_id: str) -> int:
        return int((time.monotonic() - self._begun_s.get(run_id, time.monotonic())) * 1000)

    def _timed(self, run: DraftRun) -> DraftRun:
        """The run with its elapsed time."""
        if run.thinking is None:
            return run
        return msgspec.structs.replace(
            run, thinking=msgspec.structs.replace(run.thinking, elapsed_ms=self._elapsed_ms(run.id))
        )

    def _tell(self, run_id: str, **changes: object) -> None:
        with self._changed:
            if run_id in self._runs:
                self._note(run_id, **changes)

    def _note(self, run_id: str, **changes: object) -> None:
        run = msgspec.structs.replace(self._runs[run_id], **changes)
        self._runs[run_id] = msgspec.structs.replace(run, serial=run.serial + 1, agreement=agreement(run))
        self._changed.notify_all()

    def _found(self, draft_id: str) -> DraftRun:
        found = self._runs.get(draft_id)
        if found is None:
            raise NotFoundError(
                f"there is no draft {ascii(draft_id)[:42]}", "It was dropped, or the engine restarted; ask again"
            )
        return found

    def _forget_old(self) -> None:
        over = [run_id for run_id, run in self._runs.items() if run.over]
        for run_id in over[: max(0, len(self._runs) - MAX_KEPT)]:
            del self._runs[run_id], self._askers[run_id]
            self._begun_s.pop(run_id, None)


class _ComputedOnce:
    """A value that several threads need and the first of them computes."""

    def __init__(self, make: Callable[[], Brief]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Brief | None = None

    def __call__(self) -> Brief:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


# -- how it compares, and what is said --------------------------------------------------------------------------------


def agreement(run: DraftRun) -> str:
    """How the two drafts compare; empty where one is missing, or where the task is not to act."""
    if run.rule is None or run.model is None or run.ask.task != "act":
        return ""
    if run.rule.undecided:
        return "the rules need the symptom"
    ours, theirs = _acts(run.rule), _acts(run.model)
    if not ours or not theirs:
        return (
            "both propose no action"
            if ours == theirs
            else "the rules propose no action"
            if theirs
            else "the model proposes no action"
        )
    if ours == theirs:
        return "same action and target"
    if {action for action, _ in ours} == {action for action, _ in theirs}:
        return "same action, other target"
    return "other action"


def _acts(draft: Draft) -> set[tuple[str, tuple[str, ...]]]:
    steps = draft.request.steps if draft.request is not None else ()
    return {(step.act.action, tuple(sorted(step.act.targets))) for step in steps}


def drafted_by(draft: Draft) -> str:
    """Name of the model, or the kind of the rules' draft."""
    return (draft.called.model if draft.called is not None else draft.kind)[:MAX_PERSON]


def _evidence(draft_id: str, draft: Draft) -> EvidenceRef:
    """Reference to the draft by the facts it rests on: its id tells a voter where to read them."""
    return EvidenceRef(id=draft_id, sha256=hashlib.sha256(msgspec.json.encode(draft.facts)).hexdigest())


def _reason(words: str, finding: str) -> str:
    """The reason with the finding's id: the recommender looks for it in reasons."""
    if not finding.upper().startswith("R-") or finding in words:
        return words[:MAX_COMMENT]
    return f"{words[: MAX_COMMENT - len(finding) - 1]} {finding}".strip()


def _nothing_to_propose(run: DraftRun, draft: Draft | None, drafter: Drafter) -> RefusedError:
    whose = "by rule" if drafter == "rule" else "by the model"
    if draft is not None:
        return RefusedError(f"the draft {whose} of {run.id} has no step to propose", "See the draft")
    if drafter == "model" and run.model_state == "off":
        return RefusedError(f"no model was asked for {run.id}", "Ask with --llm")
    why = run.why if drafter == "model" else run.rule_why
    return RefusedError(f"{run.id} has no draft {whose}{': ' + why if why else ' yet'}", "Wait, or ask again")


def _defect(error: Exception) -> str:
    return f"internal error of Muster ({type(error).__name__}); the engine's log has the details"
