"""The ledger: every node-millisecond that is paid for is charged to a workload, to nobody ("idle"), or to the time in
which no engine ran ("downtime"). Amounts are integers, metered by day.

A meter's amount is rate x time, kept as the line `rate * t - base`. A change of the rate at time t by d changes base by
d * t. It costs the same however long ago the last change was, and the order of changes makes no difference. When a
meter is first touched in a new period, such as a day, the line that held until then is kept, so the amount at every
turn of the period stays exact.

A node costs its pool's price from the moment it is there (or, ordered from a provider, from the grant: `born`) until it
is removed. A bound workload costs, for each task, the task's share of the node, rounded down to whole micro-USD per
hour. Shares of tasks that fit a node together never sum above 1, so nothing is charged twice. The rest of the node is
idle, or downtime during a downtime. The sum of charges + idle + downtime equals the sum over nodes of price x lifetime,
exactly.

On a node with devices, nine tenths of the share go by devices and one tenth by CPU and memory. On a node without, all
of it goes by CPU and memory. A vCPU counts nine times a GiB. Both ratios are those of AWS's split cost allocation data
(GPU to the rest 9 : 1, vCPU to GB 9 : 1). The first applies here to the node's price instead of per unit, so that
devices carry most of the price of nodes with much memory too. Where a pool is overcommitted, shares are of the capacity
that may be requested.

Money is counted in micro-USD per hour times milliseconds; 3,600,000 of these "grains" are one micro-USD.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model.columns import Rows, Table, view
from engine.model.spec_parts import MAX_PRICE
from engine.model.specs import HOUR_MS, PoolSpec

if TYPE_CHECKING:
    from engine.state.cell_state import State


class Meters(Table):
    """Meters by row. Rates in whole units per millisecond, amounts in units, exact: they may pass 64 bits."""

    columns = ("period", "rate", "base", "born", "touched", "lines")

    def __init__(self, *, history: bool = True) -> None:
        """`history`: every turn of the period stays known; otherwise only those since the last touch but one."""
        self.history = history
        self.period = array("q")
        self.rate = array("q")
        self.base: list[int] = []
        self.born = array("q")
        """Number of the period in which the meter was set up: nothing was spent before."""
        self.touched = array("q")
        """Number of the period in which its rate changed last."""
        self.lines: dict[int, list[list[Any]]] = {}
        """Row -> [period, rate, base], ascending: the line that held from the touch before up to the beginning of that
        period."""

    def __len__(self) -> int:
        return len(self.base)

    def add(self, period_ms: int, now_ms: int, rate: int = 0, amount: int = 0) -> int:
        """A new meter that stands at `amount`. Returns its row."""
        self.period.append(period_ms)
        self.rate.append(rate)
        self.base.append(rate * now_ms - amount)
        self.born.append(now_ms // period_ms)
        self.touched.append(now_ms // period_ms)
        return len(self.base) - 1

    def remove(self, row: int) -> None:
        """The rows after it move up."""
        for column in (self.period, self.rate, self.base, self.born, self.touched):
            del column[row]
        self.lines = {at - (at > row): lines for at, lines in self.lines.items() if at != row}

    def shift(self, row: int, more: int, at_ms: int) -> None:
        """Change the rate."""
        if at_ms // self.period[row] == self.touched[row]:
            self.rate[row] += more
            self.base[row] += more * at_ms
        else:
            self.shift_many(row, more, more * at_ms, at_ms)

    def shift_many(self, row: int, more: int, moment: int, at_ms: int) -> None:
        """Change the rate several times within one period. `more`: the sum of the changes; `moment`: the sum of each
        times its cell time; `at_ms`: one of the times."""
        turn = at_ms // self.period[row]
        if turn != self.touched[row]:
            line = [turn, self.rate[row], self.base[row]]
            if self.history:
                self.lines.setdefault(row, []).append(line)
            else:
                self.lines[row] = [line]
            self.touched[row] = turn
        self.rate[row] += more
        self.base[row] += moment

    def amount(self, row: int, now_ms: int) -> int:
        return self.rate[row] * now_ms - self.base[row]

    def amount_before(self, row: int, turn: int) -> int:
        """The amount when that period began: `turn` is its number, one that has begun."""
        if turn <= self.born[row]:
            return 0
        at_ms = turn * self.period[row]
        if turn > self.touched[row]:
            return self.amount(row, at_ms)
        lines = self.lines[row]
        _, rate, base = lines[bisect_left(lines, turn, key=lambda line: line[0])]
        return int(rate * at_ms - base)

    def dump(self) -> dict[str, Any]:
        plain = {
            "base": [str(base) for base in self.base],
            "lines": {
                str(row): [[turn, rate, str(base)] for turn, rate, base in lines] for row, lines in self.lines.items()
            },
        }
        return super().dump() | plain

    def derive(self) -> None:
        self.base = [int(base) for base in self.base]
        self.lines = {
            int(row): [[turn, rate, int(base)] for turn, rate, base in lines] for row, lines in self.lines.items()
        }


DAY_MS = 24 * HOUR_MS
NONE = -1
GRAINS = HOUR_MS
"""Grains that make one micro-USD."""
BY_DEVICES = Fraction(9, 10)
CPU_WEIGHT, MEMORY_WEIGHT = 9, 1
"""Weights of a vCPU and of a GiB."""
FEW = 64
"""Allocations that are added up one by one."""
SPREAD = 8
"""Times as many keys as there are to be summed, at which they are sorted first."""
_MOST = 2**62


def share(pool: PoolSpec, cpu_milli: int, memory_mib: int, gpu_milli: int) -> Fraction:
    """Part of a node of the pool that a task asking for so much is charged. A pool without CPU and memory goes by its
    devices alone; one that has none of them charges nothing."""
    cpu, memory, gpu, _ = pool.offered.vector()
    host = CPU_WEIGHT * cpu * 1024 + MEMORY_WEIGHT * memory * 1000
    by_host = Fraction(CPU_WEIGHT * cpu_milli * 1024 + MEMORY_WEIGHT * memory_mib * 1000, host) if host else Fraction()
    if not gpu:
        return by_host
    by_devices = Fraction(gpu_milli, gpu)
    return by_devices * BY_DEVICES + by_host * (1 - BY_DEVICES) if host else by_devices


class Ledger(Table):
    """The charges by workload row, by account and by pool. Read it by `cost_of`, `wasted_of`, `spent` and `idle`;
    nothing else depends on its layout.
    """

    columns = (
        "priced", "rate", "since", "spent_whole", "spent_rest", "attempt_whole", "attempt_rest", "wasted_whole",
        "wasted_rest", "account", "account_tenant", "account_team", "account_queue", "account_tags",
    )  # fmt: skip

    def __init__(self) -> None:
        self.priced = False
        """True once some pool has had a price: until then there is nothing to keep."""
        self.rate = array("q")
        """By workload: micro-USD per hour charged now."""
        self.since = array("q")
        """By workload: cell time since which the rate holds; what came before is in the columns that follow."""
        self.spent_whole = array("q")
        """By workload: charge of its earlier attempts, micro-USD."""
        self.spent_rest = array("i")
        """Grains on top."""
        self.attempt_whole = array("q")
        """Charge of the present attempt, up to `since`."""
        self.attempt_rest = array("i")
        self.wasted_whole = array("q")
        """Charge for work that was lost and has to be done again."""
        self.wasted_rest = array("i")
        self.account = array("i")
        """By workload: row of its account; NONE before its first charge."""
        self.account_tenant = array("i")
        self.account_team = array("i")
        self.account_queue = array("i")
        self.account_tags = array("i")
        """Rows in the names that `Workloads` interns."""
        self.accounts = Meters()
        """Charged, by account, in grains."""
        self.cost = Meters()
        """Cost of the nodes, by pool."""
        self.used = Meters()
        """The part of that charged to workloads, by pool."""
        self.down = Meters()
        """The part of it that no work used while no engine decided, by pool."""
        self.is_down = False
        """Never so between two turns: not stored."""
        self.derive()

    def derive(self) -> None:
        columns = (self.account_tenant, self.account_team, self.account_queue, self.account_tags)
        self.account_of: dict[tuple[int, int, int, int], int] = {
            key: row for row, key in enumerate(zip(*columns, strict=True))
        }
        self._units: dict[tuple[int, int, int], int] = {}
        """(class, group, pool) -> micro-USD per hour of one task, found when first needed."""
        self._single = array("q")
        """The same of first groups, by class and pool; NONE until it is needed."""

    def dump(self) -> dict[str, Any]:
        meters = {"accounts": self.accounts, "cost": self.cost, "used": self.used, "down": self.down}
        return super().dump() | {"meters": {name: meter.dump() for name, meter in meters.items()}}

    def load(self, data: dict[str, Any]) -> None:
        for name, meters in data["meters"].items():
            getattr(self, name).load(meters)
        while len(self.down) < len(self.cost):  # a snapshot of an earlier Muster knows no downtime
            self.down.add(DAY_MS, 0)
        super().load(data)

    # -- questions ----------------------------------------------------------------------------------------------------

    def cost_of(self, row: int, now_ms: int) -> int:
        """The cost of the workload in all its attempts, micro-USD, rounded down."""
        return self.grains_of(row, now_ms) // GRAINS

    def grains_of(self, row: int, now_ms: int) -> int:
        """The same, exactly."""
        whole = self.spent_whole[row] + self.attempt_whole[row]
        rest = self.spent_rest[row] + self.attempt_rest[row]
        return whole * GRAINS + rest + self.rate[row] * (now_ms - self.since[row])

    def costs(self, now_ms: int) -> Rows:
        """`cost_of` every workload."""
        spent = view(self.spent_whole) + view(self.attempt_whole)
        rest = view(self.spent_rest).astype(np.int64) + view(self.attempt_rest)
        # To divide is slow; most have ended, or not begun.
        running = np.flatnonzero((view(self.rate) != 0) | (rest >= GRAINS))
        rate, dt = view(self.rate)[running], now_ms - view(self.since)[running]
        whole, slow = np.divmod(rate, GRAINS)
        # What a large gang costs in grains passes 64 bits; in two parts none of it does.
        part, left = np.divmod(dt, GRAINS)
        spent[running] += rate * part + whole * left + (slow * left + rest[running]) // GRAINS
        return np.asarray(spent)

    def wasted_of(self, row: int) -> int:
        """The part of that for work that was lost and had to be done again, micro-USD, rounded down."""
        return self.wasted_whole[row]

    def spent(self, now_ms: int) -> int:
        """The charges of all workloads, micro-USD, rounded down."""
        return self.spent_grains(now_ms) // GRAINS

    def idle(self, now_ms: int) -> int:
        """The rest of the nodes' cost, micro-USD, rounded up: with `spent` and `downtime` it makes the whole."""
        return self.total(now_ms) - self.spent(now_ms) - self.downtime(now_ms)

    def downtime(self, now_ms: int) -> int:
        """The nodes' cost while no engine decided and no work used them, micro-USD, rounded down."""
        return sum(self.down.amount(pool, now_ms) for pool in range(len(self.down))) // GRAINS

    def total(self, now_ms: int) -> int:
        """The cost of the nodes, micro-USD, rounded down."""
        return self.total_grains(now_ms) // GRAINS

    def wasted(self) -> int:
        """Charges for work that was lost, of all workloads, micro-USD, rounded down."""
        return (sum(self.wasted_whole) * GRAINS + sum(self.wasted_rest)) // GRAINS

    def spent_grains(self, now_ms: int) -> int:
        return sum(self.used.amount(pool, now_ms) for pool in range(len(self.used)))

    def total_grains(self, now_ms: int) -> int:
        return sum(self.cost.amount(pool, now_ms) for pool in range(len(self.cost)))

    # -- pools and nodes ----------------------------------------------------------------------------------------------

    def add_pool(self, state: State, pool: PoolSpec) -> None:
        """The pool is there already, without nodes."""
        self.cost.add(DAY_MS, state.now_ms)
        self.used.add(DAY_MS, state.now_ms)
        self.down.add(DAY_MS, state.now_ms)
        self._forget_units()
        if pool.price_microusd_hour and not self.priced:
            self._begin(state)

    def _begin(self, state: State) -> None:
        """Something has a price for the first time."""
        self.priced = True
        for row in _rows_in(state):
            self.charge(state, row)

    def count_nodes(self, state: State, pool: int, more: int) -> None:
        """Count so many more nodes of the pool as paid for; fewer, when negative."""
        self._shift_cost(pool, more * state.capacity.pools[pool].price_microusd_hour, state.now_ms)

    def set_price(self, state: State, pool: int, price: int) -> None:
        """The pool has another price from now on, and so has what runs there."""
        if not self.priced:
            self._begin(state)
        capacity = state.capacity
        concerned = _rows_in(state, pool)
        for row in concerned:
            self.stop(state, row)
        before = capacity.pools[pool].price_microusd_hour
        self._shift_cost(pool, (price - before) * capacity.pool_nodes[pool], state.now_ms)
        capacity.set_price(pool, price)
        self._forget_units()
        for row in concerned:
            self.charge(state, row)

    def _shift_cost(self, pool: int, more: int, now_ms: int) -> None:
        self.cost.shift(pool, more, now_ms)
        if self.is_down:
            self.down.shift(pool, more, now_ms)

    def begin_downtime(self, now_ms: int) -> None:
        """Count unused capacity as downtime, not as idle, from now on."""
        self.is_down = True
        for pool in range(len(self.down)):
            self.down.shift(pool, self.cost.rate[pool] - self.used.rate[pool], now_ms)

    def end_downtime(self, now_ms: int) -> None:
        self.is_down = False
        for pool in range(len(self.down)):
            self.down.shift(pool, -self.down.rate[pool], now_ms)

    # -- workloads ----------------------------------------------------------------------------------------------------

    def enter(self, count: int) -> None:
        """Add so many new workloads."""
        columns = (
            self.rate, self.since, self.spent_whole, self.spent_rest, self.attempt_whole, self.attempt_rest,
            self.wasted_whole, self.wasted_rest,
        )  # fmt: skip
        if count == 1:
            for column in columns:
                column.append(0)
            self.account.append(NONE)
            return
        for column in columns:
            column.frombytes(bytes(count * column.itemsize))
        self.account.extend(array("i", (NONE,)) * count)

    def charge(self, state: State, row: int) -> None:
        """Charge the workload for what it has, from now on."""
        if self.priced:
            self._shift(state, row, self._rates(state, row), 1)

    def stop(self, state: State, row: int) -> None:
        """Charge it no more for what it has: that is about to change."""
        if self.priced:
            self._shift(state, row, self._rates(state, row), -1)

    def end_attempt(self, row: int) -> None:
        """End the charges of an attempt."""
        if self.priced:
            whole, self.spent_rest[row] = divmod(self.spent_rest[row] + self.attempt_rest[row], GRAINS)
            self.spent_whole[row] += whole + self.attempt_whole[row]
            self.attempt_whole[row] = self.attempt_rest[row] = 0

    def leave_account(self, row: int) -> None:
        """Charge it to another account from its next attempt on. It holds nothing now."""
        if self.priced:
            self.account[row] = NONE

    def lose(self, row: int, lost_ms: int, done_ms: int, now_ms: int) -> None:
        """Count so much of the present attempt's work as lost: the same part of the attempt's cost was for nothing, or
        all of it where it had done no work. The next work is another attempt.
        """
        if self.priced:
            self._settle(row, now_ms)
            cost = self.attempt_whole[row] * GRAINS + self.attempt_rest[row]
            lost = cost * lost_ms // done_ms if done_ms > 0 else cost
            whole, self.wasted_rest[row] = divmod(self.wasted_rest[row] + lost, GRAINS)
            self.wasted_whole[row] += whole
            self.end_attempt(row)

    def _shift(self, state: State, row: int, rates: dict[int, int], sign: int) -> None:
        """Charge more, or less with a negative sign, by these rates: pool -> micro-USD per hour."""
        now_ms = state.now_ms
        if self.rate[row]:
            self._settle(row, now_ms)
        else:
            self.since[row] = now_ms
        account = self.account[row]
        if account == NONE:
            account = self.account[row] = self._account(state, row)
        more = 0
        for pool, rate in rates.items():
            self.used.shift(pool, sign * rate, now_ms)
            if self.is_down:
                self.down.shift(pool, -sign * rate, now_ms)
            more += sign * rate
        self.rate[row] += more
        self._shift_account(state, account, more, more * now_ms, now_ms)

    def _shift_account(self, state: State, account: int, more: int, moment: int, at_ms: int) -> None:
        self.accounts.shift_many(account, more, moment, at_ms)
        if state.budgets.specs:
            state.budgets.shift(state, account, more, moment, at_ms)

    def _settle(self, row: int, now_ms: int) -> None:
        """Move what has been charged since the last change into the sum of the attempt."""
        grown = self.rate[row] * (now_ms - self.since[row])
        if grown:
            whole, self.attempt_rest[row] = divmod(self.attempt_rest[row] + grown, GRAINS)
            self.attempt_whole[row] += whole
        self.since[row] = now_ms

    def _account(self, state: State, row: int) -> int:
        w = state.workloads
        return self._account_row(state, (w.tenant[row], w.team[row], w.queue[row], w.tags[row]))

    def _account_row(self, state: State, key: tuple[int, int, int, int]) -> int:
        found = self.account_of.get(key)
        if found is None:
            found = self.account_of[key] = self.accounts.add(DAY_MS, state.now_ms)
            columns = (self.account_tenant, self.account_team, self.account_queue, self.account_tags)
            for column, value in zip(columns, key, strict=True):
                column.append(value)
        return found

    def _forget_units(self) -> None:
        self._units.clear()
        del self._single[:]

    def unit(self, state: State, cls: int, group: int, pool: int) -> int:
        """The cost of one task of the group in the pool, micro-USD per hour."""
        found = self._units.get((cls, group, pool))
        if found is None:
            spec: PoolSpec = state.capacity.pools[pool]
            shape = state.workloads.classes[cls].shapes[group]
            part = share(spec, shape.cpu, shape.memory, shape.gpu_milli)
            found = self._units[cls, group, pool] = int(part * spec.price_microusd_hour)
        return found

    def _rates(self, state: State, row: int) -> dict[int, int]:
        """Pool -> what the workload's tasks there cost, micro-USD per hour; pools in order of their rows."""
        w, a = state.workloads, state.allocations
        pool_of = state.capacity.pool
        first = w.first_allocation[row]
        if first != NONE and a.next_of_workload[first] == NONE:
            pool = pool_of[a.node[first]]
            return {pool: a.count[first] * self.unit(state, w.cls[row], a.group[first], pool)}
        held = list(a.of_workload(first))
        counts: dict[tuple[int, int], int] = {}
        if len(held) < FEW:
            for i in held:
                key = pool_of[a.node[i]], int(a.group[i])
                counts[key] = counts.get(key, 0) + a.count[i]
        else:
            groups = len(w.class_at(row).counts)
            keys = view(pool_of)[view(a.node)[held]].astype(np.int64) * groups + view(a.group)[held]
            sums = np.zeros(int(keys.max()) + 1, np.int64)
            np.add.at(sums, keys, view(a.count)[held])
            counts = {divmod(key, groups): int(sums[key]) for key in np.unique(keys).tolist()}
        rates: dict[int, int] = {}
        for (pool, group), count in sorted(counts.items()):
            rates[pool] = rates.get(pool, 0) + count * self.unit(state, w.cls[row], group, pool)
        return rates

    # -- many of one task at once -------------------------------------------------------------------------------------

    def charge_many(self, state: State, rows: Rows, nodes: Rows, classes: Sequence[int]) -> None:
        """Call `charge` for each, with its one task on `nodes[i]`."""
        if not self.priced:
            return
        pools = view(state.capacity.pool)[nodes]
        rates = self._units_of(state, np.array(classes, np.int64), pools)
        view(self.rate)[rows] = rates
        view(self.since)[rows] = state.now_ms
        self._name_accounts(state, rows)
        self._shift_many(state, rows, pools, rates, np.full(len(rows), state.now_ms, np.int64))

    def end_many(self, state: State, rows: Rows, times: Rows, held: Rows, owner: Rows) -> None:
        """Call `stop` and `end_attempt` for each at its time; times ascend. `held`: their allocations, of
        `rows[owner]`, in their order."""
        if not self.priced:
            return
        rates = view(self.rate)[rows]
        hours, ms = np.divmod(times - view(self.since)[rows], GRAINS)
        # What costs no more than a node stays below 64 bits.
        grown = rates * ms if int(rates.max()) <= MAX_PRICE else rates.astype(object) * ms
        rest = grown + view(self.attempt_rest)[rows] + view(self.spent_rest)[rows]
        whole, rest = (rest // GRAINS).astype(np.int64), (rest % GRAINS).astype(np.int64)
        view(self.spent_whole)[rows] += rates * hours + whole + view(self.attempt_whole)[rows]
        view(self.spent_rest)[rows] = rest
        view(self.attempt_whole)[rows] = 0
        view(self.attempt_rest)[rows] = 0
        view(self.rate)[rows] = 0
        view(self.since)[rows] = times
        rows, times = rows[owner], times[owner]
        pools, rates = (
            self._held_rates(state, rows, held)
            if len(held) > len(rates)
            else (view(state.capacity.pool)[view(state.allocations.node)[held]], rates)
        )
        turns = np.zeros(len(rows) - 1, bool)
        for period in {DAY_MS, *state.budgets.meters.period}:
            turns |= np.diff(times // period) > 0
        for one in np.split(np.arange(len(rows)), np.flatnonzero(turns) + 1):
            self._shift_many(state, rows[one], pools[one], -rates[one], times[one])

    def _held_rates(self, state: State, rows: Rows, held: Rows) -> tuple[Rows, Rows]:
        """(pool, rate) of each of these allocations of the rows."""
        a = state.allocations
        pools, groups = view(state.capacity.pool)[view(a.node)[held]], view(a.group)[held]
        kinds = np.stack([view(state.workloads.cls)[rows], groups, pools], axis=1)
        distinct, which = np.unique(kinds, axis=0, return_inverse=True)
        each = np.array([self.unit(state, *kind) for kind in distinct.tolist()], np.int64)
        return pools, each[which.ravel()] * view(a.count)[held]

    def _units_of(self, state: State, classes: Rows, pools: Rows) -> Rows:
        """`unit` of the only group of each class in each pool."""
        width = len(state.capacity.pools)
        missing = len(state.workloads.classes) * width - len(self._single)
        if missing > 0:
            self._single.extend(array("q", (NONE,)) * missing)
        keys = classes * width + pools
        found: Rows = view(self._single)[keys]
        if int(found.min()) < 0:
            for key in np.unique(keys[found < 0]).tolist():
                cls, pool = divmod(key, width)
                self._single[key] = self.unit(state, cls, 0, pool)
            found = view(self._single)[keys]
        return found

    def _name_accounts(self, state: State, rows: Rows) -> None:
        """Give an account to those that have none, in their order."""
        w = state.workloads
        fresh = rows[view(self.account)[rows] == NONE]
        if not len(fresh):
            return
        keys = zip(*(view(column)[fresh].tolist() for column in (w.tenant, w.team, w.queue, w.tags)), strict=True)
        known = self.account_of
        view(self.account)[fresh] = [known[key] if key in known else self._account_row(state, key) for key in keys]

    def _shift_many(self, state: State, rows: Rows, pools: Rows, rates: Rows, times: Rows) -> None:
        """Change rates by so much each at its time, all in one period of every meter."""
        at_ms, last_ms = int(times[0]), int(times[-1])
        later = times - at_ms
        if last_ms > at_ms and int(np.abs(rates).max()) * (last_ms - at_ms) * len(rows) >= _MOST:
            moments = rates.astype(object) * later
        else:
            moments = rates * later
        for pool, more, moment in _sums(pools, rates, moments):
            self.used.shift_many(pool, more, moment + more * at_ms, at_ms)
            if self.is_down:
                self.down.shift_many(pool, -more, -(moment + more * at_ms), at_ms)
        for account, more, moment in _sums(view(self.account)[rows], rates, moments):
            self._shift_account(state, account, more, moment + more * at_ms, at_ms)


def _rows_in(state: State, pool: int = NONE) -> list[int]:
    """Rows of the workloads that have tasks in the pool, or anywhere, ascending."""
    a = state.allocations
    used = np.flatnonzero(view(a.workload) != NONE) if len(a.workload) else np.zeros(0, np.int64)
    if pool != NONE:
        used = used[view(state.capacity.pool)[view(a.node)[used]] == pool]
    return np.unique(view(a.workload)[used]).tolist() if len(used) else []


def _sums(keys: Rows, rates: Rows, moments: Rows) -> Iterable[tuple[int, int, int]]:
    """(key, sum of its rates, sum of its moments), keys ascending."""
    size = int(keys.max()) + 1
    if size > SPREAD * len(keys):
        found, keys = np.unique(keys, return_inverse=True)
        size = len(found)
    else:
        found = np.flatnonzero(np.bincount(keys, minlength=size))
    more, moment = np.zeros(size, np.int64), np.zeros(size, moments.dtype)
    np.add.at(more, keys, rates)
    np.add.at(moment, keys, moments)
    if size > len(found):
        more, moment = more[found], moment[found]
    return zip(found.tolist(), more.tolist(), moment.tolist(), strict=True)
