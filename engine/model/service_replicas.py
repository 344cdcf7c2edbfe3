"""How many replicas a service has: what its spec says, and the rule of the Kubernetes horizontal pod autoscaler.

The rule and its defaults (tolerance of a tenth, 300 s of stabilisation before it scales down, a look every 15 s, and
replicas that say nothing counted against a change) are those of
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/ (Algorithm details, Stabilization window).
Its limits on how fast it scales up are left out: a scale-up happens at once.
"""

from __future__ import annotations

from engine.model.base import HOUR_MS, Spec, check_quantity
from engine.model.errors import SpecError

LOOK_EVERY_MS = 15_000
"""Between two looks at how busy services are."""
MAX_REPLICAS = 100_000
MAX_POINTS = 10_000


class ServiceSpec(Spec, frozen=True, kw_only=True):
    """Work without an end whose one group has as many tasks (replicas) as keep them busy to the target."""

    least: int = 1
    most: int
    first: int = 0
    """Replicas before anything is known of their load; 0: `least`."""
    target_permille: int = 800
    """CPU in use, of what the replicas ask for, that they should have."""
    tolerance_permille: int = 100
    """The number stays while use is so near to the target, as a part of the target."""
    stabilise_ms: int = 300_000
    """It goes down only to the largest number that was wanted during so long a time."""
    simulated_load: tuple[tuple[int, int], ...] = ()
    """(cell ms, load in permille of one replica's request), linear between: what the simulated executor has the
    replicas share. Empty: by what is reported of them."""


def check_service(spec: ServiceSpec, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(spec.least, f"{where}.least", least=1, most=MAX_REPLICAS)
    check_quantity(spec.most, f"{where}.most", least=1, most=MAX_REPLICAS)
    if spec.least > spec.most:
        raise SpecError(f"{where}.least", f"{spec.least} is more than most, {spec.most}", "Give at most `most`")
    if spec.first and not spec.least <= spec.first <= spec.most:
        raise SpecError(
            f"{where}.first", f"{spec.first} is not from least to most", "Give one between, or leave it out"
        )
    check_quantity(spec.target_permille, f"{where}.target_permille", least=1, most=10_000)
    check_quantity(spec.tolerance_permille, f"{where}.tolerance_permille", most=1000)
    check_quantity(spec.stabilise_ms, f"{where}.stabilise_ms", most=24 * HOUR_MS)
    if len(spec.simulated_load) > MAX_POINTS:
        raise SpecError(f"{where}.simulated_load", f"has {len(spec.simulated_load)} points", f"At most {MAX_POINTS}")
    for i, (at_ms, permille) in enumerate(spec.simulated_load):
        before = spec.simulated_load[i - 1][0] + 1 if i else 0
        check_quantity(at_ms, f"{where}.simulated_load[{i}][0]", least=before)
        check_quantity(permille, f"{where}.simulated_load[{i}][1]", most=MAX_REPLICAS * 10_000)


def load_permille(spec: ServiceSpec, now_ms: int) -> int:
    """The simulated load at that time: before the first point and after the last as there."""
    points = spec.simulated_load
    after = next((i for i, (at_ms, _) in enumerate(points) if at_ms > now_ms), len(points))
    if after in (0, len(points)):
        return points[min(after, len(points) - 1)][1]
    (start, low), (end, high) = points[after - 1], points[after]
    return low + (high - low) * (now_ms - start) // (end - start)


def desired(spec: ServiceSpec, replicas: int, reported: int, use_permille: int) -> int:
    """How many replicas there should be. `replicas` there are; `reported` of them say how busy they are, and all of
    those together have `use_permille`, in permille of one replica's request.

    ceil(replicas x use / target), unless use is within the tolerance of the target. Of replicas that say nothing it is
    assumed that they are idle where that would mean more of them, and busy to the target where it would mean fewer; the
    number stays where that turns the sign.
    """
    if not reported:
        return _bounded(spec, replicas)
    ratio_of, target = spec.tolerance_permille, spec.target_permille
    counted = reported
    up = use_permille > target * reported
    if reported < replicas:
        counted = replicas
        use_permille += 0 if up else target * (replicas - reported)
        if up != (use_permille > target * counted):
            return _bounded(spec, replicas)
    if abs(use_permille - target * counted) * 1000 <= ratio_of * target * counted:
        return _bounded(spec, replicas)
    return _bounded(spec, -(-replicas * use_permille // (target * counted)))


def _bounded(spec: ServiceSpec, replicas: int) -> int:
    return min(max(replicas, spec.least), spec.most)
