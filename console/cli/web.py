"""The command `muster web`: this console in a browser of this machine, by textual-serve.

Whoever opens the page acts as the account that serves it. So it listens on loopback alone, every address has a
secret part that is new at each start, and a page of another site can neither read it nor talk to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import string
import sys
import webbrowser
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from console.forms.settings import WEB_ADDRESS
from console.text.guarded_streams import exact_output
from console.text.terminal_text import printable
from engine.model.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from aiohttp import web

PAGE = Path(__file__).with_name("web_page.html")
MAX_SESSIONS = 8
"""Browser tabs at once: each is a console process of its own."""
GONE_S = 3.0
"""How long a console may take to end after its tab was closed."""
STUCK_S = 20.0
"""How long a console may leave what was typed lying before it counts as hung."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PASSED_ON = {
    "demo": "--demo", "nodes": "--nodes", "scenario": "--scenario", "quiet_day": "--quiet-day", "speed": "--speed",
    "cell": "--cell", "environment": "--environment", "connect": "--connect", "readonly": "--readonly",
    "operator": "--as",
}  # fmt: skip
"""Arguments that a console takes too."""
MAX_CELLS = 1_000
"""Columns and rows that a browser may ask for."""
MAX_LINE = 500
"""Characters of a `:` line in an address."""
MAX_MESSAGE = 1 << 20
"""Bytes of one message of a browser: a pasted text."""


def serve(arguments: argparse.Namespace) -> None:
    """Serve until told to stop. Raises SpecError for an address others could reach, RefusedError without
    textual-serve."""
    if arguments.host not in LOOPBACK:
        raise SpecError(
            "--host",
            f"{printable(arguments.host)[:60]} is reachable from other machines, and whoever opens the page acts "
            "as you",
            "Leave it out, and use ssh -L 8000:127.0.0.1:8000",
        )
    try:
        import textual_serve  # noqa: F401
    except ImportError:
        raise RefusedError(
            "the console in a browser needs textual-serve, which is not installed", "pip install 'muster[web]'"
        ) from None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> None:
    from aiohttp import web

    secret = secrets.token_urlsafe(24)
    house = WebConsole(console_command(arguments), secret)
    runner = web.AppRunner(house.app(), access_log=None, handle_signals=False, shutdown_timeout=GONE_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, arguments.host, arguments.port)
        try:
            await site.start()
        except OSError as error:
            raise SpecError(
                "--port", f"{arguments.port} is not available: {error.strerror}", "Give another with --port"
            ) from None
        port = runner.addresses[0][1]
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        address = house.address = f"http://{host}:{port}/{secret}/"
        out = exact_output()
        out.write(address + "\n")
        out.flush()
        print("whoever has this address acts as you; ctrl+c stops it and its consoles", file=sys.stderr)
        if arguments.open:
            webbrowser.open(address)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
    finally:
        await runner.cleanup()


def console_command(arguments: argparse.Namespace) -> list[str]:
    """Command of the console that a tab runs: this program, with the same choice of engine."""
    command = [sys.executable, "-m", "console.cli.main"]
    for name, option in PASSED_ON.items():
        value = getattr(arguments, name, None)
        if value is True:
            command.append(option)
        elif value not in (None, False):
            command += [option, str(value)]
    return command


