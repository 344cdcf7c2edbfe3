"""The client of an engine in another process: HTTP over a Unix socket or TCP. Safe to use from several threads."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from console.client import Health, RuntimeEstimate, refuse_read_only
from console.decoders import decoder
from console.live_line import LiveLine, Said, words_of
from console.token_terms import LoginView, NewToken, TokenAsk, TokenLine
from engine.commands import AnyCommand, Receipt
from engine.costs import BudgetReport, GoodputReport, Showback, ShowbackRequest
from engine.errors import BusyError, MusterError, NotSentError, SpecError, UnreachableError, of_code
from engine.executors.shown import OutputPart, OutputRequest, ProcessReport
from engine.intent_report import IntentsReport
from engine.outlook import MOST_STRETCH, Ask, RunStatus, ScoreReport
from engine.query import (
    Changes,
    Consolidation,
    ConsolidationRequest,
    FairnessReport,
    FragmentationReport,
    HeatMap,
    HeatRequest,
    Named,
    NodeDetail,
    Overview,
    Page,
    Query,
    QueueDetail,
    Unblocking,
    WorkloadDetail,
)
from engine.scaling_report import ScalingReport
from engine.slurm.report import Mirrored, MirrorReport
from runbooks.audit_pages import (
    AuditErased,
    AuditPage,
    AuditPart,
    AuditQuery,
    AuditRange,
    AuditState,
)
from runbooks.draft import DraftAsk, Drafter, DraftRun, ModelStanding
from runbooks.freezes import Freeze, FreezeSpec
from runbooks.identity import Signed
from runbooks.intent_shown import IntentAnswer, IntentDetail
from runbooks.plan import Outcome, Proposal, Request, Review
from runbooks.policy_shown import Caller, Candidate, PolicyChange, PolicyCheck, PolicyView, PolicyVote
from runbooks.runbook_shown import RunbookAsk, RunbookLine, RunbookRun, RunbookView, RunbookVote

if TYPE_CHECKING:
    import ssl

    from console.identity import Identity
    from console.presence import PresenceAsk, Present
    from recommender.forecasts import Forecast, ForecastRequest
    from recommender.history import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
    from recommender.placements import PlacementAdvice
    from recommender.quotes import Quote, QuoteRequest
    from recommender.recommendations import Recommendation, Recommendations
    from recommender.sizes import SizingReport, SizingRequest
    from runbooks.policy import Verdict

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""Longest wait for an answer: a large submission or a simulation on a fork may take seconds."""
LONGEST_QUOTE_S = 600.0
"""Longest wait for a quote whose rehearsals are asked for by number."""
LONGEST_WAIT_S = 30.0
"""Longest single long poll; the server holds none longer than a minute."""
SILENT_S = 10.0
"""A stream that says nothing for so long is broken: the server says something every second."""
BUSY_S = 10.0
"""How long a client goes on asking an engine that has too much to do."""
_NOT_TWICE = ("/v1/agents/", "/v1/tokens", "/v1/login")
"""What takes no key: it is repeated by whoever asks, or its answer is a secret that is kept nowhere."""
MAX_BODY_BYTES = 64 * 2**20
"""What the server accepts in one request."""


