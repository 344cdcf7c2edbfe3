"""Handlers of the actions that only look, of lines typed into a bar, and of ids.

An id opens its object from any page with one question to the engine. A person chooses where several objects match.
"""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import TYPE_CHECKING, cast

from console.actions.key_map import key_of
from console.actions.registry import ConsoleAction, Context, parse_command
from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.navigator import kept, page_command
from console.tui.widgets.list_pane import ListPane
from console.views.lists import ListView
from engine.model.errors import MusterError, NotFoundError, SpecError
from engine.model.list_queries import Named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from console.actions.registry import ParsedCommand, ScreenName
    from console.tui.app import MusterApp
    from console.tui.screens.draft import DraftPane
    from console.tui.screens.forecast import WhatIfPane
    from console.tui.screens.proposals import ProposalPane, ProposalsPane, RecommendationsPane
    from engine.model.list_queries import Kind
    from engine.model.specs import WorkloadSpec
    from runbooks.drafts.typed_draft import DraftAsk, Drafter


PAGES = {
    "workload": "workload {}", "node": "node {}", "queue": "queue {}", "pool": "pools name:{}", "order": "orders id:{}",
    "reservation": "reservations name:{}", "zone": "nodes zone:{}", "block": "nodes block:{}", "rack": "nodes rack:{}",
    "proposal": "proposal {}", "runbook": "runbook {}", "draft": "draft {}", "recommendation": "recommendations",
    "run": "whatif", "record": "record {}", "incident": "incident {}",
}  # fmt: skip
"""The line that leads to something of a kind."""
_LIKE_AN_ID = re.compile(r"[0-9/_.:-]")


def looks_like_an_id(word: str) -> bool:
    """True for a word that is no command and may be an id rather than a typing error."""
    return _LIKE_AN_ID.search(word) is not None


def line_to(hit: Named) -> str:
    """The `:` line that leads there."""
    name = f'"{hit.id}"' if re.search(r"\s", hit.id) and ":{}" in PAGES.get(hit.kind, "") else hit.id
    return PAGES[hit.kind].format(name)


async def open_by_id(app: MusterApp, name: str) -> None:
    """To the page of what has this id. Raises MusterError: NotFoundError, with what is called much like it."""
    hits = await in_thread(lambda: app.client().find(name, (), 12))
    exact = [hit for hit in hits if hit.id == name and hit.kind in PAGES]
    if not exact:
        near = ", ".join(dict.fromkeys(printable(hit.id) for hit in hits[:4]))
        raise NotFoundError(f"nothing is named '{printable(name)[:80]}'", f"Did you mean {near}?" if near else "")
    if len(exact) == 1:
        go_to(app, exact[0])
        return
    from console.tui.dialog_frames import ChoiceDialog

    rows = [(str(index), f"{hit.kind} {hit.id}", hit.detail) for index, hit in enumerate(exact)]
    title = f"Objects named {printable(name)[:40]}"
    app.push_screen(ChoiceDialog(title, rows, lambda index: go_to(app, exact[int(index)])))


def go_to(app: MusterApp, hit: Named) -> None:
    """To its page; where it is one of several on a page, to its place there."""
    app.steering.follow(line_to(hit))
    point_at = getattr(app.navigator.current, "point_at", None)
    if point_at is not None:
        point_at(hit.id)


def open_beside(app: MusterApp, name: str) -> None:
    """Open what has that id, on a worker, and report an error."""

    async def do() -> None:
        try:
            await open_by_id(app, name)
        except MusterError as error:
            app.report(error)

    app.run_worker(do(), exclusive=True, group="open")


