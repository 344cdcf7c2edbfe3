"""What must be true after chaos, of the journal, of Slurm's own list of jobs, of the mirror, and of what clients were
told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select

from engine.control import Engine
from engine.external.slurm.job_requests import COMMENT
from engine.journal.database import Schema, place_of
from engine.model import commands as cmd
from engine.model.events import Intended, IntentReopened, IntentSettled
from engine.state.external_cell import Intent, Phase, subjects_of, wanted
from runbooks.actions.catalogue import of_command
from runbooks.audit.log import Audit, record_table
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.policy_versions import Policies
from tests.support.chaos_requeues import Requeues, faults_of, requeues_in

AGREE = {
    "PENDING": {"queued", "held", "waiting", "admitted", "pending"},
    "RUNNING": {"running", "placed", "starting"},
    "CANCELLED": {"cancelled"},
    "COMPLETED": {"succeeded"},
}
"""State of a job -> states of its workload that say the same."""


class Verdict(msgspec.Struct):
    counts: dict[str, Any]
    faults: list[str]


class Job(msgspec.Struct, frozen=True):
    id: str
    state: str
    reason: str
    restarts: int
    priority: str
    token: str


class Seen(msgspec.Struct, frozen=True):
    """What there was at the end."""

    listed: Sequence[Sequence[str]]
    """Id, state, reason, restarts, priority and comment of every job."""
    machines: dict[str, str]
    """Node or partition -> its state, as Slurm writes it."""
    rows: dict[str, str]
    """Workload -> state as mirrored."""
    log: str
    """slurmctld's."""
    killed_s: Sequence[float]
    """When slurmctld was killed, Unix seconds."""


def judged(place: str, told: str, seen: Seen) -> Verdict:
    jobs = [_job(words) for words in seen.listed]
    words = [line.split(" ", 3) for line in told.splitlines()]
    kept = [word[1] for word in words if word[0] == "kept"]
    faults = list(_journal_faults(place))
    engine = _opened(place)
    try:
        events = [event for batch in engine._journal.after(0, 0) for event in batch]
        intents = {
            event.number: Intent(event.number, event.token, 0, event.command)
            for event in events if isinstance(event, Intended)
        }  # fmt: skip
        phases = {event.number: Phase(event.phase) for event in events if isinstance(event, IntentSettled)}
        wishes = [intent for intent in intents.values() if isinstance(wanted(intent), cmd.Submit)]
        acts = [intent for intent in intents.values() if not isinstance(wanted(intent), cmd.Submit)]
        submissions = {intent.number for intent in wishes}
        by_token: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            by_token[job.token].append(job)
        token_of = {subjects_of(wanted(intent))[0]: intent.token for intent in wishes}
        proposals = _gate(engine).proposals(limit=100_000)
        faults += _submission_faults(kept, wishes, phases, by_token)
        again = [event for event in events if isinstance(event, IntentReopened) and event.number not in submissions]
        recorded = engine.recorded(lambda connection: list(connection.execute(select(record_table.c.type)).scalars()))
        if recorded.count("intent.again") != len(again):
            faults.append(f"{len(again)} acts were done again, {recorded.count('intent.again')} are on record")
        faults += _act_faults(acts, proposals)
        named = {name: by_token[token] for name, token in token_of.items()}
        requeues = requeues_in(seen.log)
        faults += _outcome_faults(acts, phases, named)
        faults += _machine_faults(acts, phases, seen.machines)
        faults += _requeue_faults(acts, named, requeues, seen.killed_s)
        faults += _mirror_faults(named, seen.rows)
        faults += [f"intent {number} is still under way" for number in intents.keys() - phases.keys()]
        counts = {
            "acknowledged": len(kept),
            "jobs": len(jobs),
            "lost": sum(fault.startswith("lost") for fault in faults),
            "doubled": sum(fault.startswith("doubled") for fault in faults),
            "submitted anew": sum(isinstance(e, IntentReopened) and e.number in submissions for e in events),
            "done again": len(again),
            "requeued by Slurm itself": sum(len(requeues[job.id].own) for job in jobs if job.id in requeues),
            "second copies cancelled": sum(len(found) - 1 for token, found in by_token.items() if token and found),
            "plans approved": sum(word[0] == "approved" for word in words),
            "plans": dict(Counter(proposal.state for proposal in proposals)),
            "acts carried": len(acts),
            "acts by kind": dict(Counter(of_command(type(wanted(act))) for act in acts)),
            "acts settled as": dict(Counter(phases[act.number].label for act in acts if act.number in phases)),
            "submissions settled as": dict(Counter(phases[w.number].label for w in wishes if w.number in phases)),
            "in doubt": [
                f"{subjects_of(wanted(intents[event.number]))[0]}: {event.text}"
                for event in events if isinstance(event, IntentSettled) and event.phase == Phase.IN_DOUBT
            ],
            "refused to clients": dict(Counter(" ".join(w)[:160] for w in words if w[0] in ("refused", "defect"))),
            "events": len(events),
        }  # fmt: skip
        faults += [f"refused {' '.join(word[1:])}" for word in words if word[0] in ("refused", "defect")]
        return Verdict(counts, faults)
    finally:
        engine.close()


