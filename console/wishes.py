"""From words behind an action's name, in the shell or the `:` bar, to a proposal of the engine, and on to its end."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec

from console.action_arguments import action_arguments
from console.arguments import ShellParser
from console.forms import RESOURCE_FORMS, permille, profile
from console.moments import Now, clock_of, moment_ms
from engine.errors import MusterError, SpecError
from engine.measures import duration_ms, shown
from engine.model import BurstSpec, QueueSpec, ReservationSpec
from runbooks.plan import (
    Act,
    ActionName,
    Canary,
    Note,
    Proposal,
    QueueChange,
    Request,
    RequestChange,
    Source,
    StepRequest,
    asks,
)

if TYPE_CHECKING:
    from console.action import Action
    from console.app import MusterApp
    from console.client import Client
    from console.details import Line

LAST_WORD_S = 1.0
"""How long the end of the console waits for a withdrawal to arrive."""
NOTHING = "none"
"""As a quantity: the resource is no longer named. As a burst: there is none."""


class LineParser(ShellParser):
    """Says what is wrong with a line of the `:` bar instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        raise SpecError("", message)


def parse(name: str, line: str) -> argparse.Namespace:
    """What stands behind an action's name in the `:` bar, read as the shell reads it. Raises SpecError."""
    parser = LineParser(prog=f":{name}", add_help=False, allow_abbrev=False)
    action_arguments(parser, name)
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise SpecError("", str(error)) from None


def propose(
    client: Client, name: str, arguments: argparse.Namespace, reason: str = "", suggestion: str = ""
) -> Proposal:
    """The engine's plan for what was typed. `suggestion`: id of the one that it is. Raises MusterError."""
    return client.propose(wanted(client, name, arguments, reason, suggestion))


def wanted(client: Client, name: str, arguments: argparse.Namespace, reason: str = "", suggestion: str = "") -> Request:
    """What was typed, as it is asked of the engine. `suggestion`: id of the one that it is. Raises MusterError."""
    request = _typed(client, name, arguments, reason or suggestion)
    return following(msgspec.structs.replace(request, reason=reason), suggestion)


def following(request: Request, suggestion: str) -> Request:
    """The same as what a suggestion of that id asks for; none where it is empty."""
    return msgspec.structs.replace(request, source=Source(kind="suggestion", id=suggestion)) if suggestion else request


def _typed(client: Client, name: str, arguments: argparse.Namespace, reason: str) -> Request:
    action = cast("ActionName", name.replace("-", "_"))
    match action:
        case "set_quota":
            change = queue_change(client.queue(arguments.queue).spec, arguments)
            return asks(action, (arguments.queue,), reason, queue=change)
        case "reserve":
            wanted = reservation(arguments, clock_of(client))
            return asks(action, (arguments.name,), reason, reservation=wanted)
        case "resize":
            wanted_request = RequestChange(
                group=arguments.group,
                request=_quantities({}, arguments.request, "--request"),
                evidence=reason,
            )
            return asks(action, tuple(arguments.ids), reason, resize=wanted_request)
        case "set_price":
            from console.spending import price_change

            return asks(action, (arguments.pool,), reason, money=price_change(arguments))
        case "set_budget":
            from console.spending import budget_change

            return asks(action, (arguments.name,), reason, money=budget_change(arguments, client))
        case "set_scaling":
            from console.scaling import size_change

            return asks(action, (arguments.pool,), reason, scaling=size_change(arguments))
        case "set_targets":
            from console.scaling import targets_change

            wanted_targets = targets_change(arguments, clock_of(client))
            return asks(action, (arguments.pool,), reason, scaling=wanted_targets)
        case "set_autoscaling":
            from console.scaling import settings_change

            return asks(action, ("autoscaler",), reason, scaling=settings_change(arguments))
        case "set_policy":
            return asks(action, (arguments.policy,), reason)
        case "consolidate":
            from console.fragmentation import moves_of, request_of

            return moves_of(client.consolidation(request_of(arguments)), reason)
        case "move" | "set_priority" | "set_qos" | "set_job_priority":
            return asks(action, tuple(arguments.ids), reason, to=arguments.to)
        case "scale_pool":
            return asks(action, (arguments.pool,), reason, nodes=arguments.nodes)
        case "notify" | "open_review":
            return asks(action, tuple(arguments.ids), reason, note=Note(text=arguments.text))
        case "canary":
            return canary(client, arguments, reason)
        case _:
            return asks(action, tuple(arguments.ids), reason)


async def finish(
    app: MusterApp,
    action: Action,
    ask: Callable[[], Proposal],
    shell: str,
    *,
    found: Callable[[int], Sequence[Line]] | None = None,
    follow: bool = False,
) -> str:
    """Have the engine's plan confirmed and done; or put to the vote, where the policy wants others than who asks. What
    was not wanted is withdrawn. `found`: what led to it. `follow`: go to its page, which shows how far it is and how to
    take it back. Gives what to tell the person in the end. Raises MusterError."""
    from console.confirm_dialog import ConfirmDialog
    from console.deciding import approve_own, own_yes, put_to_vote
    from console.feed import in_thread

    def withdraw() -> None:
        # Whether or not the engine can be told: what nobody votes on expires.
        with suppress(MusterError):
            app.client().cancel(proposal.id)

    proposal = await in_thread(ask)
    dialog = ConfirmDialog(proposal, shell, app.clock, found=found)
    try:
        wanted = await app.push_screen_wait(dialog)
        yes = await own_yes(app, proposal, dialog.plan_width) if wanted and dialog.alone else None
    except asyncio.CancelledError:
        # The console ends while it asks: nothing can be awaited any more.
        telling = threading.Thread(target=withdraw, daemon=True, name="muster-withdraw")
        telling.start()
        telling.join(LAST_WORD_S)
        raise
    except MusterError:
        await in_thread(withdraw)
        raise
    if not wanted or (dialog.alone and yes is None):
        await in_thread(withdraw)
        return f"{action.title}: nothing was changed"
    if follow:
        app.navigator.drill("proposal", proposal.id)
    return put_to_vote(proposal) if yes is None else await approve_own(app, proposal, *yes)


