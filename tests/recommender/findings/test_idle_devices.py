"""GPUs that are held and idle are found by owner and pattern; what looks like it and is fine is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest

from recommender.findings.idle_devices import IdleDevices, idle_devices, idle_now
from recommender.history.gpu_use import GpuUse, HeldDevices, Holdings
from recommender.history.metrics import MINUTE_MS, OutsideNames
from recommender.history.prometheus import Prometheus
from tests.support.dcgm_series import LOADED_MIB, REST_W, Gpu, scrapes
from tests.support.prometheus_server import prometheus_holding

T0_S = 1_700_000_400 // 3600 * 3600
T0_MS = T0_S * 1000
MINUTES = 6 * 60
END_MS = T0_MS + MINUTES * MINUTE_MS
PRICE = 2_500_000
Use = Callable[[int], float | None]


class Scene(NamedTuple):
    """One piece of work on a node of its own."""

    name: str
    use: Use
    gpus: int = 1
    tenant: str = ""
    started: int = 0
    """Minute."""
    others: Use | None = None
    """Of its GPUs but the first."""
    mib: Callable[[int], float] = lambda minute: LOADED_MIB
    power_w: Callable[[int], float] | None = None
    sm: bool = True
    instance: str = ""
    part: bool = False
    service: bool = False
    xid: Callable[[int], int] = lambda minute: 0
    cpu: float | None = None
    """Per cent of its node's CPU in use."""
    io: float | None = None


def busy_until(minute: int, then: float = 0.0) -> Use:
    return lambda at: 0.95 if at < minute else then


def session(at: int) -> float:
    """Bursts of ten minutes, and an hour and a half of nothing between them."""
    return 0.9 if at % 100 < 10 and at < 300 else 0.0


FOUND = {
    "hang": Scene("hang", busy_until(MINUTES - 40), gpus=4, xid=lambda at: 79 if at > MINUTES - 45 else 0),
    "long hang": Scene("long hang", busy_until(MINUTES - 70), gpus=2, xid=lambda at: 79 if at > MINUTES - 75 else 0),
    "old error": Scene("old error", busy_until(MINUTES - 75), xid=lambda at: 63),
    "spins": Scene(
        "spins", lambda at: 1.0, gpus=2, sm=False, power_w=lambda at: 600.0 if at < MINUTES - 45 else REST_W + 40
    ),
    "session": Scene("session", session, tenant="people"),
    "unused": Scene("unused", lambda at: 0.0, started=60, mib=lambda at: 4.0),
    "left": Scene("left", busy_until(MINUTES - 60), mib=lambda at: LOADED_MIB if at < MINUTES - 60 else 4.0),
    "staging for hours": Scene("staging for hours", lambda at: 0.0, cpu=70.0),
    "stall": Scene("stall", lambda at: 0.15 + 0.05 * (at % 2), gpus=8, cpu=93.0, io=3.0),
    "disk stall": Scene("disk stall", lambda at: 0.2, io=22.0, cpu=30.0),
    "one of eight": Scene("one of eight", lambda at: 0.9, gpus=8, others=lambda at: 0.0),
    "service without requests": Scene("service without requests", lambda at: 0.0, service=True, started=-60),
}
FINE = {
    "first half hour": Scene("first half hour", lambda at: 0.0, started=MINUTES - 25),
    "checkpoints": Scene("checkpoints", lambda at: 0.0 if at % 60 < 12 else 0.9),
    "just stopped": Scene("just stopped", busy_until(MINUTES - 20)),
    "staging": Scene("staging", lambda at: 0.0, started=MINUTES - 70, cpu=60.0),
    "light but steady": Scene("light but steady", lambda at: 0.2, cpu=20.0, io=1.0),
    "low with bursts": Scene("low with bursts", lambda at: 0.9 if at % 30 < 6 else 0.0, cpu=95.0),
    "service at night": Scene("service at night", busy_until(MINUTES - 200), service=True),
    "pipeline": Scene(
        "pipeline", lambda at: 0.9 if at % 60 < 30 else 0.0, gpus=2, others=lambda at: 0.9 if at % 60 >= 30 else 0.0
    ),
    "power capped": Scene("power capped", lambda at: 1.0, power_w=lambda at: 600.0 if at < MINUTES - 60 else 350.0),
    "busy": Scene("busy", lambda at: 0.97, gpus=8),
}
DARK = {
    "mig": Scene("mig", lambda at: 0.0, instance="3", sm=False),
    "shared": Scene("shared", lambda at: 0.0, part=True, gpus=1),
    "silent": Scene("silent", lambda at: None if at > MINUTES - 40 else 0.0),
}
SCENES = [*FOUND.values(), *FINE.values(), *DARK.values()]
NODES = tuple(f"n{n}" for n in range(len(SCENES)))


def gpus() -> Iterator[Gpu]:
    for node, scene in zip(NODES, SCENES, strict=True):
        for index in range(scene.gpus):
            use = scene.others if scene.others and index else scene.use
            yield Gpu(
                node, index, use, sm=scene.sm, power_w=scene.power_w, memory_mib=scene.mib, xid=scene.xid,
                instance=scene.instance,
            )  # fmt: skip


