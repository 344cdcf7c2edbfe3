"""Incidents as a client tells them, with made-up data."""

from __future__ import annotations

from collections.abc import Callable

from runbooks.plans.incidents import AlertLine, Incident, IncidentChange, IncidentEntry, IncidentObject

MINUTE = 60_000
Text = Callable[[int, str], str]


def incident(now_ms: int, text: Text, number: int = 1) -> Incident:
    """One that a person has claimed, of an alert about a queue and a node."""
    labels = {"alertname": "QueueWaitHigh", "queue": "research/train", "team": text(1, "vision")}
    words = {"summary": text(2, "GPU queue wait p95 is 40 min"), "description": text(3, "for ten minutes")}
    began_ms = now_ms - 25 * MINUTE
    return Incident(
        id=f"I-{number}", title=text(2, "GPU queue wait p95 is 40 min"), severity="critical", state="claimed",
        owner="person:alice", source="service:alertmanager", follows="I-7", began_ms=began_ms,
        opened_ms=now_ms - 24 * MINUTE, since_ms=now_ms - 20 * MINUTE, cell_ms=began_ms,
        objects=(
            IncidentObject("queue", "research/train", "queue"),
            IncidentObject("node", text(4, "node-0007"), "instance"),
            IncidentObject("pool", text(6, "h100"), "nodepool"),
        ),
        unmatched=(IncidentObject("node", text(5, "login-3"), "host"),), firing=1, alert_count=2,
        alerts=(
            AlertLine(fingerprint="aa" * 8, state="firing", labels=labels, texts=words, starts_ms=began_ms),
            AlertLine(
                fingerprint="bb" * 8, state="resolved", labels=labels, starts_ms=began_ms, ends_ms=now_ms - 2 * MINUTE
            ),
        ),
        entries=(
            IncidentEntry(at_ms=now_ms - 24 * MINUTE, kind="opened", subject="service:alertmanager"),
            IncidentEntry(at_ms=now_ms - 20 * MINUTE, kind="claimed", subject="person:alice"),
            IncidentEntry(
                at_ms=now_ms - 9 * MINUTE, kind="noted", subject="person:alice", text=text(7, "quota of last night?")
            ),
            IncidentEntry(at_ms=now_ms - 4 * MINUTE, kind="proposed", subject="person:alice", to="P-1"),
        ),
    )  # fmt: skip


def changes(text: Text) -> tuple[IncidentChange, ...]:
    """A plan about its queue, and a node of another."""
    return (
        IncidentChange(
            before_ms=12 * MINUTE, what=text(8, "Set the quota of research/train"), who="person:bob",
            subject="research/train", proposal="P-3", own=True,
        ),
        IncidentChange(before_ms=40 * MINUTE, what=text(9, "node-0003 cordoned"), subject="node-0003"),
    )  # fmt: skip
