"""The model's drafter: a brief in; a draft or DraftRejected out.

It builds the prompt, reserves the budget, has a child process call the model, and checks the answer. Each call, made or
answered from the cache, is one audit record written together with its cost; each draft, or the reason for none, is
another.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Connection

from engine.model.errors import JournalError, MusterError
from runbooks.drafts.model_answer import read_answer
from runbooks.drafts.typed_draft import Brief, Called, Draft, DraftRejected, ModelStanding, Phase, Task
from runbooks.models import limits as model_limits
from runbooks.models.answer_checks import Preview, draft_of
from runbooks.models.calls import CallRecord, ModelCall, ModelReply, ModelWorker
from runbooks.models.endpoint import Endpoint
from runbooks.models.limits import (
    Circuit,
    RateLimit,
    ReplyCache,
    ReservedSpending,
    SpendingLimits,
    TokenPrices,
    cache_key,
)
from runbooks.models.prompt import Prompt, prompt_of
from runbooks.models.prompt import key_of as names_key_of
from runbooks.plans.identity import Actor
from runbooks.untrusted.strict_formats import SCARCE_BYTES_A_TOKEN, TEMPLATE_TOKENS, estimate

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.audit.log import Audit
    from runbooks.procedures.registry import EngineCall as OnEngine

T = TypeVar("T")

MODEL = Actor(subject="service:llm-drafter", kind="llm", account="system")
ENVELOPE_BYTES = 4_096
"""What may stand around the text of an answer."""
MAX_MODEL_NAME = 120
MIN_KEY = 12
"""Characters of a key that is one: servers that need none are given words such as EMPTY."""

Tell = Callable[[Phase, int], None]


class ModelSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of the model."""

    endpoint: Endpoint | None = None
    """None: none, or a wrong one."""
    problem: str = ""
    """What is wrong with it, with what to do; empty where nothing is, or nothing is configured."""
    model: str = ""
    prices: TokenPrices = TokenPrices()
    limits: SpendingLimits = SpendingLimits()
    calls_minute: int = 20
    tenants: tuple[str, ...] = ()
    """Whose things an external endpoint may be told of."""


class _Asking(NamedTuple):
    """A prompt on its way to an endpoint."""

    prompt: Prompt
    endpoint: Endpoint
    told: Mapping[str, object]
    """The draft and the asker, for records."""


