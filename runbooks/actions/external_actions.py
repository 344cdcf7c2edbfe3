"""What actions mean in a cell that another scheduler decides on: which can be asked of it, and what shows that it has
done them.

There an executed step leaves an intent (`engine.state.intents`) that is carried to the other scheduler and read back
there. Success needs both: what was read there, and the cell as it is observed since; where the cell does not hold it,
what was read there alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from engine.model.errors import RefusedError
from engine.model.external_commands import CARRIED, why_not
from engine.state.intents import Intent, Phase
from runbooks.actions import catalogue
from runbooks.plans.checks import Verdict
from runbooks.plans.typed_plan import Act, Target

if TYPE_CHECKING:
    from engine.control import Engine

MIN_MS = 180_000
"""Wall time within which an effect must be seen: longer than what is given up takes
(`engine.external.slurm.carrying.change_carrier`)."""
STILL = "once more 20 s later"
"""When what was read there is read again: `engine.external.slurm.carrying.reconciliation.SAFE_S`."""


def is_outside(engine: Engine) -> bool:
    """Whether another scheduler decides; a fork is a model of that one, and decides itself."""
    return not engine.decides


def refuse_impossible(engine: Engine, acts: Iterable[Act]) -> None:
    """Raises RefusedError naming every action that cannot be asked of whoever decides."""
    found: dict[str, None] = {}
    for act in acts:
        row = catalogue.find(act.action)
        if row.only_outside and engine.state.settings.decided_by == "muster":
            found[f"{act.action}: Muster itself decides on this cell"] = None
        elif is_outside(engine) and row.command:
            catalogue.check(act)
            why = why_not(type(row.express_act(act)), acts=engine.acts, lacks=engine.lacks)
            if why:
                found[f"{act.action}: {why}"] = None
    if found:
        raise RefusedError(f"not possible in this cell: {'; '.join(found)}", "muster mirror shows what is")


def carried(engine: Engine, acts: Iterable[Act]) -> tuple[str, ...]:
    """How acts would be carried to whoever decides, as it is reached now, and what shows that they are done, or why
    they cannot be; a line for each kind of act. Nothing where Muster decides."""
    from engine.external.slurm.job_changes import read_back

    lines: dict[str, None] = {}
    for act in acts:
        row = catalogue.find(act.action)
        if not is_outside(engine) or not row.command:
            continue
        command = row.express_act(act)
        name, why = act.action.replace("_", " "), why_not(type(command), acts=engine.acts, lacks=engine.lacks)
        if why:
            lines[f"{name} cannot be carried now: {why}"] = None
        elif type(command) not in CARRIED:
            lines[f"{name} is kept by Muster alone, and carried nowhere"] = None
        else:
            way = engine.ways.get(type(command), "")
            by = f"by {way} to {engine.far}" if way else "to Slurm, which has not answered yet"
            lines[f"{name} goes {by}; read back there, and {STILL}: {read_back(command)}"] = None
    return tuple(lines)


def timeout_ms(engine: Engine, act: Act) -> int:
    """Wall time within which the effect must be seen."""
    return max(catalogue.timeout_ms(act), MIN_MS if is_outside(engine) else 0)


def intent_of(engine: Engine, act: Act, since_ms: int) -> Intent | None:
    """The intent that the act left, not before that cell time; None where it leaves none."""
    wanted = msgspec.msgpack.encode(catalogue.command(act))
    intents = engine.state.intents
    for intent in reversed(intents.open.values()):
        if intent.at_ms < since_ms:
            break
        if intent.command == wanted:
            return msgspec.convert(intent, Intent)
    # Those were settled in another order than they were wanted in.
    settled = [each for each in intents.ended if each.at_ms >= since_ms and each.command == wanted]
    return msgspec.convert(max(settled, key=lambda each: each.number), Intent) if settled else None


def verdict(intent: Intent | None, act: Act, before: Target, now: Target, *, in_time: bool) -> Verdict:
    """What a target says after its intent was carried, or not."""
    row = catalogue.find(act.action)
    done = (row.done_outside or row.is_done)(act, before, now)
    if intent is None:
        return "success" if done else "failure"
    phase = Phase(intent.phase)
    if phase in (Phase.REFUSED, Phase.EXPIRED, Phase.IN_DOUBT, Phase.UNDONE, Phase.RETRIED):
        return "failure"
    carried = phase in (Phase.ACCEPTED, Phase.DONE, Phase.NEEDLESS)
    if carried and (done or not row.seen_outside(now)):
        return "success"
    return "inconclusive" if in_time else "failure"


def line(intent: Intent | None) -> str:
    """What the other scheduler is known to have done, for people."""
    if intent is None:
        return ""
    said = f": {intent.text}" if intent.text else ""
    return f"i{intent.number} to Slurm is {Phase(intent.phase).label}{said}"
