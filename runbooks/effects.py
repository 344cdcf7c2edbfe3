"""What shows that an act has had its effect: readings of a target from before and after it."""

from __future__ import annotations

from collections.abc import Callable

from engine.scaling import changed_settings
from runbooks import sizes
from runbooks.plan import Act, Target
from runbooks.risk import BOUND

Done = Callable[[Act, Target, Target], bool]
"""Whether the second reading shows the act's effect; the first is from before it."""


def becomes(*states: str) -> Done:
    return lambda act, before, now: now.state in states


def leaves(*states: str) -> Done:
    return lambda act, before, now: now.state not in states


def not_observed(act: Act, before: Target, now: Target) -> bool:
    """The cell holds nothing that shows it: only who decides there can say (`runbooks.outside`)."""
    return False


def has_qos(act: Act, before: Target, now: Target) -> bool:
    return now.was == act.to


def empty_and(*states: str) -> Done:
    return lambda act, before, now: now.state in states and not now.work


def stopped(act: Act, before: Target, now: Target) -> bool:
    """A scheduling cycle may have started it again already: then it is a later attempt."""
    return now.state not in BOUND or now.attempts > before.attempts


def resized(act: Act, before: Target, now: Target) -> bool:
    """One group has the request that was asked for."""
    change = act.resize
    return change is not None and any(
        change.group in ("", group) and request | change.request == request for group, request in now.asks
    )


def scaled(act: Act, before: Target, now: Target) -> bool:
    """What the change names has the value it names."""
    change = act.scaling
    return (
        now.size is not None
        and now.size.scaling is not None
        and change is not None
        and all(getattr(change, field) in (None, getattr(now.size.scaling, field)) for field in sizes.FIELDS)
    )


def has_targets(act: Act, before: Target, now: Target) -> bool:
    return now.size is not None and act.scaling is not None and now.size.set_for == tuple(sorted(act.scaling.targets))


def has_size(act: Act, before: Target, now: Target) -> bool:
    """Larger: at least so many of its nodes are there. Smaller: no more are there or on order."""
    if before.size is None or now.size is None or act.nodes is None:
        return False
    if act.nodes > sizes.nodes_of(before.size):
        return now.size.ready + now.size.other >= act.nodes
    return sizes.nodes_of(now.size) <= act.nodes


def tried(act: Act, before: Target, now: Target) -> bool:
    """The change that is tried is in force. What it led to is measured by `runbooks.canary`."""
    if act.canary is None:
        return False
    if act.canary.policy is not None:
        return now.state == act.canary.policy
    return now.queue is not None and now.queue.order == act.canary.order


def set_autoscaling(act: Act, before: Target, now: Target) -> bool:
    if before.autoscaling is None or act.scaling is None:
        return False
    return now.autoscaling == changed_settings(before.autoscaling, act.scaling.preset, act.scaling.settings)