class WebConsole:
    """The pages below the secret, and the consoles behind them."""

    def __init__(self, command: list[str], secret: str) -> None:
        self._command = command
        self._secret = secret
        self.address = ""
        """That of its page, for links to it; empty until it is served."""
        self._sessions = 0
        self._page = string.Template(PAGE.read_text(encoding="utf-8"))

    def app(self) -> web.Application:
        import textual_serve
        from aiohttp import web

        statics = Path(textual_serve.__file__ or "").with_name("static")

        @web.middleware
        async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app = web.Application(middlewares=[guarded])
        app.add_routes(
            [
                web.get("/{secret}/", self._index),
                web.get("/{secret}/ws", self._console),
                web.get("/{secret}/ws/{line}", self._console),
                *(
                    web.get(f"/{{secret}}/static/{name}", self._static(statics / name))
                    for name in ("css/xterm.css", "js/textual.js", "fonts/RobotoMono-VariableFont_wght.ttf")
                ),
            ]
        )
        return app

    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse requests without the secret, under a host name that is not this machine's (somebody's name may have
        been pointed here), or begun by a page of another origin."""
        from aiohttp import web

        given = request.match_info.get("secret", "")
        if not secrets.compare_digest(given.encode(), self._secret.encode()):
            raise web.HTTPNotFound
        own = request.headers.get("Host", "")
        if urlsplit(f"//{own}").hostname not in LOOPBACK:
            raise web.HTTPForbidden(text="served to this machine only")
        origin = request.headers.get("Origin")
        if (origin is not None and urlsplit(origin).netloc != own) or (
            request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        ):
            raise web.HTTPForbidden(text="request from another site refused")
        answer: web.StreamResponse = await handler(request)
        if not answer.prepared:
            answer.headers.update(
                {
                    "Cache-Control": "no-store",
                    "Referrer-Policy": "no-referrer",
                    "X-Content-Type-Options": "nosniff",
                    "X-Frame-Options": "DENY",
                    "Cross-Origin-Opener-Policy": "same-origin",
                }
            )
        return answer

    async def _index(self, request: web.Request) -> web.Response:
        from aiohttp import web

        nonce = secrets.token_urlsafe(16)
        rules = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return web.Response(
            text=self._page.substitute(nonce=nonce),
            content_type="text/html",
            headers={"Content-Security-Policy": rules},
        )

    def _static(self, path: Path) -> Any:
        from aiohttp import web

        async def send(_request: web.Request) -> web.FileResponse:
            return web.FileResponse(path)

        return send

    async def _console(self, request: web.Request) -> web.StreamResponse:
        """Run a console while the tab is open. Behind `ws/` stands the `:` line of the page to begin on."""
        from aiohttp import WSMsgType, web

        if request.headers.get("Origin") is None:
            raise web.HTTPForbidden(text="only a browser page may connect")
        if self._sessions >= MAX_SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_SESSIONS} consoles are open; close one")
        self._sessions += 1
        socket = web.WebSocketResponse(heartbeat=15, max_msg_size=MAX_MESSAGE)
        line = request.match_info.get("line", "")
        page = [f"--page={line[:MAX_LINE]}"] if line.isprintable() and line else []
        console = console_service([*self._command, *page], socket, self.address)
        try:
            await socket.prepare(request)
            await console.start(_cells(request.query.get("width")), _cells(request.query.get("height")))
            async for message in socket:
                async with asyncio.timeout(STUCK_S):
                    understood = message.type == WSMsgType.TEXT and await _passed_on(message, console, socket)
                if not understood:
                    break
        except TimeoutError:
            # It hangs, and its page with it: the page says that it has ended, and offers another.
            pass
        finally:
            try:
                await console.stop()
                await socket.close()
            finally:
                self._sessions -= 1
        return socket


async def _passed_on(message: Any, console: Any, socket: web.WebSocketResponse) -> bool:
    """Pass one message of the page to the console; False for one that no page of ours sends."""
    match _read(message):
        case ["stdin", str(text)]:
            return bool(await console.send_bytes(text.encode("utf-8", "replace")))
        case ["resize", {"width": int(width), "height": int(height)}]:
            await console.set_terminal_size(_cells(width), _cells(height))
        case ["ping", str(data) | int(data) | float(data)]:
            await socket.send_json(["pong", data])
        case ["blur", *_]:
            await console.blur()
        case ["focus", *_]:
            await console.focus()
        case _:
            return False
    return True


def _read(message: Any) -> Any:
    try:
        return message.json()
    except ValueError:
        return None


def _cells(given: object) -> int:
    try:
        return max(1, min(int(str(given)), MAX_CELLS))
    except (TypeError, ValueError):
        return 80


def console_service(command: list[str], socket: web.WebSocketResponse, address: str) -> Any:
    """textual-serve's side of a console process, in a process group of its own and never left behind."""
    from textual_serve.app_service import AppService
    from textual_serve.download_manager import DownloadManager

    class ConsoleProcess(AppService):
        async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                # What it says is for who runs this: at once, and not collected here for as long as the tab is there.
                stderr=None,
                env=self._build_environment(width, height) | {WEB_ADDRESS: address},
                start_new_session=True,
            )
            self._stdin = self._process.stdin
            self._process.stderr = asyncio.StreamReader()
            self._process.stderr.feed_eof()
            return self._process

        async def stop(self) -> None:
            """Ask it to go, then see to it."""
            process = self._process
            try:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(GONE_S):
                        await super().stop()
            finally:
                # Also when this itself is told to end.
                if process is not None and process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            if process is not None:
                await process.wait()

    return ConsoleProcess(
        shlex.join(command),
        write_bytes=socket.send_bytes,
        write_str=socket.send_str,
        close=socket.close,  # type: ignore[arg-type]
        download_manager=DownloadManager(),
    )