def _job(words: Sequence[str]) -> Job:
    id_, state, reason, restarts, priority, comment = (word.strip() for word in words)
    found = COMMENT.search(comment)
    return Job(id_, state, reason, int(restarts or 0), priority, found[1] if found else "")


def _gate(engine: Engine) -> Gate:
    audit = Audit(engine, wall_ms)
    return Gate(engine, Policies(engine, audit, wall_ms, default=SOLO), audit)


def _opened(place: str, *, use_snapshot: bool = True) -> Engine:
    where = place_of(place)
    return Engine.open(where if isinstance(where, Schema) else Path(place), use_snapshot=use_snapshot)


def _journal_faults(place: str) -> Iterator[str]:
    digests = set()
    for use_snapshot in (True, False):
        engine = _opened(place, use_snapshot=use_snapshot)
        if engine._journal.verify() != engine.version:
            yield "the journal does not verify"
        digests.add(engine.state.digest())
        engine.close()
    if len(digests) > 1:
        yield "the journal replayed whole is another state than from its snapshot"


def _submission_faults(
    kept: Sequence[str], wishes: Iterable[Intent], phases: dict[int, Phase], by_token: dict[str, list[Job]]
) -> Iterator[str]:
    """Each that was acknowledged is one job; nothing else carries a token of ours."""
    tokens: dict[str, list[Intent]] = defaultdict(list)
    for intent in wishes:
        tokens[subjects_of(wanted(intent))[0]].append(intent)
    for name, count in Counter(kept).items():
        if count > 1 or len(tokens[name]) > 1:
            yield f"doubled: {name} was acknowledged {count} times, {len(tokens[name])} intents"
        if not tokens[name]:
            yield f"lost: {name} was acknowledged, and the journal has no intent of it"
    for name, intents in tokens.items():
        for intent in intents:
            found = by_token.get(intent.token, [])
            living = [job for job in found if job.state != "CANCELLED"]
            phase = phases.get(intent.number, Phase.OPEN)
            if not found:
                yield f"lost: {name} is no job, settled as {phase.label}"
            if len(living) > 1:
                yield f"doubled: {name} is jobs {', '.join(job.id for job in living)}"
    known = {intent.token for intents in tokens.values() for intent in intents}
    for token, jobs in by_token.items():
        if token not in known:
            yield f"job {jobs[0].id} is nobody's: token {token or 'none'}"


