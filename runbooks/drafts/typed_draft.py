"""Drafts: what a drafter proposes to do or say, with the facts that it rests on. A draft changes nothing.

One type serves the rules of `runbooks.drafts.rule_drafter` and a language model. Steps are typed acts of the catalogue.
Prose is for people and is never read back; values in a model's prose are put in from facts, and a sentence that states
a value of its own is marked. A draft becomes a proposal only when a person asks for that.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.errors import RefusedError
from runbooks.plans.checks import Finding as Checked
from runbooks.plans.typed_plan import Effect, Proposal, Request

Task = Literal["act", "explain", "runbook", "handover", "incident"]
"""What is to be done about it; what a finding means; a runbook for the next time; a shift's hand-over; a summary of an
incident."""
Drafter = Literal["rule", "model"]
Mark = Literal["", "value", "link"]
"""`value`: put in from a fact that was referred to. `link`: what would lead away, never followed."""
Flag = Literal["untrusted_influence", "not_simulated", "target_missed", "partial"]
"""What a person should know of a draft: a target is named in untrusted text alone; it was not tried on a fork; it was,
and does not reach what is asked; it was made from part of what there is."""
FactUnit = Literal["", "count", "gpu", "cpu", "mib", "seconds", "permille", "microusd", "microusd_hour", "time_ms"]
"""gpu and cpu in milli-units, time_ms as Unix milliseconds; "" for a word."""

REASONS = frozenset((
    "connection", "deadline", "content_type", "response_too_large", "encoding", "redirect", "auth", "model_missing",
    "other_model", "envelope_shape", "choices_count", "message_shape", "content_shape", "finish_reason", "refusal",
    "unexpected_tool_call", "content_not_json", "content_too_large", "schema", "unknown_target", "policy_denied",
    "runbook_invalid", "leak_detected", "budget", "rate_limited", "circuit_open", "no_key", "not_configured",
    "bad_endpoint", "egress_denied", "cancelled", "worker",
))  # fmt: skip
"""Why a model's draft was rejected; beside these http_NNN for the status of an answer, such as http_503."""

MAX_QUESTION = 2_000
MAX_STEPS = 8
MAX_FACTS = 200
MAX_EXCERPTS = 8
MAX_EXCERPT_BYTES = 64 * 2**20
"""Of one field as it is handed in; what is sent is cut to a few kilobytes (`runbooks.untrusted.stranger_texts`)."""


class DraftRejected(RefusedError):
    """A model's answer, or the way to it, that is of no use. The one error that leaves a model's drafter.

    `reason` is a stable token, one of REASONS or http_NNN: what people and records are told. `seen` is what is on
    record of the call (`runbooks.models.calls.Spent`), None where there was none.
    """

    def __init__(self, reason: str, problem: str, remedy: str = "", seen: object = None) -> None:
        super().__init__(problem, remedy)
        self.reason = reason
        self.seen = seen


class Observation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of what a finding rests on, as its finder says it."""

    metric: str
    window: str
    value: str


class ReportedFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding as data. The recommender does not know the runbooks, nor they the recommender."""

    id: str
    """Such as R-k3vq7."""
    kind: str
    """A token such as `quota_beside_idle`."""
    text: str
    """Made by the finder; names in it are untrusted."""
    about: str = ""
    """The object it is about."""
    targets: tuple[str, ...] = ()
    action: str = ""
    """What the finder would do, of the catalogue; `notify` where it would only tell."""
    parameters: tuple[str, ...] = ()
    """Words behind the targets in the shell."""
    observed: tuple[Observation, ...] = ()


