"""Makes the pictures of the documents: the real console on a real demo engine, walked through docs/incident.md by keys.

make picture

The stills stand in the documents. The steps of the walk, each with the keys that lead there, are frames of one moving
picture, an SVG that shows them in turn and needs nothing but a browser.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from textual.pilot import Pilot

from console.client.launch import ensure_engine
from console.client.remote import RemoteClient
from console.client.sockets import probe
from console.forms.settings import DEMO_CELL, paths_in
from console.tui.app import MusterApp

SIZE, WALK_SIZE = (132, 36), (108, 32)
"""Of stills, and of the moving picture: there a character is still read where a page is 830 pixels wide."""
PATIENCE = 1200
"""Looks at the screen, twenty a second, before a picture is given up."""
FRAME_S = 3.0
CAPTION = 64
"""Height of the line below a frame."""
Keys = tuple[str, ...]


class Step(NamedTuple):
    """A place of the walk: keys that lead there, what must be on the screen, keys behind that."""

    keys: Keys
    awaited: str
    then: Keys = ()
    pressed: str = ""
    """Caption: the keys as people write them. Empty: no frame of the moving picture."""
    caption: str = ""
    still: str = ""


def line(text: str) -> Keys:
    return (":", *text, "enter")


STILLS = (
    Step(("1",), "nodes ready", still="console"),
    Step(("g", "I"), "research/nlp"),
    Step(("enter",), "What changed before", still="pictures/incident"),
    Step(line("why nlp-0733"), "tried on a fork", still="pictures/why"),
)
WALK = (
    Step(
        ("1",), "nodes ready", pressed="muster --demo",
        caption="a page has come: GPU work of research/nlp waits",
    ),
    Step(("g", "I"), "research/nlp"),
    Step(
        ("enter",), "What may explain it", ("C",), "g I, Enter, C",
        "the incident: its curve, what changed before it; it is yours",
    ),
    Step(
        line("why nlp-0733"), "uncordoned", pressed="Enter on what waits",
        caption="why, and what would start it, tried on a fork",
    ),
    Step(
        ("7",), "tried on a fork", ("home",), pressed="7",
        caption="advice: what it did in simulation, and its track record",
    ),
    Step(("A",), "scroll to the end", ("pagedown",), "A", "the plan, with before and after; nothing is done yet"),
    Step(("G",), "yes, uncordon", pressed="G", caption="to its end: whose plan it takes back, and why that was made"),
    Step(("y",), "verified: U rolls", pressed="y", caption="approved, done, and each node read back"),
    Step(line("workload nlp-0733"), "running", pressed="Enter on what waited", caption="it runs"),
    Step(("escape", "U"), "give a reason", pressed="U", caption="what taking it back would do now"),
)  # fmt: skip


def screen(app: MusterApp) -> str:
    return app.export_screenshot().replace("&#160;", " ")


async def until_shown(pilot: Pilot[None], app: MusterApp, what: str) -> None:
    for _ in range(PATIENCE):
        seen = screen(app)
        if what in seen and "loading" not in seen:
            return
        await pilot.pause(0.05)
    seen = re.sub(r"<[^>]*>", " ", screen(app).partition("</style>")[2])
    raise RuntimeError(f"the console did not show {what!r}, but: {seen}")


async def walk(app: MusterApp, steps: Sequence[Step], folder: Path) -> list[tuple[str, Step]]:
    """Take the steps; write the stills, return the frames."""
    frames = []
    async with app.run_test(size=SIZE if steps is STILLS else WALK_SIZE) as pilot:
        for step in steps:
            await pilot.press(*step.keys)
            await until_shown(pilot, app, step.awaited)
            await pilot.press(*step.then)
            await pilot.pause(2.0)
            picture = app.export_screenshot(title="muster --demo")
            if step.still:
                write(folder / f"{step.still}.svg", picture)
            if step.pressed:
                frames.append((picture, step))
    return frames


def moving(frames: Sequence[tuple[str, Step]]) -> str:
    """One SVG that shows the frames in turn, each with its caption; only the first where nothing may move."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', frames[0][0])
    assert box is not None
    width, height = float(box[1]), float(box[2])
    whole = FRAME_S * len(frames)
    hides = 100 / len(frames)
    style = (
        f"@keyframes turn {{ 0% {{ visibility: visible }} {hides:.3f}% {{ visibility: hidden }} }}"
        f".frame {{ visibility: hidden; animation: turn {whole:g}s step-end infinite }}"
        ".key { font: bold 26px monospace; fill: #b9a7e6 } .told { font: 24px sans-serif; fill: #d3d7de }"
        "@media (prefers-reduced-motion) { .frame { animation: none } .frame:nth-of-type(1) { visibility: visible } }"
    )
    drawn = []
    for number, (picture, step) in enumerate(frames):
        inner = re.sub(r"<svg ", f'<svg width="{width}" height="{height}" ', picture, count=1)
        words = f'<tspan class="key">{escape(step.pressed)}</tspan>  {escape(step.caption)}'
        drawn.append(
            f'<g class="frame" style="animation-delay: {number * FRAME_S:g}s">{inner}'
            f'<text class="told" x="24" y="{height + 40:g}" xml:space="preserve">{words}</text>'
            f'<text class="told" x="{width - 24:g}" y="{height + 40:g}" text-anchor="end">'
            f"{number + 1} / {len(frames)}</text></g>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + CAPTION:g}"><style>{style}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#1b1f26"/>{"".join(drawn)}</svg>'
    )


def write(target: Path, text: str) -> None:
    target.parent.mkdir(exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(target, flush=True)


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mu-") as state:
        paths = paths_in(Path(state) / DEMO_CELL)
        ensure_engine(paths, ["--demo", "--data", str(paths.folder)])
        try:
            for steps in (STILLS, WALK):
                app = MusterApp(lambda: RemoteClient(str(paths.socket)), title="demo", page="overview")
                frames = await walk(app, steps, folder)
                if frames:
                    write(folder / "pictures/walk.svg", moving(frames))
        finally:
            peer = probe(paths.socket)
            if peer is not None:
                os.kill(peer.pid, signal.SIGTERM)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
