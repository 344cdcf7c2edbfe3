"""Whether what is drafted brings about what it is for: conditions on the objects that it acts on, read before it and,
on a fork, after it. They are those of `runbooks.plans.checks`, as runbooks have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.model.errors import MusterError
from runbooks.actions.catalogue import find
from runbooks.drafts.rules.nodes import AGAIN_MS
from runbooks.drafts.rules.solver import DraftOption, RuleAnswer, Solver, done, forked
from runbooks.drafts.rules.symptoms import CellScene
from runbooks.drafts.typed_draft import DraftGoal
from runbooks.plans.checks import Check, evaluate, words
from runbooks.plans.checks import Finding as Checked
from runbooks.plans.typed_plan import Act

MAX_CHECKS = 6


def with_target(scene: CellScene, answer: RuleAnswer, acts: Sequence[Act]) -> DraftGoal | None:
    """The target of an answer, with its checks; of one that has none what its acts are to bring about. None where no
    check says that."""
    if answer.option is None:
        return answer.target
    ran = _ran(scene, answer, tuple(dict.fromkeys(conditions(scene, answer, acts)))[:MAX_CHECKS])
    if ran is None:
        return answer.target
    before, after = ran
    if answer.target is not None:
        return DraftGoal(
            text=answer.target.text, before=answer.target.before, after=answer.target.after, met=answer.target.met,
            checks=after,
        )  # fmt: skip
    return DraftGoal(
        text="; ".join(_aim(one.check) for one in after),
        before="; ".join(_plain(one) for one in before),
        after="; ".join(_plain(one) for one in after),
        met=all(one.verdict == "success" for one in after),
        checks=after,
    )


def conditions(scene: CellScene, answer: RuleAnswer, acts: Sequence[Act]) -> Iterable[Check]:
    """What is to be so afterwards: of the work that waits first, then of what is acted on."""
    yield from (Check(check="workload_reason", of=id_, op="==", value="none") for id_ in answer.starts[:2])
    given = dict(answer.option.steps) if answer.option is not None else {}
    for act in acts:
        if act.action == "cordon" and "drain" in given:
            continue  # it is drained next
        for proof in find(act.action).proof:
            value = given.get(act.action, {}).get(proof.of) if proof.of else proof.value
            if value is not None:
                yield from (Check(check=proof.check, of=id_, op=proof.op, value=value) for id_ in act.targets)
    for kind, id_ in answer.about:
        if kind == "zone":
            yield Check(check="zone_ready", of=id_, op="==", value=0)


def _ran(
    scene: CellScene, answer: RuleAnswer, checks: Sequence[Check]
) -> tuple[tuple[Checked, ...], tuple[Checked, ...]] | None:
    """What they read before, and on a fork after it."""
    option: DraftOption | None = answer.option
    if not checks or option is None:
        return None
    solver = Solver(scene.engine, ())
    ahead_ms = answer.ahead_ms or (AGAIN_MS if answer.target is None else 0)
    with forked(scene.engine) as fork:
        try:
            done(fork, option)
            fork.settle()
            solver.run_ahead(fork, solver.ahead(ahead_ms))
            after = tuple(evaluate(fork, check) for check in checks)
        except MusterError:
            return None
    return tuple(evaluate(scene.engine, check) for check in checks), after


def _aim(check: Check) -> str:
    return f"workload {check.of} waits no more" if check.check == "workload_reason" else words(check)


def _plain(found: Checked) -> str:
    return found.found.partition(";")[0]