DEEDS: dict[str, str] = {
    "welcome": "console.tui.welcome:show",
    "tour": "console.tui.welcome:tour",
    "past": "console.tui.past_view:ask",
    "now": "console.tui.past_view:now",
    "mark_time": "console.tui.past_view:mark",
    "diff": "console.tui.past_view:difference",
    "minute_back": "console.tui.past_view:minute_back",
    "minute_on": "console.tui.past_view:minute_on",
    "five_back": "console.tui.past_view:five_back",
    "five_on": "console.tui.past_view:five_on",
    "columns": "console.tui.list_layout:columns",
    "sort": "console.tui.list_layout:sort",
    "mark_range": "console.tui.list_layout:mark_range",
    "mark_all": "console.tui.list_layout:mark_all",
    "still": "console.tui.list_layout:freeze",
    "theme": "console.tui.screens.settings:choose",
    "bookmark": "console.tui.navigator:bookmark",
    "forget_bookmark": "console.tui.navigator:forget",
    "copy": "console.tui.page_data:copy",
    "export": "console.tui.page_data:export",
    "save_report": "console.tui.page_data:save",
    "edit_report": "console.tui.page_data:edit",
    "curve": "console.tui.screens.curve:show",
    "longer": "console.tui.screens.curve:longer",
    "shorter": "console.tui.screens.curve:shorter",
    "approve_policy": "console.tui.screens.policy:approve_policy",
    "reject_policy": "console.tui.screens.policy:reject_policy",
    "set_freeze": "console.tui.screens.policy:freeze",
    "end_freeze": "console.tui.screens.policy:thaw",
    "close_review": "console.tui.screens.policy:close_review",
    "retry_intent": "console.tui.screens.outside:retry",
    "settle_done": "console.tui.screens.outside:settle_done",
    "settle_undone": "console.tui.screens.outside:settle_undone",
    "approve_runbook": "console.tui.screens.policy:approve_runbook",
    "retire_runbook": "console.tui.screens.policy:retire_runbook",
    "claim_incident": "console.tui.screens.incidents:claim",
    "hand_over_incident": "console.tui.screens.incidents:hand_over",
    "note_incident": "console.tui.screens.incidents:note",
    "close_incident": "console.tui.screens.incidents:close",
    "propose_of_incident": "console.tui.screens.incidents:propose",
}
"""Action id -> `module:function`, called as `function(app, argument)`: `argument` is what stands behind its name in the
`:` bar, empty for a key. Raises SpecError for an argument it cannot read; whatever takes time it runs as a worker of
the app. The module is loaded when it is first wanted."""


ONE = ("workload", "node", "queue", "proposal", "runbook", "record", "output", "intent", "incident")
"""Pages of one thing, whose id stands behind their name."""
NARROWED = (
    "forecast",
    "topology",
    "cost",
    "settings",
    "proposals",
    "audit",
    "bookmarks",
    "events",
    "fleet",
    "incidents",
)
"""Pages that may be narrowed down by what stands behind their name."""
ABOUT = (
    "overview",
    "recommendations",
    "workloads",
    "workload",
    "nodes",
    "node",
    "queues",
    "queue",
    "pools",
    "incidents",
    "incident",
)
"""Pages whose chosen one a draft may be about."""
READ_FIRST = ("approve", "break_glass")
"""Actions on a proposal that need its page read to the end of the plan."""
DECISIONS = (
    *READ_FIRST, "execute", "pause", "go_on", "accept", "say_go", "roll_back", "withdraw", "ask_again",
)  # fmt: skip
"""Ids of actions that are functions of `console.tui.proposal_steps`."""


def first_edit(context: Context) -> str:
    """The `:` line that begins a what-if of what is selected."""
    ids = ",".join(target.id for target in context.targets)
    if not ids:
        return "whatif "
    if context.kind == "queue":
        return f"whatif quota {context.targets[0].id} gpu="
    if context.kind == "node":
        return f"whatif drain {ids}"
    runs = all(target.state in ("running", "placed") for target in context.targets)
    return f"whatif preempt {ids}" if runs else f"whatif priority {ids} "


