"""The registry of actions: names, keys, where each is possible, and the `:` line or key that names it.

Footer, help, palette, `:` bar and key bindings read this table. Actions on the cluster are declared in
`runbooks.actions`; they have capital letters and always ask first. `g` is a prefix: `gg` goes to the first row, `g`
and a letter to a page, `gu` to the page before. The prefix waits until Esc or a key that leads nowhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import punctuation
from typing import Literal, NamedTuple, get_args

from console.text.terminal_text import printable
from engine.model.errors import SpecError, did_you_mean
from engine.model.list_queries import Kind as ListKind
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import Action, Kind

ScreenName = Literal[
    "overview",
    "queues",
    "workloads",
    "nodes",
    "events",
    "whatif",
    "mirror",
    "intents",
    "intent",
    "workload",
    "node",
    "pools",
    "orders",
    "recommendations",
    "forecast",
    "proposals",
    "proposal",
    "runbooks",
    "runbook",
    "audit",
    "record",
    "draft",
    "drafts",
    "queue",
    "topology",
    "cost",
    "settings",
    "tasks",
    "bookmarks",
    "reservations",
    "policy",
    "reviews",
    "fleet",
    "output",
    "diff",
    "incidents",
    "incident",
    "curve",
]
TargetKind = Literal[
    "", "workload", "node", "queue", "proposal", "runbook", "draft", "policy", "review", "intent", "incident"
]
SCREENS: tuple[ScreenName, ...] = get_args(ScreenName)
LISTS: tuple[ScreenName, ...] = ("queues", "workloads", "nodes", "pools", "orders", "reservations")


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """Something an action would act on, in the state the screen shows."""

    id: str
    state: str
    unverified: bool = False
    """True for a proposal whose last step could not be verified."""
    waits_for_word: bool = False
    """True for a proposal whose next step needs a person's word."""


@dataclass(frozen=True, slots=True)
class Context:
    """Page and selection of a person."""

    screen: ScreenName = "overview"
    kind: TargetKind = ""
    targets: tuple[ActionTarget, ...] = ()
    connected: bool = True
    depth: int = 1
    """Pages on the stack, this one included."""
    past: str = ""
    """Why nothing can be changed while an earlier time is shown; empty otherwise."""


Why = Callable[[Context], str]
"""Reason why an action is impossible here; empty where it is possible."""


def _always(_context: Context) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """Something a person can do."""

    id: str
    title: str
    keys: tuple[str, ...] = ()
    screens: tuple[ScreenName, ...] = SCREENS
    tier: Literal["", "T0", "T1", "T2", "T3"] = ""
    """The least tier a proposal of this action can have; empty for what only looks."""
    targets: TargetKind = ""
    shell: str = ""
    """Its shell command; `{ids}` stands for the targets."""
    commands: tuple[str, ...] = ()
    """Names in the `:` bar."""
    argument: Literal["", "filter", "id", "ids", "flags", "columns", "edit", "words"] = ""
    """Kind of its argument in the `:` bar. `flags`: the flags of its shell command."""
    footer: bool = False
    why_not: Why = field(default=_always)
    changes: bool = False
    """True where it leads to a change without a plan of its own; hidden in a read-only session."""
    fleeting: bool = False
    """In the footer only while it is possible."""
    jump: str = ""
    """The key that leads here behind `g`, from any page."""

    @property
    def mutates(self) -> bool:
        return bool(self.tier)

    def disabled_reason(self, context: Context) -> str:
        """Reason why it is impossible now, for footer, help and palette; empty where it is possible."""
        if context.screen not in self.screens:
            return f"only on {', '.join(self.screens)}"
        if self.targets and not context.targets:
            return "nothing selected"
        if self.targets and self.mutates and context.kind != self.targets:
            return f"acts on {self.targets}s"
        if (self.mutates or self.changes) and context.past:
            return context.past
        if (self.mutates or self.changes) and not context.connected:
            return "no connection to the engine"
        return self.why_not(context)

    def shell_line(self, ids: Sequence[str]) -> str:
        return self.shell.format(ids=" ".join(printable(name) for name in ids))


