"""The command `muster replay`: a trace through the engine, as figures or live on the console."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from console.cli.show import write_json, write_lines
from console.forms.settings import check_speed
from console.text.plain_tables import facts
from console.text.terminal_text import printable
from engine.model.errors import MusterError, SpecError
from engine.traces import replay as traces

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.specs import Policy

LIVE_SPEED = 600.0
THROUGH = {"engine": "through the engine", "counting": "by counting free processors"}


class EmptyTrace(MusterError):
    """A trace was read and gave no job."""

    code = "trace"


def replay(arguments: argparse.Namespace) -> int:
    if arguments.live:
        return _live(arguments)
    if arguments.speed is not None:
        raise SpecError("--speed", "is for watching a replay", "Add --live")
    result = traces.replay(
        arguments.file, arguments.format, policy=arguments.policy, through=arguments.through, **_options(arguments)
    )
    if arguments.json:
        write_json(result)
    else:
        write_lines(_result_lines(result))
    _tell_problems(result.problems, result.first_problems)
    _refuse_empty(arguments, result.jobs)
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("nodes", "estimate", "arrivals", "strict", "node_file")
    return {name: getattr(arguments, name) for name in names}


def _result_lines(result: traces.ReplayResult) -> list[str]:
    return facts(
        [
            ("jobs", f"{result.jobs:,}"),
            ("average wait", f"{result.avg_wait_s:,.1f} s"),
            ("p95 wait", f"{result.p95_wait_s:,.1f} s"),
            ("average bounded slowdown", f"{result.avg_bounded_slowdown:,.2f}"),
            ("makespan", f"{result.makespan_s:,.0f} s"),
            ("utilisation", f"{result.utilisation:.1%}"),
            *((f"left out: {printable(why)}", f"{count:,}") for why, count in result.skipped.items()),
            ("simulated in", f"{result.wall_s:.2f} s, {THROUGH[result.through]}"),
        ]
    )


def _tell_problems(count: int, first: tuple[str, ...]) -> None:
    if not count:
        return
    print(f"{count:,} lines could not be read and were left out; --strict stops at the first", file=sys.stderr)
    for problem in first[:5]:
        print(f"  {printable(problem)}", file=sys.stderr)


def _refuse_empty(arguments: argparse.Namespace, jobs: int) -> None:
    """A trace without one job that can run is most likely another format: that is a failure, not a result."""
    if not jobs:
        raise EmptyTrace(f"{arguments.file} has no job that could run", "Check --format and --nodes")


def _live(arguments: argparse.Namespace) -> int:
    """The trace as the load of an engine in this process. It is read before the screen opens: its errors come first."""
    from console.cli.start import refuse_without_terminal
    from console.tui.app import run

    refuse_without_terminal()
    speed = LIVE_SPEED if arguments.speed is None else arguments.speed
    check_speed(speed, "--speed")
    plan = traces.prepare(arguments.file, arguments.format, **_options(arguments))
    _tell_problems(plan.problems.count, tuple(map(str, plan.problems.first)))
    _refuse_empty(arguments, len(plan.jobs))
    opened = LiveReplay(plan, arguments.policy, speed)
    try:
        return run(opened.client, read_only=False, title=f"replay {arguments.file}")
    finally:
        opened.close()


class LiveReplay:
    """An engine in memory whose load is a trace. It is opened when the console asks for its client."""

    def __init__(self, plan: traces.ReplayPlan, policy: Policy, speed: float) -> None:
        from engine.loop import EngineLoop

        self._plan = plan
        self._policy = policy
        self._speed = speed
        self._loop: EngineLoop | None = None

    def client(self) -> Client:
        from console.service.advisor import Advisor
        from console.service.local_client import LocalClient
        from engine.control import Engine
        from engine.loop import EngineLoop
        from engine.model.commands import SetPolicy
        from runbooks.audit.log import Audit
        from runbooks.gate.approval_gate import Gate, wall_ms
        from runbooks.gate.policy_versions import Policies
        from runbooks.policy.approval_policy import SOLO

        engine = Engine.open(None, cell=self._plan.cell)
        engine.command(SetPolicy(policy=self._policy))
        if self._plan.jobs:
            engine.advance(self._plan.jobs[0].arrival_ms)
        self._loop = EngineLoop(engine, speed=self._speed, feed=traces.feed(self._plan, engine))
        audit = Audit(engine, wall_ms)
        gate = Gate(engine, Policies(engine, audit, wall_ms, default=SOLO), audit)
        self._loop.start()
        return LocalClient(self._loop, gate, Advisor(self._loop), name="replay")

    def close(self) -> None:
        if self._loop is not None:
            self._loop.stop()