class Navigation:
    """Moves a person about. One per app."""

    def __init__(self, app: MusterApp) -> None:
        self._app = app
        self._deeds: dict[str, Callable[[], object]] = {
            "back": self.back,
            "earlier": partial(self.travel, -1),
            "later": partial(self.travel, 1),
            "page_before": self.page_before,
            "leave": self.leave,
            "quit": app.leave,
            "open": lambda: app.simulate_key("enter"),
            "mark": lambda: app.simulate_key("space"),
            "filter": app.bars.open_filter,
            "command": app.bars.open_command,
            "refresh": self.refresh,
            "help": self.help,
            "palette": app.action_command_palette,
            "rehearse": self.rehearse,
            "take_out": lambda: self._on_page("take_out"),
            "compare": lambda: self._on_page("compare"),
            "stop_run": lambda: self._on_page("stop"),
            "eta": lambda: self._on_page("ask_eta"),
            "output": self.output_chosen,
            "next_task": lambda: self._on_page("next_task"),
            "fold": lambda: self._on_page("fold"),
            "colour": lambda: self._on_page("next_colouring"),
            "zoom_out": lambda: self._on_page("zoom_out"),
            "act_on": self.act_on,
            "reject": self.reject_chosen,
            "run": self.run_chosen,
            "verify": lambda: self._on_page("verify"),
            "draft": self.draft_chosen,
            "draft_from": self.draft_chosen,
            "draft_again": lambda: self._on_page("again"),
            "ask_model": lambda: self._on_page("ask_model"),
            "propose_rule": lambda: self.propose_draft("rule"),
            "propose_model": lambda: self.propose_draft("model"),
            "handover": lambda: self._draft_report("handover", ""),
            "incident_summary": lambda: self._draft_report("incident", ""),
        }
        self._deeds |= {name: partial(self.decide, name) for name in DECISIONS}

    def do(self, action: ConsoleAction) -> None:
        """A key, a click in the footer, or a choice in the palette. What is not a deed of its own is a page."""
        deed = self._deeds.get(action.id)
        if deed is not None:
            deed()
        elif action.id in DEEDS:
            try:
                self._do_deed(action, "")
            except MusterError as error:
                self._app.report(error)
        elif action.argument == "id":
            self._app.bars.open_command(action.commands[0] + " ")
        else:
            self.goto(action.id)

    def _do_deed(self, action: ConsoleAction, argument: str) -> None:
        """Raises SpecError where what stands behind its name cannot be read."""
        module, _, name = DEEDS[action.id].partition(":")
        getattr(importlib.import_module(module), name)(self._app, argument)

    def goto(self, name: str, filter_text: str | None = None) -> None:
        """To a main page, if need be through a filter. Raises FilterError before anything has moved."""
        if filter_text is not None:
            ListView.of(cast("Kind", name)).filter(filter_text)
        self._app.bars.close()
        pane = self._app.navigator.goto(cast("ScreenName", name))
        if filter_text is not None and isinstance(pane, ListPane):
            pane.take(filter_text)

    def back(self) -> None:
        """Undo the innermost selection or filter, else one page back."""
        pane = self._app.navigator.current
        if self._app.leave_tour() or self._app.past.back_out() or pane is None or pane.clear_one():
            return
        if not self._app.navigator.back():
            self._app.past.now()

    def travel(self, step: int) -> None:
        """Through the views as one came by them."""
        if not self._app.navigator.travel(step):
            self._app.say("this is the first page" if step < 0 else "this is the latest page")

    def page_before(self) -> None:
        if not self._app.navigator.page_before():
            self._app.say("there is no earlier page")

    def leave(self) -> None:
        if not self._app.navigator.back():
            self._app.leave()

    def refresh(self) -> None:
        """Ask the engine now, also when the next try to reach it would come later."""
        self._app.feed.retry_now()
        if self._app.navigator.current is not None:
            self._app.navigator.current.look_again()

    def tell(self, deed: Callable[[], Awaitable[str]]) -> None:
        """Do it on a worker, report the result, and ask for the page again."""

        async def do() -> None:
            try:
                told = await deed()
            except MusterError as error:
                self._app.report(error)
            else:
                self._app.say(told)
            self.refresh()

        self._app.run_worker(do(), exclusive=True, group="propose")

    def help(self) -> None:
        from console.tui.dialog_frames import HelpDialog

        self._app.push_screen(HelpDialog(list(self._app.actions.values()), self._app.context()))

    # --- what if

    def rehearse(self) -> None:
        """Run what was put together; elsewhere, begin an edit of what is selected."""
        if self._app.context().screen == "whatif":
            self._on_page("start")
        else:
            self._app.bars.open_command(first_edit(self._app.context()))

    def _on_page(self, deed: str) -> None:
        """Have the page that is shown do it; what it refuses is told."""

        async def do() -> None:
            try:
                done = getattr(self._app.navigator.current, deed)()
                if done is not None:
                    await done
            except MusterError as error:
                self._app.report(error)

        self._app.run_worker(do(), group="whatif")

    # --- recommendations

    def act_on(self) -> None:
        """Propose what the chosen recommendation says; the person decides on the plan."""
        pane = cast("RecommendationsPane", self._app.navigator.current)
        self.tell(lambda: pane.act(self._app))

    def reject_chosen(self) -> None:
        if self._app.context().screen == "recommendations":
            self.compose_reject()
        else:
            self.decide("reject")

    def compose_reject(self) -> None:
        """Begin the line that rejects the chosen one; what is typed behind its id is the reason."""
        chosen = cast("RecommendationsPane", self._app.navigator.current).chosen()
        if chosen is not None:
            self._app.bars.open_command(f"reject {chosen.suggestion.id} ")

    def _reject(self, argument: str) -> None:
        rec_id, _, reason = argument.partition(" ")
        if rec_id.startswith("P-"):
            self._decide_on(rec_id, "reject")
            return

        async def do() -> None:
            try:
                done = await in_thread(lambda: self._app.client().reject_recommendation(rec_id, reason.strip()))
            except MusterError as error:
                self._app.report(error)
            else:
                self._app.say(f"{done.suggestion.id} is dismissed until things change")
            self.refresh()

        self._app.run_worker(do(), group="reject")

    # --- drafts

    def output_chosen(self) -> None:
        """Open the output of the selected workload, or begin the line that asks for one."""
        pane = self._app.navigator.current
        if pane is not None and len(pane.targets) == 1:
            self._app.navigator.drill("output", pane.targets[0].id)
        else:
            self._app.bars.open_command("output ")

    def draft_chosen(self) -> None:
        """Draft for the selection, or begin the line that asks a question."""
        from runbooks.drafts.typed_draft import DraftAsk

        pane = self._app.navigator.current
        if pane is not None and pane.NAME in ABOUT and pane.copyable:
            self._draft(lambda: DraftAsk(finding=pane.copyable.split()[0]))
        else:
            self._app.bars.open_command("draft ")

    def _draft_typed(self, argument: str) -> None:
        """A draft by its id, or a question. Raises SpecError."""
        from console.tui.screens.draft import ask_of, is_draft_id
        from runbooks.drafts.typed_draft import picked

        if is_draft_id(argument):
            self._app.navigator.drill("draft", argument)
            return
        ask = ask_of(argument)
        if ask.pick and is_draft_id(ask.question):
            self._draft(lambda: picked(self._app.client().draft_run(ask.question), ask.pick))
        else:
            self._draft(lambda: ask)

    def _draft_report(self, task: str, argument: str) -> None:
        """Raises SpecError."""
        from console.tui.screens.draft import report_of

        asked = report_of(task, argument)
        self._draft(lambda: asked(self._app.client().health().now_ms))

    def _draft(self, ask: Callable[[], DraftAsk]) -> None:
        """Have it drafted, and show that. `ask` is called on a thread."""

        async def do() -> None:
            try:
                run = await in_thread(lambda: self._app.client().draft(ask()))
            except MusterError as error:
                self._app.report(error)
            else:
                self._app.navigator.drill("draft", run.id)

        self._app.run_worker(do(), exclusive=True, group="draft")

    def propose_draft(self, drafter: Drafter) -> None:
        """Put one of the two drafts to the vote, and go to where it is read and voted on."""
        pane = cast("DraftPane", self._app.navigator.current)

        async def do() -> None:
            try:
                proposal = await pane.propose(drafter)
            except MusterError as error:
                self._app.report(error)
                return
            if self._app.navigator.current is pane:
                self._app.navigator.drill("proposal", proposal)
            self._app.say(f"{proposal} waits for votes; nothing is done yet")

        self._app.run_worker(do(), group="propose")

    # --- proposals

    def decide(self, deed: str) -> None:
        """Do something with the proposal that is chosen on the page."""
        pane = cast("ProposalPane | ProposalsPane", self._app.navigator.current)
        chosen = pane.chosen()
        if chosen is not None:
            self._decide_on(chosen.id, deed)

    def _decide_on(self, proposal_id: str, deed: str) -> None:
        """To the proposal's own page, where that is to be read first; else ask at once."""
        current = self._app.navigator.current
        on_its_page = current is not None and current.NAME == "proposal" and current.copyable == proposal_id
        if deed in READ_FIRST and not on_its_page:
            self._app.navigator.drill("proposal", proposal_id)
            self._app.say(f"scroll {proposal_id} to its end, then {key_of(deed)}")
            return

        async def decided() -> str:
            from console.tui import proposal_steps

            do = getattr(proposal_steps, deed)
            if not on_its_page:
                found = await in_thread(lambda: self._app.client().proposal(proposal_id))
                return cast("str", await do(self._app, found))
            pane = cast("ProposalPane", current)
            shown = pane.chosen()
            assert shown is not None, "once its id is known"
            if deed not in READ_FIRST:
                return cast("str", await do(self._app, shown))
            pane.refuse_unread()
            return cast("str", await do(self._app, shown, pane.plan_width))

        self.tell(decided)

    # --- runbooks

    def run_chosen(self) -> None:
        """Ask for the inputs of the runbook that is chosen, one a line, then go on as if they had been typed."""
        from console.tui.screens.policy import ask_inputs

        target = next(iter(self._app.context().targets), None)
        if target is not None:
            self.tell(lambda: ask_inputs(self._app, target.id))

    def _run_typed(self, line: str) -> None:
        """Raises SpecError."""
        from console.tui.screens.policy import run
        from console.views.policy import request_words

        try:
            name, inputs = request_words(line)
        except ValueError as error:
            raise SpecError("", str(error), "Write :run ID node=n1") from None
        self.tell(lambda: run(self._app, name, inputs))

    def follow(self, line: str) -> None:
        """Go where a line leads, on top of this page. What is wrong with it is told, also that it would do more."""
        try:
            self._do_command(page_command(line, self._app.actions.values()), drill=True)
        except SpecError as error:
            self._app.report(error)

    # --- command lines

    def run(self, line: str) -> None:
        """Do a `:` line, or go where the bookmark of that name leads. Raises SpecError."""
        available = list(self._app.actions.values())
        known = kept(self._app.session).get(line.strip())
        self._do_command(parse_command(line, available) if known is None else page_command(known, available))

    def _do_command(self, command: ParsedCommand, *, drill: bool = False) -> None:
        """Carry out a command. With `drill` it came from the page, and Back returns there. Raises SpecError."""
        action, argument = command.action, command.argument
        if self._app.past.at_ms and (action.mutates or action.changes):
            raise SpecError("", f"{action.title}: {self._app.past.reason}")
        if action.id in DEEDS:
            self._do_deed(action, argument)
        elif action.id == "run":
            self._run_typed(argument)
        elif action.id == "draft":
            self._draft_typed(argument)
        elif action.id in ("handover", "incident_summary"):
            self._draft_report("handover" if action.id == "handover" else "incident", argument)
        elif action.argument == "flags":
            self._propose(action, argument)
        elif action.mutates:
            self._act(action, tuple(argument.split()))
        elif action.id == "open":
            open_beside(self._app, argument)
        elif action.id in ONE or (action.id in NARROWED and argument):
            self._app.navigator.drill(cast("ScreenName", action.id), argument)
        elif action.id in DECISIONS and action.id != "reject":
            self._decide_on(argument, action.id)
        elif action.id == "reject":
            self._reject(argument)
        elif action.argument == "edit":
            self._add_edit(argument)
        elif drill and action.argument == "filter":
            self._app.navigator.drill(cast("ScreenName", action.id), argument)
        elif action.argument == "filter":
            self.goto(action.id, argument)
        else:
            self.do(action)

    def _act(self, action: ConsoleAction, ids: tuple[str, ...]) -> None:
        if not ids:
            self._app.action_act(action.id)
        else:
            self._app.propose(action, ids)

    def _propose(self, action: ConsoleAction, line: str) -> None:
        """Raises SpecError for a line that the action's command would not take."""
        from console.actions.request_builder import parse, propose
        from console.tui.proposal_steps import finish

        name = action.commands[0]
        arguments = parse(name, line)

        async def proposed() -> str:
            shell = action.shell_line((line,))
            return await finish(self._app, action, lambda: propose(self._app.client(), name, arguments), shell)

        self.tell(proposed)

    def _add_edit(self, text: str) -> None:
        """To the what-ifs, with one more edit. Raises SpecError before anything has moved."""
        from engine.model.what_if_edits import parse

        edit = parse(text, self._read_workloads) if text else None
        self.goto("whatif")
        if edit is not None:
            cast("WhatIfPane", self._app.navigator.current).add(edit)

    def _read_workloads(self, path: str) -> tuple[WorkloadSpec, ...]:
        from console.forms.fields import clock_of
        from console.forms.work_files import read_workloads

        return read_workloads(path, clock_of(self._app.client()))