def _needs_state(verb: str, *states: str) -> Why:
    """Possible when at least one target is in one of the states; the plan names those that are not."""

    def why_not(context: Context) -> str:
        if any(target.state in states for target in context.targets):
            return ""
        return f"only {' or '.join(states)} ones can be {verb}"

    return why_not


def _proposable(context: Context) -> str:
    """A suggestion that asks for an action, and was not acted on."""
    state = next((target.state for target in context.targets), "")
    why_not = {"": "no suggestions now", "told": "it only asks for attention", "acted": "already acted on"}
    return why_not.get(state, "")


def _rejectable(context: Context) -> str:
    """A suggestion that is there; a proposal before it is executed."""
    if context.screen not in ("proposals", "proposal"):
        return "" if context.targets else "no suggestions now"
    return _needs_state("rejected", "awaiting", "approved")(context)


def _unverified(context: Context) -> str:
    """The last step of what is paused was not seen to have worked."""
    if any(target.state == "paused" and target.unverified for target in context.targets):
        return ""
    return "only while an unverified step blocks it"


def _waits_for_word(context: Context) -> str:
    if any(target.state == "paused" and target.waits_for_word for target in context.targets):
        return ""
    return "no step waits for confirmation"


def _can(what: str, else_why: str) -> Why:
    """On the page of a draft, whose targets say what can be done with it now."""
    return lambda context: "" if any(target.state == what for target in context.targets) else else_why


def _model_askable(context: Context) -> str:
    states = {target.state for target in context.targets}
    if "thinking" in states:
        return "already running; esc stops it"
    return "" if "askable" in states else "no model is configured: muster cell model"


def _only_typed(example: str) -> Why:
    """Needs more than a key can say."""
    return lambda _context: f"type {example}"


_MARKED: tuple[ScreenName, ...] = ("workloads", "nodes", "queues")
_WORK: tuple[ScreenName, ...] = ("workloads", "workload")
_NODES: tuple[ScreenName, ...] = ("nodes", "node", "topology")
_QUEUES: tuple[ScreenName, ...] = ("queues", "queue")
_PROPOSALS: tuple[ScreenName, ...] = ("proposals", "proposal")
_INTENTS: tuple[ScreenName, ...] = ("intents", "intent")
_INCIDENTS: tuple[ScreenName, ...] = ("incidents", "incident")
_DRAFTED: tuple[ScreenName, ...] = tuple(name for name in SCREENS if name not in ("recommendations", "draft"))
"""Pages on which a draft begins with the selection."""
_TRIED: tuple[ScreenName, ...] = (*_WORK, *_NODES, *_QUEUES, "whatif")
"""Pages on which an edit of a what-if begins or is run."""

_PAGES: Mapping[Kind, tuple[ScreenName, ...]] = {"workload": _WORK, "node": _NODES, "queue": _QUEUES}
"""Pages on which an action is done to the selection."""


def _declared(action: Action) -> ConsoleAction:
    """An action of the catalogue: on what is selected, or typed."""
    tier, shell, commands = action.tier, f"muster {action.shell} {{ids}}", (action.word,)
    if not action.past:
        return ConsoleAction(
            action.name, action.label, tier=tier, shell=shell, commands=commands, argument="flags",
            why_not=_only_typed(action.example),
        )  # fmt: skip
    keys = (action.key,) if action.key else ()
    kind: TargetKind = action.kind  # type: ignore[assignment]
    return ConsoleAction(
        action.name,
        action.label,
        keys,
        _PAGES[action.kind],
        tier,
        kind,
        shell,
        commands,
        "ids",
        action.footer,
        _needs_state(action.past, *action.states),
    )


