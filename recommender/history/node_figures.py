"""Figures of nodes as a Prometheus tells them, followed: each is asked for in its turn, from where it was left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from recommender.history.metrics import HOUR_MS, MINUTE_MS
from recommender.history.prometheus import RULES, MetricQuery, NodeNames, Prometheus, ask
from recommender.history.telemetry import Telemetry

STEP_MS, LARGE_STEP_MS = 5 * MINUTE_MS, 15 * MINUTE_MS
LARGE = 1_000
"""Nodes above which a figure is kept by the longer step."""
BY_DEVICE = ("gpu_util", "gpu_sm_active", "gpu_memory_used_mib", "gpu_power_w")
"""Figures that are known by device anyhow (`recommender.history.gpu_use`): of so many nodes they are not kept twice."""
FIRST_MS = 6 * HOUR_MS
"""How far back following begins that is new."""
MOST_MS = 24 * HOUR_MS
"""Longest time that is asked for in one turn."""
AT_ONCE, LARGE_AT_ONCE = 3, 1
"""Figures of one turn: all of them come around within a step."""


class NodeFigures:
    """Follows the node figures of one server. For one thread."""

    def __init__(self, telemetry: Telemetry, source: str) -> None:
        self._telemetry = telemetry
        self._source = source
        self.refused: Counter[str] = Counter()
        """Samples left out so far, by reason."""

    def follow(self, server: Prometheus, nodes: Sequence[str], now_ms: int) -> bool:
        """Bring what is new of the figures that are furthest behind. Returns whether others are behind by more than a
        step, for which the next turn is soon enough."""
        step_ms, at_once = (LARGE_STEP_MS, LARGE_AT_ONCE) if len(nodes) > LARGE else (STEP_MS, AT_ONCE)
        until_ms = now_ms // step_ms * step_ms
        rules = [rule for rule in RULES if len(nodes) <= LARGE or rule.metric not in BY_DEVICE]
        due = [(got, rule) for rule in rules if (got := self._got_to(rule, now_ms)) + step_ms <= until_ms]
        due.sort(key=lambda each: each[0])
        names = NodeNames(nodes)
        for got_ms, rule in due[:at_once]:
            # Whole steps only: the growth of a counter over half a step twice is not the growth over it once.
            first_ms = -(-got_ms // step_ms) * step_ms + step_ms
            self._bring(server, rule, names, first_ms, min(until_ms, first_ms + MOST_MS), step_ms)
        return any(got + 2 * step_ms <= until_ms for got, _ in due[at_once:])

    def since_ms(self) -> int:
        """When following began; 0 when it has not."""
        return int(self._telemetry.note(f"followed {self._source} since") or 0)

    def _got_to(self, rule: MetricQuery, now_ms: int) -> int:
        noted = self._telemetry.note(self._note(rule))
        if noted is not None:
            return int(noted)
        if not self.since_ms():
            self._telemetry.set_note(f"followed {self._source} since", now_ms - FIRST_MS)
        keys = self._telemetry.keys(rule.metric, "node")
        imported = max((key.last_ms for key in keys if key.source == self._source), default=0)
        return max(imported, now_ms - FIRST_MS)

    def _note(self, rule: MetricQuery) -> str:
        return f"followed {self._source} {rule.metric}"

    def _bring(
        self, server: Prometheus, rule: MetricQuery, names: NodeNames, first_ms: int, last_ms: int, step_ms: int
    ) -> None:
        for told in ask(server, rule, names, first_ms, last_ms, step_ms):
            if told.rows:
                self._telemetry.add_rows(
                    ((row.metric, row.of, row.subject, row.at_ms, row.values) for row in told.rows),
                    source=self._source,
                    step_ms=step_ms,
                    refused=self.refused,
                    note=(self._note(rule), max(row.at_ms[-1] for row in told.rows)),
                )
        self._telemetry.set_note(self._note(rule), last_ms)