def _act_faults(acts: Iterable[Intent], proposals: Sequence[Any]) -> Iterator[str]:
    """Each proposal that was carried out is one intent, and each intent is of one; no wish was carried out twice."""
    intents = Counter((str(of_command(type(wanted(act)))), subjects_of(wanted(act))) for act in acts)
    carried: Counter[tuple[str, tuple[str, ...]]] = Counter()
    wishes: Counter[str] = Counter()
    for proposal in proposals:
        if any(standing.version for standing in proposal.standing):
            wishes[proposal.reason] += 1
            act = proposal.plan.steps[0].act
            carried[act.action, act.targets] += 1
        if proposal.state == "failed" and "cannot" in proposal.note:
            yield f"what was approved was refused: {proposal.id}: {proposal.note}"
    for key in intents.keys() | carried.keys():
        if intents[key] != carried[key]:
            yield f"acted twice: {key[0]} of {key[1][0]}: {intents[key]} intents, {carried[key]} plans carried out"
    yield from (f"acted twice: '{wish}' was carried out {count} times" for wish, count in wishes.items() if count > 1)


def _outcome_faults(acts: Iterable[Intent], phases: dict[int, Phase], jobs: dict[str, list[Job]]) -> Iterator[str]:
    """What was done last to a job is so."""
    of: dict[str, list[Intent]] = defaultdict(list)
    for act in sorted(acts, key=lambda act: act.number):
        of[subjects_of(wanted(act))[0]].append(act)
    for name, done in of.items():
        found = [job for job in jobs.get(name, ()) if job.state != "CANCELLED"] or jobs.get(name, [])
        if not found:
            continue
        job, last = found[0], done[-1]
        if phases.get(last.number) in (Phase.DONE, Phase.NEEDLESS):
            command = wanted(last)
            so = {
                cmd.Hold: job.reason.startswith("JobHeld") or job.state == "CANCELLED",
                cmd.Release: not job.reason.startswith("JobHeld"),
                cmd.Cancel: job.state == "CANCELLED",
                cmd.SetJobPriority: job.priority == str(getattr(command, "priority", "")),
            }.get(type(command), True)
            if not so:
                told = f"{type(command).__name__} of {name} was done"
                yield f"not so: {told}, and job {job.id} is {job.state} {job.reason}"


def _machine_faults(acts: Iterable[Intent], phases: dict[int, Phase], machines: dict[str, str]) -> Iterator[str]:
    """What was done last to a node or a partition is so."""
    last: dict[str, Intent] = {}
    for act in sorted(acts, key=lambda act: act.number):
        if isinstance(wanted(act), (cmd.Cordon, cmd.Uncordon, cmd.HoldQueues, cmd.OpenQueues)):
            last[subjects_of(wanted(act))[0]] = act
    for name, act in last.items():
        if phases.get(act.number) not in (Phase.DONE, Phase.NEEDLESS):
            continue
        command, state = wanted(act), machines[name]
        so = {
            cmd.Cordon: state.startswith("drain"), cmd.Uncordon: not state.startswith("drain"),
            cmd.HoldQueues: state == "down", cmd.OpenQueues: state == "up",
        }[type(command)]  # fmt: skip
        if not so:
            yield f"not so: {type(command).__name__} of {name} was done, and it is {state}"


def _requeue_faults(
    acts: Iterable[Intent], jobs: dict[str, list[Job]], told: dict[str, Requeues], killed_s: Sequence[float]
) -> Iterator[str]:
    """Nothing was requeued more often than was asked for, but by Slurm itself."""
    wished = Counter(subjects_of(wanted(act))[0] for act in acts if isinstance(wanted(act), cmd.Requeue))
    for name, found in jobs.items():
        for job in found:
            yield from faults_of(name, job.id, job.restarts, wished[name], told.get(job.id, Requeues()), killed_s)


def _mirror_faults(jobs: dict[str, list[Job]], rows: dict[str, str]) -> Iterator[str]:
    for name, found in jobs.items():
        if not found:
            continue
        states = {job.state for job in found if job.state != "CANCELLED"} or {"CANCELLED"}
        state = next(iter(states))
        if rows.get(name) not in AGREE.get(state, {state.lower()}):
            yield f"the mirror has {name} as {rows.get(name, 'nothing')}, Slurm as {state}"
