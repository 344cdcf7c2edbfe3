"""The client of an engine in this process. The server answers through one too, so all interfaces share one
behaviour.

It also answers for the audit, beside the engine so that reading holds nobody up, and finds anything with an id: of
the cell, and proposals, runbooks, drafts, advice, runs of the twin and audit records. Their ids begin with letters
that tell their kind, so that only stores that can have an id are searched.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import msgspec

from console import VERSION
from console.client.presence import Presence, PresenceAsk, Present
from console.client.protocol import MAX_CHANGES, Client, Health, RuntimeEstimate
from console.client.questions import Arguments, ServiceQuestion, refuse_read_only, wrap_answers
from console.service.advisor import Advisor, Quotes
from console.service.drafting import Drafting
from console.service.forecasts import Forecasts
from console.service.gate_watch import GateFigures, GateTicker
from console.service.incident_changes import changes_before
from console.service.insights import Insights
from console.service.mirrored_cluster import MirroredCluster, NoMirror
from console.service.past_client import PastClient, difference
from console.service.recommendations import Recommender
from console.service.scoped_client import CallerViews, ScopedClient
from console.service.telemetry import Archive, Collector
from console.service.this_machine import RunOutput
from console.service.token_store import Tokens
from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
from engine.model.details import Unblocking
from engine.model.errors import MusterError, NotFoundError, UnreachableError
from engine.model.list_queries import Named, Page, Query
from engine.model.overviews import Changes
from engine.model.past_queries import CellDifference, DifferenceRequest, PastStatus
from engine.past.process import PastRequest
from engine.past.replicas import PastReplicas
from runbooks.audit import reader as reading
from runbooks.gate import aftermath, policy_changes
from runbooks.gate.composition import Composed
from runbooks.gate.decisions import admit
from runbooks.plans.identity import OWNER, THIS_ACCOUNT, Actor, AuthRefused, Signed
from runbooks.plans.queries import (
    AuditErased,
    AuditPage,
    AuditPart,
    AuditQuery,
    AuditRange,
    AuditState,
    IntentAnswer,
    IntentDetail,
    RunbookAsk,
    RunbookLine,
    RunbookRun,
    RunbookView,
    RunbookVote,
)
from runbooks.procedures.registry import RunbookRegistry

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from console.client.credentials import IdentityClaim, NewToken, TokenAsk, TokenLine
    from console.service.dry_runs import DryRuns
    from engine.control import Engine
    from engine.executors.task_files import OutputPart, OutputRequest, ProcessReport
    from engine.external.mirror_report import Mirrored, MirrorReport
    from engine.loop import EngineLoop
    from engine.model.commands import AnyCommand, Receipt
    from engine.model.external_cells import IntentsReport
    from engine.model.twin_queries import Ask, RunStatus, ScoreReport
    from engine.model.visibility import Visibility
    from recommender.estimates.queries import (
        Forecast,
        ForecastRequest,
        PlacementAdvice,
        Quote,
        QuoteRequest,
        SizingReport,
        SizingRequest,
    )
    from recommender.findings.suggestions import Recommendation, Recommendations
    from recommender.history.metrics import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
    from runbooks.drafts.typed_draft import DraftAsk, Drafter, DraftRun, ModelStanding
    from runbooks.gate.approval_gate import Gate
    from runbooks.gate.approval_policy import (
        Caller,
        Candidate,
        Deed,
        PolicyChange,
        PolicyCheck,
        PolicyView,
        PolicyVote,
        Verdict,
    )
    from runbooks.gate.run_limits import Freeze, FreezeSpec
    from runbooks.plans.incidents import AlertReceipt, AlertReport, Incident, IncidentChange, NewIncident
    from runbooks.plans.typed_plan import Outcome, Proposal, Request, Review


class Auditing:
    """The audit of one cell. `actor` is the person who asks; one without the right is refused, on record."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
        self._reader = reading.AuditReader(
            loop.engine.place, lambda ask: loop.call(lambda engine: engine.recorded(ask))
        )

    def state(self) -> AuditState:
        audit = self._gate.audit
        return self._reader.read(lambda connection: reading.state(connection, audit))

    def page(self, query: AuditQuery) -> AuditPage:
        return self._reader.read(lambda connection: reading.page(connection, query))

    def part(self, actor: Actor, wanted: AuditRange) -> AuditPart:
        """The next part of an export. The first part writes a record of its own, which the export includes."""
        self._loop.call(lambda engine: self._begin_export(engine, actor, wanted))
        return self._reader.read(lambda connection: reading.part(connection, wanted, f"muster {VERSION}"))

    def _begin_export(self, engine: Engine, actor: Actor, wanted: AuditRange) -> None:
        self._gate.refuse_unless(actor, "export")
        if wanted.after:
            return
        audit = self._gate.audit

        def write(connection: Connection) -> None:
            first, last = reading.bounds(connection, wanted)
            data = {"first": first, "last": last if wanted.last else 0, "private": wanted.private}
            audit.append(connection, "audit.exported", actor, data=data)

        engine.record(write)
        audit.after(at_once=True)

    def anchor(self, actor: Actor) -> AuditState:
        """Publish a checkpoint to all anchors now."""

        def change(_engine: Engine) -> None:
            self._gate.refuse_unless(actor, "export")
            self._gate.audit.publish()

        self._loop.call(change)
        return self.state()

    def rotate(self, actor: Actor) -> AuditState:
        """Another key signs from now on."""

        def change(_engine: Engine) -> None:
            self._gate.refuse_unless(actor, "key")
            self._gate.audit.rotate_file(actor)

        self._loop.call(change)
        return self.state()

    def redact(self, actor: Actor, ref: str, reason: str) -> AuditErased:
        audit = self._gate.audit

        def change(engine: Engine) -> int:
            self._gate.refuse_unless(actor, "redact")
            seq = engine.record(lambda connection: audit.redact(connection, actor, ref, reason))
            audit.after(at_once=True)
            return seq

        seq = self._loop.call(change)
        return AuditErased(ref=ref, record=seq, scrubbed=self._loop.call(lambda _: audit.scrub()))


