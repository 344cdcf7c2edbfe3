"""Use of GPUs, device by device, over the last day in slots of five minutes, joined to the work that holds them.

DCGM's figures come by a Prometheus at its step and are averaged into slots, which are kept as a few bytes each: 40,000
devices take some 90 MB. A slot that is complete is written down, and following goes on after the last of those, so that
nothing is missed or counted twice however it was stopped.

A device is joined to work by the labels of its pod or job, where dcgm-exporter writes them; else by its node and index,
where the cell knows which devices each allocation has; else by its node, where one piece of work has all of the node's
GPUs. What was measured before that work had the device is not counted as its own.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, Table, delete, insert, select

from engine.journal.side_tables import Records
from engine.model.errors import MusterError
from recommender.history.chunks import SeriesPoints
from recommender.history.metrics import GPU_SLOT_MS, HOUR_MS, OutsideNames
from recommender.history.prometheus import NODE_LABELS, NodeNames, Prometheus, TooMuch, number

SLOT_MS = GPU_SLOT_MS
SLOTS = 288
FIRST_MS = 6 * HOUR_MS
"""How far back following begins that is new."""
POINTS = 400_000
"""Values of one answer, about: several steps of few devices, or few of many."""
MAX_DEVICES = 200_000

POD_LABELS = (("exported_namespace", "exported_pod"), ("namespace", "pod"), ("pod_namespace", "pod_name"))
"""Labels of the pod that has the device, the surest first: where Prometheus renames labels of the exporter that clash
with its own, `pod` is the exporter's."""
JOB_LABELS = ("hpc_job", "slurm_job_id", "slurm_jobid", "jobid")
_WHO = ", ".join(dict.fromkeys(("UUID", "GPU_I_ID", "gpu", *NODE_LABELS, *sum(POD_LABELS, ()), *JOB_LABELS)))
WHO = f'group by ({_WHO}) (last_over_time({{__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_FB_USED"}}[{{step}}]))'
"""Which devices there are, and whose: a MIG instance has no GPU_UTIL."""


class DeviceFigure(NamedTuple):
    """One figure of a device, as it is asked for and kept."""

    name: str
    expression: str
    unit: float
    """Of what one count of the column stands for."""
    most: float
    """A larger value is one of DCGM's blanks."""
    dtype: type[np.unsignedinteger[Any]]


def _figure(name: str, metric: str, unit: float, most: float, dtype: type[np.unsignedinteger[Any]]) -> DeviceFigure:
    return DeviceFigure(name, f"avg by (UUID, GPU_I_ID) (avg_over_time({metric}[{{step}}]))", unit, most, dtype)


FIGURES = (
    _figure("gpu_util", "DCGM_FI_DEV_GPU_UTIL", 0.5, 100, np.uint8),
    DeviceFigure(
        "gpu_sm_active",
        "100 * avg by (UUID, GPU_I_ID) (avg_over_time(DCGM_FI_PROF_SM_ACTIVE[{step}]))",
        0.5,
        100,
        np.uint8,
    ),
    _figure("gpu_memory_used_mib", "DCGM_FI_DEV_FB_USED", 16, 1_000_000, np.uint16),
    _figure("gpu_power_w", "DCGM_FI_DEV_POWER_USAGE", 0.1, 6000, np.uint16),
)
XID = "max by (UUID, GPU_I_ID) (max_over_time(DCGM_FI_DEV_XID_ERRORS[{step}])) != 0"
"""The last error of each device that has shown one."""

