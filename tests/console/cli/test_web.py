"""The console in a browser: a real server, a real Chromium, a real console behind its tab; and strangers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.patience import PATIENCE_S

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:aiohttp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the consoles of this module keep what they keep."""
    return tmp_path_factory.mktemp("w")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where a `muster web` serves the console of a demo of its own, read-only."""
    environment = os.environ | {name: str(folder) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")}
    muster = [sys.executable, "-m", "console.cli.main"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*muster, "web", "--demo", "--port", "0"], env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.stdout.close()
            assert server.wait(PATIENCE_S) == 0, (folder / "log").read_text()
            subprocess.run([*muster, "stop", "--cell", "demo"], env=environment, capture_output=True, check=False)


class Tab:
    """A page in Chromium over its debugging protocol, and what the console has sent to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.drawn = ""
        self.problems: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Network.webSocketFrameReceived":
                frame = told["params"]["response"]
                if frame["opcode"] == 2:
                    self.drawn += base64.b64decode(frame["payloadData"]).decode("utf-8", "replace")
            elif told["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(told["params"])[:400])
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.problems.append(told["params"]["entry"]["text"])

    async def do(self, method: str, **params: Any) -> Any:
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        told = await asyncio.wait_for(answer, PATIENCE_S)
        assert "error" not in told, told
        return told["result"]

    async def type(self, text: str) -> None:
        for char in text:
            await self.do("Input.dispatchKeyEvent", type="keyDown", text=char, key=char)
            await self.do("Input.dispatchKeyEvent", type="keyUp", key=char)

    async def until(self, wanted: str) -> None:
        """Until the console has drawn these words since the last time of asking."""
        end = time.monotonic() + PATIENCE_S
        while wanted not in self.drawn:
            assert time.monotonic() < end, f"{wanted!r} was not drawn: {self.drawn[-600:]!r} {self.problems}"
            await asyncio.sleep(0.02)
        self.drawn = ""

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    """An empty page of a headless Chromium that asks nobody else for anything."""
    if not CHROMIUM:
        pytest.skip("there is no Chromium on this machine")
    quiet = ("no-first-run", "disable-background-networking", "disable-component-update", "disable-sync", "disable-gpu")
    with (tmp_path / "chromium.log").open("w") as log:
        browser = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-quic", *(f"--{word}" for word in quiet),
             "--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,900",
             "about:blank"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        told = tmp_path / "profile" / "DevToolsActivePort"
        end = time.monotonic() + PATIENCE_S
        while not (told.exists() and told.read_text().strip()):
            assert time.monotonic() < end, (tmp_path / "chromium.log").read_text()[-800:]
            await asyncio.sleep(0.05)
        port = told.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Tab(socket)
                for domain in ("Page", "Network", "Runtime", "Log"):
                    await page.do(f"{domain}.enable")
                yield page
                await page.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()


@pytest.mark.thorough
async def test_the_console_is_used_in_a_browser(tab: Tab, address: str) -> None:
    await tab.do("Page.navigate", url=address)
    await tab.until("nodes ready")
    await tab.type("3")  # without a click
    await tab.until("workloads")
    await tab.type("/state:running")
    await tab.until("running")
    picture = await tab.do("Page.captureScreenshot", format="png")
    assert len(base64.b64decode(picture["data"])) > 20_000, "a page with nothing on it is a small picture"
    sources = await tab.do(
        "Runtime.evaluate",
        expression="JSON.stringify(performance.getEntriesByType('resource').map(each => new URL(each.name).host))",
    )
    assert set(json.loads(sources["result"]["value"])) == {address.split("/")[2]}, "nothing comes from elsewhere"
    assert not tab.problems
    if folder := os.environ.get("MUSTER_TEST_PICTURES"):
        (Path(folder) / "web.png").write_bytes(base64.b64decode(picture["data"]))


@pytest.mark.thorough
async def test_what_is_copied_is_in_the_clipboard_of_the_browser(tab: Tab, address: str) -> None:
    origin = address.rpartition("/")[0].rpartition("/")[0]
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    await tab.do("Browser.grantPermissions", origin=origin, permissions=allowed)
    await tab.do("Page.navigate", url=address + "?line=nodes+state%3Aready")
    await tab.until("● ready")
    await tab.type("yy")
    await tab.until("copied")
    read = await tab.do("Runtime.evaluate", expression="navigator.clipboard.readText()", awaitPromise=True)
    assert re.fullmatch(r"[a-z0-9]+-\d{4}", read["result"]["value"])
    assert not tab.problems


@pytest.mark.thorough
async def test_a_link_opens_its_page_on_a_phone_and_a_button_is_a_key(tab: Tab, address: str) -> None:
    await tab.do("Emulation.setDeviceMetricsOverride", width=375, height=700, deviceScaleFactor=1, mobile=True)
    await tab.do("Emulation.setTouchEmulationEnabled", enabled=True)
    await tab.do("Emulation.setEmulatedMedia", features=[{"name": "pointer", "value": "coarse"}])
    await tab.do("Page.navigate", url=address + "?line=nodes+state%3Aready")
    await tab.until("● ready")
    columns = await tab.do("Runtime.evaluate", expression="document.querySelector('.xterm-screen').clientWidth")
    assert columns["result"]["value"] <= 375, "nothing hangs over the edge"
    under = "document.querySelector('.xterm-screen').getBoundingClientRect().bottom"
    covered = await tab.do("Runtime.evaluate", expression=f"{under} - document.querySelector('#keys').offsetTop")
    assert covered["result"]["value"] <= 0, "the footer is above the buttons"
    await tab.do("Runtime.evaluate", expression="document.querySelector('#keys [data-key=Enter]').click()")
    await tab.until("Devices")
    assert not tab.problems
    if folder := os.environ.get("MUSTER_TEST_PICTURES"):
        picture = await tab.do("Page.captureScreenshot", format="png")
        (Path(folder) / "phone.png").write_bytes(base64.b64decode(picture["data"]))


@pytest.mark.parametrize(
    ("line", "shown"), [("nodes%20state%3Aready", "state:ready"), ("drain%20--yes%20h100-0001", "is not a page")]
)
async def test_an_address_with_a_line_opens_that_page_and_does_nothing_else(
    address: str, line: str, shown: str
) -> None:
    async with aiohttp.ClientSession() as session:
        where = f"{address}ws/{line}?width=100&height=30"
        socket = await session.ws_connect(where, headers={"Origin": _origin(address)})
        drawn = ""
        async with asyncio.timeout(PATIENCE_S):
            while shown not in drawn:
                message = await socket.receive()
                drawn += message.data.decode("utf-8", "replace") if message.type is aiohttp.WSMsgType.BINARY else ""
        await socket.close()


async def test_a_console_ends_with_its_tab(address: str, folder: Path) -> None:
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(address + "ws?width=80&height=24", headers={"Origin": _origin(address)})
        first = await asyncio.wait_for(socket.receive(), PATIENCE_S)
        assert first.type is aiohttp.WSMsgType.BINARY
        consoles = _consoles(folder)
        assert consoles
        await socket.close()
    end = time.monotonic() + PATIENCE_S
    while _consoles(folder) & consoles:
        assert time.monotonic() < end, "the console outlived its tab"
        await asyncio.sleep(0.05)


@pytest.mark.thorough
async def test_no_console_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {
        name: str(tmp_path) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
    }
    muster = [sys.executable, "-m", "console.cli.main"]
    server = subprocess.Popen(
        [*muster, "web", "--demo", "--port", "0"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        own = server.stdout.readline().strip()
        server.stdout.close()
        async with aiohttp.ClientSession() as session:
            socket = await session.ws_connect(own + "ws?width=80&height=24", headers={"Origin": _origin(own)})
            assert (await asyncio.wait_for(socket.receive(), PATIENCE_S)).type is aiohttp.WSMsgType.BINARY
            assert _consoles(tmp_path)
            server.kill()
            server.wait()
            end = time.monotonic() + PATIENCE_S
            while _consoles(tmp_path):
                assert time.monotonic() < end, "it draws for nobody"
                await asyncio.sleep(0.05)
    finally:
        server.kill()
        server.wait()
        _end_engine(tmp_path)


@pytest.mark.thorough
async def test_a_console_that_hangs_does_not_hold_its_place(address: str, folder: Path) -> None:
    before = _consoles(folder)
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(address + "ws?width=80&height=24", headers={"Origin": _origin(address)})
        assert (await asyncio.wait_for(socket.receive(), PATIENCE_S)).type is aiohttp.WSMsgType.BINARY
        (hung,) = _consoles(folder) - before
        os.kill(hung, signal.SIGSTOP)
        await socket.close()
    end = time.monotonic() + PATIENCE_S
    while hung in _consoles(folder):
        assert time.monotonic() < end, "a stopped process is ended too"
        await asyncio.sleep(0.05)


def _consoles(folder: Path) -> set[int]:
    """Processes that draw for a browser and keep their state there."""
    own = {b"TEXTUAL_DRIVER=textual.drivers.web_driver:WebDriver", b"XDG_STATE_HOME=" + os.fsencode(folder)}
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            drawing = own <= set(entry.read_bytes().split(b"\0"))
            # The engine that one of them started stays.
            if drawing and b"serve" not in entry.with_name("cmdline").read_bytes().split(b"\0"):
                found.add(int(entry.parent.name))
    return found


def _end_engine(folder: Path) -> None:
    """Also one that is only beginning, and would not hear `muster stop`."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            serves = b"serve" in entry.with_name("cmdline").read_bytes().split(b"\0")
            if serves and b"XDG_STATE_HOME=" + os.fsencode(folder) in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)


def _origin(address: str) -> str:
    return "/".join(address.split("/")[:3])


STRANGERS: dict[str, tuple[str, dict[str, str], int]] = {
    "without the secret": ("/", {}, 404),
    "with another secret": ("/x/", {}, 404),
    "with another secret, to a console": ("/x/ws", {"Origin": "OWN"}, 404),
    "by another name": ("SECRET/", {"Host": "evil.example"}, 403),
    "from another site": ("SECRET/", {"Origin": "http://evil.example"}, 403),
    "from another port of this machine": ("SECRET/ws", {"Origin": "http://127.0.0.1:1"}, 403),
    "linked from another site": ("SECRET/", {"Sec-Fetch-Site": "cross-site"}, 403),
    "to a console, from no page": ("SECRET/ws", {}, 403),
    "for another file": ("SECRET/static/../../../etc/passwd", {}, 404),
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_strangers_are_refused(address: str, stranger: str) -> None:
    path, headers, status = STRANGERS[stranger]
    base, secret = _origin(address), "/" + address.split("/")[3]
    headers = {name: value.replace("OWN", base) for name, value in headers.items()}
    wanted = base + path.replace("SECRET", secret)
    async with aiohttp.ClientSession() as session, session.get(wanted, headers=headers) as answer:
        assert answer.status == status
        assert secret.strip("/") not in await answer.text()


@pytest.mark.parametrize(
    "message", ["not json", "[]", '["stdin"]', '["stdin", 7]', '["resize", {"width": "x"}]', '["exec", "x"]', "7"]
)
async def test_a_message_that_no_page_sends_ends_the_console(address: str, message: str) -> None:
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(address + "ws?width=-5&height=x", headers={"Origin": _origin(address)})
        await socket.send_str(message)
        async with asyncio.timeout(PATIENCE_S):
            while not (await socket.receive()).type.name.startswith("CLOS"):
                pass
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        assert answer.status == 200, "the others go on"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_it_is_not_served_to_others(host: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "console.cli.main", "web", "--host", host], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "other machines" in told.stderr
    assert "ssh -L" in told.stderr
