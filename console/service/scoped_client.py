"""The client of a caller who sees part of the cell (`engine.model.visibility`), and who such callers are.

A question is answered if its answer is limited: by the engine (`engine.reads.scoped_answers.ANSWERS`), or by the method
here that has its name. Every other question is refused by name, so a new one shows nothing before somebody has said how
it is to be limited. A foreign id is answered as one that nothing has.
"""

from __future__ import annotations

import grp
import os
import pwd
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from console.client.presence import PresenceAsk, Present
from console.client.protocol import Client, Health
from console.client.questions import Arguments, ServiceQuestion
from console.service.past_client import NOT_KEPT
from engine.model.commands import AnyCommand, Receipt, Submit
from engine.model.errors import (
    BusyError,
    MusterError,
    NotFoundError,
    RefusedError,
    SpecError,
    UnreachableError,
    of_code,
)
from engine.model.overviews import Changes
from engine.model.visibility import OTHERS
from engine.past.process import PastRequest
from engine.read_replica import decoded
from engine.reads.scoped_answers import ANSWERS, refuse_scoped
from engine.reads.visible_work import WORD
from runbooks.actions import catalogue
from runbooks.gate.approval_policy import NO_MEMBERSHIP, Caller, Membership, visibility
from runbooks.plans.identity import stands_for

if TYPE_CHECKING:
    from console.client.credentials import NewToken, TokenAsk
    from console.client.protocol import RuntimeEstimate
    from console.service.local_client import LocalClient
    from engine.executors.task_files import OutputPart, OutputRequest, ProcessReport
    from engine.external.mirror_report import Mirrored
    from engine.model.visibility import Visibility
    from engine.past.replicas import PastReplicas
    from recommender.estimates.queries import Quote, QuoteRequest
    from recommender.history.metrics import History, HistoryRequest
    from runbooks.gate.approval_policy import Policy, Verdict
    from runbooks.plans.identity import Actor, Signed
    from runbooks.plans.incidents import AlertReceipt, AlertReport
    from runbooks.plans.typed_plan import Outcome, Proposal, Request

SAME_FOR_ALL = frozenset(("past", "leave_past", "tokens", "revoke_token"))
"""Questions whose answers have no work in them, or the asker's own things alone."""
PATIENCE_S = 5.0
"""How long a question as of an earlier time waits for its replica."""
KEPT_S = 60.0
"""For so long the groups of an account are not looked up anew."""
MAX_SEARCHED = 1_000
"""Newest proposals among which those are that may be seen."""