class RemoteClient:
    """Implements `console.client.Client` against a server.

    `where` is the path of a Unix socket (also `unix:PATH`), or a URL such as `http://127.0.0.1:7373`.
    """

    def __init__(
        self,
        where: str,
        read_only: bool = False,
        identity: Identity | None = None,
        *,
        patience_s: float = READ_TIMEOUT_S,
        live: bool = False,
    ) -> None:
        """`identity` signs what is asked for in another name than the account's own. `patience_s`: longest wait for an
        answer, besides what a question itself may be held for. `live`: what is waited for comes on one line, which
        is kept (`console.live_line`)."""
        self.read_only = read_only
        self._identity = identity
        self._caller: Caller | None = None
        self._where = where
        self._patience_s = patience_s
        certificate = identity.certificate if identity is not None else None
        self._http = _http(where, patience_s, certificate)
        token = identity.token(where) if identity is not None else ""
        if token:
            self._http.headers["authorization"] = f"Bearer {token}"
        self._line = LiveLine(self._said) if live else None

    def health(self) -> Health:
        return self._get("/v1/health", Health)

    def overview(self) -> Overview:
        return self._get("/v1/overview", Overview)

    def query(self, query: Query) -> Page:
        return self._read("POST", "/v1/query", Page, content=_encoded(query))

    def workload(self, workload_id: str) -> WorkloadDetail:
        return self._get(f"/v1/workloads/{quote(workload_id, safe='')}", WorkloadDetail)

    def node(self, node_id: str) -> NodeDetail:
        return self._get(f"/v1/nodes/{quote(node_id, safe='')}", NodeDetail)

    def queue(self, name: str) -> QueueDetail:
        return self._get(f"/v1/queues/{quote(name, safe='')}", QueueDetail)

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:
        params = {"name": name, "kinds": ",".join(kinds), "limit": limit}
        kind: Any = tuple[Named, ...]
        found: tuple[Named, ...] = self._read("GET", "/v1/find", kind, params=params)
        return found

    def fairness(self) -> FairnessReport:
        return self._get("/v1/fairness", FairnessReport)

    def showback(self, request: ShowbackRequest) -> Showback:
        return self._read("POST", "/v1/showback", Showback, content=_encoded(request))

    def budgets(self) -> BudgetReport:
        return self._get("/v1/budgets", BudgetReport)

    def scaling(self) -> ScalingReport:
        return self._get("/v1/scaling", ScalingReport)

    def mirror(self) -> MirrorReport:
        return self._get("/v1/mirror", MirrorReport)

    def intents(self, limit: int = 200) -> IntentsReport:
        return self._read("GET", "/v1/intents", IntentsReport, params={"limit": str(limit)})

    def processes(self, workload_id: str) -> ProcessReport:
        return self._get(f"/v1/workloads/{quote(workload_id, safe='')}/processes", ProcessReport)

    def output(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        asked = {name: str(getattr(request, name)) for name in ("task", "attempt", "offset", "most")}
        path = f"/v1/workloads/{quote(request.id, safe='')}/output"
        params, timeout = asked | {"wait_s": str(wait_s)}, self._patient(wait_s)
        return self._read("GET", path, OutputPart, params=params, timeout=timeout)

    def intent(self, number: int) -> IntentDetail:
        return self._get(f"/v1/intents/{number}", IntentDetail)

    def answer_intent(self, said: IntentAnswer) -> Receipt:
        return self._change("/v1/answer-intent", Receipt, said)

    def mirrored(self, workload_id: str) -> Mirrored:
        return self._get(f"/v1/workloads/{quote(workload_id, safe='')}/mirrored", Mirrored)

    def goodput(self) -> GoodputReport:
        return self._get("/v1/goodput", GoodputReport)

    def topology(self, request: HeatRequest) -> HeatMap:
        return self._read("POST", "/v1/topology", HeatMap, content=_encoded(request))

    def fragmentation(self) -> FragmentationReport:
        return self._get("/v1/fragmentation", FragmentationReport)

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        return self._read("POST", "/v1/consolidation", Consolidation, content=_encoded(request))

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        kind: Any = RuntimeEstimate | None
        found: RuntimeEstimate | None = self._get(f"/v1/workloads/{quote(workload_id, safe='')}/estimate", kind)
        return found

    def unblocking(self, workload_id: str) -> Unblocking:
        return self._get(f"/v1/workloads/{quote(workload_id, safe='')}/unblocking", Unblocking)

    def recommendations(self) -> Recommendations:
        from recommender.recommendations import Recommendations

        return self._get("/v1/recommendations", Recommendations)

    def recommendation(self, rec_id: str) -> Recommendation:
        from recommender.recommendations import Recommendation

        return self._get(f"/v1/recommendations/{quote(rec_id, safe='')}", Recommendation)

    def reject_recommendation(self, rec_id: str, reason: str = "") -> Recommendation:
        from recommender.recommendations import Recommendation

        return self._change(f"/v1/recommendations/{quote(rec_id, safe='')}/reject", Recommendation, {"reason": reason})

    def forecast(self, request: ForecastRequest) -> Forecast:
        from recommender.forecasts import Forecast

        return self._read("POST", "/v1/forecast", Forecast, content=_encoded(request))

    def quote(self, request: QuoteRequest) -> Quote:
        from recommender.quotes import Quote

        timeout = self._patient(LONGEST_QUOTE_S if request.seeds else MOST_STRETCH * request.within_ms / 1000)
        return self._read("POST", "/v1/quote", Quote, content=_encoded(request), timeout=timeout)

    def history(self, request: HistoryRequest) -> History:
        from recommender.history import History

        return self._read("POST", "/v1/history", History, content=_encoded(request))

    def sizing(self, request: SizingRequest) -> SizingReport:
        from recommender.sizes import SizingReport

        return self._read("POST", "/v1/sizing", SizingReport, content=_encoded(request))

    def advice_on(self, workload_id: str) -> PlacementAdvice:
        from recommender.placements import PlacementAdvice

        return self._get(f"/v1/workloads/{quote(workload_id, safe='')}/advice", PlacementAdvice)

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        from recommender.history import ImportReceipt

        return self._change("/v1/import/samples", ImportReceipt, batch)

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        from recommender.history import ImportReceipt

        return self._change("/v1/import/runs", ImportReceipt, batch)

    def ask(self, ask: Ask) -> RunStatus:
        return self._last("POST", "/v1/runs", RunStatus, content=_encoded(ask))

    def run(self, run_id: str, after: int = -1, wait_s: float = 0.0) -> RunStatus:
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        params = {"after": after, "wait_s": wait_s}
        path = f"/v1/runs/{quote(run_id, safe='')}"
        return self._read("GET", path, RunStatus, params=params, timeout=self._patient(wait_s))

    def cancel_run(self, run_id: str) -> RunStatus:
        return self._last("DELETE", f"/v1/runs/{quote(run_id, safe='')}", RunStatus)

    def runs(self) -> tuple[RunStatus, ...]:
        return self._get("/v1/runs", tuple[RunStatus, ...])

    def scores(self) -> ScoreReport:
        return self._get("/v1/scores", ScoreReport)

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        waited = self._line.changes(after, wait_s) if self._line is not None and wait_s else None
        if waited is not None:
            if not limit or waited.version <= after:
                return waited
            wait_s = 0.0
        params = {"after": after, "wait_s": wait_s, "limit": max(1, limit)}
        found = self._read("GET", "/v1/changes", Changes, params=params, timeout=self._patient(wait_s))
        return found if limit else msgspec.structs.replace(found, items=(), missed=0)

    def follow(self, after: int = -1) -> Iterator[Changes]:
        missed = 0
        with self._said({"after": str(after)}) as said:
            for event, data in said:
                if event == "missed":
                    missed += self._decoded(data, dict[str, int])["missed"]
                else:
                    found = self._decoded(data, Changes)
                    yield msgspec.structs.replace(found, missed=found.missed + missed)
                    missed = 0
        raise UnreachableError(f"the engine at {self._where} ended the stream", "It is stopping; follow again later")

    @contextlib.contextmanager
    def _said(self, params: dict[str, str]) -> Iterator[Said]:
        """What the engine says as it happens. Raises MusterError when it cannot be had, or breaks."""
        asked = {"params": params, "timeout": httpx.Timeout(SILENT_S, connect=CONNECT_TIMEOUT_S)}
        with self._told_apart(), self._broken_off(), self._http.stream("GET", "/v1/events", **asked) as answer:
            if answer.status_code != 200:
                answer.read()
                raise self._error(answer)
            yield words_of(answer.iter_lines())

    def records(self) -> int:
        return self._line.records if self._line is not None else -1

    def command(self, command: AnyCommand) -> Receipt:
        return self._change("/v1/command", Receipt, command)

    def preview(self, request: Request) -> Proposal:
        return self._read("POST", "/v1/preview", Proposal, content=_encoded(request))

    def propose(self, request: Request) -> Proposal:
        return self._change("/v1/propose", Proposal, request)

    def revise(self, proposal_id: str, request: Request) -> Proposal:
        return self._change(f"/v1/proposals/{quote(proposal_id, safe='')}/revise", Proposal, request)

    def proposals(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Proposal, ...]:
        query = {"states": ",".join(states), "limit": str(limit)}
        return self._read("GET", "/v1/proposals", tuple[Proposal, ...], params=query)

    def proposal(self, proposal_id: str) -> Proposal:
        return self._get(f"/v1/proposals/{quote(proposal_id, safe='')}", Proposal)

    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        vote = {"proposal": proposal_id, "digest": digest, "comment": comment, "signed": signed}
        return self._change("/v1/approve", Outcome, vote)

    def vote(
        self, proposal_id: str, digest: str, verdict: Verdict, comment: str = "", signed: Signed | None = None
    ) -> Proposal:
        vote = {"proposal": proposal_id, "digest": digest, "verdict": verdict, "comment": comment, "signed": signed}
        return self._change("/v1/vote", Proposal, vote)

    def execute(self, proposal_id: str) -> Outcome:
        return self._change("/v1/execute", Outcome, {"proposal": proposal_id})

    def pause(self, proposal_id: str, reason: str = "") -> Proposal:
        return self._change("/v1/pause", Proposal, {"proposal": proposal_id, "reason": reason})

    def resume(self, proposal_id: str, accept: bool = False) -> Outcome:
        return self._change("/v1/resume", Outcome, {"proposal": proposal_id, "accept": accept})

    def confirm(self, proposal_id: str, step: str) -> Outcome:
        return self._change("/v1/confirm", Outcome, {"proposal": proposal_id, "step": step})

    def rollback(self, proposal_id: str, reason: str = "") -> Outcome:
        return self._change("/v1/rollback", Outcome, {"proposal": proposal_id, "reason": reason})

    def cancel(self, proposal_id: str, reason: str = "") -> Proposal:
        return self._change("/v1/cancel", Proposal, {"proposal": proposal_id, "reason": reason})

    def break_glass(self, proposal_id: str, digest: str, reason: str, signed: Signed | None = None) -> Outcome:
        broken = {"proposal": proposal_id, "digest": digest, "reason": reason, "signed": signed}
        return self._change("/v1/break-glass", Outcome, broken)

    def reviews(self) -> tuple[Review, ...]:
        return self._get("/v1/reviews", tuple[Review, ...])

    def close_review(self, review: int, comment: str) -> None:
        nothing: Any = None
        self._change("/v1/close-review", nothing, {"review": review, "comment": comment})

    def whoami(self, proved: bool = False) -> Caller:
        known = self._known(self._in_whose_name("/v1/whoami", b"", "GET") if proved else {})
        person = self._identity.person if self._identity is not None else ""
        return msgspec.structs.replace(known, acts_as=person)

    def _known(self, headers: dict[str, str]) -> Caller:
        known = self._read("GET", "/v1/whoami", Caller, headers=headers)
        return msgspec.structs.replace(known, asked_ns=time.monotonic_ns())

    def present(self, ask: PresenceAsk) -> Present:
        from console.presence import Present

        if self._line is not None and ask.wait_s and ask.after >= 0 and not ask.leaves:
            told = self._line.others(ask.session, ask.after, ask.wait_s)
            if told is not None:
                return told
        return self._read("POST", "/v1/presence", Present, content=_encoded(ask))

    def tokens(self) -> tuple[TokenLine, ...]:
        headers = self._in_whose_name("/v1/tokens", b"", "GET")
        return self._last("GET", "/v1/tokens", tuple[TokenLine, ...], headers=headers)

    def create_token(self, ask: TokenAsk) -> NewToken:
        return self._change("/v1/tokens", NewToken, ask)

    def revoke_token(self, token_id: str) -> TokenLine:
        return self._change("/v1/tokens/revoke", TokenLine, {"id": token_id})

    def login_view(self) -> LoginView:
        """With which OpenID provider one logs in there."""
        return self._get("/v1/login", LoginView)

    def log_in(self, id_token: str) -> NewToken:
        return self._last("POST", "/v1/login/token", NewToken, content=_encoded({"id_token": id_token}))

    def policy(self) -> PolicyView:
        return self._get("/v1/policy", PolicyView)

    def check_policy(self, text: str) -> PolicyCheck:
        return self._read("POST", "/v1/policy/check", PolicyCheck, content=_encoded({"text": text}))

    def propose_policy(self, change: PolicyChange) -> Candidate:
        return self._change("/v1/policy/propose", Candidate, change)

    def vote_policy(self, vote: PolicyVote) -> Candidate:
        return self._change("/v1/policy/vote", Candidate, vote)

    def freezes(self) -> tuple[Freeze, ...]:
        return self._get("/v1/freezes", tuple[Freeze, ...])

    def freeze(self, spec: FreezeSpec) -> None:
        nothing: Any = None
        self._change("/v1/freeze", nothing, spec)

    def thaw(self, name: str) -> None:
        nothing: Any = None
        self._change("/v1/thaw", nothing, {"name": name})

    def runbooks(self) -> tuple[RunbookLine, ...]:
        return self._get("/v1/runbooks", tuple[RunbookLine, ...])

    def runbook(self, runbook_id: str) -> RunbookView:
        return self._get(f"/v1/runbooks/{quote(runbook_id, safe='')}", RunbookView)

    def run_runbook(self, ask: RunbookAsk) -> RunbookRun:
        if ask.dry_run:
            return self._read("POST", "/v1/runbook/run", RunbookRun, content=_encoded(ask))
        return self._change("/v1/runbook/run", RunbookRun, ask)

    def approve_runbook(self, vote: RunbookVote) -> RunbookLine:
        return self._change("/v1/runbook/approve", RunbookLine, vote)

    def retire_runbook(self, vote: RunbookVote) -> RunbookLine:
        return self._change("/v1/runbook/retire", RunbookLine, vote)

    def draft(self, ask: DraftAsk) -> DraftRun:
        content = _encoded(ask)
        # Who has a model asked spends money and lets facts out; who has the rules draft only looks.
        headers = self._in_whose_name("/v1/drafts", content) if ask.model else {}
        return self._last("POST", "/v1/drafts", DraftRun, content=content, headers=headers)

    def draft_run(self, draft_id: str, after: int = -1, wait_s: float = 0.0) -> DraftRun:
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        params = {"after": after, "wait_s": wait_s}
        path = f"/v1/drafts/{quote(draft_id, safe='')}"
        return self._read("GET", path, DraftRun, params=params, timeout=self._patient(wait_s))

    def cancel_draft(self, draft_id: str) -> DraftRun:
        path = f"/v1/drafts/{quote(draft_id, safe='')}"
        return self._last("DELETE", path, DraftRun, headers=self._in_whose_name(path, b"", "DELETE"))

    def draft_runs(self) -> tuple[DraftRun, ...]:
        return self._get("/v1/drafts", tuple[DraftRun, ...])

    def propose_draft(self, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        body = {"drafter": drafter, "reason": reason}
        return self._change(f"/v1/drafts/{quote(draft_id, safe='')}/propose", Proposal, body)

    def model(self) -> ModelStanding:
        return self._get("/v1/model", ModelStanding)

    def call_as_agent(self, what: str, body: object, kind: type[T]) -> T:
        """What an agent on a node says, and the answer (`console.agents`)."""
        return self._change(f"/v1/agents/{what}", kind, body)

    def audit_state(self) -> AuditState:
        return self._get("/v1/audit", AuditState)

    def audit_page(self, query: AuditQuery) -> AuditPage:
        return self._read("POST", "/v1/audit/page", AuditPage, content=_encoded(query))

    def audit_part(self, wanted: AuditRange) -> AuditPart:
        content = _encoded(wanted)
        headers = self._in_whose_name("/v1/audit/part", content)
        return self._last("POST", "/v1/audit/part", AuditPart, content=content, headers=headers)

    def anchor_audit(self) -> AuditState:
        return self._change("/v1/audit/anchor", AuditState, {})

    def rotate_audit_key(self) -> AuditState:
        return self._change("/v1/audit/rotate", AuditState, {})

    def redact_audit(self, ref: str, reason: str) -> AuditErased:
        return self._change("/v1/audit/redact", AuditErased, {"ref": ref, "reason": reason})

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._http.close()

    def _patient(self, wait_s: float) -> httpx.Timeout:
        """For a question that the server may hold that long."""
        most_s = self._patience_s
        return httpx.Timeout(most_s, connect=min(CONNECT_TIMEOUT_S, most_s), read=wait_s + most_s)

    def _get(self, path: str, kind: type[T]) -> T:
        return self._read("GET", path, kind)

    def _read(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        """A request without effect: tried once more when the connection had been closed in the meantime."""
        try:
            return self._ask(method, path, kind, **request)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return self._last(method, path, kind, **request)

    def _change(self, path: str, kind: type[T], body: object) -> T:
        if self.read_only:
            raise refuse_read_only()
        content = _encoded(body)
        if path.startswith(_NOT_TWICE):
            return self._last("POST", path, kind, content=content, headers=self._in_whose_name(path, content))
        # With a key it takes effect once, however often it is sent; a signature holds for one time only.
        key = {"Idempotency-Key": str(uuid.uuid4())}
        try:
            return self._ask("POST", path, kind, content=content, headers=key | self._in_whose_name(path, content))
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            try:
                return self._last("POST", path, kind, content=content, headers=key | self._in_whose_name(path, content))
            except NotSentError as error:
                # The second try never left; the first may have arrived.
                raise UnreachableError(
                    f"the engine at {self._where} ended before it answered: {error.problem}",
                    "Look before you repeat it: whether the request took effect is not known",
                ) from None

    def _in_whose_name(self, path: str, content: bytes, method: str = "POST") -> dict[str, str]:
        if self._identity is None or not self._identity.person or path.startswith("/v1/agents/"):
            return {}
        if self._caller is None:
            self._caller = self._known({})
        return self._identity.headers(self._caller, method, path, content)

    def _last(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        with self._broken_off():
            return self._ask(method, path, kind, **request)

    @contextlib.contextmanager
    def _broken_off(self) -> Iterator[None]:
        try:
            yield
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            raise UnreachableError(
                f"the engine at {self._where} closed the connection before it answered",
                "See whether it still runs with `muster doctor`; whether the request took effect is not known",
            ) from None

    def _ask(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        """Who is told to come again does, for a while: nothing was done."""
        until = time.monotonic() + BUSY_S
        while True:
            answer = self._answer(method, path, **request)
            if answer.status_code == 200:
                return self._decoded(answer.content, kind)
            error = self._error(answer)
            pause_s = _pause_s(answer)
            # A signature is used up.
            signed = "muster-signed" in request.get("headers", {})
            if signed or not isinstance(error, BusyError) or time.monotonic() + pause_s > until:
                raise error
            time.sleep(pause_s)

    def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        with self._told_apart():
            return self._http.request(method, path, **request)

    @contextlib.contextmanager
    def _told_apart(self) -> Iterator[None]:
        """What keeps us from asking at all, as our errors; a connection that broke is for whoever asked to judge."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _no_engine(self._where, error) from None
        except httpx.TimeoutException:
            raise UnreachableError(f"the engine at {self._where} does not answer", "Try again; see its log") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SpecError("connect", f"{self._where[:120]!a}: {error}", _FORMS) from None
        except RuntimeError:
            # httpx says so when another thread closed the client.
            raise UnreachableError("this client is closed", "Connect again") from None

    def _decoded(self, content: bytes, kind: type[T]) -> T:
        try:
            found: T = decoder(kind).decode(content)
            return found
        except msgspec.MsgspecError as error:
            raise MusterError(
                f"the answer of {self._where} is not understood ({error})",
                "Use the same version of Muster on both sides",
            ) from None

    def _error(self, answer: httpx.Response) -> MusterError:
        try:
            body = msgspec.json.decode(answer.content, type=dict[str, str])
            code, problem = body["code"], body["problem"]
        except (msgspec.MsgspecError, KeyError):
            return MusterError(
                f"{self._where} answered {answer.status_code} and is not a Muster engine", "Check the address"
            )
        return of_code(code, problem, body.get("remedy", ""))


_FORMS = "Give the path of a Unix socket or a URL such as http://127.0.0.1:7373"


def _http(where: str, patience_s: float, certificate: tuple[str, str] | None = None) -> httpx.Client:
    timeout = httpx.Timeout(patience_s, connect=min(CONNECT_TIMEOUT_S, patience_s))
    headers = {"Content-Type": "application/json"}
    # Proxies of the environment are for the web, not for the engine: trust_env=False.
    if "://" in where:
        url = urlsplit(where)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise SpecError("connect", f"{where[:120]!a} is not a URL of an engine", _FORMS)
        # Certificates take longer to load than everything else here.
        verify = _trusted(certificate) if url.scheme == "https" else False
        return httpx.Client(base_url=where, timeout=timeout, headers=headers, trust_env=False, verify=verify)
    transport = httpx.HTTPTransport(uds=where.removeprefix("unix:"), verify=False)
    return httpx.Client(
        transport=transport, base_url="http://muster", timeout=timeout, headers=headers, trust_env=False
    )


def _pause_s(answer: httpx.Response) -> float:
    """As told, and a little apart from others who were told the same."""
    told = answer.headers.get("retry-after", "1")
    return (int(told) if told.isdigit() else 1) * random.uniform(1.0, 1.5)


def _trusted(certificate: tuple[str, str] | None) -> ssl.SSLContext:
    """What this system trusts; SSL_CERT_FILE names a site's own authority. `certificate`: files of ours and its key, to
    show. Raises SpecError."""
    import ssl

    context = ssl.create_default_context()
    if certificate is not None:
        try:
            context.load_cert_chain(*certificate, password="")
        except (OSError, ssl.SSLError) as error:
            raise SpecError(
                "client_cert", f"{certificate[0]} with {certificate[1]}: {error}",
                "Give PEM files that belong together, the key without a passphrase",
            ) from None  # fmt: skip
    return context


def _encoded(value: object) -> bytes:
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise SpecError("request", "has text that is not UTF-8", "Give valid Unicode") from None
    if len(body) > MAX_BODY_BYTES:
        limit = MAX_BODY_BYTES // 2**20
        raise SpecError("request", f"is {len(body) // 2**20} MiB and at most {limit} MiB are accepted", "Split it")
    return body


def _no_engine(where: str, error: Exception) -> NotSentError:
    why = str(error).removeprefix("[Errno ").partition("] ")[2] or str(error)
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return NotSentError(
            f"the certificate of {where} is not trusted here ({why})",
            "If a site's own authority made it, name that authority's PEM file in SSL_CERT_FILE",
        )
    return NotSentError(f"no engine answers at {where} ({why})", "Start one with `muster` or `muster serve`")