@pytest.fixture(scope="module")
def use(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuUse]:
    with prometheus_holding([*scrapes(list(gpus()), T0_S + 30, MINUTES), "# EOF"], tmp_path_factory.mktemp("p")) as url:
        followed = GpuUse()
        with closing(Prometheus(url)) as server:
            while followed.follow(server, HELD, MINUTE_MS, END_MS):
                pass
        yield followed


def held() -> Holdings:
    work = [
        HeldDevices(
            each.name,
            each.tenant or each.name,
            T0_MS + each.started * MINUTE_MS,
            each.gpus,
            each.part,
            each.service,
            PRICE,
        )
        for each in SCENES
    ]
    at = np.arange(len(work))
    masks = np.array([(1 << each.gpus) - 1 for each in SCENES], np.int64)
    return Holdings(END_MS, work, NODES, at, at, masks, True, OutsideNames())


HELD = held()
LOAD: Mapping[tuple[str, str], float | None] = {
    (metric, node): value
    for node, scene in zip(NODES, SCENES, strict=True)
    for metric, value in (("node_cpu_util", scene.cpu), ("node_iowait", scene.io))
}


def look(use: GpuUse, waiting: int = 0) -> IdleDevices:
    return idle_devices(use, HELD, lambda metric, node, since, until: LOAD[metric, node], waiting)


def test_each_pattern_is_found_and_nothing_that_only_looks_like_it(use: GpuUse) -> None:
    found = {target: each for each in look(use).suggestions for target in each.targets}
    assert set(found) == set(FOUND)
    kinds = {name: (found[name].kind, found[name].about.partition(":")[2]) for name in FOUND}
    assert kinds == {
        "hang": ("hung_devices", "hang"),
        "long hang": ("hung_devices", "hang"),
        "old error": ("hung_devices", "hang"),
        "spins": ("hung_devices", "hang"),
        "session": ("idle_devices", "interactive"),
        "unused": ("idle_devices", "unused"),
        "left": ("idle_devices", "stopped"),
        "staging for hours": ("idle_devices", "unused"),
        "stall": ("starved_devices", "data stall"),
        "disk stall": ("starved_devices", "data stall"),
        "one of eight": ("underused_shape", "shape"),
        "service without requests": ("idle_devices", "unused"),
    }


def test_the_evidence_is_what_was_seen_with_hours_and_money(use: GpuUse) -> None:
    found = {target: each for each in look(use, 3000).suggestions for target in each.targets}
    facts = {each.metric: each for each in found["hang"].evidence}
    assert facts["multiprocessors active"].value == "0.0 %"
    assert facts["multiprocessors active"].baseline.startswith("86 % over")
    assert (facts["power of a GPU"].value, facts["memory of a GPU in use"].value) == ("71 W", "64,320 MiB")
    assert facts["last driver error (XID)"].value == "79"
    # Four GPUs for forty minutes, at 2.50 an hour each.
    assert facts["GPU-hours without use"].value == "2.7"
    assert facts["GPU-hours without use"].baseline == "$6.67 at the price of their pools"
    assert found["hang"].cost_delta_microusd_hour == -4 * PRICE
    assert found["hang"].benefit.waiting_gpu_milli_h == 3 * 3000
    stall = {each.metric: each.value for each in found["stall"].evidence}
    assert stall["CPU time of its nodes in use"] == "93 %"
    assert found["one of eight"].evidence[0].value == "7 of 8"
    people = found["session"]
    assert people.finding.startswith("1 GPU held by tenant people of session are used in bursts")
    assert people.expected is not None
    assert (people.expected.metric, people.expected.was, people.expected.to) == ("idle_gpu", 1000.0, 0.0)


def test_without_figures_use_is_unknown_and_not_idle(use: GpuUse) -> None:
    assert look(use).unknown == (
        "use of 1 GPU of 1 workload is not known: MIG or shared, without figures of its own",
        "use of 2 GPUs of 2 workloads is not known: no figures of the last half hour, or nobody tells whose they are",
    )


def test_idle_gpus_are_counted_by_tenant(use: GpuUse) -> None:
    idle = idle_now(use, HELD)
    ones = {
        "people",
        "old error",
        "unused",
        "left",
        "pipeline",
        "staging for hours",
        "service without requests",
        "service at night",
    }
    several = {"hang": 4000, "long hang": 2000, "one of eight": 7000}
    assert idle == dict.fromkeys({*ones, "staging"}, 1000) | several


def test_a_new_start_is_suggested_where_a_hang_is_sure(use: GpuUse) -> None:
    actions = {each.targets: each.action for each in look(use).suggestions}
    # An error and more than an hour: the others may be a person's pause, or are not long enough.
    assert {targets for targets, action in actions.items() if action != "notify"} == {("long hang",)}
    assert actions["long hang",] == "requeue"
