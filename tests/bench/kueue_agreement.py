"""How far the model of Kueue agrees with Kueue: `kueue_agreement.py [--lives 300] [--minutes M] [--pods] [--gpu]`.

Random lives (`tests/differential/kueue`) are played on a real API server, job controller, scheduler and Kueue, and on
the engine with the policy `kueue`. After each step has settled, who is admitted, with how many pods, on which flavor,
and who was preempted must be the same. A life counts up to the first step in which they differ; it is then played again
on Kueue, which shows whether Kueue decides it the same way twice.

What is over is told when it is interrupted, too.

With `--gpu` no life has a topology, and every queue has quotas of two resources.

Without `--pods` the jobs are managed by nobody, so that none has pods; Kueue does not look at these when it decides.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tests.differential.kueue.agreement import LifeResult, kueue_room, results  # noqa: E402
from tests.differential.kueue.lives import life, with_gpu  # noqa: E402
from tests.support.kubernetes_cluster import why_not  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lives", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no other life begins")
    parser.add_argument("--pods", action="store_true", help="jobs have pods, which are scheduled and run")
    parser.add_argument("--gpu", action="store_true", help="queues have quotas of CPU and GPU")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    begun = time.monotonic()
    found: list[LifeResult] = []
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        kueue_room(Path(folder), pods=asked.pods) as place,
    ):
        seeds = range(asked.first, asked.first + asked.lives)
        lives = [with_gpu(life(seed, topology=False)) if asked.gpu else life(seed) for seed in seeds]
        for result in results(place, lives, at_once=asked.at_once, seconds=60 * asked.minutes):
            found.append(result)
            _tell(result, len(found), len(lives))
    _table(found, time.monotonic() - begun)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))


def _tell(result: LifeResult, done: int, lives: int) -> None:
    if result.disagreement is None:
        print(f"\r{done} of {lives} lives", end="", file=sys.stderr, flush=True)
        return
    differs = result.disagreement
    how = "Kueue decides it so twice" if differs.repeated else "Kueue decides it otherwise the second time"
    print(f"\nlife {differs.seed}, step {differs.step}, {differs.played}: {how}")
    for job, (kueue, muster) in differs.jobs.items():
        print(f"  {job}  Kueue: {kueue}\n  {' ' * len(job)}  Muster: {muster}", flush=True)


def _table(found: list[LifeResult], seconds: float) -> None:
    columns = ("lives", "agree", "bursts", "endless", "decisions", "differ", "by chance", "preemptions")
    print(f"\n{'':18}" + "".join(f"{column:>12}" for column in columns))
    groups = {
        "quota alone": [each for each in found if not each.topology],
        "with a topology": [each for each in found if each.topology],
        "all": found,
    }
    for name, group in groups.items():
        print(f"{name:18}" + "".join(f"{figure:12}" for figure in _figures(group)))
    print(f"{seconds:.0f} s")


def _figures(group: list[LifeResult]) -> tuple[int, ...]:
    differing = [each for each in group if each.disagreement]
    chance = [each for each in differing if each.disagreement and not each.disagreement.repeated]
    return (
        len(group),
        len(group) - len(differing),
        sum(each.bursts for each in group),
        sum(each.endless for each in group),
        sum(each.decisions for each in group),
        sum(each.decisions - each.agreed for each in differing),
        sum(each.decisions - each.agreed for each in chance),
        sum(each.preemptions for each in group),
    )


if __name__ == "__main__":
    main()