class ModelDrafter:
    """Asks one endpoint for one engine. For any thread but the engine's own, which `call` runs something on.

    `key` gives the key, empty where none is needed; it raises DraftRejected. `wall_ms` is the clock of records and
    budgets, `clock` the monotonic one, in seconds. `worker`: of that endpoint, where others use it too and close it.
    """

    def __init__(
        self,
        setup: ModelSetup,
        key: Callable[[], str],
        *,
        call: OnEngine,
        audit: Audit,
        wall_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        worker: ModelWorker | None = None,
    ) -> None:
        self.setup = setup
        self._key = key
        self._call = call
        self._audit = audit
        self._wall_ms = wall_ms
        self._clock = clock
        self._mine = ModelWorker(setup.endpoint, key) if worker is None and setup.endpoint is not None else None
        self._worker = worker or self._mine
        self._circuit = Circuit(clock)
        self._bucket = RateLimit(setup.calls_minute, clock)
        self._cache = ReplyCache(clock)
        self._lock = threading.Lock()
        self._ready = False
        """What another process left open is settled, and what could not be."""
        self._under_way: set[int] = set()
        """Reservations of calls that are; touched on the engine's thread alone."""
        self._names_key = b""

    @property
    def deadline_ms(self) -> int:
        """Wall time of one call."""
        return self.setup.endpoint.deadline_ms if self.setup.endpoint is not None else 0

    def open(self) -> None:
        """Settle what another process left open, and start the child that will be asked. Raises JournalError."""
        with self._lock:
            if not self._ready:
                self._call(lambda engine: engine.record(self._settle_lost))
                self._ready = True

    def warm(self) -> None:
        """Starts a child for the first call."""
        if self._worker is not None:
            self._worker.warm()

    def close(self) -> None:
        """End the children; calls under way are rejected."""
        if self._mine is not None:
            self._mine.close()

    # -- drafting -----------------------------------------------------------------------------------------------------

    def draft(
        self,
        task: Task,
        briefed: Callable[[], Brief],
        asker: Actor,
        draft_id: str,
        *,
        preview: Preview,
        cancelled: threading.Event,
        tell: Tell,
        refused: str = "",
    ) -> Draft:
        """The draft that the model makes of a brief, which is gathered once it is clear that a model can be asked.
        `refused`: why whoever asks may not have one asked. Raises DraftRejected; that and what came of it is on record.
        """
        told = {"draft": draft_id, "task": task, "asked_by": asker.subject}
        try:
            try:
                if refused:
                    raise DraftRejected("policy_denied", refused, "Say who you are with --as, or ask an operator")
                draft = self._draft(briefed, told, preview, cancelled, tell)
                self._record("draft.created", {**told, **_made(draft)})
                return draft
            except DraftRejected:
                raise
            except MusterError as error:
                raise DraftRejected("worker", error.problem, error.remedy) from error
            except Exception as error:
                traceback.print_exc()
                raise DraftRejected(
                    "worker", f"internal error of Muster ({type(error).__name__})", "The engine's log has the details"
                ) from error
        except DraftRejected as error:
            self._note_rejected(told, error)
            raise

    def _draft(
        self,
        briefed: Callable[[], Brief],
        told: Mapping[str, object],
        preview: Preview,
        cancelled: threading.Event,
        tell: Tell,
    ) -> Draft:
        endpoint = self._endpoint()
        self._refuse_without_key()
        self._circuit.refuse()
        read_s = self._clock()
        reason = "cancelled"
        """How it ended, for the circuit: what is not the endpoint's fault lets another try."""
        try:
            self._bucket.take()
            _refuse_if(cancelled)
            brief = briefed()
            prompt = self._prompt(brief, endpoint)
            asking = _Asking(prompt, endpoint, told)
            key = cache_key(endpoint, endpoint.max_tokens, prompt.sha256)
            answer = self._cache.get(key, brief.now_ms)
            if answer is not None:
                self._bucket.give_back()
                self._on_record_cached(asking, answer)
                called = _called(endpoint, answer, 0, cached=True)
            else:
                _refuse_if(cancelled)
                answer, cost = self._asked(asking, cancelled, tell)
                _refuse_other_model(answer, endpoint)
                reason = ""
                called = _called(endpoint, answer, cost, cached=False)
            tell("checking", answer.spent.bytes)
            draft = self._checked(answer, brief, prompt, preview, str(told["asked_by"]))
        except DraftRejected as error:
            reason = error.reason if reason else reason
            raise
        finally:
            self._circuit.ended(reason)
        if not called.cached:
            self._cache.put(key, answer, read_s=read_s, now_ms=brief.now_ms)
        return msgspec.structs.replace(draft, called=called, drafter="model")

    def _checked(self, answer: ModelReply, brief: Brief, prompt: Prompt, preview: Preview, asker: str) -> Draft:
        """The answer held to everything it is held to."""
        try:
            answered = read_answer(answer.content, brief.task)
            self._refuse_key_in(answer, msgspec.json.encode(answered).decode())
            return draft_of(answered, answer.content, brief, prompt, call=self._call, preview=preview, requester=asker)
        except DraftRejected as error:
            if error.seen is None:
                error.seen = answer.spent
            raise

    def _endpoint(self) -> Endpoint:
        if self.setup.problem:
            raise DraftRejected("bad_endpoint", self.setup.problem, "Fix it, then restart the engine: muster stop")
        if self.setup.endpoint is None:
            raise DraftRejected(
                "not_configured", "no model is configured", "Set model_url and model, then restart the engine"
            )
        return self.setup.endpoint

    def _refuse_without_key(self) -> None:
        """Raises DraftRejected before anything is reserved."""
        self._key()

    def _refuse_key_in(self, answer: ModelReply, decoded: str) -> None:
        """A server that sends our own key back would have it on screens and on record."""
        key = self._key()
        if len(key) >= MIN_KEY and any(key in text for text in (answer.content, answer.returned_model, decoded)):
            raise DraftRejected(
                "leak_detected",
                "the answer holds the key it was asked with",
                "None of it is shown; see what kind of server that is",
                answer.spent,
            )

    def _prompt(self, brief: Brief, endpoint: Endpoint) -> Prompt:
        if not self._names_key:
            self._names_key = names_key_of(self._call)
        return prompt_of(
            brief,
            egress=endpoint.egress,
            tenants=self.setup.tenants,
            key=self._names_key,
            nonce=secrets.token_hex(12),
            canary=secrets.token_hex(12),
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    def _asked(
        self,
        asking: _Asking,
        cancelled: threading.Event,
        tell: Tell,
    ) -> tuple[ModelReply, int]:
        """(answer, its cost in micro-USD). Reserved before, settled after, on record."""
        assert self._worker is not None, "there is one for every endpoint"
        prompt = asking.prompt
        sent = sum(len(message.content.encode()) for message in prompt.messages)
        tokens_in = sent + len(msgspec.json.encode(prompt.schema)) + TEMPLATE_TOKENS
        reserved = self._reserved(asking, tokens_in)
        over = threading.Event()
        received = 0

        def heard(phase: Phase, count: int) -> None:
            nonlocal received
            received = max(received, count)
            if self.setup.prices.out and count > reserved.tokens * SCARCE_BYTES_A_TOKEN + ENVELOPE_BYTES:
                over.set()
                cancelled.set()
            tell(phase, count)

        call = ModelCall(
            messages=prompt.messages, schema=prompt.schema, schema_name=prompt.schema_name, max_tokens=reserved.tokens
        )
        try:
            answer = self._worker.ask(call, cancelled=cancelled, tell=heard)
            self._refuse_key_in(answer, "")
        except DraftRejected as error:
            if isinstance(error.seen, CallRecord) and error.seen.bytes < received:
                error.seen = msgspec.structs.replace(error.seen, bytes=received)
            if over.is_set() and error.reason == "cancelled":
                error = DraftRejected(
                    "budget",
                    "the answer was longer than what is left of the budget pays for, and the call was broken off",
                    "Raise model_budget_call, or see why the server sends more than it was asked for",
                    error.seen,
                )
            self._settle_failed(asking, reserved, error)
            raise error from None
        except BaseException:
            # Nobody knows what was sent.
            unknown = CallRecord(prompt_sha256=prompt.sha256, attempts=1)
            defect = DraftRejected("worker", "the call met a defect", seen=unknown)
            self._settle_failed(asking, reserved, defect)
            raise
        cost = self.setup.prices.cost(answer.tokens_in, answer.tokens_out)
        spent = self._settled(asking, reserved, cost, "ok", answer.spent, answer)
        return answer, spent

    def _reserved(self, asking: _Asking, tokens_in: int) -> ReservedSpending:
        prompt, endpoint, told = asking

        def take(connection: Connection) -> ReservedSpending:
            return model_limits.reserve(
                connection,
                self._wall_ms(),
                limits=self.setup.limits,
                prices=self.setup.prices,
                tokens_in=tokens_in,
                tokens_out=endpoint.max_tokens,
                draft=str(told["draft"]),
                who=str(told["asked_by"]),
                endpoint=endpoint.base_url,
                model=endpoint.model,
                prompt_sha256=prompt.sha256,
            )

        def begin(engine: Engine) -> ReservedSpending:
            reserved = engine.record(take)
            self._under_way.add(reserved.id)
            return reserved

        try:
            self.open()
            return self._call(begin)
        except JournalError as error:
            raise DraftRejected(
                "budget", f"what it may cost cannot be written down, so the model is not asked: {error.problem}",
                error.remedy,
            ) from error  # fmt: skip

    def _settle_failed(self, asking: _Asking, reserved: ReservedSpending, error: DraftRejected) -> None:
        seen = error.seen
        if not isinstance(seen, CallRecord):
            # It never came to a call.
            self._closed(reserved, lambda connection: model_limits.release(connection, reserved))
            return
        cost = self._cost_of_failed(asking.prompt, error.reason, seen)
        self._settled(asking, reserved, cost, error.reason, seen, None)

    def _cost_of_failed(self, prompt: Prompt, reason: str, seen: CallRecord) -> int | None:
        """The charge for a call without an answer; None: all that was reserved, because the server may have worked for
        as long as it was waited for. A refusal by status costs nothing, and neither does a call that was never sent."""
        if seen.attempts == 0:
            return 0
        if seen.status == 200 and reason not in ("deadline", "cancelled", "budget", "response_too_large"):
            sent = sum(len(message.content.encode()) for message in prompt.messages)
            return self.setup.prices.cost(estimate(sent), estimate(seen.bytes))
        if reason.startswith("http_") or reason in ("auth", "model_missing", "redirect", "connection"):
            return 0
        return None

    def _settled(
        self,
        asking: _Asking,
        reserved: ReservedSpending,
        microusd: int | None,
        outcome: str,
        spent: CallRecord,
        answer: ModelReply | None,
    ) -> int:
        """The final charge for a call, written with its record."""

        def write(connection: Connection) -> int:
            cost = model_limits.settle(connection, reserved, microusd)
            data = {
                **_of_call(asking), **_of_answer(answer), **_of_spent(spent),
                "max_tokens": reserved.tokens, "outcome": outcome, "cached": False,
                "reserved_microusd": reserved.microusd, "cost_microusd": cost,
            }  # fmt: skip
            self._audit.append(connection, "llm.call", MODEL, data=data)
            return cost

        return self._closed(reserved, write)

    def _closed(self, reserved: ReservedSpending, write: Callable[[Connection], T]) -> T:
        """`write` what became of a reservation. Where that cannot be written the next call does it (`open`)."""

        def end(engine: Engine) -> T:
            self._under_way.discard(reserved.id)
            return engine.record(write)

        try:
            return self._call(end)
        except MusterError:
            self._ready = False
            raise

    # -- on record ----------------------------------------------------------------------------------------------------

    def _on_record_cached(self, asking: _Asking, answer: ModelReply) -> None:
        data = {
            **_of_call(asking), **_of_answer(answer), **_of_spent(answer.spent), "ms": 0,
            "attempts": 0, "bytes": 0, "max_tokens": asking.endpoint.max_tokens, "outcome": "ok", "cached": True,
            "reserved_microusd": 0, "cost_microusd": 0,
        }  # fmt: skip
        self._record("llm.call", data)

    def _note_rejected(self, told: Mapping[str, object], error: DraftRejected) -> None:
        seen = error.seen
        about = (
            {"prompt_sha256": seen.prompt_sha256, "response_sha256": seen.response_sha256, "bytes": seen.bytes,
             "ms": seen.ms}
            if isinstance(seen, CallRecord)
            else {}
        )  # fmt: skip
        try:
            self._record("draft.rejected", {**told, "reason": error.reason, **about})
        except MusterError:
            return  # Where nothing can be written, or the engine stops, people are told all the same.

    def _record(self, type_: str, data: Mapping[str, object]) -> None:
        def write(connection: Connection) -> None:
            self._audit.append(connection, type_, MODEL, data=data)

        self._call(lambda engine: engine.record(write))

    def _settle_lost(self, connection: Connection) -> None:
        model_limits.create(connection)
        for lost in model_limits.settle_lost(connection, self._under_way):
            data = {
                "draft": lost.draft, "asked_by": lost.who, "endpoint": lost.endpoint, "model": lost.model,
                "question_sha256": lost.prompt_sha256, "outcome": "lost", "cached": False,
                "reserved_microusd": lost.microusd, "cost_microusd": lost.microusd, "begun_ms": lost.at_ms,
            }  # fmt: skip
            self._audit.append(connection, "llm.call", MODEL, data=data)
            data = {"draft": lost.draft, "asked_by": lost.who, "reason": "worker"}
            self._audit.append(connection, "draft.rejected", MODEL, data=data)

    # -- standing -----------------------------------------------------------------------------------------------------

    def standing(self) -> ModelStanding:
        """The state of the model for people. It never holds a key."""
        setup, endpoint = self.setup, self.setup.endpoint
        use, wrong = model_limits.SpendingUse(), ""
        if endpoint is not None:
            try:
                self.open()
                use = self._call(lambda engine: self._used(engine))
            except JournalError as error:
                wrong = str(error)
        shown = ModelStanding(
            configured=endpoint is not None or bool(setup.problem),
            endpoint=endpoint.origin if endpoint is not None else "",
            model=setup.model,
            egress=endpoint.egress if endpoint is not None else "",
            circuit=self._circuit.state,
            calls_hour=use.calls_hour,
            spent_hour_microusd=use.hour,
            spent_day_microusd=use.day,
            budget_hour_microusd=setup.limits.hour,
            budget_day_microusd=setup.limits.day,
        )
        try:
            self._endpoint()
            self._refuse_without_key()
            if shown.circuit == "open":
                self._circuit.refuse()
        except DraftRejected as error:
            wrong = str(error)
        return msgspec.structs.replace(shown, problem=wrong)

    def _used(self, engine: Engine) -> model_limits.SpendingUse:
        return engine.recorded(lambda connection: model_limits.used(connection, self._wall_ms()))


def _refuse_if(cancelled: threading.Event) -> None:
    """Raises DraftRejected for what nobody waits for any more: no call is made."""
    if cancelled.is_set():
        raise DraftRejected("cancelled", "cancelled before the model was asked")


def _refuse_other_model(answer: ModelReply, endpoint: Endpoint) -> None:
    """Raises DraftRejected for the answer of a model that was not asked for. A server may leave the name out."""
    name = answer.returned_model
    if name and name not in (endpoint.model, *endpoint.aliases):
        raise DraftRejected(
            "other_model",
            f"{name!a} answered, but {endpoint.model} was asked",
            f"If that is the same model, set model_aliases = [{json.dumps(name)}] and restart the engine; "
            f"else ask whoever runs {endpoint.origin}",
            answer.spent,
        )


def _called(endpoint: Endpoint, answer: ModelReply, cost_microusd: int, *, cached: bool) -> Called:
    spent = answer.spent
    return Called(
        endpoint=endpoint.origin,
        model=endpoint.model,
        returned=answer.returned_model[:MAX_MODEL_NAME],
        tokens_in=answer.tokens_in,
        tokens_out=answer.tokens_out,
        estimated=answer.estimated,
        cost_microusd=cost_microusd,
        ms=0 if cached else spent.ms,
        bytes=spent.bytes,
        attempts=0 if cached else spent.attempts,
        cached=cached,
        prompt_sha256=spent.prompt_sha256,
        response_sha256=spent.response_sha256,
    )


def _of_call(asking: _Asking) -> dict[str, object]:
    prompt, endpoint, told = asking
    return {
        **told,
        "endpoint": endpoint.base_url,
        "egress": endpoint.egress,
        "model": endpoint.model,
        "deadline_ms": endpoint.deadline_ms,
        "excerpts": [{"sha256": sha256, "bytes": size} for sha256, size in prompt.excerpts],
        "withheld": len(prompt.withheld),
        "question_sha256": prompt.sha256,
    }


def _of_answer(answer: ModelReply | None) -> dict[str, object]:
    if answer is None:
        return {"returned": "", "tokens_in": 0, "tokens_out": 0, "estimated": False}
    return {
        "returned": answer.returned_model[:MAX_MODEL_NAME],
        "tokens_in": answer.tokens_in,
        "tokens_out": answer.tokens_out,
        "estimated": answer.estimated,
    }


def _of_spent(spent: CallRecord) -> dict[str, object]:
    return {
        "prompt_sha256": spent.prompt_sha256, "response_sha256": spent.response_sha256, "bytes": spent.bytes,
        "ms": spent.ms, "attempts": spent.attempts, "rung": spent.rung, "status": spent.status,
    }  # fmt: skip


def _made(draft: Draft) -> dict[str, object]:
    """The record of a draft: what it would do, and none of its words."""
    called = draft.called
    assert called is not None, "of a model's draft"
    return {
        "kind": draft.kind,
        "actions": [step.action for step in draft.steps],
        "targets": sum(len(step.act.targets) for step in draft.request.steps) if draft.request is not None else 0,
        "flags": list(draft.flags),
        "version": draft.version,
        "prompt_sha256": called.prompt_sha256,
        "response_sha256": called.response_sha256,
        "cached": called.cached,
    }