ACTIONS: tuple[ConsoleAction, ...] = (
    ConsoleAction("overview", "Overview", ("1",), commands=("overview", "o"), shell="muster", jump="o"),
    ConsoleAction(
        "queues", "Queues", ("2",), commands=("queues",), argument="filter", shell="muster get queues", jump="q"
    ),
    ConsoleAction(
        "workloads", "Workloads", ("3",), commands=("workloads", "jobs"), argument="filter",
        shell="muster get workloads", jump="w",
    ),
    ConsoleAction("nodes", "Nodes", ("4",), commands=("nodes",), argument="filter", shell="muster get nodes", jump="n"),
    ConsoleAction("events", "Events", ("5",), commands=("events",), argument="words", jump="e"),
    ConsoleAction(
        "topology", "Topology map", commands=("topology", "map"), argument="words", shell="muster get nodes", jump="t"
    ),
    ConsoleAction("pools", "Pools", commands=("pools",), argument="filter", shell="muster pool list", jump="l"),
    ConsoleAction(
        "reservations", "Reservations", commands=("reservations",), argument="filter", shell="muster get reservations",
    ),
    ConsoleAction("orders", "Orders of machines", commands=("orders",), argument="filter", shell="muster pool orders"),
    ConsoleAction(
        "whatif", "What if", ("6",), commands=("whatif",), argument="edit",
        shell="muster whatif --edit 'EDIT'", jump="i",
    ),
    ConsoleAction(
        "recommendations", "Suggestions", ("7",), commands=("suggestions", "recommendations", "rec"),
        shell="muster recommend", jump="s",
    ),
    ConsoleAction(
        "forecast", "Forecast", ("8",), commands=("forecast",), argument="ids",
        shell="muster history forecast WHAT:NAME", jump="f",
    ),
    ConsoleAction(
        "curve", "Curve over time", ("p",), commands=("curve",), argument="words",
        shell="muster history show CURVE KIND:NAME",
    ),
    ConsoleAction("longer", "Longer window", ("plus",), ("curve",), footer=True),
    ConsoleAction("shorter", "Shorter window", ("minus",), ("curve",), footer=True),
    ConsoleAction(
        "proposals", "Proposals", ("9",), commands=("proposals", "p"), argument="words",
        shell="muster proposal list", jump="p",
    ),
    ConsoleAction("cost", "Cost", commands=("cost",), argument="words", shell="muster cost --nodes N", jump="c"),
    ConsoleAction("runbooks", "Runbooks", ("0",), commands=("runbooks",), shell="muster runbook list", jump="r"),
    ConsoleAction("audit", "Audit", commands=("audit",), argument="words", shell="muster audit show", jump="a"),
    ConsoleAction(
        "record", "Record of the audit", commands=("record",), argument="id", shell="muster audit show --seq N"
    ),
    ConsoleAction("proposal", "Proposal by id", commands=("proposal",), argument="id", shell="muster proposal show ID"),
    ConsoleAction("runbook", "Runbook by id", commands=("runbook",), argument="id", shell="muster runbook show ID"),
    ConsoleAction(
        "run", "Run it", ("A",), ("runbooks", "runbook"), shell="muster runbook run ID --input NAME=VALUE",
        commands=("run",), argument="flags", footer=True, changes=True,
    ),
    ConsoleAction(
        "approve", "Approve", ("A",), _PROPOSALS, shell="muster proposal approve ID", commands=("approve",),
        argument="id", footer=True, changes=True, fleeting=True, targets="proposal",
        why_not=_needs_state("approved", "awaiting"),
    ),
    ConsoleAction(
        "execute", "Execute", ("E",), _PROPOSALS, shell="muster proposal execute ID", commands=("execute",),
        argument="id", footer=True, changes=True, fleeting=True, targets="proposal",
        why_not=_needs_state("executed", "approved"),
    ),
    ConsoleAction(
        "pause", "Pause", ("P",), _PROPOSALS, shell="muster proposal pause ID", commands=("pause",), argument="id",
        footer=True, changes=True, fleeting=True, targets="proposal",
        why_not=_needs_state("paused", "executing", "verifying"),
    ),
    ConsoleAction(
        "go_on", "Resume", ("R",), _PROPOSALS, shell="muster proposal resume ID", footer=True, changes=True,
        fleeting=True, targets="proposal", why_not=_needs_state("resumed", "paused"),
    ),
    ConsoleAction(
        "accept", "Accept and resume", ("K",), ("proposal",), footer=True, changes=True, fleeting=True,
        targets="proposal", why_not=_unverified,
    ),
    ConsoleAction(
        "say_go", "Confirm", ("C",), ("proposal",), shell="muster proposal confirm ID STEP", footer=True, changes=True,
        fleeting=True, targets="proposal", why_not=_waits_for_word,
    ),
    ConsoleAction(
        "roll_back", "Roll back", ("U",), _PROPOSALS, shell="muster proposal rollback ID", commands=("rollback",),
        argument="id", footer=True, changes=True, fleeting=True, targets="proposal",
        why_not=_needs_state("rolled back", "verified", "failed", "paused", "rollback_failed"),
    ),
    ConsoleAction(
        "withdraw", "Withdraw", ("X",), _PROPOSALS, shell="muster proposal withdraw ID", commands=("withdraw",),
        argument="id", footer=True, changes=True, fleeting=True, targets="proposal",
        why_not=_needs_state("withdrawn", "awaiting", "approved", "stale"),
    ),
    ConsoleAction(
        "ask_again", "Propose again", ("V",), ("proposal",), footer=True, changes=True, fleeting=True,
        targets="proposal", why_not=_needs_state("proposed again", "stale", "expired"),
    ),
    ConsoleAction(
        "break_glass", "Break glass", ("B",), ("proposal",), shell="muster proposal break-glass ID", changes=True,
        commands=("break-glass",), argument="id", targets="proposal",
        why_not=_needs_state("executed without votes", "awaiting"),
    ),
    ConsoleAction(
        "fleet", "Fleet of cells", commands=("fleet",), argument="words", shell="muster fleet status", jump="x"
    ),
    ConsoleAction("policy", "Approval policy", commands=("policy",), shell="muster policy show", jump="y"),
    ConsoleAction("reviews", "Reviews", commands=("reviews",), shell="muster proposal reviews", jump="v"),
    ConsoleAction(
        "approve_policy", "Approve", ("A",), ("policy",), shell="muster policy approve ID", footer=True, changes=True,
        fleeting=True, targets="policy", why_not=_needs_state("approved", "awaiting"),
    ),
    ConsoleAction(
        "reject_policy", "Reject", ("N",), ("policy",), shell="muster policy reject ID", footer=True, changes=True,
        fleeting=True, targets="policy", why_not=_needs_state("rejected", "awaiting"),
    ),
    ConsoleAction(
        "set_freeze", "Set a freeze", ("F",), ("policy",), shell="muster policy freeze NAME --for 2h",
        commands=("freeze",), argument="words", footer=True, changes=True,
    ),
    ConsoleAction(
        "end_freeze", "End freeze", ("T",), ("policy",), shell="muster policy thaw NAME", commands=("thaw",),
        argument="id", footer=True, changes=True, fleeting=True, targets="policy",
        why_not=_needs_state("ended", "by hand"),
    ),
    ConsoleAction(
        "close_review", "Close review", ("K",), ("reviews",), shell="muster proposal close-review N --comment TEXT",
        commands=("close-review",), argument="words", footer=True, changes=True, fleeting=True, targets="review",
        why_not=_needs_state("closed", "open"),
    ),
    ConsoleAction(
        "approve_runbook", "Approve it", ("Y",), ("runbook",), shell="muster runbook approve ID", footer=True,
        changes=True, fleeting=True, targets="runbook", why_not=_needs_state("approved", "draft", "changed"),
    ),
    ConsoleAction(
        "retire_runbook", "Retire it", ("X",), ("runbook",), shell="muster runbook retire ID --reason WHY",
        changes=True, targets="runbook", why_not=_needs_state("retired", "approved", "changed", "draft"),
    ),
    ConsoleAction("verify", "Verify", ("v",), ("audit",), shell="muster audit verify", footer=True),
    ConsoleAction(
        "act_on", "Propose it", ("A",), ("recommendations",), shell="muster recommend REC", footer=True, changes=True,
        why_not=_proposable,
    ),
    ConsoleAction(
        "reject", "Reject", ("N",), ("recommendations", *_PROPOSALS), shell="muster proposal reject ID",
        commands=("reject",), argument="id", footer=True, changes=True, fleeting=True, why_not=_rejectable,
    ),
    ConsoleAction(
        "draft_from", "Draft", ("d",), ("recommendations",), shell="muster draft --from REC", footer=True,
    ),
    ConsoleAction("draft_again", "Draft again", ("d",), ("draft",), shell="muster draft 'QUESTION'"),
    ConsoleAction(
        "draft", "Draft what to do", ("d",), _DRAFTED, shell="muster draft 'QUESTION' --from ID", commands=("draft",),
        argument="words",
    ),
    ConsoleAction("mirror", "Mirror of the cluster", commands=("mirror",), shell="muster cell mirror", jump="m"),
    ConsoleAction("intents", "Intents to the cluster", commands=("intents",), shell="muster intent list"),
    ConsoleAction("intent", "Intent by number", commands=("intent",), argument="id", shell="muster intent show N"),
    ConsoleAction(
        "retry_intent", "Send again", ("R",), _INTENTS, shell="muster intent retry N --reason WHY",
        commands=("retry-intent",), argument="id", footer=True, changes=True, fleeting=True, targets="intent",
        why_not=_needs_state("sent again", "in doubt"),
    ),
    ConsoleAction(
        "settle_done", "Settle as done", ("K",), _INTENTS, shell="muster intent settle N done --reason WHY",
        commands=("settle-done",), argument="id", footer=True, changes=True, fleeting=True, targets="intent",
        why_not=_needs_state("settled", "in doubt"),
    ),
    ConsoleAction(
        "settle_undone", "Settle as undone", ("N",), _INTENTS,
        shell="muster intent settle N undone --reason WHY", commands=("settle-undone",), argument="id",
        footer=True, changes=True, fleeting=True, targets="intent", why_not=_needs_state("settled", "in doubt"),
    ),
    ConsoleAction("drafts", "Drafts", commands=("drafts",), shell="muster draft --list", jump="d"),
    ConsoleAction("handover", "Hand-over", commands=("handover",), argument="words", shell="muster handover", jump="h"),
    ConsoleAction(
        "save_report", "Save as Markdown", ("o",), ("draft",), commands=("save",), argument="words", footer=True,
        shell="muster handover",
    ),
    ConsoleAction("edit_report", "In your editor", ("e",), ("draft",), commands=("edit",)),
    ConsoleAction(
        "incident_summary", "Summary of late", commands=("summary",), argument="words", shell="muster incident summary",
    ),
    ConsoleAction(
        "incidents", "Incidents", commands=("incidents",), argument="words", shell="muster incident list", jump="I",
    ),
    ConsoleAction("incident", "Incident by id", commands=("incident",), argument="id", shell="muster incident show ID"),
    ConsoleAction(
        "claim_incident", "Claim", ("C",), _INCIDENTS, shell="muster incident claim ID", commands=("claim",),
        argument="id", footer=True, changes=True, fleeting=True, targets="incident",
        why_not=_needs_state("claimed", "open", "claimed", "resolved"),
    ),
    ConsoleAction(
        "hand_over_incident", "Hand over", ("H",), _INCIDENTS, shell="muster incident hand-over ID --to NAME",
        commands=("hand-over",), argument="words", footer=True, changes=True, fleeting=True, targets="incident",
        why_not=_needs_state("handed over", "open", "claimed", "resolved"),
    ),
    ConsoleAction(
        "note_incident", "Note", ("N",), _INCIDENTS, shell="muster incident note ID TEXT", commands=("note",),
        argument="words", footer=True, changes=True, fleeting=True, targets="incident",
    ),
    ConsoleAction(
        "close_incident", "Close", ("K",), _INCIDENTS, shell="muster incident close ID --found TEXT",
        commands=("close-incident",), argument="id", footer=True, changes=True, fleeting=True, targets="incident",
        why_not=_needs_state("closed", "open", "claimed", "resolved"),
    ),
    ConsoleAction(
        "propose_of_incident", "Propose draft", ("A",), ("incident",), shell="muster draft DRAFT --propose rule",
        footer=True, changes=True, fleeting=True, targets="incident",
        why_not=_can("drafted", "no draft of it proposes anything: d drafts"),
    ),
    ConsoleAction(
        "propose_rule", "Propose rule's", ("A",), ("draft",), shell="muster draft DRAFT --propose rule", footer=True,
        changes=True, fleeting=True, why_not=_can("rule", "the rules propose no action"),
    ),
    ConsoleAction(
        "propose_model", "Propose model's", ("M",), ("draft",), shell="muster draft DRAFT --propose model",
        footer=True, changes=True, fleeting=True, why_not=_can("model", "the model proposes no action"),
    ),
    ConsoleAction(
        "ask_model", "Ask model", ("m",), ("draft",), shell="muster draft 'QUESTION' --llm", footer=True,
        fleeting=True, why_not=_model_askable,
    ),
    ConsoleAction("rehearse", "What if", ("w",), _TRIED, footer=True),
    ConsoleAction("take_out", "Remove edit", ("x",), ("whatif",), footer=True),
    ConsoleAction("compare", "Beside", ("b",), ("whatif",), footer=True),
    ConsoleAction("stop_run", "Stop run", ("z",), ("whatif",)),
    ConsoleAction("fold", "Fold", ("x",), ("queues",), footer=True),
    ConsoleAction("colour", "Colour by", ("m",), ("topology",), footer=True),
    ConsoleAction("zoom_out", "Zoom out", ("z",), ("topology",), footer=True),
    ConsoleAction("eta", "When it starts", ("e",), ("workload",), shell="muster eta ID", footer=True),
    ConsoleAction(
        "output", "Output", ("l",), _WORK, commands=("output", "logs"), argument="id", shell="muster logs -f ID",
        footer=True,
    ),
    ConsoleAction("next_task", "Next task", ("n",), ("output",), shell="muster logs ID --task N", footer=True),
    ConsoleAction("queue", "Queue by name", commands=("queue",), argument="id", shell="muster queue fairness NAME"),
    ConsoleAction(
        "workload", "Workload by id", commands=("workload", "w", "why"), argument="id", shell="muster why ID"
    ),
    ConsoleAction("node", "Node by id", commands=("node", "n"), argument="id", shell="muster get nodes id:ID"),
    ConsoleAction("open", "Open", ("enter",), commands=("open",), argument="id", footer=True),
    ConsoleAction("back", "Back", ("escape", "backspace", "h"), footer=True),
    ConsoleAction("bookmarks", "Bookmarks", ("apostrophe",), commands=("bookmarks",), argument="words", jump="b"),
    ConsoleAction("bookmark", "Bookmark this view", ("asterisk",), commands=("bookmark",), argument="words"),
    ConsoleAction(
        "forget_bookmark", "Remove it", ("x",), ("bookmarks",), commands=("forget",), argument="words", footer=True
    ),
    ConsoleAction("earlier", "Earlier view", ("left_square_bracket",)),
    ConsoleAction("later", "Later view", ("right_square_bracket",)),
    ConsoleAction("page_before", "Previous page", commands=("before",)),
    *map(_declared, CATALOG.values()),
    ConsoleAction("mark", "Mark", ("space",), _MARKED),
    ConsoleAction("mark_range", "Mark a range", ("v",), _MARKED),
    ConsoleAction("mark_all", "Mark all that match", ("a",), _MARKED),
    ConsoleAction(
        "filter", "Filter", ("slash",),
        (*LISTS, "events", "proposals", "incidents", "audit", "runbooks", "drafts", "bookmarks", "output"), footer=True,
    ),
    ConsoleAction("sort", "Sort", ("s",), LISTS, commands=("sort",), argument="columns", footer=True),
    ConsoleAction("columns", "Columns", ("c",), LISTS, commands=("columns",), argument="columns"),
    ConsoleAction("copy", "Copy", ("y",), shell="muster get KIND -f FILTER -o csv"),
    ConsoleAction(
        "export", "Export", ("o",), (*LISTS, "events", "proposals", "incidents", "audit", "runbooks"),
        commands=("export",), argument="words", shell="muster get KIND -f FILTER -o csv",
    ),
    ConsoleAction("still", "Freeze the page", ("f",), commands=("still",)),
    ConsoleAction("refresh", "Refresh", ("r", "f5")),
    ConsoleAction("past", "Another time", ("t",), commands=("at",), argument="words", shell="muster --at TIME"),
    ConsoleAction("minute_back", "A minute earlier", ("comma",)),
    ConsoleAction("minute_on", "A minute later", ("full_stop",)),
    ConsoleAction("five_back", "Five minutes earlier", ("less_than_sign",)),
    ConsoleAction("five_on", "Five minutes later", ("greater_than_sign",)),
    ConsoleAction("now", "Back to now", commands=("now",)),
    ConsoleAction("mark_time", "Mark this time", ("equals_sign",)),
    ConsoleAction("diff", "What changed", commands=("diff",), argument="words", shell="muster diff FROM TO"),
    ConsoleAction("theme", "Next theme", ("ctrl+t",), commands=("theme",), argument="words"),
    ConsoleAction("settings", "Settings", commands=("settings",), argument="words", jump=","),
    ConsoleAction("command", "Go", ("colon",), footer=True),
    ConsoleAction("help", "Help", ("question_mark",), commands=("help",), footer=True),
    ConsoleAction("welcome", "Welcome", commands=("welcome",)),
    ConsoleAction("tour", "Tour of an incident", commands=("tour",)),
    ConsoleAction("palette", "All actions", ("ctrl+p",)),
    ConsoleAction("leave", "Back, or quit", ("q",)),
    ConsoleAction("quit", "Quit", ("ctrl+c",), commands=("quit", "q"), footer=False),
)  # fmt: skip