class Excerpt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text of strangers that a person wants looked at: a job's name, its labels, lines of a log."""

    field: str
    """Where it is from, such as `workload wl-17: name`."""
    text: str


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A reading of the cell, typed by us, that a draft may rest on."""

    id: str
    """F1, F2, …: what is cited."""
    metric: str
    """Of a closed vocabulary (`runbooks.drafts.facts.METRICS`), such as `queue_oldest_wait_s`."""
    kind: str
    """Of the subject: cell, queue, pool, node, workload, tenant, zone, reservation, budget, finding, proposal, record.
    """
    subject: str
    """Its id; empty for the cell."""
    tenant: str = ""
    """Whose it is, where it is some tenant's: not everybody is told of everybody's."""
    value: int | str
    unit: FactUnit = ""
    text: str
    """As a person reads it: "queue research: the oldest has waited 41 min"."""


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """The input of every drafter: the question and the facts, and nothing to act with."""

    task: Task = "act"
    question: str
    """The operator's words; may be empty where there is a finding."""
    finding: ReportedFinding | None = None
    facts: tuple[Fact, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    """Only where a person asked for them to be looked at."""
    pick: str = ""
    """Symptom that a person picked: its name or its subject; empty: none."""
    runbook: str = ""
    """Id of the runbook to be edited, for that task; empty: a new one."""
    runbook_text: str = ""
    """What it says now."""
    cell: str
    version: int
    """State version that the facts were read at."""
    now_ms: int
    """Cell time."""
    since_ms: int = 0
    """Cell time from which a hand-over or an incident is told."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of prose."""

    text: str
    mark: Mark = ""


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """Something said, with what it rests on."""

    spans: tuple[Span, ...]
    cites: tuple[str, ...] = ()
    """Ids of facts."""
    unsupported: str = ""
    """Why it is marked as resting on nothing: it says a value or a direction without a fact."""

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences under a heading of ours: hand-overs and summaries have several."""

    heading: str
    sentences: tuple[Sentence, ...]


class DraftStep(msgspec.Struct, frozen=True, kw_only=True):
    """One act as it was drafted, by the names of `runbooks.actions`; the act itself is in the draft's request."""

    action: str
    with_: dict[str, int | str | tuple[str, ...]]
    line: str
    """The typed act in our own words."""


class RunbookDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A runbook that was drafted or edited: a file of ours, written from typed fields."""

    id: str
    text: str
    """The whole file, which lints clean."""
    sha256: str
    diff: str
    """Unified, against what it says now; empty for a new one."""
    problems: tuple[str, ...] = ()
    """What the lint says, where it is not clean."""


class DraftGoal(msgspec.Struct, frozen=True, kw_only=True):
    """The goal of a draft, and how far a fork reached it."""

    text: str
    """As in "the oldest of queue research has waited at most 30 min"."""
    before: str
    after: str
    met: bool
    checks: tuple[Checked, ...] = ()


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A smaller or other action that was tried on a fork, and why it was not taken."""

    text: str
    met: bool
    why: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of drafts like this one: the only confidence that is shown."""

    of: str
    """Which ones: "drafts by rule of runbook queue-wait-over-slo"."""
    drafted: int = 0
    proposed: int = 0
    approved: int = 0
    verified: int = 0
    """Carried out, and what was promised was read back."""
    failed: int = 0
    """Carried out, and failed or taken back."""
    rejected: int = 0
    """By a person's vote."""


class SymptomChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A symptom of the cell that a question may be about: a person picks one, by number or name."""

    name: str
    """Such as `wait_QueueHeld:research`; names in it are untrusted."""
    text: str
    """As in "3 workloads of queue research wait, the oldest for 41 min: QueueHeld"."""


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a model's draft."""

    endpoint: str
    model: str
    """As asked for."""
    returned: str = ""
    """As the server calls itself: untrusted."""
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False
    """The server's figures were of no use, or it gave none."""
    cost_microusd: int = 0
    ms: int = 0
    bytes: int = 0
    attempts: int = 0
    cached: bool = False
    prompt_sha256: str = ""
    response_sha256: str = ""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter's result for a brief."""

    drafter: Drafter
    task: Task
    title: str = ""
    """Of a model's: untrusted."""
    summary: tuple[Sentence, ...] = ()
    rationale: tuple[Sentence, ...] = ()
    parts: tuple[Part, ...] = ()
    """Of a hand-over or a summary."""
    steps: tuple[DraftStep, ...] = ()
    """None: nothing should be done, and the summary says why."""
    risks: tuple[Sentence, ...] = ()
    questions: tuple[Sentence, ...] = ()
    """What a person should find out first."""
    read_as: str = ""
    """Symptoms and objects that the question names, as the rules read it; empty where nothing of it was known."""
    undecided: bool = False
    """The question does not say which symptom it is about: a person has to pick one of the choices."""
    choices: tuple[SymptomChoice, ...] = ()
    """Symptoms that the question may be about; `DraftAsk.pick` names one."""
    facts: tuple[Fact, ...] = ()
    """Those that are cited."""
    flags: tuple[Flag, ...] = ()
    kind: str = ""
    """What drafts like it have in common, for the record: the runbook's id, or the actions."""
    template: str = ""
    """Id of the runbook it was made from."""
    request: Request | None = None
    """Exactly what would be proposed; None where nothing would."""
    preview: Proposal | None = None
    """What proposing it now would show, simulated on a fork."""
    effects: tuple[Effect, ...] = ()
    target: DraftGoal | None = None
    tried: tuple[Tried, ...] = ()
    runbook: RunbookDraft | None = None
    called: Called | None = None
    """Of a model's."""
    record: Record | None = None
    version: int = 0
    """State version that it was made on."""


# -- asking for one ---------------------------------------------------------------------------------------------------


class DraftAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft that somebody asks for."""

    task: Task = "act"
    question: str = ""
    finding: str = ""
    """Id of a finding (R-…), or of a workload, node, queue or pool that it is about."""
    pick: str = ""
    """Name of a choice, or the object that it is about; empty: the question decides."""
    model: bool = False
    """Ask the configured model too."""
    excerpts: tuple[Excerpt, ...] = ()
    texts_of: tuple[str, ...] = ()
    """Ids of workloads whose name and labels may be looked at as excerpts."""
    runbook: str = ""
    since_ms: int = 0
    """Cell time; 0: the last 8 h."""


Phase = Literal["starting", "asking", "waiting", "reading", "checking", "simulating"]
ModelState = Literal["off", "thinking", "done", "rejected", "cancelled"]
"""`off`: no model was asked for."""
RuleState = Literal["drafting", "done", "failed"]


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the model."""

    phase: Phase = "starting"
    elapsed_ms: int = 0
    deadline_ms: int = 0
    bytes: int = 0
    """Received so far."""


class DraftRun(msgspec.Struct, frozen=True, kw_only=True):
    """A draft that was asked for, as it stands: the rules' and, where it was asked for, the model's."""

    id: str
    """D-1, D-2, …"""
    serial: int
    """Grows with every change of what is told here."""
    ask: DraftAsk
    asked_ms: int
    """Cell time."""
    who: str = ""
    about: str = ""
    """What the finding says, where one was asked about; names in it are untrusted."""
    notes: tuple[str, ...] = ()
    """What of the request could not be used, and what was made of that: an id that is not there, a text that was cut.
    """
    rule_state: RuleState = "drafting"
    rule: Draft | None = None
    rule_why: str = ""
    """Why there is none."""
    model_state: ModelState = "off"
    model: Draft | None = None
    thinking: Thinking | None = None
    reason: str = ""
    """Token of why the model's was rejected."""
    why: str = ""
    """The same in words, with what to do."""
    agreement: str = ""
    """How the two compare: "same action and target", "other action", "both do nothing", …; empty while one lacks."""
    proposed: tuple[tuple[Drafter, str], ...] = ()
    """(drafter, proposal) of what was proposed from it."""

    @property
    def over(self) -> bool:
        return self.rule_state != "drafting" and self.model_state != "thinking"


def picked(run: DraftRun, pick: str) -> DraftAsk:
    """The question of a draft once more, to the rules, for one of its choices by number or name. Raises RefusedError
    where it has no choice of that number."""
    if not pick.isdecimal():
        return msgspec.structs.replace(run.ask, pick=pick, model=False)
    choices = dict(enumerate(run.rule.choices if run.rule is not None else (), 1))
    choice = choices.get(int(pick[:9]))
    if choice is None:
        raise RefusedError(f"{run.id} has {len(choices)} choices and no choice {pick[:9]}", "Ask the question again")
    return msgspec.structs.replace(run.ask, pick=choice.name, model=False)


class ModelStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The configured model, as people may know of it: never a key."""

    configured: bool = False
    endpoint: str = ""
    """Its origin, such as http://127.0.0.1:8000."""
    model: str = ""
    egress: str = ""
    """local, trusted or external."""
    problem: str = ""
    """Why it cannot be asked now, and what to do; empty while it can."""
    circuit: Literal["closed", "open", "half_open"] = "closed"
    calls_hour: int = 0
    spent_hour_microusd: int = 0
    spent_day_microusd: int = 0
    budget_hour_microusd: int = 0
    budget_day_microusd: int = 0
    record: Record | None = None