def canary(client: Client, arguments: argparse.Namespace, reason: str) -> Request:
    """What is tried is taken back by itself when it fails. Raises SpecError naming the flag."""
    if bool(arguments.ids) == bool(arguments.policy):
        raise SpecError("--order", "is for queues, --policy for the whole cell", "Name queues, or give a policy")
    tried = Canary(
        order=arguments.order,
        policy=arguments.policy,
        window_ms=_duration(arguments.window, "--window"),
        worst_permille=arguments.worst_percent * 10,
        least_starts=arguments.least_starts,
    )
    targets = tuple(arguments.ids) or (client.overview().cell,)
    step = StepRequest(act=Act(action="canary", targets=targets, canary=tried), on_fail="rollback")
    return Request(steps=(step,), reason=reason)


def queue_change(was: QueueSpec, arguments: argparse.Namespace) -> QueueChange:
    """The spec with what was given in place of what it had; a resource that is not named keeps its quantity. Raises
    SpecError naming the flag."""
    given: dict[str, Any] = {}
    for field in ("nominal", "borrowing_limit", "lending_limit"):
        words = getattr(arguments, field)
        if words is not None:
            given[field] = _quantities(getattr(was, field), words, _flag(field))
    for field in ("weight", "order", "reclaim", "disruptions"):
        if getattr(arguments, field) is not None:
            given[field] = getattr(arguments, field)
    for field in ("min_runtime", "disruption_window", "start_within"):
        if getattr(arguments, field) is not None:
            given[f"{field}_ms"] = _duration(getattr(arguments, field), _flag(field))
    if arguments.objective is not None:
        given["objective_permille"] = _share(arguments.objective, "--objective")
    if arguments.placement is not None:
        given["placement"] = _placement(arguments.placement)
    given["burst"] = _burst(was.burst, arguments)
    return QueueChange(was=was, to=msgspec.structs.replace(was, **given), over=arguments.over)


def reservation(arguments: argparse.Namespace, now: Now) -> ReservationSpec:
    """Raises SpecError naming the flag."""
    return ReservationSpec(
        name=arguments.name,
        nodes=_names(arguments.nodes),
        start_ms=_moment(arguments.start, now, "--start"),
        end_ms=_moment(arguments.end, now, "--end"),
        queues=_names(arguments.queues),
    )


def _burst(was: BurstSpec | None, arguments: argparse.Namespace) -> BurstSpec | None:
    if arguments.burst == [NOTHING]:
        return None
    given: dict[str, Any] = {}
    if arguments.burst is not None:
        given["limit"] = _quantities(was.limit if was else {}, arguments.burst, "--burst")
    for field in ("window", "cooldown"):
        text = getattr(arguments, f"burst_{field}")
        if text is not None:
            given[f"{field}_ms"] = _duration(text, f"--burst-{field}")
    if was is None and given and "limit" not in given:
        raise SpecError("--burst", "is missing", "Say how much the queue may use while it bursts, such as gpu=32")
    if was is None:
        return BurstSpec(**given) if given else None
    return msgspec.structs.replace(was, **given)


def _quantities(had: dict[str, int], words: Sequence[str], flag: str) -> dict[str, int]:
    """`gpu=24 memory=1TiB disk=none` on top of what there was."""
    found = dict(had)
    for word in words:
        name, equals, text = word.partition("=")
        field, convert = RESOURCE_FORMS.get(name, ("", None))
        if convert is None or not equals:
            raise SpecError(flag, f"{shown(word)} is not RESOURCE=QUANTITY", f"Resources: {', '.join(RESOURCE_FORMS)}")
        if text == NOTHING:
            found.pop(field, None)
            continue
        try:
            found[field] = convert(text)
        except ValueError as error:
            raise SpecError(flag, str(error)) from None
    return found


def _placement(words: Sequence[str]) -> dict[str, int]:
    """The name of a profile, `pack=100 price=50`, or `none`. Which scores there are is for the engine to say."""
    if list(words) == [NOTHING]:
        return {}
    if len(words) == 1 and "=" not in words[0]:
        try:
            return dict(profile(words[0]))
        except ValueError as error:
            raise SpecError("--placement", str(error)) from None
    found = {}
    for word in words:
        score, equals, weight = word.partition("=")
        if not equals or not weight.isdecimal():
            raise SpecError("--placement", f"{shown(word)} is not SCORE=WEIGHT", "Write for example pack=100 price=50")
        found[score] = int(weight)
    return found


def _duration(text: str, flag: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise SpecError(flag, str(error)) from None


def _share(text: str, flag: str) -> int:
    try:
        return permille(text)
    except ValueError as error:
        raise SpecError(flag, str(error)) from None


def _moment(text: str, now: Now, flag: str) -> int:
    try:
        return moment_ms(text, now)
    except ValueError as error:
        raise SpecError(flag, str(error)) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