READ_ONLY = "read-only: start without --readonly to act"
"""Reason why a read-only session changes nothing."""

SIGN_NAMES = {sign: unicodedata.name(sign).lower().replace("-", "_").replace(" ", "_") for sign in punctuation} | {
    "/": "slash", "\\": "backslash", "@": "at", "-": "minus", "+": "plus", "_": "underscore",
}  # fmt: skip
"""Sign -> name of its key, as Textual has it."""
_KEY_LABELS = {name: sign for sign, name in SIGN_NAMES.items()} | {
    "enter": "↵", "escape": "esc", "backspace": "⌫", "delete": "del", "insert": "ins",
}  # fmt: skip


def actions(rows: Iterable[ConsoleAction] = ACTIONS, *, read_only: bool) -> tuple[ConsoleAction, ...]:
    """The rows that a session may use: read-only has none that changes anything."""
    return tuple(action for action in rows if not (read_only and (action.mutates or action.changes)))


def key_label(key: str) -> str:
    """A key as screens name it."""
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return _KEY_LABELS.get(key) or (key.upper() if re.fullmatch(r"f\d+", key) else key)


def footer(available: Sequence[ConsoleAction], context: Context) -> list[tuple[ConsoleAction, str]]:
    """Actions the footer offers on this screen; impossible ones with the reason."""
    return [
        (action, action.disabled_reason(context))
        for action in available
        if action.footer
        and action.keys
        and context.screen in action.screens
        and not (action.id == "back" and context.depth == 1)
        and not (action.fleeting and action.disabled_reason(context))
    ]