MAX_ON_A_SCREEN = 256
"""Rows of a page; more are for a program."""
FOLLOW_S = 1.0
"""Longest wait for a change before the clock is sent again."""


class LocalClient(Client):
    """Answers the questions of `console.client.protocol` over an engine loop, a gate and an advisor of this process.

    The engine, or its copy, answers those without a method here. `actor` is the person who asks, by default the
    account of this process; `who` is their name for the recommender; `name` is the engine's name for the header.
    """

    def __init__(
        self,
        loop: EngineLoop,
        gate: Gate,
        advisor: Advisor,
        read_only: bool = False,
        *,
        who: str = "",
        actor: Actor = THIS_ACCOUNT,
        name: str = "local",
        recommender: Recommender | None = None,
        forecasts: Forecasts | None = None,
        archive: Archive | None = None,
        insights: Insights | None = None,
        registry: RunbookRegistry | None = None,
        ticker: GateTicker | None = None,
        drafting: Drafting | None = None,
        cluster: MirroredCluster | None = None,
        dry_runs: DryRuns | None = None,
        collector: Collector | None = None,
    ) -> None:
        self.read_only = read_only
        self._cluster: MirroredCluster = cluster or NoMirror(loop)
        self._dry_runs = dry_runs
        """Where the cluster is asked before anybody votes."""
        self._collector = collector
        self._output = RunOutput(loop, self._cluster)
        self._loop = loop
        self._gate = gate
        self._registry = registry or RunbookRegistry(loop.engine, gate, call=loop.call, call_beside=loop.call_beside)
        self._advisor = advisor
        self._ticker = ticker
        self._recommender = recommender or Recommender(loop, advisor)
        self._drafting = drafting or Drafting(loop, gate, self._recommender, registry=self._registry)
        self._forecasts = forecasts or Forecasts(loop)
        self._archive = archive or Archive(loop)
        self._insights = insights or Insights(loop, self._archive)
        self._quotes = Quotes(loop, advisor)
        self._auditing = Auditing(loop, gate)
        self._who = who or user_name()
        self._actor = actor
        self._name = name
        self._figures = GateFigures(loop, gate)
        self.tokens_kept = Tokens(loop, gate)
        self._past = PastReplicas(loop.engine.place)
        self._views = CallerViews()
        self.presence = Presence()
        self._written: dict[str, int] = {}
        """By account: the version in which its last change is seen."""

    def tell(self, channel: str, messages: Mapping[str, tuple[str, str]]) -> None:
        """Queue messages for a channel of the policy: key -> (proposal id or nothing, text)."""
        self._loop.call(lambda _: self._gate.tell(channel, messages))

    def acting_as(self, actor: Actor) -> LocalClient:
        """The same client in another person's name."""
        other = copy.copy(self)
        other._actor = actor
        other._who = actor.subject if actor.subject != OWNER else self._who
        return other

    def as_of(self, at_ms: int) -> PastClient:
        return PastClient(self, self._past, at_ms)

    def visibility_of(self, actor: Actor) -> Visibility | None:
        """The work that an actor may see; None: all of it. May wait for the engine, or for the system's groups."""
        policies = self._gate.policies
        policy = policies.known or self._loop.call(lambda _: policies.latest())
        return self._views.of(policy, actor, policies.owner)

    def sees_all_at_once(self, actor: Actor) -> bool:
        """True where it is known without waiting that an actor sees the whole cell."""
        policy = self._gate.policies.known
        return policy is not None and not policy.views and self.visibility_of(actor) is None

    def scoped(self, seen: Visibility) -> ScopedClient:
        """The same client, limited to what its person may see."""
        return ScopedClient(self, seen, self._past)

    def read_for(self, what: str, arguments: tuple[object, ...], seen: Visibility) -> Any:
        """The engine's answer to somebody who sees that much, including all changes of this person."""
        return self._loop.read(what, *arguments, least_version=self.own_version, seen_by=seen)

    def past(self, at_ms: int, since_ms: int = 0, wait_s: float = 0.0) -> PastStatus:
        if not at_ms:
            return PastStatus(earliest_ms=self._past.span().earliest_ms, now_ms=self.now_ms, at_ms=0)
        return self._past.status(PastRequest(at_ms, since_ms), self.now_ms, wait_s)

    def leave_past(self, at_ms: int, since_ms: int = 0) -> None:
        self._past.cancel(PastRequest(at_ms, since_ms))

    def difference(self, request: DifferenceRequest) -> CellDifference:
        return difference(self._past, request, self.now_ms)

    def refused(self, account: str, error: AuthRefused) -> None:
        """Record a claim that cannot even be read."""
        self._loop.call(lambda _: self._gate.policies.refused(Actor(subject=account, account=account), error))

    def glanced(self, account: str) -> Actor | None:
        """The actor of an account without further claims, where it is known at once."""
        return self._gate.policies.glanced(account)

    def identified(self, claim: IdentityClaim) -> Actor:
        """The actor of a claim, by the policy in force. Raises AuthRefused, on record."""
        policies = self._gate.policies
        return self._loop.call(lambda _: policies.identified(claim.account, claim.person, claim.signed, claim.digest))

    def health(self) -> Health:
        if not self._loop.copies.beside:
            return self._loop.call(self._health)
        copies, engine = self._loop.copies, self._loop.engine
        return self._health_of(copies.shown_version(), copies.shown_ms(), engine, *self._figures.latest())

    def _health(self, engine: Engine) -> Health:
        return self._health_of(engine.version, engine.now_ms, engine, *self._figures.look())

    def _health_of(
        self, version: int, now_ms: int, engine: Engine, approval: str, awaiting: int, stuck: int, incidents: int
    ) -> Health:
        return Health(
            name=self._name,
            # One of which nothing is defined yet has no name of its own.
            cell=engine.state.cell if version else self._name,
            version=version,
            now_ms=now_ms,
            speed=self._loop.speed,
            paused=self._loop.paused,
            pid=os.getpid(),
            journal=str(engine.place or ""),
            journal_error=engine.journal_error or getattr(engine.processes, "fault", ""),
            software=VERSION,
            history_error=self._archive.error,
            audit_error=self.gate_trouble() or self._gate.audit.error,
            mirror_error=self._cluster.trouble(),
            takeover_ms=engine.lease.takeover_ms if engine.lease is not None else 0,
            approval=approval,
            awaiting=awaiting,
            stuck=stuck,
            incidents=incidents,
        )

    def gate_trouble(self) -> str:
        """Why the gate can do nothing; empty while all is well."""
        return self._ticker.error if self._ticker else ""

    def mirror_trouble(self) -> str:
        """Why the view of the mirrored cluster is old; empty while it is fresh, or where Muster decides."""
        return self._cluster.trouble()

    def measured(self) -> Mapping[str, float]:
        """The cell's figures of the collector's last look, by `recommender.history.metrics.METRICS`."""
        return self._collector.latest if self._collector is not None else {}

    def note_shown(self, query: Query, page: bytes) -> None:
        """Note a page (JSON) that goes to somebody's screen: a mirror keeps its rows fresh."""
        if query.kind == "workloads" and query.limit <= MAX_ON_A_SCREEN:
            found = msgspec.json.decode(page, type=Page)
            if "id" in found.columns:
                at = found.columns.index("id")
                self._cluster.shown([row[at] for row in found.rows])

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:

        hits: tuple[Named, ...] = (*self._read("find", name, kinds, limit), *beside(self, name, kinds, limit))
        return tuple(sorted(hits, key=lambda hit: hit.id != name))[:limit]

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        if self._loop.copies.beside:
            found: Consolidation = self._read("consolidation", request)
            return found
        from engine.twin.consolidation import plan

        # As with `unblocking`: the engine is held up for one fork.
        twin = self._loop.call(lambda engine: engine.fork())
        return plan(twin, request)

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        return self._advisor.estimate(workload_id)

    def unblocking(self, workload_id: str) -> Unblocking:
        if self._loop.copies.beside:
            found: Unblocking = self._read("unblocking", workload_id)
            return found
        from engine.twin.counterfactuals import verified

        # The engine is held up for one fork; the search goes on beside it.
        twin = self._loop.call(lambda engine: engine.fork())
        return verified(twin, workload_id)

    def recommendations(self) -> Recommendations:
        return self._recommender.recommendations()

    def recommendation(self, rec_id: str) -> Recommendation:
        return self._recommender.recommendation(rec_id)

    def reject_recommendation(self, rec_id: str, reason: str = "") -> Recommendation:
        return self._recommender.reject(rec_id, reason, self._who)

    def forecast(self, request: ForecastRequest) -> Forecast:
        return self._forecasts.answer(request)

    def quote(self, request: QuoteRequest) -> Quote:
        self._recommender.give_way()
        return self._quotes.quote(request)

    def history(self, request: HistoryRequest) -> History:
        return self._archive.history(request)

    def sizing(self, request: SizingRequest) -> SizingReport:
        return self._insights.sizing(request)

    def advice_on(self, workload_id: str) -> PlacementAdvice:
        return self._insights.advice_on(workload_id)

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        return self._archive.import_samples(batch)

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        return self._archive.import_runs(batch)

    def ask(self, ask: Ask) -> RunStatus:
        self._recommender.give_way()
        return self._loop.call(lambda _: self._loop.twins.start(ask))

    def run(self, run_id: str, after: int = -1, wait_s: float = 0.0) -> RunStatus:
        return self._loop.twins.wait(run_id, after, wait_s)

    def cancel_run(self, run_id: str) -> RunStatus:
        return self._loop.twins.cancel(run_id)

    def runs(self) -> tuple[RunStatus, ...]:
        return tuple(msgspec.structs.replace(run, answer=None) for run in self._loop.twins.runs())

    def scores(self) -> ScoreReport:
        from engine.twin.start_estimates import score

        return self._loop.call(score)

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        if wait_s > 0:
            self._loop.wait_version(after, wait_s)
        found: Changes = self._read("changes", after, max(1, limit))
        return found if limit else msgspec.structs.replace(found, items=(), missed=0)

    def follow(self, after: int = -1) -> Iterator[Changes]:
        seen = after if after >= 0 else self.changes(0, 0, 1).version
        while True:
            found = self.changes(seen, FOLLOW_S)
            seen = found.version
            yield found

    def records(self) -> int:
        return self._gate.audit.added

    def command(self, command: AnyCommand) -> Receipt:
        return self._loop.call(lambda engine: admit(engine, self._gate, self._actor, command))

    def preview(self, request: Request) -> Proposal:
        sourced = self._recommender.sourced(request)
        composed = self._composed(sourced)
        return self._loop.call(lambda _: self._gate.preview(self._actor, sourced, composed=composed))

    def propose(self, request: Request) -> Proposal:
        sourced = self._tried(self._recommender.sourced(request))
        composed = self._composed(sourced, self._actor)
        return self._loop.call(lambda _: self._gate.propose(self._actor, sourced, composed=composed))

    def _composed(self, request: Request, author: Actor | None = None) -> Composed:
        """The engine is not held up while the plan is tried."""
        return self._loop.call_beside(lambda _: self._gate.composition(request, author), Composed)

    def _tried(self, request: Request) -> Request:
        if self._dry_runs is not None:
            self._dry_runs.run(request)
        return request

    def revise(self, proposal_id: str, request: Request) -> Proposal:
        sourced = self._tried(self._recommender.sourced(request))
        composed = self._composed(sourced, self._actor)
        return self._loop.call(lambda _: self._gate.revise(self._actor, proposal_id, sourced, composed=composed))

    def proposals(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Proposal, ...]:
        return self._loop.call(lambda _: self._gate.proposals(states, limit))

    def proposal(self, proposal_id: str) -> Proposal:
        return self._loop.call(lambda _: self._gate.proposal(proposal_id))

    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        return self._done(lambda: self._gate.approve(self._actor, proposal_id, digest, comment, signed))

    def vote(
        self, proposal_id: str, digest: str, verdict: Verdict, comment: str = "", signed: Signed | None = None
    ) -> Proposal:
        return self._loop.call(lambda _: self._gate.vote(self._actor, proposal_id, digest, verdict, comment, signed))

    def execute(self, proposal_id: str) -> Outcome:
        return self._done(lambda: self._gate.execute(self._actor, proposal_id))

    def pause(self, proposal_id: str, reason: str = "") -> Proposal:
        return self._loop.call(lambda _: self._gate.pause(self._actor, proposal_id, reason))

    def resume(self, proposal_id: str, accept: bool = False) -> Outcome:
        return self._done(lambda: self._gate.resume(self._actor, proposal_id, accept=accept))

    def confirm(self, proposal_id: str, step: str) -> Outcome:
        return self._done(lambda: self._gate.confirm(self._actor, proposal_id, step))

    def rollback(self, proposal_id: str, reason: str = "") -> Outcome:
        return self._loop.call(lambda _: self._gate.rollback(self._actor, proposal_id, reason))

    def cancel(self, proposal_id: str, reason: str = "") -> Proposal:
        return self._loop.call(lambda _: self._gate.cancel(self._actor, proposal_id, reason))

    def break_glass(self, proposal_id: str, digest: str, reason: str, signed: Signed | None = None) -> Outcome:
        return self._done(lambda: self._gate.break_glass(self._actor, proposal_id, digest, reason, signed))

    def reviews(self) -> tuple[Review, ...]:
        return self._loop.call(lambda _: self._gate.reviews())

    def close_review(self, review: int, comment: str) -> None:
        self._loop.call(lambda _: self._gate.close_review(self._actor, review, comment))

    def report_alerts(self, report: AlertReport) -> AlertReceipt:
        return self._loop.call(lambda _: self._gate.incidents.report(self._actor, report))

    def incidents(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Incident, ...]:
        return self._loop.call(lambda _: self._gate.incidents.incidents(states, limit))

    def incident(self, incident_id: str) -> Incident:
        return self._loop.call(lambda _: self._gate.incidents.incident(incident_id))

    def incident_changes(self, incident_id: str) -> tuple[IncidentChange, ...]:
        incident = self.incident(incident_id)
        events = self._read("changes", 0, MAX_CHANGES)
        plans = self.proposals((), MAX_PROPOSALS)
        return changes_before(incident, plans, self._auditing.page, events.items, self._pool_of)

    def _pool_of(self, node: str) -> str:
        """Empty for what is no node."""
        try:
            return self.node(node).pool
        except NotFoundError:
            return ""

    def open_incident(self, new: NewIncident) -> Incident:
        return self._loop.call(lambda _: self._gate.incidents.open(self._actor, new))

    def claim_incident(self, incident_id: str, over: bool = False) -> Incident:
        return self._loop.call(lambda _: self._gate.incidents.claim(self._actor, incident_id, over=over))

    def hand_over_incident(self, incident_id: str, to: str, note: str = "") -> Incident:
        return self._loop.call(lambda _: self._gate.incidents.hand_over(self._actor, incident_id, to, note))

    def note_incident(self, incident_id: str, text: str) -> Incident:
        return self._loop.call(lambda _: self._gate.incidents.note(self._actor, incident_id, text))

    def close_incident(self, incident_id: str, found: str) -> Incident:
        return self._loop.call(lambda _: self._gate.incidents.close(self._actor, incident_id, found))

    def whoami(self, proved: bool = False) -> Caller:
        return self._loop.call(lambda _: policy_changes.caller_of(self._gate.policies, self._actor))

    def present(self, ask: PresenceAsk) -> Present:
        return self.presence.wait(self._actor, ask)

    def tokens(self) -> tuple[TokenLine, ...]:
        return self.tokens_kept.lines(self._actor)

    def create_token(self, ask: TokenAsk) -> NewToken:
        return self.tokens_kept.create(self._actor, ask)

    def revoke_token(self, id: str) -> TokenLine:
        return self.tokens_kept.revoke(self._actor, id)

    def policy(self) -> PolicyView:
        return self._loop.call(lambda _: policy_changes.view_of(self._gate.policies, self._actor))

    def check_policy(self, text: str) -> PolicyCheck:
        return self._loop.call(lambda _: policy_changes.check(self._gate.policies, self._actor, text))

    def propose_policy(self, change: PolicyChange) -> Candidate:
        return self._loop.call(lambda _: self._gate.policies.propose(self._actor, change))

    def vote_policy(self, vote: PolicyVote) -> Candidate:
        return self._loop.call(lambda _: self._gate.policies.vote(self._actor, vote))

    def freezes(self) -> tuple[Freeze, ...]:
        return self._loop.call(lambda _: self._gate.freezes())

    def freeze(self, spec: FreezeSpec) -> None:
        self._loop.call(lambda _: self._gate.policies.freeze(self._actor, spec))

    def thaw(self, name: str) -> None:
        self._loop.call(lambda _: self._gate.policies.thaw(self._actor, name))

    def _done(self, do: Callable[[], Outcome]) -> Outcome:
        """Run steps of a plan, and tell the recommender, which reviews the outcome later."""

        def work(engine: Engine) -> tuple[Outcome, Proposal]:
            outcome = do()
            return outcome, self._gate.proposal(outcome.proposal)

        outcome, shown = self._loop.call(work)
        if outcome.changed:
            self._recommender.acted(shown, self._who)
        return outcome

    def runbooks(self) -> tuple[RunbookLine, ...]:
        return self._registry.lines()

    def runbook(self, runbook_id: str) -> RunbookView:
        return self._registry.view(runbook_id)

    def run_runbook(self, ask: RunbookAsk) -> RunbookRun:
        return self._registry.run(self._actor, ask)

    def approve_runbook(self, vote: RunbookVote) -> RunbookLine:
        return self._registry.approve(self._actor, vote)

    def retire_runbook(self, vote: RunbookVote) -> RunbookLine:
        return self._registry.retire(self._actor, vote)

    def draft(self, ask: DraftAsk) -> DraftRun:
        self._recommender.give_way()
        return self._drafting.begin(self._actor, ask)

    def draft_run(self, draft_id: str, after: int = -1, wait_s: float = 0.0) -> DraftRun:
        return self._drafting.run(draft_id, after, wait_s)

    def cancel_draft(self, draft_id: str) -> DraftRun:
        return self._drafting.cancel(self._actor, draft_id)

    def draft_runs(self) -> tuple[DraftRun, ...]:
        return self._drafting.runs()

    def propose_draft(self, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        return self._drafting.propose(self._actor, draft_id, drafter, reason)

    def model(self) -> ModelStanding:
        return self._drafting.standing()

    def audit_state(self) -> AuditState:
        return self._auditing.state()

    def audit_page(self, query: AuditQuery) -> AuditPage:
        return self._auditing.page(query)

    def audit_part(self, wanted: AuditRange) -> AuditPart:
        return self._auditing.part(self._actor, wanted)

    def anchor_audit(self) -> AuditState:
        return self._auditing.anchor(self._actor)

    def rotate_audit_key(self) -> AuditState:
        return self._auditing.rotate(self._actor)

    def redact_audit(self, ref: str, reason: str) -> AuditErased:
        return self._auditing.redact(self._actor, ref, reason)

    def mirror(self) -> MirrorReport:
        return self._cluster.report()

    def intents(self, limit: int = 200) -> IntentsReport:
        return self._loop.call(lambda engine: engine.intents(limit))

    def intent(self, number: int) -> IntentDetail:
        found, intent = self._loop.call(lambda engine: aftermath.detail(engine, self._gate, number))
        return msgspec.structs.replace(found, far=self._cluster.evidence(intent))

    def answer_intent(self, said: IntentAnswer) -> Receipt:
        return self._loop.call(lambda engine: aftermath.answer(engine, self._gate, self._actor, said))

    def processes(self, workload_id: str) -> ProcessReport:
        return self._output.report(workload_id)

    def output(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        return self._output.part(request, wait_s)

    def mirrored(self, workload_id: str) -> Mirrored:
        return self._cluster.mirrored(workload_id)

    def break_off(self) -> None:
        """The server stops: end every wait for a draft, a model or an earlier time."""
        self._past.close()
        self._drafting.close()

    def _answer_to(self, question: ServiceQuestion, arguments: Arguments) -> Any:
        assert question.copied, question.name
        return self._read(question.name, *arguments.values())

    def _change(self, needs: str, do: Callable[[], Any]) -> Any:
        """Make a change on behalf of a person with the right it needs; their next reads include it."""
        if self.read_only:
            raise refuse_read_only()
        try:
            if needs:
                self._loop.call(lambda _: self._gate.refuse_unless(self._actor, cast("Deed", needs)))
            return do()
        finally:
            self._note_written()

    def _read(self, what: str, *arguments: object) -> Any:
        """The engine's answer, including all changes of this person."""
        return self._loop.read(what, *arguments, least_version=self._written.get(self._whose, 0))

    def _note_written(self) -> None:
        if self._loop.copies.beside:
            self._written[self._whose] = self._loop.engine.version
            self._figures.forget()
            with contextlib.suppress(UnreachableError):  # the engine is stopping
                self._loop.post(lambda _: self._loop.copies.show_written())

    @property
    def actor(self) -> Actor:
        """The person who asks."""
        return self._actor

    @property
    def gate(self) -> Gate:
        """The approval gate."""
        return self._gate

    @property
    def now_ms(self) -> int:
        """Cell time, milliseconds."""
        return self._loop.engine.now_ms

    @property
    def own_version(self) -> int:
        """Version that includes the last change of this account."""
        return self._written.get(self._whose, 0)

    def wrote(self, actors: Iterable[Actor]) -> None:
        """Note that these people submitted work, which their next reads include."""
        if self._loop.copies.beside:
            for actor in actors:
                self._written[self.acting_as(actor)._whose] = self._loop.engine.version

    @property
    def _whose(self) -> str:
        return self._actor.account or self._actor.subject


def _as_declared(question: ServiceQuestion, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method whose question is declared as a change."""
    if not question.changes:
        return method

    @functools.wraps(method)
    def answered(self: LocalClient, *arguments: Any, **named: Any) -> Any:
        def do() -> Any:
            return method(self, *arguments, **named)

        if question.changes_with(question.bound(*arguments, **named)):
            return self._change(question.needs, do)
        return do()

    return answered


wrap_answers(LocalClient, Client, _as_declared)


def user_name() -> str:
    """The name of the user this process runs as."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


MAX_PROPOSALS = 200
"""Newest proposals searched for the beginning of an id."""


def beside(client: LocalClient, name: str, kinds: Sequence[str], limit: int) -> tuple[Named, ...]:
    """Objects beside the cell called `name`, then those whose id begins so. Stores that cannot be asked now are left
    out."""
    found: dict[Named, None] = {}
    for kind, begins, hits in _KINDS:
        if (not kinds or kind in kinds) and _may_begin(begins, name):
            with suppress(MusterError):
                found |= dict.fromkeys(islice(hits(client, name), limit))
    return tuple(sorted(found, key=lambda hit: hit.id != name))[:limit]


def _may_begin(pattern: str, name: str) -> bool:
    """True when an id with those first letters may begin so."""
    return name.upper().startswith(pattern) or pattern.startswith(name.upper())


def _proposals(client: LocalClient, name: str) -> Iterator[Named]:
    if re.fullmatch(r"P-[1-9][0-9]{0,10}", name):
        with suppress(MusterError):
            one = client.proposal(name)
            yield Named("proposal", one.id, f"{one.state}: {one.title}")
    for each in client.proposals((), MAX_PROPOSALS):
        if each.id.startswith(name):
            yield Named("proposal", each.id, f"{each.state}: {each.title}")


def _incidents(client: LocalClient, name: str) -> Iterator[Named]:
    for each in client.incidents((), MAX_PROPOSALS):
        if each.id.startswith(name):
            yield Named("incident", each.id, f"{each.state}: {each.title}")


def _drafts(client: LocalClient, name: str) -> Iterator[Named]:
    return (Named("draft", each.id, each.rule_state) for each in client.draft_runs() if each.id.startswith(name))


def _runs(client: LocalClient, name: str) -> Iterator[Named]:
    return (Named("run", each.id, each.state) for each in client.runs() if each.id.startswith(name))


def _advice(client: LocalClient, name: str) -> Iterator[Named]:
    from recommender.findings.suggestions import same_id

    for each in client.recommendations().open:
        if each.suggestion.id.startswith(name) or each.suggestion.id == same_id(name):
            yield Named("recommendation", each.suggestion.id, each.suggestion.finding)


def _runbooks(client: LocalClient, name: str) -> Iterator[Named]:
    return (Named("runbook", each.id, each.status) for each in client.runbooks() if each.id.startswith(name))


def _records(client: LocalClient, name: str) -> Iterator[Named]:
    """Audit records by number."""
    if name.isascii() and name.isdigit() and len(name) < 16 and 0 < int(name) <= client.audit_state().last:
        yield Named("record", str(int(name)))


_KINDS: tuple[tuple[str, str, Callable[[LocalClient, str], Iterator[Named]]], ...] = (
    ("proposal", "P-", _proposals),
    ("incident", "I-", _incidents),
    ("draft", "D-", _drafts),
    ("run", "T-", _runs),
    ("recommendation", "R-", _advice),
    ("runbook", "", _runbooks),
    ("record", "", _records),
)
"""Kind, how its ids begin, and what finds them."""
