"""Findings about nodes that fail, by what agents report and what is remembered of losses. Nothing is done about any."""

from __future__ import annotations

from engine.executors.agent_reports import SKEW_MS, SLOW_PERMILLE, AgentsReport, Straggler
from engine.model.quantities import lasting
from recommender.findings.suggestions import MAX_TARGETS, Benefit, Evidence, Suggestion

NODE_GPU_MILLI = 8_000
"""What a node counts as where its devices are not known."""
DAY_H = 24


def failing_nodes(report: AgentsReport) -> list[Suggestion]:
    """All findings, the ones that concern most first."""
    return [
        *mass_suspicion(report),
        *stragglers(report),
        *flapping(report),
        *needing_hands(report),
        *skewed_clocks(report),
        *strangers(report),
    ]


def mass_suspicion(report: AgentsReport) -> list[Suggestion]:
    """Find that so many nodes fell silent at once that it may be the network."""
    if not report.mass_suspicion:
        return []
    part, count = f"{report.suspect:,} of {report.watched:,} watched nodes", f"{report.suspect:,}"
    return [
        Suggestion(
            kind="mass_suspicion",
            about="cell",
            severity=report.suspect,
            benefit=_nodes_at_risk(report.suspect),
            finding=f"{part} are suspect at once: possibly the network; only a few are declared lost at a time",
            action="notify",
            targets=(),
            evidence=(Evidence(metric="suspect nodes", window="now", rows=report.watched, value=count),),
            counterfactual="Not suggested if fewer were suspect at once than the limit on mass suspicion",
            alternatives=(
                "First check the network between the nodes and this engine",
                "No action: they are declared lost a few at a time; those that report again continue",
            ),
        )
    ]


def stragglers(report: AgentsReport) -> list[Suggestion]:
    """One suggestion for each node with a task that stays far behind its gang."""
    found: dict[str, list[Straggler]] = {}
    for straggler in report.stragglers:
        found.setdefault(straggler.node, []).append(straggler)
    return [straggler_suggestion(node, slow) for node, slow in found.items()]


def straggler_suggestion(node: str, slow: list[Straggler]) -> Suggestion:
    worst = slow[0]
    part = worst.done_permille / worst.median_permille
    return Suggestion(
        kind="straggler",
        severity=1 - part,
        # The whole gang goes as its slowest: of each member a GPU, for as much of the day as is lost.
        benefit=Benefit(at_risk_gpu_milli_h=int(worst.members * 1000 * DAY_H * max(1 - part, 0))),
        finding=f"drain node {node}: its task of {worst.workload} runs at {part:.1f} of the gang's median, "
        f"{worst.samples} samples",
        action="drain",
        targets=(node,),
        evidence=tuple(
            Evidence(
                metric=f"work done by task {each.task} of {each.workload}, compared with the median",
                window=f"last {each.samples} samples",
                rows=each.members,
                value=f"{each.done_permille / 10:.1f} % of {each.median_permille / 10:.1f} %",
            )
            for each in slow
        ),
        counterfactual=f"Not suggested if it had done {SLOW_PERMILLE / 1000:g} of what the median member has",
        alternatives=(
            "Ask the owner: its share of the work may be larger",
            "No action: the gang runs at the speed of its slowest member",
        ),
        thin=("cause unknown: the node, its links or its share of the work",),
    )


def flapping(report: AgentsReport) -> list[Suggestion]:
    if not report.flapping:
        return []
    most = max(times for _, times in report.flapping)
    lost = "1 node flapped and is" if len(report.flapping) == 1 else (f"{len(report.flapping)} nodes flapped and are")
    return [
        Suggestion(
            kind="flapping",
            about="cell",
            severity=len(report.flapping),
            benefit=_nodes_at_risk(len(report.flapping)),
            finding=f"{lost} cordoned",
            action="drain",
            targets=tuple(node for node, _ in report.flapping[:MAX_TARGETS]),
            evidence=(
                Evidence(metric="losses of one node", window="of flaps", rows=len(report.flapping), value=f"{most:,}"),
            ),
            counterfactual="Not suggested if they had been lost less often",
            alternatives=(
                "Uncordon them once the cause is known",
                "No action: they take no new work; running work continues",
            ),
        )
    ]


def needing_hands(report: AgentsReport) -> list[Suggestion]:
    if not report.needs_hands:
        return []
    most = max(times for _, times in report.needs_hands)
    need = (
        "1 node is down and its repairs failed: needs a person"
        if len(report.needs_hands) == 1
        else (f"{len(report.needs_hands)} nodes are down and their repairs failed: need a person")
    )
    return [
        Suggestion(
            kind="needs_hands",
            about="cell",
            severity=len(report.needs_hands),
            benefit=_nodes_at_risk(len(report.needs_hands)),
            finding=need,
            action="notify",
            targets=tuple(node for node, _ in report.needs_hands[:MAX_TARGETS]),
            evidence=(
                Evidence(
                    metric="failed repairs of one node",
                    window="since it went down",
                    rows=len(report.needs_hands),
                    value=f"{most:,}",
                ),
            ),
            counterfactual="Not suggested if one of the repairs had helped",
            alternatives=(
                "Remove them from the cell, and stop paying for them",
                "No action: they stay down, and nothing else is tried",
            ),
        )
    ]


def skewed_clocks(report: AgentsReport) -> list[Suggestion]:
    if not report.skewed:
        return []
    node, ms = report.skewed[0]
    way = "ahead" if ms > 0 else "behind"
    return [
        Suggestion(
            kind="clock_skew",
            about="cell",
            severity=report.skewed_count,
            finding=f"the clocks of {_nodes(report.skewed_count)} are off by more than {lasting(SKEW_MS)}, "
            f"that of {node} {lasting(abs(ms))} {way}",
            action="notify",
            targets=tuple(node for node, _ in report.skewed[:MAX_TARGETS]),
            evidence=(
                Evidence(metric="largest skew", window="last heartbeat", rows=report.watched, value=lasting(abs(ms))),
            ),
            counterfactual=f"Not suggested if all were within {lasting(SKEW_MS)}",
            alternatives=(
                "Fix their clocks: log times of their tasks are wrong",
                "No action: the engine uses only its own clock",
            ),
        )
    ]


def strangers(report: AgentsReport) -> list[Suggestion]:
    if not report.stranger_calls:
        return []
    names = ", ".join(name for name, _ in report.strangers[:5])
    return [
        Suggestion(
            kind="strangers",
            about="cell",
            severity=len(report.strangers),
            finding=f"agents report from {_nodes(len(report.strangers))} that nobody ordered: {names}",
            action="notify",
            targets=(),
            evidence=(
                Evidence(
                    metric="calls refused",
                    window="since the engine started",
                    rows=len(report.strangers),
                    value=f"{report.stranger_calls:,}",
                ),
            ),
            counterfactual="Not suggested if every agent named a node of this cell",
            alternatives=(
                "Add the nodes, or stop their agents; you may be paying for one of them",
                "No action: they get no work",
            ),
        )
    ]


def _nodes_at_risk(count: int) -> Benefit:
    """A day of so many nodes."""
    return Benefit(at_risk_gpu_milli_h=count * NODE_GPU_MILLI * DAY_H)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"