def by_key(available: Sequence[ConsoleAction], key: str, screen: ScreenName) -> ConsoleAction | None:
    """The action of a key on a screen. A key may mean different things on different screens. Where it means nothing
    here, its action on another screen is returned, which can say why it is impossible."""
    meant = [action for action in available if key in action.keys]
    return next((action for action in meant if screen in action.screens), meant[0] if meant else None)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A line of the `:` bar: its action and argument."""

    action: ConsoleAction
    argument: str = ""


class CommandError(SpecError):
    """A line of the `:` bar that cannot be understood. `start` and `end` bound the offending characters."""

    def __init__(self, start: int, end: int, problem: str, remedy: str = "", near: bool = False) -> None:
        super().__init__("", problem, remedy)
        self.start = start
        self.end = end
        self.near = near
        """A command has a name much like it."""


def parse_command(line: str, available: Sequence[ConsoleAction]) -> ParsedCommand:
    """Read a line of the `:` bar. Raises SpecError naming the nearest command, or why one is not `available`."""
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    for action in available:
        if name in action.commands:
            if argument and not action.argument:
                at = len(name) + 1
                raise CommandError(at, at + len(argument), f":{name} takes no arguments")
            if not argument and action.argument == "id":
                raise CommandError(len(name) + 1, len(name) + 2, f":{name} needs an id")
            return ParsedCommand(action, argument)
    if any(name in action.commands for action in ACTIONS):
        raise CommandError(0, len(name), f":{name} is not possible here: {READ_ONLY}")
    names = [command for action in available for command in action.commands]
    hint = did_you_mean(name, names, form=":{}")
    problem = f"there is no command '{printable(name)[:40]}'"
    raise CommandError(0, len(name), problem, hint or ":help lists them all", bool(hint))


def kind_of(action: ConsoleAction) -> ListKind:
    """Kind of object that the list of an action lists."""
    kinds: dict[str, ListKind] = {
        "nodes": "nodes", "queues": "queues", "pools": "pools", "orders": "orders", "reservations": "reservations",
    }  # fmt: skip
    return kinds.get(action.id, "workloads")


PREFIX, FIRST, BEFORE = "g", "g", "u"


class Jump(NamedTuple):
    """Meaning of a key behind the prefix."""

    kind: Literal["first", "before", "page", "nothing"]
    action: str = ""
    """Id of the action of a page."""


class Jumps:
    """State of the prefix key, and its possible second keys."""

    def __init__(self, actions: Iterable[ConsoleAction]) -> None:
        self.pages = {action.jump: action for action in actions if action.jump}
        self.waiting = False

    def begin(self) -> None:
        self.waiting = True

    def end(self, key: str, character: str | None) -> Jump:
        """The second key. Whatever it is, the prefix no longer waits."""
        self.waiting = False
        if key == FIRST:
            return Jump("first")
        if key == BEFORE:
            return Jump("before")
        action = self.pages.get(character or key) or self.pages.get(key)
        return Jump("page", action.id) if action is not None else Jump("nothing")

    def offers(self) -> list[tuple[str, str, str]]:
        """(key, title, id of the action) for the footer."""
        pages = [(key, action.title.lower(), action.id) for key, action in sorted(self.pages.items())]
        return [(FIRST, "first row", ""), *pages, (BEFORE, "previous page", "page_before"), ("esc", "no", "")]
