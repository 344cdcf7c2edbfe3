"""Makes docs/console.svg: the real console on the real engine, three hours into the demo's first day.

make picture
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from console.cli import demo_cell
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.app import MusterApp
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.traces.demand_series import HOUR_MS
from runbooks.gate.approval_gate import Gate

SEED = 1
NODES = 400
UNTIL_MS = demo_cell.START_MS + 3 * HOUR_MS
SIZE = (132, 36)


def busy_engine() -> Engine:
    """The demo cell at half past twelve."""
    engine = Engine.open(None, cell=demo_cell.cell(NODES), seed=SEED)
    engine.advance(demo_cell.START_MS)
    for at_ms, spec in demo_cell.feed(engine, SEED):
        if at_ms > UNTIL_MS:
            break
        engine.advance(at_ms)
        engine.command(Submit(workloads=(spec,)))
    engine.advance(UNTIL_MS)
    return engine


async def until(pilot: Pilot[None], shown: Callable[[], bool]) -> None:
    for _ in range(600):
        if shown():
            return
        await pilot.pause(0.05)
    raise RuntimeError("the console did not show it within 30 s")


async def main(target: Path) -> None:
    engine = busy_engine()
    loop = EngineLoop(engine)
    loop.paused = True
    loop.start()
    app = MusterApp(lambda: LocalClient(loop, Gate(engine), Advisor(loop), name="demo"), title="demo")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "nodes ready" in app.export_screenshot().replace("&#160;", " "))
        await until(pilot, lambda: "on&#160;its&#160;way" not in app.export_screenshot())
        await pilot.pause(0.5)
        target.write_text(app.export_screenshot(title="muster --demo"), encoding="utf-8")
    loop.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
