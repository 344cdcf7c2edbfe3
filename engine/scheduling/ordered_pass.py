"""One pass over candidates in their order: each is admitted or passed over, and after a start the next of its group
follows. As long as room, quota and order alone decide, the first candidates start together
(`engine.scheduling.batches`)."""

from __future__ import annotations

from collections.abc import Iterable

from engine.scheduling.batches import Batches, put_back
from engine.scheduling.binder import Binder
from engine.scheduling.candidate_order import CandidateOrder, Order, ShortestFirst
from engine.scheduling.cycle_memory import MAX_DECISIONS, CandidateVerdict, CycleMemory
from engine.scheduling.preemptor import Preemptor
from engine.scheduling.workload_admission import Admission
from engine.state.cell_state import State
from engine.state.pending_groups import Key


class OrderedPass:
    """Walks over the candidates once."""

    def __init__(
        self,
        state: State,
        memory: CycleMemory,
        admission: Admission,
        binder: Binder,
        preemptor: Preemptor,
        batches: Batches,
        heads: Iterable[tuple[Key, int]],
    ) -> None:
        """`heads`: the pending key and the first row of each group."""
        self._state = state
        self._memory = memory
        self._admission = admission
        self._binder = binder
        self._batches = batches
        self._lineup: CandidateOrder | ShortestFirst = CandidateOrder(state, heads)
        self._closed: set[int] = set()
        """Queues of which nothing more starts."""
        self._refused: set[int] = set()
        """Kinds of which nothing more starts."""
        self._kinds_fare_alike = not preemptor.anyone_preempts() and not state.bookings.reservations
        """No queue or priority gets nodes that others of the kind do not."""
        self._one_by_one = binder.max_at_once < 2
        self._started: Order | None = None
        """The last that started, until it is known who was next."""
        memory.lowered.clear()

    def run(self) -> int:
        """Returns how many started."""
        before = self._memory.starts
        while (first := self._next()) is not None:
            if self._may_start_together():
                begun = self._start_together()
                first = self._lineup.first()
                if begun or first is None:
                    continue
            self._admit(*first)
        return self._memory.starts - before

    def _next(self) -> tuple[Order, Key] | None:
        """The candidate whose turn it is; None when there is none."""
        if self._state.policy == "easy-sjbf" and self._memory.reservation is not None:
            self._put_shortest_first()
        first = self._lineup.first()
        if self._started is not None:
            self._memory.note_decision(self._started, None if first is None else first[0])
            self._started = None
        return first

    def _put_shortest_first(self) -> None:
        if isinstance(self._lineup, CandidateOrder):
            self._lineup = ShortestFirst(self._state, self._lineup.rest())

    def _admit(self, order: Order, key: Key) -> None:
        """Start the first candidate, or drop it and what fares alike."""
        lineup, memory = self._lineup, self._memory
        if key[1] in self._closed or key[2] in self._refused:
            lineup.drop(self._closed, self._refused)
            return
        verdict = self._admission.admit(order[3])
        if verdict == CandidateVerdict.STARTED:
            group = self._state.pending.groups.get(key)
            lineup.started(None if group is None else group.rows[group.front])
            self._started = order
        else:
            lineup.drop()
            self._pass_over(key, verdict)
        if memory.lowered:
            lineup.lowered(memory.lowered)
            memory.lowered.clear()

    def _pass_over(self, key: Key, verdict: CandidateVerdict) -> None:
        """Who else does not start, when the first of a group does not."""
        if verdict == CandidateVerdict.QUEUE_CLOSED or self._state.is_strict(key[1]):
            self._closed.add(key[1])
        elif verdict in (CandidateVerdict.ARRAY_LIMIT, CandidateVerdict.CAP):
            self._refused.add(key[2])
        elif verdict in (CandidateVerdict.NO_CAPACITY, CandidateVerdict.WOULD_DELAY) and self._kinds_fare_alike:
            # In other queues and priorities too: room only shrinks during a pass.
            self._refused.add(key[2])

    # -- together -----------------------------------------------------------------------------------------------------

    def _may_start_together(self) -> bool:
        together = not self._one_by_one and isinstance(self._lineup, CandidateOrder)
        return together and self._memory.reservation is None and self._batches.are_sure()

    def _start_together(self) -> int:
        """Start the first candidates all at once, as many as would start one by one. Returns how many those were. Where
        one found no room, the pass goes on one by one."""
        lineup, batches = self._lineup, self._batches
        assert isinstance(lineup, CandidateOrder)
        if not batches.may_begin(lineup):
            self._one_by_one = True
            return 0
        draws, nexts = batches.draw(lineup, self._closed, self._refused)
        if not draws:
            return 0
        begun = batches.start(self._binder, draws)
        known = list(zip(draws[:begun], nexts, strict=False))[-MAX_DECISIONS:]
        for draw, following in known:
            self._memory.note_decision(draw.order, following)
        if begun < len(draws):
            self._lineup = CandidateOrder(self._state, put_back(lineup, draws[begun:]))
            self._one_by_one = True
        elif len(nexts) < begun:
            self._started = draws[-1].order
        return begun
