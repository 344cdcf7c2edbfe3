"""Stub until the policy lands."""

from typing import Any, NamedTuple


class Preemption(NamedTuple):
    victims: tuple[tuple[int, int], ...]
    claims: list[Any]
    delay_ms: int


def may_preempt(state: Any, row: int) -> bool:
    return False


def find(*args: Any) -> Preemption | None:
    return None


def ends_soon(state: Any, found: Any) -> bool:
    return False


def lets_start(*args: Any) -> bool:
    return False