META = MetaData()
GPU_SLOT = Table(
    "gpu_slot",
    META,
    Column("start_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)
"""A row for each slot of all devices, and the list of devices at DIRECTORY."""
DIRECTORY = -1


class _Series(msgspec.Struct, gc=False):
    """One series of an answer. Its text is looked at as a whole: 40,000 of them decoded take five times as long."""

    metric: msgspec.Raw
    values: msgspec.Raw


class _NamedDevice(NamedTuple):
    """The labels of a device."""

    row: int
    """-1: it has no UUID, or there are too many."""
    jobs: tuple[str, ...]
    pods: tuple[tuple[str, str], ...]
    """(namespace, pod), the surest first."""


class Device(msgspec.Struct, array_like=True):
    """A GPU, or an instance of one."""

    uuid: str
    instance: str
    """Of MIG; empty for a whole GPU."""
    index: int
    """On its node; -1 where that is not told."""
    node: str = ""
    """In the cell; empty where it is none of its nodes."""
    holder: str = ""
    """The workload that has it; empty for none that is known."""
    since_ms: int = 0
    """When that got it, or was first seen to."""
    seen_ms: int = 0
    xid: int = -1
    """Its last driver error, 0 for none; -1 until it was asked for."""
    xid_ms: int = 0
    """When that came; 0 where it was there before."""
    shared: bool = False
    """Whether several pieces of work have it at once."""


class HeldDevices(NamedTuple):
    """Work that runs with GPUs, as the cell knows it."""

    id: str
    tenant: str
    started_ms: int
    gpus: int
    """Devices, whole or in part."""
    part: bool
    """Whether it has parts of devices."""
    service: bool
    price_microusd_gpu_hour: int


class Holdings(NamedTuple):
    """Who has which devices at one moment; arrays have an entry for each allocation."""

    now_ms: int
    work: Sequence[HeldDevices]
    nodes: Sequence[str]
    work_at: np.ndarray[Any, np.dtype[np.int64]]
    """Index into `work`."""
    node_at: np.ndarray[Any, np.dtype[np.int64]]
    """Index into `nodes`."""
    devices: np.ndarray[Any, np.dtype[np.int64]]
    """Bit mask of device indexes."""
    exact: bool
    """Whether those indexes are the real ones: a mirror of Kubernetes is not told them."""
    names: OutsideNames


class GpuUse:
    """The window of use of all devices. One thread follows; others may read.

    `records` keeps it over restarts. Raises RecordsError while the disk fails.
    """

    def __init__(self, records: Records | None = None) -> None:
        self._records = records or Records(None)
        self._lock = threading.RLock()
        self.devices: list[Device] = []
        self._row_of: dict[tuple[str, str], int] = {}
        self._columns: list[Any] = [np.zeros((0, SLOTS), figure.dtype) for figure in FIGURES]
        """[device, slot]; 0 is "not known", n stands for n - 1 units."""
        self._sums = np.zeros((len(FIGURES), 0))
        self._counts = np.zeros((len(FIGURES), 0))
        """Of the slot that is not complete yet."""
        self.until_ms = 0
        """Everything before has been taken."""
        self.since_ms = 0
        """Begin of the first slot there is."""
        self.version = 0
        """Grows with what is read."""
        self.not_joined = 0
        """GPUs at the last step that some work holds, but whose is not known."""
        self.no_node: frozenset[str] = frozenset()
        """Targets that are no nodes of the cell, as they name themselves."""
        self._named: dict[bytes, _NamedDevice] = {}
        """Labels as they were written -> what they say. Written the same way at every step, they are read once."""
        self._row_named: dict[bytes, int] = {}
        """The same of figures."""
        self._nodes: Sequence[str] = ()
        """For which nodes they were read."""
        self._free: list[int] = []
        """Rows whose devices are gone."""
        self._opened = False

    # -- following ----------------------------------------------------------------------------------------------------

    def follow(self, server: Prometheus, held: Holdings, step_ms: int, now_ms: int) -> bool:
        """Take what is new up to `now_ms`, a bounded part of it. Returns whether there is more."""
        self.open()
        at_ms = self._begin(step_ms, now_ms)
        # Behind by whole slots they are asked for as such; the slot under way step by step.
        step_ms = SLOT_MS if at_ms % SLOT_MS == 0 and at_ms + SLOT_MS <= now_ms else min(step_ms, SLOT_MS)
        steps = min((now_ms - at_ms) // step_ms, max(POINTS // max(len(self.devices), 1000), 1))
        if step_ms < SLOT_MS:
            steps = min(steps, (SLOT_MS - at_ms % SLOT_MS) // step_ms)
        while steps > 0:
            try:
                self._take(server, held, at_ms, steps, step_ms)
                break
            except TooMuch as error:
                if steps == 1:
                    raise MusterError(error.problem, "Follow a server that has fewer targets") from None
                steps = max(steps // 4, 1)
        return self.until_ms + step_ms <= now_ms

    def _begin(self, step_ms: int, now_ms: int) -> int:
        if not self.until_ms:
            self.until_ms = self.since_ms = (now_ms - FIRST_MS) // SLOT_MS * SLOT_MS
        oldest_ms = (now_ms // SLOT_MS - SLOTS + 1) * SLOT_MS
        if self.until_ms < oldest_ms:
            self.until_ms = self.since_ms = oldest_ms
            for column in self._columns:
                column[:] = 0
        return self.until_ms

    def _take(self, server: Prometheus, held: Holdings, at_ms: int, steps: int, step_ms: int) -> None:
        """Ask for the steps that begin at `at_ms`, and take them together or not at all."""
        first_s, last_s, step_s = (at_ms + step_ms) // 1000, (at_ms + steps * step_ms) // 1000, step_ms // 1000
        span = f"{step_ms - 1}ms"
        asked = [WHO, *(figure.expression for figure in FIGURES), XID]
        who, *told = (server.ranges(_Series, text.replace("{step}", span), first_s, last_s, step_s) for text in asked)
        with self._lock:
            by_label = self._met(who, held, at_ms + steps * step_ms)
            self._join(held, by_label, at_ms, at_ms + steps * step_ms)
            columns = [self._values(series) for series in told]
            for step in range(steps):
                end_ms = at_ms + (step + 1) * step_ms
                self._add(columns[: len(FIGURES)], end_ms)
                if end_ms % SLOT_MS == 0:
                    self._close(end_ms)
            self._errors(columns[-1], at_ms + step_ms)
            self.until_ms = at_ms + steps * step_ms
            self.version += 1

    def _met(self, who: Sequence[_Series], held: Holdings, now_ms: int) -> dict[int, str]:
        """Know the devices that were named. Returns the workload of those whose labels tell it, "" of several."""
        if held.nodes != self._nodes or len(self._named) > 4 * len(who) + 1000:
            self._nodes, self._named, self.no_node = held.nodes, {}, frozenset()
        jobs, pods = held.names.jobs, held.names.pods
        found: dict[int, tuple[_Series, str]] = {}
        shared: set[int] = set()
        names: NodeNames | None = None
        for series in who:
            text = bytes(series.metric)
            named = self._named.get(text)
            if named is None:
                names = names or NodeNames(held.nodes)
                named = self._named[text] = self._name(msgspec.json.decode(text, type=dict[str, str]), names)
            row = named.row
            if row < 0:
                continue
            self.devices[row].seen_ms = now_ms
            told = next((jobs[job] for job in named.jobs if job in jobs), "") or next(
                (pods[pod] for pod in named.pods if pod in pods), ""
            )
            if not told:
                continue
            before = found.get(row)
            if before is None or _last_s(series) > _last_s(before[0]):
                found[row] = series, told
            elif before[1] != told and _last_s(series) == _last_s(before[0]):
                shared.add(row)
        for row in found:
            self.devices[row].shared = row in shared
        self._grow()
        return {row: "" if row in shared else told for row, (_, told) in found.items()}

    def _name(self, labels: Mapping[str, str], names: NodeNames) -> _NamedDevice:
        """Read the labels of a device, and know its node."""
        row = self._row(labels)
        if row is None:
            return _NamedDevice(-1, (), ())
        device = self.devices[row]
        device.node = names.find(labels) or ""
        if not device.node:
            self.no_node |= {next((labels[each] for each in NODE_LABELS if labels.get(each)), "no name")}
        jobs = tuple(labels[each] for each in JOB_LABELS if labels.get(each))
        pods = tuple((labels.get(space, ""), labels[pod]) for space, pod in POD_LABELS if labels.get(pod))
        return _NamedDevice(row, jobs, pods)

    def _row(self, labels: Mapping[str, str]) -> int | None:
        key = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
        row = self._row_of.get(key)
        if row is not None or not key[0] or len(self.devices) >= MAX_DEVICES:
            return row
        index = labels.get("gpu", "")
        device = Device(*key, int(index) if index.isdecimal() and len(index) < 4 else -1)
        if self._free:
            row = self._free.pop()
            self.devices[row] = device
        else:
            row = len(self.devices)
            self.devices.append(device)
        self._row_of[key] = row
        return row

    def _grow(self) -> None:
        """Have a row for each device."""
        more = len(self.devices) - len(self._columns[0])
        if more > 0:
            more = max(more, len(self.devices) // 8)
            for n, figure in enumerate(FIGURES):
                self._columns[n] = np.concatenate([self._columns[n], np.zeros((more, SLOTS), figure.dtype)])
            self._sums, self._counts = (
                np.concatenate([each, np.zeros((len(FIGURES), more))], axis=1) for each in (self._sums, self._counts)
            )

    def _join(self, held: Holdings, by_label: Mapping[int, str], at_ms: int, end_ms: int) -> None:
        """Tell each device its holder. One that is silent keeps it, as long as that runs."""
        work_of = {work.id: work for work in held.work}
        by_place, doubtful = holders_by_place(held, self.devices)
        self.not_joined = 0
        for row, device in enumerate(self.devices):
            told = by_label.get(row) if device.seen_ms == end_ms else device.holder
            if told is None:
                at = by_place[row]
                told = held.work[at].id if at >= 0 else ""
                device.shared = at >= 0 and held.work[at].part
                self.not_joined += not told and doubtful[row]
            if told and told not in work_of:
                told = ""
            if told != device.holder:
                # Seen for the first time it is taken to have had its devices from its start.
                fresh = not device.since_ms
                device.holder = told
                device.since_ms = work_of[told].started_ms if told and fresh else at_ms
                if told:
                    device.since_ms = max(device.since_ms, work_of[told].started_ms)

    def _values(self, told: Sequence[_Series]) -> tuple[Any, Any, Any]:
        """(device, time, value) of an answer, in order of time."""
        rows: list[int] = []
        counts: list[int] = []
        texts: list[bytes] = []
        for series in told:
            text = bytes(series.metric)
            row = self._row_named.get(text)
            if row is None:
                labels = msgspec.json.decode(text, type=dict[str, str])
                row = self._row_of.get((labels.get("UUID", ""), labels.get("GPU_I_ID", "")))
                if row is None:
                    continue
                self._row_named[text] = row
            values = bytes(series.values)
            rows.append(row)
            counts.append(values.count(b'"') // 2)
            texts.append(values)
        # [[1700000000,"12.5"],[1700000060,"13"]][[1700000000,"7"]]
        parts = b"".join(texts).split(b'"')
        times = {text: number(text.strip(b"[],")) * 1000 for text in set(parts[:-1:2])}
        at = np.array([times[text] for text in parts[:-1:2]])
        numbers = np.array(_numbers(parts[1::2]))
        device = np.repeat(np.array(rows, np.int64), counts)
        if not len(device) == len(at) == len(numbers):
            raise MusterError("the server answered with values that are none", "Ask a Prometheus")
        order = np.argsort(at, kind="stable")
        return device[order], at[order], numbers[order]

    def _add(self, columns: Sequence[tuple[Any, Any, Any]], end_ms: int) -> None:
        """Count the values of the step that ends then into its slot."""
        slot = (end_ms - 1) // SLOT_MS % SLOTS
        for n, (figure, (rows, at, values)) in enumerate(zip(FIGURES, columns, strict=True)):
            begin, end = np.searchsorted(at, (end_ms - 0.5, end_ms + 0.5))
            mine, value = rows[begin:end], values[begin:end]
            good = (value >= 0) & (value <= figure.most)
            self._sums[n][mine[good]] += value[good]
            self._counts[n][mine[good]] += 1
            known = self._counts[n] > 0
            mean = np.where(known, self._sums[n] / np.maximum(self._counts[n], 1), 0)
            self._columns[n][:, slot] = np.where(known, np.rint(mean / figure.unit) + 1, 0)

    def _errors(self, column: tuple[Any, Any, Any], first_ms: int) -> None:
        """Know the driver errors. The exporter goes on showing the last one: it is new when it was another before."""
        for row, at, code in zip(*(each.tolist() for each in column), strict=True):
            device = self.devices[row]
            if math.isfinite(code) and device.xid != int(code):
                device.xid_ms = 0 if device.xid < 0 and at <= first_ms else int(at)
                device.xid = int(code)
        for device in self.devices:
            device.xid = max(device.xid, 0)

    def _close(self, end_ms: int) -> None:
        """The slot is complete: write it down, and make room for the next."""
        self._sums[:] = 0
        self._counts[:] = 0
        try:
            self._keep(end_ms - SLOT_MS)
        except MusterError:
            self.until_ms = end_ms - SLOT_MS  # it is asked for again
            raise
        for column in self._columns:
            column[:, end_ms // SLOT_MS % SLOTS] = 0
        self.since_ms = max(self.since_ms, end_ms - (SLOTS - 1) * SLOT_MS)
        self._forget(end_ms - (SLOTS + 1) * SLOT_MS)

    def _forget(self, before_ms: int) -> None:
        """Devices that have not been seen for longer than is kept: nothing is kept of their rows, which others get."""
        for row, device in enumerate(self.devices):
            if device.uuid and device.seen_ms < before_ms:
                del self._row_of[device.uuid, device.instance]
                self.devices[row] = Device("", "", -1)
                self._free.append(row)
                self._named, self._row_named = {}, {}

    # -- over restarts ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read what was kept. Slots that are damaged read as gaps."""
        if self._opened:
            return
        with self._lock:
            self._records.create([GPU_SLOT])
            with self._records.reading() as connection:
                rows = connection.execute(select(GPU_SLOT).order_by(GPU_SLOT.c.start_ms)).all()
            if rows and rows[0].start_ms == DIRECTORY:
                self._read([(row.start_ms, row.body) for row in rows])
            self._opened = True

    def _read(self, rows: Sequence[tuple[int, bytes]]) -> None:
        try:
            self.devices = msgspec.json.decode(zlib.decompress(rows[0][1]), type=list[Device])
        except (zlib.error, msgspec.MsgspecError):
            return
        self._row_of = {(device.uuid, device.instance): row for row, device in enumerate(self.devices) if device.uuid}
        self._free = [row for row, device in enumerate(self.devices) if not device.uuid]
        self._grow()
        newest = rows[-1][0]
        for start_ms, body in rows[1:]:
            if start_ms > newest - SLOTS * SLOT_MS:
                self._unpack(start_ms // SLOT_MS % SLOTS, body)
        if len(rows) > 1:
            self.since_ms = max(rows[1][0], newest - (SLOTS - 2) * SLOT_MS)
            self.until_ms = newest + SLOT_MS
            for column in self._columns:
                column[:, self.until_ms // SLOT_MS % SLOTS] = 0
            self.version += 1

    def _keep(self, start_ms: int) -> None:
        """A device keeps its row for as long as a slot of it is kept."""
        count = len(self.devices)
        slot = start_ms // SLOT_MS % SLOTS
        raw = b"".join(
            column[:count, slot].astype(column.dtype.newbyteorder("<")).tobytes() for column in self._columns
        )
        directory = zlib.compress(msgspec.json.encode(self.devices), 1)
        new = [
            {"start_ms": DIRECTORY, "body": directory},
            {"start_ms": start_ms, "body": zlib.compress(raw, 1)},
        ]

        def kept(connection: Connection) -> None:
            old = start_ms - SLOTS * SLOT_MS
            connection.execute(delete(GPU_SLOT).where((GPU_SLOT.c.start_ms <= old) | (GPU_SLOT.c.start_ms >= start_ms)))
            connection.execute(insert(GPU_SLOT), new)

        self._records.write(kept)

    def _unpack(self, slot: int, body: bytes) -> None:
        width = sum(np.dtype(figure.dtype).itemsize for figure in FIGURES)
        try:
            raw = zlib.decompress(body)
        except zlib.error:
            return
        count, begin = len(raw) // width, 0
        if count * width != len(raw) or count > len(self.devices):
            return
        for column, figure in zip(self._columns, FIGURES, strict=True):
            dtype = np.dtype(figure.dtype).newbyteorder("<")
            column[:count, slot] = np.frombuffer(raw, dtype, count, begin)
            begin += count * dtype.itemsize

    # -- reading ------------------------------------------------------------------------------------------------------

    def last_ms(self) -> int:
        """End of the last slot that is complete."""
        return self.until_ms // SLOT_MS * SLOT_MS

    def rows_of(self, workload: str) -> list[int]:
        with self._lock:
            return [row for row, device in enumerate(self.devices) if device.holder == workload]

    def window(self, rows: Sequence[int] | Any, name: str, slots: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[device, slot] of a figure in the last complete slots, oldest first; nan where it is not known."""
        n = next(n for n, figure in enumerate(FIGURES) if figure.name == name)
        last = self.last_ms() // SLOT_MS
        at = np.arange(last - slots, last) % SLOTS
        found = self._columns[n][np.asarray(rows, np.int64)[:, None], at[None, :]]
        values: np.ndarray[Any, np.dtype[np.float64]] = np.where(found > 0, (found - 1.0) * FIGURES[n].unit, np.nan)
        return values

    def reading(self) -> threading.RLock:
        """The lock under which several reads are of one moment."""
        return self._lock

    def series(self, name: str, workload: str, since_ms: int, until_ms: int) -> SeriesPoints | None:
        """A figure of a workload since it has its devices, slot by slot: the mean of its devices, or the sum of memory
        and power. None where none of its devices is known."""
        rows = self.rows_of(workload)
        if not rows:
            return None
        with self._lock:
            begin = max(min(self.devices[row].since_ms for row in rows), since_ms, self.since_ms) // SLOT_MS * SLOT_MS
            last = min(self.last_ms(), until_ms // SLOT_MS * SLOT_MS)
            slots = max((last - begin) // SLOT_MS, 0)
            behind = (self.last_ms() - last) // SLOT_MS
            values = self.window(rows, name, slots + behind)[:, :slots]
        known = np.isfinite(values)
        count = known.sum(axis=0)
        total = np.where(known, values, 0).sum(axis=0)
        whole = name in ("gpu_memory_used_mib", "gpu_power_w")
        mean = np.where(count > 0, total / np.maximum(count, 1) * (len(rows) if whole else 1), np.nan)
        least, most = (
            np.where(count > 0, pick(np.where(known, values, blank), axis=0), np.nan)
            for pick, blank in ((np.min, np.inf), (np.max, -np.inf))
        )
        at_ms = begin + SLOT_MS * np.arange(slots)
        return SeriesPoints(at_ms, mean, least, most, total, mean, count, SLOT_MS)


def _numbers(texts: Sequence[bytes]) -> list[float]:
    try:
        return list(map(float, texts))
    except ValueError:
        return [number(text) for text in texts]


def _last_s(series: _Series) -> float:
    """Time of the last value."""
    values = bytes(series.values)
    return number(values[values.rfind(b"[") + 1 : values.rfind(b",")])


def holders_by_place(held: Holdings, devices: Sequence[Device]) -> tuple[list[int], list[bool]]:
    """By device, the work (an index) that has it by its node and index, or has all that is held of its node; -1 where
    none has it, or nobody can tell: then the second is true."""
    count = len(held.nodes)
    place = {name: n for n, name in enumerate(held.nodes)}
    node = np.array([place.get(device.node, -1) for device in devices], np.int64)
    index = np.array([device.index for device in devices], np.int64)
    by_index = np.full((count + 1, 64), -1, np.int64)
    for bit in range(64):
        has = (held.devices >> bit & 1).astype(bool)
        if has.any():
            by_index[held.node_at[has], bit] = held.work_at[has]
    first, last = np.full(count + 1, 2**62), np.full(count + 1, -1, np.int64)
    np.minimum.at(first, held.node_at, held.work_at)
    np.maximum.at(last, held.node_at, held.work_at)
    there = np.bincount(node[node >= 0], minlength=count + 1)
    held_there = (by_index >= 0).sum(axis=1)
    alone = (first == last) & (held_there >= there) & (last >= 0)
    exact = by_index[node, np.clip(index, 0, 63)] if held.exact else np.full(len(devices), -1, np.int64)
    known = held.exact & (index >= 0) & (index < 64)
    found = np.where(alone[node], last[node], np.where(known, exact, -1))
    found = np.where(node >= 0, found, -1)
    doubtful = (node >= 0) & (last[node] >= 0) & ~alone[node] & ~known
    return found.tolist(), doubtful.tolist()