class ScopedClient(Client):
    """Answers of `live`, which acts for the caller, as far as they may see."""

    def __init__(self, live: LocalClient, seen: Visibility, replicas: PastReplicas, at_ms: int = 0) -> None:
        """`at_ms`: the earlier cell time that is asked about; 0: the present."""
        self.read_only = live.read_only or bool(at_ms)
        self._client = live
        self.seen = seen
        self._replicas = replicas
        self._at_ms = at_ms

    def as_of(self, at_ms: int) -> ScopedClient:
        return ScopedClient(self._client, self.seen, self._replicas, at_ms)

    def _answer_to(self, question: ServiceQuestion, arguments: Arguments) -> Any:
        if question.name in SAME_FOR_ALL and not self._at_ms:
            return question.answered_by(self._client, arguments)
        if question.name not in ANSWERS or (self._at_ms and question.name in NOT_KEPT):
            raise refuse_scoped(question.name)
        return self._asked(question.name, *arguments.values())

    def _asked(self, what: str, *arguments: object) -> Any:
        if not self._at_ms:
            return self._client.read_for(what, arguments, self.seen)
        self._replicas.check(self._at_ms, self._client.now_ms)
        request = PastRequest(self._at_ms)
        return decoded(what, self._replicas.ask(request, what, arguments, PATIENCE_S, self.seen))

    def redacted(self, error: MusterError, said: str) -> MusterError:
        """An error without names that may not be seen, but for those in what the caller `said`."""
        if isinstance(error, (BusyError, UnreachableError)):
            return error  # of the service, not of work
        try:
            hidden = set(self._asked("hidden_words", (error.problem, error.remedy)))
        except MusterError:
            return RefusedError("this could not be answered", "Ask somebody who sees the whole cell")
        if all(word in said for word in hidden):
            return error
        # A sentence that is about others' work is not theirs to read, whatever else is in it.
        return of_code(error.code, "this concerns work of others", "Ask somebody who sees the whole cell")

    # -- the cell and its work ----------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Without what is in the words of others: errors name their work."""
        found = self._client.as_of(self._at_ms).health() if self._at_ms else self._client.health()
        told = {
            field: "there is an error; operators see it" if getattr(found, field) else ""
            for field in ("journal_error", "history_error", "audit_error", "mirror_error")
        }
        return msgspec.structs.replace(found, **told, journal="", awaiting=0, stuck=0, incidents=0)

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        """Does not wait: the service does, without a thread."""
        found: Changes = self._asked("changes", after, max(1, limit))
        return found if limit else msgspec.structs.replace(found, items=(), missed=0)

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        self._check_own(workload_id)
        return None if self._at_ms else self._client.estimate(workload_id)

    def processes(self, workload_id: str) -> ProcessReport:
        self._check_own(workload_id)
        return self._now("processes").processes(workload_id)

    def output(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        self._check_own(request.id)
        return self._now("output").output(request, wait_s)

    def mirrored(self, workload_id: str) -> Mirrored:
        """Without limits, whose use is told by user and account."""
        self._check_own(workload_id)
        found = self._now("mirrored").mirrored(workload_id)
        texts = (found.reason_text, found.disagrees, *(voice.text for voice in found.voices))
        if self._asked("hidden_words", texts):
            found = msgspec.structs.replace(found, reason_text="", disagrees="", voices=())
        return msgspec.structs.replace(found, limits=())

    def history(self, request: HistoryRequest) -> History:
        """Series of the cell, of pools, and of queues and tenants that are seen; no ended work."""
        if request.metric and not self._is_series_seen(request.of, request.subject):
            raise NotFoundError(f"nothing is measured of {request.subject[:40]!a}", "See `muster history show`")
        until_ms = min(request.until_ms or self._at_ms, self._at_ms) if self._at_ms else request.until_ms
        found = self._client.history(msgspec.structs.replace(request, until_ms=until_ms, runs=0))
        series = tuple(each for each in found.series if self._is_series_seen(each.of, each.subject))
        return msgspec.structs.replace(
            found, series=series, series_count=len(series), runs=(), run_counts=(), error="", followed=None
        )

    def _is_series_seen(self, of: str, subject: str) -> bool:
        if of == "tenant":
            return all(subject in part.tenants for part in self.seen.parts)
        if of != "queue":
            return of in ("", "cell", "pool")
        try:
            self._asked("queue", subject)
        except NotFoundError:
            return False
        return True

    def quote(self, request: QuoteRequest) -> Quote:
        """In a queue that is seen."""
        if not request.queue:
            raise SpecError("queue", "is empty", "Name a queue that you see")
        self._asked("queue", request.queue)
        found = self._now("quote").quote(request)
        options = tuple(
            msgspec.structs.replace(
                option, reason=self._told(option.reason), notes=tuple(map(self._told, option.notes)),
                forecast=option.forecast
                and msgspec.structs.replace(option.forecast, decides=self._told(option.forecast.decides)),
            )
            for option in found.options
        )  # fmt: skip
        return msgspec.structs.replace(
            found, options=options, assumptions=tuple(map(self._told, found.assumptions)),
            warnings=tuple(map(self._told, found.warnings)),
        )  # fmt: skip

    def _told(self, text: str) -> str:
        """A sentence, unless it names others' work."""
        return OTHERS if text and self._asked("hidden_words", (text,)) else text

    def command(self, command: AnyCommand) -> Receipt:
        """Submissions alone: they name queues and tenants, for which the policy must let the caller submit."""
        if not isinstance(command, Submit) or self._at_ms:
            raise refuse_scoped("command")
        new = {spec.id for spec in command.workloads}
        awaited = {each.id for spec in command.workloads for each in spec.after} - new
        self._check_own(*sorted(awaited))
        return self._client.command(command)

    def _check_own(self, *ids: str) -> None:
        """Raises NotFoundError, the same for what is hidden and for what does not exist."""
        self._asked("own_work", ids)

    def _now(self, what: str) -> LocalClient:
        """Raises RefusedError for a question as of an earlier time."""
        if self._at_ms:
            raise refuse_scoped(what)
        return self._client

    # -- the caller ---------------------------------------------------------------------------------------------------

    def whoami(self, proved: bool = False) -> Caller:
        found = self._client.whoami(proved)
        keys = {subject: prints for subject, prints in found.keys.items() if subject == found.subject}
        return msgspec.structs.replace(found, keys=keys, shared_with=())

    def present(self, ask: PresenceAsk) -> Present:
        """Who else is here is not told: what they look at may be others' work."""
        said = self._now("present").presence.say(self._client.actor, ask)
        return Present(serial=said.serial, here=())

    def create_token(self, ask: TokenAsk) -> NewToken:
        return self._now("create_token").create_token(ask)

    def report_alerts(self, report: AlertReport) -> AlertReceipt:
        if "alert" not in (self._client.actor.deeds or ()):
            raise refuse_scoped("report_alerts")
        return self._client.report_alerts(report)

    # -- proposals: those about visible work alone, and only whole ----------------------------------------------------

    def proposals(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Proposal, ...]:
        found = self._now("proposals").proposals(states, MAX_SEARCHED)
        return tuple(each for each in found if self._is_shown(each))[:limit]

    def proposal(self, proposal_id: str) -> Proposal:
        """Raises NotFoundError, the same for one that may not be seen and for one that does not exist."""
        unknown = NotFoundError(f"there is no proposal {proposal_id[:40]!a}", "See `muster proposal list`")
        try:
            found = self._now("proposal").proposal(proposal_id)
        except NotFoundError:
            raise unknown from None
        if not self._is_shown(found):
            raise unknown
        return found

    def preview(self, request: Request) -> Proposal:
        self._check_request(request)
        return self._shown(self._now("preview").preview(request))

    def propose(self, request: Request) -> Proposal:
        self._check_request(request)
        self._shown(self._now("propose").preview(request))
        return self._shown(self._client.propose(request))

    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        return self._outcome(self._client.approve(self.proposal(proposal_id).id, digest, comment, signed))

    def vote(
        self, proposal_id: str, digest: str, verdict: Verdict, comment: str = "", signed: Signed | None = None
    ) -> Proposal:
        return self._shown(self._client.vote(self.proposal(proposal_id).id, digest, verdict, comment, signed))

    def execute(self, proposal_id: str) -> Outcome:
        return self._outcome(self._client.execute(self.proposal(proposal_id).id))

    def pause(self, proposal_id: str, reason: str = "") -> Proposal:
        return self._shown(self._client.pause(self.proposal(proposal_id).id, reason))

    def resume(self, proposal_id: str, accept: bool = False) -> Outcome:
        return self._outcome(self._client.resume(self.proposal(proposal_id).id, accept))

    def confirm(self, proposal_id: str, step: str) -> Outcome:
        return self._outcome(self._client.confirm(self.proposal(proposal_id).id, step))

    def cancel(self, proposal_id: str, reason: str = "") -> Proposal:
        return self._shown(self._client.cancel(self.proposal(proposal_id).id, reason))

    def _check_request(self, request: Request) -> None:
        """Raises NotFoundError for a target that may not be seen, RefusedError for what is not about work alone."""
        acts = [act for step in request.steps for act in (step.act, *(step.rollback or ()))]
        if not acts or request.rolls_back or any(catalogue.find(act.action).kind != "workload" for act in acts):
            raise refuse_scoped("propose")
        self._check_own(*(target for act in acts for target in act.targets))

    def _outcome(self, outcome: Outcome) -> Outcome:
        """Without what it changed of others."""
        hidden = set(self._asked("hidden_words", (*outcome.changed, *outcome.verified)))

        def seen(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(text for text in texts if hidden.isdisjoint(WORD.findall(text)))

        return msgspec.structs.replace(outcome, changed=seen(outcome.changed), verified=seen(outcome.verified))

    def _shown(self, proposal: Proposal) -> Proposal:
        if not self._is_shown(proposal):
            raise RefusedError("this plan touches work of others", "Ask somebody who sees the whole cell to propose it")
        return proposal

    def _is_shown(self, proposal: Proposal) -> bool:
        """True if it is about visible work, and nothing in it names other work: a vote is about all of a plan."""
        acts = [step.act for step in proposal.plan.steps]
        if any(catalogue.find(act.action).kind != "workload" for act in acts):
            return False
        try:
            self._check_own(*(target for act in acts for target in act.targets))
        except NotFoundError:
            return False
        return not self._asked("hidden_words", tuple(_texts(msgspec.to_builtins(proposal))))


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of JSON, but for the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


# -- who sees what ----------------------------------------------------------------------------------------------------


class CallerViews:
    """Which work each caller of one engine sees, by the policy in force. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Membership]] = {}

    def of(self, policy: Policy, actor: Actor, owner: str) -> Visibility | None:
        """None: all of it. May ask the system for groups, which may take a while."""
        membership = self._membership(policy, actor) if policy.views else NO_MEMBERSHIP
        return visibility(policy, actor, membership, owner=owner)

    def _membership(self, policy: Policy, actor: Actor) -> Membership:
        """Of the account that asks, and of the OS accounts of the person that it is."""
        person = next((each for each in policy.people if each.subject == actor.subject), None)
        accounts = {stands_for(actor.account), *(person.accounts if person is not None else ())}
        found = [self._looked_up(account) for account in sorted(accounts) if account.startswith("unix:")]
        return Membership(
            tuple(user for each in found for user in each.users),
            frozenset().union(*(each.groups for each in found)),
        )

    def _looked_up(self, account: str) -> Membership:
        now = time.monotonic()
        with self._lock:
            at, known = self._known.get(account, (-KEPT_S, NO_MEMBERSHIP))
        if now - at < KEPT_S:
            return known
        found = membership_of(int(account.removeprefix("unix:")))
        with self._lock:
            self._known[account] = (now, found)
        return found


def membership_of(uid: int) -> Membership:
    """Name and groups of an OS account, as the system has them now; nothing for one that it does not know."""
    try:
        user = pwd.getpwuid(uid)
        gids = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return NO_MEMBERSHIP
    return Membership((user.pw_name,), frozenset(_group_names(gids)))


def _group_names(gids: Iterable[int]) -> Iterator[str]:
    for gid in gids:
        try:
            yield f"unix-group:{grp.getgrgid(gid).gr_name}"
        except KeyError:
            continue
