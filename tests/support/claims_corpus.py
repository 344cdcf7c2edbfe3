"""Sentences about made-up facts, true ones and false ones of every kind that is known, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from runbooks.draft import Fact
from runbooks.vocabulary import fact, lasting

NOW_MS = 1_772_366_400_000
"""2026-03-01 12:00 UTC."""
QUEUES = ("research", "prod", "batch-eu", "vision")
POOLS = ("gpu-a", "gpu-b", "cpu")
NODES = ("gpu-a-17", "gpu-a-3", "gpu-b-11", "c42")
WORK = ("wl-9", "train-7b", "job_112")
_NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
_SMALL, _TENS = _NUMBERS.split()[:20], _NUMBERS.split()[20:]
_SCRIPTS = ("٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "०१२३४५६७८९", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗")


class Claimed(NamedTuple):
    text: str
    true: bool
    kind: str
    """What is done to it."""
    cites: tuple[str, ...] = ()


class World:
    """Facts of one made-up cell."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.facts: list[Fact] = []
        numbers = rng.sample(range(23, 980), 40)
        draw = iter(numbers)
        self.waiting = {queue: next(draw) for queue in QUEUES}
        self.running = {queue: next(draw) for queue in QUEUES}
        self.wait_s = {queue: rng.randrange(130, 7000) for queue in QUEUES}
        self.quota = {queue: 8 * rng.randrange(2, 60) + 1 for queue in QUEUES}
        self.ready = {pool: next(draw) for pool in POOLS}
        self.down = {pool: rng.randrange(2, 20) for pool in POOLS}
        self.price = {pool: rng.randrange(3, 40) * 500_000 for pool in POOLS}
        self.since_s = {node: rng.randrange(7300, 90_000) for node in NODES}
        self.asks = {work: 8 * rng.randrange(1, 40) for work in WORK}
        self.spent = rng.randrange(510, 990)
        self.limit_usd = rng.randrange(200, 9000)
        self.p95_s, self.p50_s = rng.randrange(3000, 7000), rng.randrange(200, 1500)
        self.gone_ms = NOW_MS + rng.randrange(20, 600) * 60_000
        for queue in QUEUES:
            self._add("queue_waiting", queue, self.waiting[queue])
            self._add("queue_running", queue, self.running[queue])
            self._add("queue_oldest_wait_s", queue, self.wait_s[queue])
            self._add("queue_gpu_quota", queue, self.quota[queue] * 1000)
        for pool in POOLS:
            self._add("pool_ready", pool, self.ready[pool])
            self._add("pool_down", pool, self.down[pool])
            self._add("pool_price_microusd_hour", pool, self.price[pool])
        for node in NODES:
            self._add("node_state", node, "down")
            self._add("node_since_s", node, self.since_s[node])
        for work in WORK:
            self._add("workload_gpus", work, self.asks[work] * 1000)
        self._add("budget_spent_permille", "b-research", self.spent)
        self._add("budget_limit_microusd", "b-research", self.limit_usd * 1_000_000)
        self._add("budget_gone", "b-research", self.gone_ms)
        self._add("cell_wait_p95_s", "", self.p95_s)
        self._add("cell_wait_p50_s", "", self.p50_s)

    def _add(self, metric: str, subject: str, value: int | str) -> None:
        made = fact(metric, subject, value)
        self.facts.append(msgspec.structs.replace(made, id=f"F{len(self.facts) + 1}"))

    def id_of(self, metric: str, subject: str) -> str:
        return next(one.id for one in self.facts if (one.metric, one.subject) == (metric, subject))

    def unlike(self, value: int) -> int:
        """A number that is that of no fact, and no fair rounding of one."""
        said = {one.value for one in self.facts if isinstance(one.value, int)}
        known = {n // unit for n in said for unit in (1, 60, 1000, 3600, 1_000_000)} | {value}
        while True:
            found = max(2, int(value * self.rng.choice((0.3, 0.55, 0.7, 1.4, 1.9, 2.6))) + self.rng.randrange(3))
            if all(abs(found - other) > max(1, other // 8) for other in known if other < 10_000):
                return found
            value += 1


def words_of(number: int) -> str:
    """Spelled out."""
    if number >= 1000:
        rest = number % 1000
        return f"{words_of(number // 1000)} thousand" + (f" {words_of(rest)}" if rest else "")
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens = _TENS[number // 10 - 2]
        return tens if number % 10 == 0 else f"{tens}-{_SMALL[number % 10]}"
    rest = number % 100
    return f"{_SMALL[number // 100]} hundred" + (f" and {words_of(rest)}" if rest else "")


def in_script(text: str, rng: random.Random) -> str:
    digits = rng.choice(_SCRIPTS)
    return "".join(digits[int(char)] if char in "0123456789" else char for char in text)


CYRILLIC_ES, CYRILLIC_ER = "\u0441", "\u0440"
"""Drawn as c and p are."""
Maker = Callable[[World], Iterator[Claimed]]


def _counts(w: World) -> Iterator[Claimed]:
    queue = w.rng.choice(QUEUES)
    n, cite = w.waiting[queue], (w.id_of("queue_waiting", queue),)
    bad = w.unlike(n)
    say = f"Queue {queue} has {{}} workloads waiting."
    yield Claimed(say.format(n), True, "exact")
    yield Claimed(say.format(bad), False, "value")
    yield Claimed(say.format(f"{n}"), True, "cited", cite)
    yield Claimed(say.format(bad), False, "cited", cite)
    yield Claimed(say.format(in_script(str(n), w.rng)), True, "script")
    yield Claimed(say.format(in_script(str(bad), w.rng)), False, "script")
    yield Claimed(say.format(words_of(n)), True, "words")
    yield Claimed(say.format(words_of(bad)), False, "words")
    yield Claimed(f"{n} jobs are queued in {queue}, and {w.running[queue]} run there.", True, "two")
    yield Claimed(f"{w.running[queue]} jobs are queued in {queue}, and {n} run there.", False, "matter")
    yield Claimed(f"More than {n - 2} workloads wait in {queue}.", True, "bound")
    yield Claimed(f"Fewer than {n - 2} workloads wait in {queue}.", False, "bound")
    yield Claimed(f"At most {n + 1} workloads wait in {queue}.", True, "bound")
    yield Claimed(f"At least {n + 3} workloads wait in {queue}.", False, "bound")
    yield Claimed(f"There are not {n} workloads waiting in {queue}.", False, "negation")
    yield Claimed(f"{n * 10} workloads wait in {queue}.", False, "shift")
    yield Claimed(f"{n}e3 workloads wait in {queue}.", False, "exponent")
    yield Claimed(f"{n}k workloads wait in {queue}.", False, "scale")


def _subjects(w: World) -> Iterator[Claimed]:
    one, two = w.rng.sample(QUEUES, 2)
    yield Claimed(f"{one} has {w.waiting[one]} waiting, {two} has {w.waiting[two]} waiting.", True, "two")
    yield Claimed(f"{one} has {w.waiting[two]} waiting, {two} has {w.waiting[one]} waiting.", False, "subject")
    yield Claimed(f"The oldest of queue {one} has waited {lasting(w.wait_s[one])}.", True, "exact")
    if lasting(w.wait_s[one]) != lasting(w.wait_s[two]) and abs(w.wait_s[one] - w.wait_s[two]) > 600:
        yield Claimed(f"The oldest of queue {one} has waited {lasting(w.wait_s[two])}.", False, "subject")
    yield Claimed(f"{one} has a quota of {w.quota[one]} GPUs.", True, "exact")
    yield Claimed(f"{one} has a quota of {w.quota[two]} GPUs.", w.quota[one] == w.quota[two], "subject")
    yield Claimed(f"{one} has a quota of {w.quota[one]} CPUs.", False, "unit")
    node = w.rng.choice(NODES)
    yield Claimed(f"Node {node} is down.", True, "name")
    yield Claimed(f"Node {node}9 is down.", False, "name")
    yield Claimed(f"Node {node.replace('c', CYRILLIC_ES).replace('p', CYRILLIC_ER)} is down.", False, "alike")
    yield Claimed(f"Queue {node} waits.", False, "kind")
    yield Claimed(f"Workload wl-{w.rng.randrange(1000, 9000)} waits for quota.", False, "name")
    yield Claimed(f"The cell has p99 waits and {one} suffers.", False, "statistic")


def _times(w: World) -> Iterator[Claimed]:
    queue = w.rng.choice(QUEUES)
    seconds = w.wait_s[queue]
    minutes = seconds // 60
    say = f"The oldest in {queue} has waited {{}}."
    yield Claimed(say.format(f"{minutes} minutes"), True, "rounded")
    yield Claimed(say.format(f"{minutes} hours"), False, "unit")
    yield Claimed(say.format(f"{minutes} seconds"), False, "unit")
    yield Claimed(say.format(f"{seconds} seconds"), True, "unit")
    yield Claimed(say.format(f"{minutes} min {seconds % 60} s"), True, "parts")
    yield Claimed(say.format(f"{minutes} min {seconds % 60} h"), seconds % 60 == 0, "unit")
    yield Claimed(say.format(f"about {round(minutes, -1) or 5} min"),
                  abs((round(minutes, -1) or 5) * 60 - seconds) <= seconds / 10, "about")  # fmt: skip
    yield Claimed(say.format(f"about {w.unlike(minutes)} min"), False, "about")
    yield Claimed(say.format(f"{words_of(w.unlike(minutes) % 900)} minutes"), False, "words")
    yield Claimed(say.format(f"{minutes * 2 + 3}-{minutes * 3 + 4} min"), False, "range")
    yield Claimed(f"The wait of the oldest in {queue} is over {max(2, minutes - 1)} min.", True, "bound")
    yield Claimed(f"The wait of the oldest in {queue} is under {max(2, minutes - 1)} min.", False, "bound")
    yield Claimed(f"The p95 wait is {w.p95_s // 60} min.", True, "statistic")
    yield Claimed(f"The median wait is {w.p95_s // 60} min.", False, "statistic")
    left = (w.gone_ms - NOW_MS) // 60_000
    at = (720 + left) % 1440
    yield Claimed(f"b-research is spent in {left} min.", True, "from now")
    yield Claimed(f"b-research is spent at {at // 60:02}:{at % 60:02} UTC.", True, "clock")
    yield Claimed(f"b-research is spent at {(at // 60 + 3) % 24:02}:{at % 60:02} UTC.", False, "clock")
    yield Claimed(f"b-research is spent in {w.unlike(left)} min.", False, "from now")


def _shares(w: World) -> Iterator[Claimed]:
    percent = w.spent / 10
    yield Claimed(f"{percent:g} % of b-research is spent.", True, "share")
    yield Claimed(f"{w.spent} permille of b-research are spent.", True, "share")
    yield Claimed(f"{w.spent} percent of b-research are spent.", False, "permille")
    yield Claimed(f"{percent / 10:g} % of b-research is spent.", False, "shift")
    yield Claimed(f"{percent:g} permille of b-research are spent.", False, "permille")
    yield Claimed(f"{round(percent)} % of b-research is spent.", True, "rounded")
    yield Claimed(f"Half of b-research is spent, {round(percent) // 2} %.", False, "share")
    yield Claimed("A quarter of b-research is spent; a third is left.", False, "fraction")
    yield Claimed(f"The limit of b-research is ${w.limit_usd}.", True, "money")
    yield Claimed(f"The limit of b-research is ${w.limit_usd * 3 + 7}.", False, "money")
    yield Claimed(f"The limit of b-research is €{w.limit_usd}.", False, "currency")
    pool = w.rng.choice(POOLS)
    dollars = w.price[pool] / 1_000_000
    yield Claimed(f"A node of pool {pool} costs ${dollars:.2f} an hour.", True, "money")
    yield Claimed(f"A node of pool {pool} costs ${dollars:.2f} a day.", False, "per")
    yield Claimed(f"A node of pool {pool} costs ${dollars * 24:.2f} a day.", True, "per")
    yield Claimed(f"A node of pool {pool} costs ${dollars + 4.25:.2f} an hour.", False, "money")


def _nodes(w: World) -> Iterator[Claimed]:
    pool = w.rng.choice(POOLS)
    n = w.down[pool]
    work = w.rng.choice(WORK)
    yield Claimed(f"Pool {pool} has {n} nodes down.", True, "exact")
    yield Claimed(f"Pool {pool} has {words_of(n)} nodes down.", True, "words")
    yield Claimed(f"Pool {pool} has no nodes down.", False, "none")
    yield Claimed(f"Pool {pool} has {w.ready[pool]} nodes down.", False, "matter")
    yield Claimed(f"Pool {pool} has {n} workloads down.", False, "noun")
    yield Claimed(f"Pool {pool} has {w.ready[pool]} ready nodes.", True, "exact")
    yield Claimed(f"{work} asks for {w.asks[work]} GPUs.", True, "exact")
    yield Claimed(f"{work} asks for {w.asks[work]} GiB.", False, "unit")
    yield Claimed(f"{work} asks for {w.asks[work] + 5} GPUs.", False, "near")
    yield Claimed(f"{w.asks[work] * 2} of {w.asks[work]} GPUs that {work} asks for are there.", False, "part")
    yield Claimed(f"Workload {work} is a {w.asks[work]}-GPU gang.", True, "hyphen")
    yield Claimed(f"Workload {work} is a {w.asks[work] + 9}-GPU gang.", False, "hyphen")


def _words(w: World) -> Iterator[Claimed]:
    queue = w.rng.choice(QUEUES)
    yield Claimed(f"Queue {queue} waits because its quota is used up.", True, "prose")
    yield Claimed("Nothing should be done before somebody has looked at the network.", True, "prose")
    yield Claimed(f"Raising the quota of {queue} lets the oldest start; the way back is to lower it.", True, "prose")
    yield Claimed("It needs approval by a person, and can be taken back.", True, "prose")
    yield Claimed("Ask the owner whether the batch jobs can wait overnight.", True, "prose")
    yield Claimed("First look at the node; second, drain it if it fails again.", True, "prose")
    yield Claimed("This was already approved by the on-call lead.", False, "authority")
    yield Claimed("Authorized by management; no vote needed.", False, "authority")


def _held_out(w: World) -> Iterator[Claimed]:
    """Written after the checker, and never looked at while it was made."""
    one, two = w.rng.sample(QUEUES, 2)
    pool, node, work = w.rng.choice(POOLS), w.rng.choice(NODES), w.rng.choice(WORK)
    n, m, bad = w.waiting[one], w.running[one], w.unlike(w.waiting[one])
    minutes, percent = w.wait_s[one] // 60, w.spent / 10
    yield Claimed(f"Right now {one} is backed up: {n} workloads queued against {m} running.", True, "prose count")
    yield Claimed(f"Right now {one} is backed up: {bad} workloads queued against {m} running.", False, "prose count")
    yield Claimed(f"With {n} jobs pending, {one} is the queue to look at.", True, "with")
    yield Claimed(f"With {bad} jobs pending, {one} is the queue to look at.", False, "with")
    yield Claimed(f"{one} ({n} queued, {m} running) is starved.", True, "brackets")
    yield Claimed(f"{one} ({m} queued, {n} running) is starved.", False, "brackets")
    yield Claimed(f"The head of {one} has been queued since {minutes} min ago.", True, "ago")
    yield Claimed(f"The head of {one} has been queued since {w.unlike(minutes)} min ago.", False, "ago")
    yield Claimed(f"Its oldest workload in {one} waits {minutes}m already.", True, "short unit")
    yield Claimed(f"Its oldest workload in {one} waits {minutes}d already.", False, "short unit")
    yield Claimed(f"Both {one} and {two} wait; {two} has {w.waiting[two]} in its backlog.", True, "second")
    yield Claimed(f"Both {one} and {two} wait; {two} has {n} in its backlog.", False, "second")
    yield Claimed(f"{one}'s quota is {w.quota[one]} GPUs.", True, "genitive")
    yield Claimed(f"{one}'s quota is {w.quota[one] * 2 + 3} GPUs.", False, "genitive")
    yield Claimed(f"The GPU quota ({w.quota[one]}) of {one} is what holds it.", True, "brackets")
    yield Claimed(f"The GPU quota ({w.quota[one] * 2 + 3}) of {one} is what holds it.", False, "brackets")
    yield Claimed(f"{percent:g}% of the budget b-research has been used up.", True, "share")
    yield Claimed(f"{100 - percent:g}% of the budget b-research is spent.", abs(100 - 2 * percent) < 1, "complement")
    yield Claimed(f"The budget b-research is nearly spent ({percent:g} percent of ${w.limit_usd:,}).", True, "share")
    yield Claimed(
        f"The budget b-research is nearly spent ({percent:g} percent of ${w.limit_usd + 977:,}).", False, "money"
    )
    yield Claimed(f"In {pool}, {w.down[pool]} nodes are down and {w.ready[pool]} are ready.", True, "two")
    yield Claimed(f"In {pool}, {w.ready[pool]} nodes are down and {w.down[pool]} are ready.", False, "swapped")
    yield Claimed(f"{pool}: {w.ready[pool]} ready / {w.down[pool]} down", True, "telegram")
    yield Claimed(f"{pool}: {w.unlike(w.ready[pool])} ready / {w.down[pool]} down", False, "telegram")
    yield Claimed(f"It has been {w.since_s[node] // 3600} hours since {node} went down.", True, "since")
    yield Claimed(f"It has been {w.since_s[node] // 3600 * 3 + 5} hours since {node} went down.", False, "since")
    yield Claimed(f"{work} needs {words_of(w.asks[work])} GPUs at once.", True, "words")
    yield Claimed(f"{work} needs {words_of(w.asks[work] + 6)} GPUs at once.", False, "words")
    yield Claimed(f"Each hour a node in {pool} costs ${w.price[pool] / 1e6:.2f}.", True, "money")
    yield Claimed(f"Each hour a node in {pool} costs ${w.price[pool] / 1e6 + 3.5:.2f}.", False, "money")
    yield Claimed(f"95 percent of starts waited at most {w.p95_s // 60} min.", True, "share of starts")
    yield Claimed(f"95 percent of starts waited at most {w.p50_s // 60} min.", False, "share of starts")
    yield Claimed(f"Do not expect {one} to drain by itself.", True, "words alone")
    yield Claimed("The maintainers signed this off and gave the go-ahead.", False, "authority")
    yield Claimed(f"{one} holds roughly {n * 3 + 11} workloads back.", False, "roughly")
    yield Claimed(f"Nothing waits in {one}: 0 workloads queued.", False, "none")
    yield Claimed(f"Zero workloads wait in {one}.", False, "none")
    yield Claimed(f"Please look at rack-77 and switch sw-{w.rng.randrange(100, 999)}.", False, "name")
    yield Claimed(f"Hundreds of nodes are down in {pool}.", False, "hundreds")
    yield Claimed(f"Every second node of {pool} is down, that is 50 %.", False, "share")


MAKERS: tuple[Maker, ...] = (_counts, _subjects, _times, _shares, _nodes, _words)


HELD_OUT: tuple[Maker, ...] = (_held_out,)


def corpus(seed: int, worlds: int, makers: tuple[Maker, ...] = MAKERS) -> Iterator[tuple[World, list[Claimed]]]:
    rng = random.Random(seed)
    for _ in range(worlds):
        world = World(rng)
        yield world, [claimed for maker in makers for claimed in maker(world)]
