"""Lives played on Kueue and on Muster, and how far the two agree."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.differential.kueue.kueue_side import KueueRoom, play, room
from tests.differential.kueue.lives import Life
from tests.differential.kueue.muster_side import MusterSide
from tests.differential.kueue.objects import nodes
from tests.differential.kueue.verdicts import Verdicts, decided, differing, is_endless
from tests.support.kubernetes_cluster import own

PLACES = 8
"""Lives with a topology that have nodes at a time."""
KUEUE_CONFIG = msgspec.json.encode({"integrations": {"frameworks": ["batch/job"]}}).decode()


class Disagreement(msgspec.Struct, frozen=True):
    """The first step of a life in which the two differ: what each says of each job that they differ on."""

    seed: int
    topology: bool
    step: int
    played: str
    jobs: dict[str, tuple[str, str]]
    """Job -> (Kueue, Muster)."""
    repeated: bool = True
    """Whether Kueue decided the same when the life was played again."""


class LifeResult(msgspec.Struct, frozen=True):
    """`decisions` are those up to the first disagreement, of which `agreed` are the same."""

    seed: int
    topology: bool
    decisions: int
    agreed: int
    preemptions: int
    bursts: int
    """Those that agree only if the jobs of the burst came together rather than one after the other."""
    endless: bool
    """Its last step has no end, by both."""
    disagreement: Disagreement | None


def compared(life: Life, kueue: Sequence[Verdicts]) -> LifeResult:
    """The life played on Muster, beside what Kueue decided."""
    muster = MusterSide(life)
    before: Verdicts = {}
    decisions = preemptions = 0
    endless = False
    together: set[int] = set()
    for number, (step, theirs) in enumerate(zip(life.steps, kueue, strict=False)):
        ours = muster.play(step)
        if len(step.submit) > 1 and differing(theirs, ours):
            # How many of a burst Kueue has seen when it first looks is chance.
            other = MusterSide(life)
            verdicts = [
                other.play(each, together=at in {*together, number}) for at, each in enumerate(life.steps[: number + 1])
            ]
            if not differing(theirs, verdicts[-1]):
                muster, ours = other, verdicts[-1]
                together.add(number)
        differ = differing(theirs, ours)
        decisions += len(decided(step, before, theirs) | decided(step, before, ours))
        preemptions += sum(verdict.preempted for verdict in theirs.values())
        if differ:
            jobs = {name: (str(theirs[name]), str(ours[name])) for name in differ}
            found = Disagreement(life.seed, life.topology, number, str(step), jobs)
            agreed = decisions - len(differ)
            return LifeResult(life.seed, life.topology, decisions, agreed, preemptions, len(together), endless, found)
        before = theirs
        endless |= is_endless(theirs)
    return LifeResult(life.seed, life.topology, decisions, decisions, preemptions, len(together), endless, None)


def results(
    place: KueueRoom, lives: Sequence[Life], *, at_once: int, seconds: float = math.inf
) -> Iterator[LifeResult]:
    """Each as it is over. A life that differs is played once more on Kueue, to see whether Kueue decides the same.
    After so many seconds no other life begins."""
    run, begun = f"{int(time.time()) % 1_000_000}", time.monotonic()
    waiting = deque((life, f"life-{life.seed}-{run}") for life in lives)
    again: dict[int, tuple[LifeResult, list[Verdicts]]] = {}
    for life, kueue in play(place, waiting, places=PLACES, at_once=at_once):
        if life.seed in again:
            yield _repeated(*again[life.seed], kueue)
        elif (result := compared(life, kueue)).disagreement is None:
            yield result
        else:
            again[life.seed] = result, kueue
            waiting.appendleft((life, f"life-{life.seed}-{run}-again"))
        if time.monotonic() - begun > seconds:
            late = [entry for entry in waiting if entry[0].seed not in again]
            for entry in late:
                waiting.remove(entry)


def _repeated(result: LifeResult, first: list[Verdicts], second: list[Verdicts]) -> LifeResult:
    """The result, with whether Kueue decided the same twice as far as it was compared."""
    assert result.disagreement is not None
    steps = range(result.disagreement.step + 1)
    same = len(second) >= len(steps) and not any(differing(first[at], second[at]) for at in steps)
    return msgspec.structs.replace(result, disagreement=msgspec.structs.replace(result.disagreement, repeated=same))


@contextmanager
def kueue_room(folder: Path, *, pods: bool = True) -> Iterator[KueueRoom]:
    """A cluster of one's own with the nodes that lives need. `folder` is for its description. Without `pods` no job has
    any, and lives take half as long."""
    file = folder / "nodes.json"
    file.write_bytes(msgspec.json.encode(nodes(PLACES)))
    options = ["--node-file", str(file), "--kueue-config", KUEUE_CONFIG, *(() if pods else ("--no-scheduler",))]
    with own(*options) as cluster, room(cluster, pods=pods) as found:
        yield found
