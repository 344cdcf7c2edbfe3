"""GPU use is followed from a real Prometheus: nothing missed or counted twice, and joined to the work that had it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine.journal.side_tables import Records
from recommender.history import gpu_use
from recommender.history.gpu_use import SLOT_MS, GpuUse, HeldDevices, Holdings
from recommender.history.metrics import HOUR_MS, MINUTE_MS, OutsideNames
from recommender.history.prometheus import Prometheus
from tests.support.dcgm_series import Gpu, scrapes
from tests.support.prometheus_server import prometheus_holding

T0_S = 1_700_000_400 // 3600 * 3600
T0_MS = T0_S * 1000
MINUTES = 180
END_MS = T0_MS + MINUTES * MINUTE_MS
NODES = ("g0", "g1", "g2")
SILENT = range(61, 72)
"""Minutes in which g1 was not scraped."""


def steps(minute: int) -> float:
    """A use that tells each slot of five minutes from the others."""
    return minute // 5 / 100


GPUS = [
    *(Gpu("g0", n, steps) for n in range(4)),
    *(Gpu("g1", n, lambda minute: None if minute in SILENT else 0.5, sm=False) for n in range(2)),
    Gpu("g2", 0, lambda minute: 0.8, pod="train-0", namespace="vision"),
    Gpu("g2", 1, lambda minute: 0.1, pod="train-1", namespace="vision", renamed=True),
    Gpu("g2", 2, lambda minute: 0.4, job="77"),
    Gpu("g2", 3, lambda minute: 0.3, instance="7"),
    Gpu("stranger", 0, lambda minute: 0.9),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lines = [*scrapes(GPUS, T0_S + 30, MINUTES), "# EOF"]
    with prometheus_holding(lines, tmp_path_factory.mktemp("prometheus")) as url:
        yield url


def held(
    *work: tuple[str, str, int], started_ms: int = T0_MS, exact: bool = True, names: OutsideNames | None = None
) -> Holdings:
    """(id, node, mask of devices) of each."""
    ids = list(dict.fromkeys(name for name, _, _ in work))
    return Holdings(
        END_MS,
        [
            HeldDevices(name, "t", started_ms, sum(m.bit_count() for w, _, m in work if w == name), False, False, 0)
            for name in ids
        ],
        NODES,
        np.array([ids.index(name) for name, _, _ in work], np.int64),
        np.array([NODES.index(node) for _, node, _ in work], np.int64),
        np.array([mask for _, _, mask in work], np.int64),
        exact,
        names or OutsideNames(),
    )


def followed(url: str, use: GpuUse, holdings: Holdings, until_ms: int = END_MS, step_ms: int = MINUTE_MS) -> GpuUse:
    with closing(Prometheus(url)) as server:
        while use.follow(server, holdings, step_ms, until_ms):
            pass
    return use


def row_of(use: GpuUse, node: str, index: int) -> int:
    return next(row for row, each in enumerate(use.devices) if (each.uuid) == f"GPU-{node}-{index}")


def figure(use: GpuUse, name: str, node: str, index: int, slots: int = 36) -> list[float]:
    found: Sequence[float] = use.window([row_of(use, node, index)], name, slots)[0].tolist()
    return list(found)


ALL = held(("a", "g0", 0b1111), ("b", "g1", 0b11))


def test_figures_are_kept_by_slot(url: str) -> None:
    use = followed(url, GpuUse(), ALL)
    assert figure(use, "gpu_util", "g0", 0) == [float(slot) for slot in range(36)]
    assert figure(use, "gpu_power_w", "g0", 1)[10] == pytest.approx(71 + 0.1 * (612 - 71), abs=0.06)
    assert figure(use, "gpu_memory_used_mib", "g0", 1)[10] == pytest.approx(64_321, abs=8)
    assert figure(use, "gpu_sm_active", "g0", 2)[10] == pytest.approx(9, abs=0.26)
    assert all(np.isnan(figure(use, "gpu_sm_active", "g1", 0)))
    # A slot without a single scrape is a gap; one with some is their mean.
    assert np.isnan(figure(use, "gpu_util", "g1", 0)[13])
    assert figure(use, "gpu_util", "g1", 0)[12] == 50
    # A MIG instance has no use but that of its multiprocessors.
    mig = row_of(use, "g2", 3)
    assert np.isnan(use.window([mig], "gpu_util", 6)).all()
    assert use.window([mig], "gpu_sm_active", 1)[0][0] == pytest.approx(27, abs=0.26)
    assert use.no_node == {"stranger"}


def test_following_in_pieces_and_over_restarts_gives_the_same(url: str, tmp_path: Path) -> None:
    at_once = followed(url, GpuUse(), ALL)
    records = Records(tmp_path / "journal.db")
    for minute in (17, 18, 19, 20, 47, 61, 64, 118, 119, 179, 180):
        # Each time by another process, with what the last one has written down.
        again = followed(url, GpuUse(records), ALL, T0_MS + minute * MINUTE_MS)
    for name in ("gpu_util", "gpu_sm_active", "gpu_power_w", "gpu_memory_used_mib"):
        for gpu in GPUS:
            assert figure(again, name, gpu.node, gpu.index) == pytest.approx(
                figure(at_once, name, gpu.node, gpu.index), abs=1.0, nan_ok=True
            )
    reopened = GpuUse(records)
    reopened.open()
    assert reopened.until_ms == again.until_ms // SLOT_MS * SLOT_MS
    assert [each.holder for each in reopened.devices] == [each.holder for each in again.devices]
    records.close()


def test_an_answer_that_is_too_long_is_asked_for_in_parts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = followed(url, GpuUse(), ALL)
    monkeypatch.setattr("recommender.history.prometheus.MAX_BYTES", 6_000)
    parts = followed(url, GpuUse(), ALL)
    assert figure(parts, "gpu_util", "g0", 3) == figure(at_once, "gpu_util", "g0", 3)
    monkeypatch.setattr("recommender.history.prometheus.MAX_BYTES", 100)
    with pytest.raises(Exception, match="answered more than"):
        followed(url, GpuUse(), ALL)


def test_few_questions_are_asked(url: str) -> None:
    use = followed(url, GpuUse(), ALL, END_MS - 5 * MINUTE_MS)
    with closing(Prometheus(url)) as server:
        use.follow(server, ALL, MINUTE_MS, END_MS - 4 * MINUTE_MS)
        assert server.questions == 2 + len(gpu_use.FIGURES)
        assert not use.follow(server, ALL, MINUTE_MS, END_MS - 4 * MINUTE_MS)
        assert server.questions == 2 + len(gpu_use.FIGURES)


def test_devices_are_joined_by_labels_else_by_index_else_by_node(url: str) -> None:
    names = OutsideNames(
        pods={("vision", "train-0"): "v0", ("vision", "train-1"): "v1", ("gpu-operator", "dcgm-exporter-x2z9k"): "no"},
        jobs={"77": "job-77"},
    )
    work = (("x", "g0", 0b0011), ("y", "g0", 0b0100), ("b", "g1", 0b11))
    elsewhere = (("v0", "g2", 0b1000), ("v1", "g2", 0b0001), ("job-77", "g2", 0b0010))
    use = followed(url, GpuUse(), held(*work, *elsewhere, names=names))

    def holders(use: GpuUse) -> dict[str, str]:
        return {each.uuid[4:]: each.holder for each in use.devices}

    exact = holders(use)
    assert [exact[f"g0-{n}"] for n in range(4)] == ["x", "x", "y", ""]
    assert [exact[f"g2-{n}"] for n in range(3)] == ["v0", "v1", "job-77"]
    # Where indexes are made up, only what has all GPUs of a node is told from them.
    blind = followed(url, GpuUse(), held(*work, *elsewhere, exact=False, names=names))
    assert [holders(blind)[f"g0-{n}"] for n in range(4)] == ["", "", "", ""]
    assert [holders(blind)[f"g1-{n}"] for n in range(2)] == ["b", "b"]
    assert [holders(blind)[f"g2-{n}"] for n in range(3)] == ["v0", "v1", "job-77"]
    assert blind.not_joined == 5  # four of g0, and the instance of g2


def test_what_was_measured_before_work_had_the_device_is_not_its_own(url: str) -> None:
    use = followed(url, GpuUse(), held(("old", "g0", 0b1111)), T0_MS + HOUR_MS)
    later = held(("new", "g0", 0b1111), started_ms=T0_MS + 70 * MINUTE_MS)
    followed(url, use, later)
    found = use.series("gpu_util", "new", 0, END_MS)
    assert found is not None
    assert int(found.at_ms[0]) == T0_MS + 70 * MINUTE_MS
    assert found.mean[0] == 14
    assert use.series("gpu_util", "old", 0, END_MS) is None
    power = use.series("gpu_power_w", "new", 0, END_MS)
    assert power is not None
    assert power.mean[0] == pytest.approx(4 * (71 + 0.14 * (612 - 71)), abs=1)


def test_a_device_that_is_gone_leaves_its_row_to_another(url: str) -> None:
    use = followed(url, GpuUse(), ALL)
    count = len(use.devices)
    gone = END_MS + (gpu_use.SLOTS + 2) * SLOT_MS
    followed(url, use, ALL, gone)
    assert not any(each.uuid for each in use.devices)
    assert len(use.devices) == count
