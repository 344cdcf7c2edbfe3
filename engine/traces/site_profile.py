"""The site that the generated day imitates: its racks, its teams, and their habits of work.

Data with hardly any rule in it: change these tables to make another site, `engine.traces.demand_series` stays as it is.
"""

from __future__ import annotations

import msgspec

from engine.model.specs import PoolSpec, PriorityClassSpec, Resources

PRIORITY_CLASSES = (
    PriorityClassSpec(name="low", value=100),
    PriorityClassSpec(name="normal", value=500),
    PriorityClassSpec(name="high", value=900, preemption="lower"),
)


class Rack(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool is built: its share of the cell's nodes, and how many stand together."""

    pool: PoolSpec
    share: float
    prefix: str
    """Of node ids."""
    rack_nodes: int
    block_racks: int


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """Who submits, where to, and with what share of the cell as nominal quota."""

    prefix: str
    """Of workload ids."""
    queue: str
    tenant: str
    gpu_share: float
    cpu_share: float


class HabitShape(msgspec.Struct, frozen=True):
    """So many tasks of this request; `weight` says how often, relative to the other shapes of the same work."""

    weight: int
    tasks: int
    request: Resources


class TeamHabit(msgspec.Struct, frozen=True, kw_only=True):
    """A habit of a team. Within a pool the one with the smallest requests comes last: it fills what others leave."""

    kind: str
    team: str
    pool: str
    """Whose capacity `share` is counted in."""
    share: float
    """Of the pool's GPUs (of its CPUs if it has none), averaged over the day."""
    clock: tuple[int, ...]
    """Relative rate of arrivals in each hour of the day."""
    median_min: float
    spread: float
    """Standard deviation of the logarithm of the run time."""
    longest_h: int
    shapes: tuple[HabitShape, ...]
    names: tuple[str, ...]
    gpu_models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    """Where tasks without GPUs may run, which no GPU model tells."""
    priorities: tuple[int, int, int] = (1, 8, 1)
    """Weights of PRIORITY_CLASSES."""
    siblings: int = 1
    """How many like it are submitted within a few minutes, at most."""
    checkpoint_min: int = 0
    launcher: bool = False
    """Gangs of several tasks get a second group: one small task that drives the others."""
    endless: bool = False
    """Services: nobody can say when they end."""


_H100 = PoolSpec(
    name="h100-8x",
    machine_type="p5.48xlarge",
    gpu_model="H100",
    capacity=Resources(cpu_milli=191_450, memory_mib=1_938_410, gpu_milli=8000, disk_mib=28_000_000),
    price_microusd_hour=55_040_000,
    labels={"network": "efa"},
)
_A100 = PoolSpec(
    name="a100-8x",
    machine_type="p4de.24xlarge",
    gpu_model="A100",
    capacity=Resources(cpu_milli=95_690, memory_mib=1_082_712, gpu_milli=8000, disk_mib=7_400_000),
    price_microusd_hour=27_447_050,
    labels={"network": "efa"},
)
_L40S = PoolSpec(
    name="l40s-4x",
    machine_type="g6e.12xlarge",
    gpu_model="L40S",
    capacity=Resources(cpu_milli=47_810, memory_mib=360_157, gpu_milli=4000, disk_mib=3_500_000),
    price_microusd_hour=10_492_640,
)
_CPU = PoolSpec(
    name="cpu-96c",
    machine_type="m7i.24xlarge",
    capacity=Resources(cpu_milli=95_690, memory_mib=355_262, disk_mib=950_000),
    price_microusd_hour=4_838_400,
)
_SPOT = msgspec.structs.replace(_CPU, name="cpu-96c-spot", price_microusd_hour=1_935_360, spot=True)

RACKS = (
    Rack(pool=_H100, share=0.3, prefix="h100", rack_nodes=4, block_racks=8),
    Rack(pool=_A100, share=0.125, prefix="a100", rack_nodes=4, block_racks=8),
    Rack(pool=_L40S, share=0.2, prefix="l40s", rack_nodes=8, block_racks=4),
    Rack(pool=_SPOT, share=0.125, prefix="spot", rack_nodes=16, block_racks=4),
    Rack(pool=_CPU, share=0.25, prefix="cpu", rack_nodes=16, block_racks=4),
)
"""The last one takes the nodes that rounding leaves over."""
ZONES = ("zone-a", "zone-b", "zone-c")

USED_PERMILLE = {
    "training": 850,
    "finetune": 600,
    "sweep": 500,
    "eval": 700,
    "service": 350,
    "notebook": 150,
    "batch": 950,
    "build": 800,
}
"""What work of a kind really uses of the CPU and memory it asks for, at the median: some waste, some near the limit."""

TEAMS = (
    Team(prefix="nlp", queue="research/nlp", tenant="lumen", gpu_share=0.36, cpu_share=0.34),
    Team(prefix="vis", queue="research/vision", tenant="argus", gpu_share=0.24, cpu_share=0.20),
    Team(prefix="asr", queue="research/speech", tenant="lumen", gpu_share=0.12, cpu_share=0.12),
    Team(prefix="chat", queue="product/assistant", tenant="nova", gpu_share=0.24, cpu_share=0.20),
    Team(prefix="srch", queue="product/search", tenant="harbor", gpu_share=0.14, cpu_share=0.14),
    Team(prefix="ads", queue="product/ads", tenant="harbor", gpu_share=0.10, cpu_share=0.14),
    Team(prefix="data", queue="platform/data", tenant="core", gpu_share=0.05, cpu_share=0.24),
    Team(prefix="ci", queue="platform/ci", tenant="core", gpu_share=0.06, cpu_share=0.10),
)
DEPARTMENT_OF_SUM = 0.9
"""The quotas of a department's teams come to this part of what the teams hope for."""

# In hours 0 to 23. Chained jobs and scripts keep even office work going at night.
_OFFICE = (5, 5, 4, 4, 4, 4, 5, 6, 8, 10, 11, 11, 9, 10, 11, 11, 10, 9, 8, 7, 6, 6, 5, 5)
_MORNING = (4, 4, 4, 4, 5, 6, 7, 9, 11, 11, 11, 10, 9, 9, 9, 8, 7, 6, 5, 5, 5, 4, 4, 4)
_NOTEBOOK = (1, 1, 1, 1, 1, 1, 2, 5, 12, 20, 20, 16, 9, 14, 16, 12, 8, 5, 3, 2, 2, 1, 1, 1)
_NIGHTLY = (14, 16, 16, 14, 10, 8, 7, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7, 8, 9, 10, 12)
_STEADY = (1,) * 24


def _gpus(devices: int, cpus: int, memory_gib: int, disk_gib: int = 0) -> Resources:
    return Resources(
        gpu_milli=devices * 1000, cpu_milli=cpus * 1000, memory_mib=memory_gib * 1024, disk_mib=disk_gib * 1024
    )


def _share(gpu_milli: int, cpus: int, memory_gib: int) -> Resources:
    return Resources(gpu_milli=gpu_milli, cpu_milli=cpus * 1000, memory_mib=memory_gib * 1024)


def _cpus(cpus: int, memory_gib: int, disk_gib: int = 0) -> Resources:
    return Resources(cpu_milli=cpus * 1000, memory_mib=memory_gib * 1024, disk_mib=disk_gib * 1024)


_H100_NODE = _gpus(8, 176, 1600, 4096)
_A100_NODE = _gpus(8, 88, 960, 2048)
LAUNCHER = _cpus(4, 16)
_CPU_POOLS = ("cpu-96c", "cpu-96c-spot")

WORKS = (
    TeamHabit(
        kind="training",
        team="nlp",
        pool="h100-8x",
        share=0.34,
        clock=_MORNING,
        median_min=200,
        spread=0.8,
        longest_h=16,
        shapes=(
            HabitShape(6, 2, _H100_NODE),
            HabitShape(8, 4, _H100_NODE),
            HabitShape(6, 8, _H100_NODE),
            HabitShape(3, 16, _H100_NODE),
            HabitShape(1, 32, _H100_NODE),
        ),
        names=("llama-70b-sft", "llama-8b-cpt", "moe-16x7b-pretrain", "qwen-32b-dpo", "longctx-128k-anneal"),
        gpu_models=("H100",),
        priorities=(1, 7, 2),
        checkpoint_min=30,
        launcher=True,
    ),
    TeamHabit(
        kind="training",
        team="vis",
        pool="h100-8x",
        share=0.16,
        clock=_OFFICE,
        median_min=150,
        spread=0.8,
        longest_h=12,
        shapes=(HabitShape(5, 2, _H100_NODE), HabitShape(5, 4, _H100_NODE), HabitShape(2, 8, _H100_NODE)),
        names=("dit-xl-256", "vit-g-clip", "video-diff-4b", "seg-anything-ft"),
        gpu_models=("H100",),
        checkpoint_min=20,
    ),
    TeamHabit(
        kind="training",
        team="chat",
        pool="h100-8x",
        share=0.12,
        clock=_OFFICE,
        median_min=110,
        spread=0.7,
        longest_h=10,
        shapes=(
            HabitShape(5, 1, _H100_NODE),
            HabitShape(5, 2, _H100_NODE),
            HabitShape(3, 4, _H100_NODE),
            HabitShape(1, 8, _H100_NODE),
        ),
        names=("assist-rlhf", "assist-sft-v7", "reward-13b", "tool-use-grpo"),
        gpu_models=("H100",),
        priorities=(0, 6, 4),
        checkpoint_min=15,
        launcher=True,
    ),
    TeamHabit(
        kind="service",
        team="chat",
        pool="h100-8x",
        share=0.10,
        clock=_STEADY,
        median_min=1200,
        spread=0.4,
        longest_h=48,
        shapes=(HabitShape(4, 1, _H100_NODE), HabitShape(2, 2, _H100_NODE)),
        names=("assist-70b-serve", "assist-moe-serve", "assist-canary"),
        gpu_models=("H100",),
        priorities=(0, 0, 1),
        endless=True,
    ),
    TeamHabit(
        kind="finetune",
        team="nlp",
        pool="h100-8x",
        share=0.07,
        clock=_OFFICE,
        median_min=60,
        spread=0.9,
        longest_h=8,
        shapes=(
            HabitShape(6, 1, _gpus(1, 20, 200)),
            HabitShape(5, 1, _gpus(2, 40, 400)),
            HabitShape(4, 1, _gpus(4, 80, 800)),
            HabitShape(2, 1, _H100_NODE),
        ),
        names=("lora-8b", "lora-70b", "eval-harness", "distill-1b"),
        gpu_models=("H100",),
        checkpoint_min=20,
    ),
    TeamHabit(
        kind="training",
        team="vis",
        pool="a100-8x",
        share=0.30,
        clock=_OFFICE,
        median_min=140,
        spread=0.8,
        longest_h=12,
        shapes=(HabitShape(6, 1, _A100_NODE), HabitShape(5, 2, _A100_NODE), HabitShape(2, 4, _A100_NODE)),
        names=("resnet-distill", "pose-hr", "detr-fine", "depth-any-ft"),
        gpu_models=("A100",),
        checkpoint_min=20,
    ),
    TeamHabit(
        kind="training",
        team="asr",
        pool="a100-8x",
        share=0.20,
        clock=_NIGHTLY,
        median_min=150,
        spread=0.5,
        longest_h=8,
        shapes=(HabitShape(4, 1, _A100_NODE), HabitShape(4, 2, _A100_NODE), HabitShape(1, 4, _A100_NODE)),
        names=("asr-nightly", "tts-nightly", "whisper-ft-de", "diarize-v3"),
        gpu_models=("A100", "H100"),
        checkpoint_min=30,
        launcher=True,
    ),
    TeamHabit(
        kind="finetune",
        team="srch",
        pool="a100-8x",
        share=0.14,
        clock=_OFFICE,
        median_min=70,
        spread=0.8,
        longest_h=8,
        shapes=(
            HabitShape(5, 1, _gpus(1, 10, 110)),
            HabitShape(4, 1, _gpus(2, 20, 220)),
            HabitShape(3, 1, _gpus(4, 40, 440)),
        ),
        names=("rank-bert-refresh", "embed-e5-ft", "query-rewrite", "colbert-index"),
        gpu_models=("A100",),
        checkpoint_min=15,
    ),
    TeamHabit(
        kind="sweep",
        team="nlp",
        pool="a100-8x",
        share=0.17,
        clock=_OFFICE,
        median_min=45,
        spread=0.7,
        longest_h=6,
        shapes=(HabitShape(1, 1, _gpus(1, 10, 100)),),
        names=("lr-sweep-1b", "wd-sweep-350m", "mixture-ablate", "tokenizer-ablate"),
        gpu_models=("A100", "L40S"),
        priorities=(8, 2, 0),
        siblings=32,
        checkpoint_min=10,
    ),
    TeamHabit(
        kind="service",
        team="srch",
        pool="l40s-4x",
        share=0.20,
        clock=_STEADY,
        median_min=1200,
        spread=0.4,
        longest_h=48,
        shapes=(
            HabitShape(4, 4, _gpus(1, 10, 72)),
            HabitShape(3, 8, _gpus(1, 10, 72)),
            HabitShape(2, 4, _gpus(2, 20, 144)),
        ),
        names=("rank-serve", "embed-serve", "answer-serve"),
        gpu_models=("L40S",),
        priorities=(0, 0, 1),
        endless=True,
    ),
    TeamHabit(
        kind="service",
        team="ads",
        pool="l40s-4x",
        share=0.16,
        clock=_STEADY,
        median_min=1300,
        spread=0.4,
        longest_h=48,
        shapes=(HabitShape(4, 2, _gpus(1, 10, 72)), HabitShape(3, 6, _gpus(1, 10, 72))),
        names=("ctr-serve", "bid-serve", "creative-gen"),
        gpu_models=("L40S",),
        priorities=(0, 0, 1),
        endless=True,
    ),
    TeamHabit(
        kind="sweep",
        team="vis",
        pool="l40s-4x",
        share=0.22,
        clock=_OFFICE,
        median_min=40,
        spread=0.7,
        longest_h=6,
        shapes=(HabitShape(1, 1, _gpus(1, 10, 80)),),
        names=("aug-sweep", "lr-sweep-vit-s", "anchor-sweep"),
        gpu_models=("L40S", "A100"),
        priorities=(8, 2, 0),
        siblings=24,
        checkpoint_min=10,
    ),
    TeamHabit(
        kind="notebook",
        team="nlp",
        pool="l40s-4x",
        share=0.05,
        clock=_NOTEBOOK,
        median_min=150,
        spread=0.7,
        longest_h=9,
        shapes=(HabitShape(5, 1, _share(250, 2, 16)), HabitShape(4, 1, _share(500, 4, 32))),
        names=("nb-explore", "nb-evals", "nb-tokens", "nb-debug"),
        gpu_models=("L40S",),
        priorities=(0, 3, 1),
    ),
    TeamHabit(
        kind="notebook",
        team="vis",
        pool="l40s-4x",
        share=0.04,
        clock=_NOTEBOOK,
        median_min=150,
        spread=0.7,
        longest_h=9,
        shapes=(HabitShape(5, 1, _share(250, 2, 16)), HabitShape(4, 1, _share(500, 4, 32))),
        names=("nb-masks", "nb-viz", "nb-labels"),
        gpu_models=("L40S",),
        priorities=(0, 3, 1),
    ),
    TeamHabit(
        kind="eval",
        team="ci",
        pool="l40s-4x",
        share=0.08,
        clock=_OFFICE,
        median_min=20,
        spread=0.6,
        longest_h=2,
        shapes=(HabitShape(6, 1, _gpus(1, 8, 48)), HabitShape(2, 1, _gpus(2, 16, 96))),
        names=("ci-kernels", "ci-regress-fp8", "ci-serve-smoke", "ci-mem-leak"),
        gpu_models=("L40S",),
        priorities=(3, 6, 1),
        siblings=4,
    ),
    TeamHabit(
        kind="batch",
        team="data",
        pool="cpu-96c",
        share=0.42,
        clock=_NIGHTLY,
        median_min=35,
        spread=0.8,
        longest_h=6,
        shapes=(
            HabitShape(5, 4, _cpus(8, 32, 20)),
            HabitShape(5, 16, _cpus(8, 24, 20)),
            HabitShape(3, 32, _cpus(4, 16, 10)),
            HabitShape(1, 64, _cpus(8, 28, 20)),
        ),
        names=("etl-clicks-{date}", "etl-orders-{date}", "tokenize-crawl-{date}", "dedup-shards-{date}", "pq-compact"),
        pools=_CPU_POOLS,
        priorities=(4, 6, 0),
        checkpoint_min=10,
    ),
    TeamHabit(
        kind="batch",
        team="ads",
        pool="cpu-96c",
        share=0.16,
        clock=_OFFICE,
        median_min=30,
        spread=0.7,
        longest_h=5,
        shapes=(HabitShape(4, 8, _cpus(8, 30)), HabitShape(3, 16, _cpus(8, 30)), HabitShape(1, 48, _cpus(4, 15))),
        names=("feat-join-{date}", "attrib-7d-{date}", "audience-build"),
        pools=_CPU_POOLS,
    ),
    TeamHabit(
        kind="service",
        team="srch",
        pool="cpu-96c",
        share=0.14,
        clock=_STEADY,
        median_min=1200,
        spread=0.4,
        longest_h=48,
        shapes=(HabitShape(3, 6, _cpus(16, 48)), HabitShape(2, 12, _cpus(8, 24))),
        names=("index-shard", "suggest-api", "crawl-frontier"),
        pools=("cpu-96c",),
        priorities=(0, 0, 1),
        endless=True,
    ),
    TeamHabit(
        kind="build",
        team="ci",
        pool="cpu-96c-spot",
        share=0.16,
        clock=_OFFICE,
        median_min=22,
        spread=0.6,
        longest_h=2,
        shapes=(HabitShape(6, 1, _cpus(16, 32, 50)), HabitShape(3, 1, _cpus(32, 64, 100))),
        names=("ci-wheel", "ci-image", "ci-unit", "ci-lint"),
        pools=_CPU_POOLS,
        priorities=(2, 7, 1),
        siblings=6,
    ),
    TeamHabit(
        kind="batch",
        team="data",
        pool="cpu-96c-spot",
        share=0.48,
        clock=_STEADY,
        median_min=40,
        spread=0.7,
        longest_h=4,
        shapes=(HabitShape(4, 8, _cpus(4, 12)), HabitShape(3, 24, _cpus(4, 12)), HabitShape(1, 48, _cpus(4, 12))),
        names=("backfill-logs", "ocr-pages", "video-frames", "embed-cpu"),
        pools=_CPU_POOLS,
        priorities=(8, 2, 0),
        checkpoint_min=5,
    ),
)
