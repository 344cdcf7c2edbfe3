"""What dcgm-exporter says of GPUs over some hours, in its own words (`dcgm_exporter.txt` is one scrape of one GPU)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRAPE = Path(__file__).with_name("dcgm_exporter.txt").read_text()
EVERY_S = 60
BUSY_W, REST_W = 612.0, 71.0
LOADED_MIB = 64_321.0


@dataclass(frozen=True)
class Gpu:
    """One GPU: at minutes, counted from the begin, a share of use from 0 to 1; None where nothing is said."""

    node: str
    index: int
    use: Callable[[int], float | None]
    pod: str = ""
    namespace: str = ""
    job: str = ""
    """`hpc_job`, as written where dcgm-exporter maps Slurm's jobs."""
    instance: str = ""
    """Of MIG: it has no GPU_UTIL then."""
    sm: bool = True
    power_w: Callable[[int], float] | None = None
    memory_mib: Callable[[int], float] = lambda minute: LOADED_MIB
    xid: Callable[[int], int] = lambda minute: 0
    renamed: bool = False
    """Whether Prometheus has renamed its labels of the pod, as without `honor_labels`."""

    @property
    def uuid(self) -> str:
        return f"GPU-{self.node}-{self.index}"

    def labels(self, given: str) -> str:
        """Those of the scrape, with this GPU's values."""
        own = dict(re.findall(r'(\w+)="([^"]*)"', given))
        own |= {"gpu": str(self.index), "UUID": self.uuid, "device": f"nvidia{self.index}", "Hostname": self.node}
        own |= {"container": "main" if self.pod else "", "namespace": self.namespace, "pod": self.pod}
        if self.renamed:
            own |= {f"exported_{name}": own[name] for name in ("container", "namespace", "pod")}
            own |= {"container": "exporter", "namespace": "gpu-operator", "pod": "dcgm-exporter-x2z9k"}
        if self.job:
            own["hpc_job"] = self.job
        if self.instance:
            own |= {"GPU_I_ID": self.instance, "GPU_I_PROFILE": "1g.10gb"}
        own |= {"instance": "10.0.0.1:9400", "job": "dcgm"}
        return ",".join(f'{name}="{value}"' for name, value in own.items() if value)

    def value(self, metric: str, minute: int) -> float | None:
        use = self.use(minute)
        if use is None:
            return None
        if metric == "DCGM_FI_DEV_GPU_UTIL":
            return None if self.instance else round(100 * use)
        if metric == "DCGM_FI_PROF_SM_ACTIVE":
            return 0.9 * use if self.sm else None
        if metric == "DCGM_FI_DEV_POWER_USAGE":
            return self.power_w(minute) if self.power_w else REST_W + use * (BUSY_W - REST_W)
        if metric == "DCGM_FI_DEV_XID_ERRORS":
            return self.xid(minute)
        used = self.memory_mib(minute)
        return used if metric == "DCGM_FI_DEV_FB_USED" else 81_089 - used


def scrapes(gpus: Sequence[Gpu], begin_s: int, minutes: int) -> Iterator[str]:
    """OpenMetrics of that many minutes, for `promtool tsdb create-blocks-from openmetrics`."""
    for metric, given in re.findall(r"^(DCGM\w+)\{(.*)\}", SCRAPE, re.MULTILINE):
        yield f"# TYPE {metric} gauge"
        for gpu in gpus:
            labels = gpu.labels(given)
            for minute in range(minutes):
                value = gpu.value(metric, minute)
                if value is not None:
                    yield f"{metric}{{{labels}}} {value} {begin_s + EVERY_S * minute}"


def node_load(nodes: Sequence[str], cpu: float, iowait: float, begin_s: int, minutes: int) -> Iterator[str]:
    """What node-exporter says of nodes of which so many parts of the CPU time are in use and wait for disks."""
    yield "# TYPE node_cpu_seconds counter"
    parts = {"idle": 1 - cpu - iowait, "iowait": iowait, "user": cpu}
    for node in nodes:
        for mode, part in parts.items():
            for minute in range(minutes):
                told = f'node_cpu_seconds_total{{instance="{node}:9100",cpu="0",mode="{mode}"}}'
                yield f"{told} {60 * minute * part:.3f} {begin_s + 60 * minute}"
