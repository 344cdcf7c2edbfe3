"""Commands of authentication: `muster token`, `muster token login`, `muster token logout`.

`login` uses the device flow of the engine's OpenID provider (RFC 8628). The provider shows its page in any browser, on
any machine; nothing is typed here, and no port is opened.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.client.attach import connect, settings_of
from console.client.credentials import TokenAsk, keep, kept, origin
from console.commands.show import write_json, write_lines
from console.text.guarded_streams import exact_output
from console.text.plain_tables import table
from console.text.terminal_text import duration, printable, timestamp
from engine.model.errors import MusterError, RefusedError, SpecError, UnreachableError
from engine.model.quantities import duration_ms
from runbooks.plans.identity import Scope

if TYPE_CHECKING:
    from console.client.credentials import NewToken, TokenLine


def create(arguments: argparse.Namespace) -> None:
    """Prints the secret alone on standard output, so that it can be piped to where it is kept."""
    try:
        life_ms = duration_ms(arguments.life)
    except ValueError as error:
        raise SpecError("--for", str(error), "Write it like 8h or 90d") from None
    within = Scope(pools=tuple(arguments.pool), queues=tuple(arguments.queue), tenants=tuple(arguments.tenant))
    ask = TokenAsk(
        name=arguments.name, scopes=tuple(arguments.scope) or ("read",), within=within, service=arguments.service,
        life_ms=life_ms,
    )  # fmt: skip
    if arguments.out and Path(arguments.out).exists():
        raise SpecError("--out", f"{arguments.out} already exists", "Give a new file")
    with closing(connect(arguments)) as client:
        made = client.create_token(ask)
    _hand_over(made, arguments)


def _hand_over(made: NewToken, arguments: argparse.Namespace) -> None:
    line = made.line
    if arguments.out:
        handle = os.open(arguments.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(f"{made.token}\n")
    if arguments.json:
        write_json(line if arguments.out else made)
    elif not arguments.out:
        exact_output().write(f"{made.token}\n")
    words = f"token {line.id} of {line.subject}, for {', '.join(line.scopes)} in {line.within.words()}"
    print(printable(f"muster: {words}, until {timestamp(line.expires_ms)} UTC"), file=sys.stderr)
    if not arguments.out:
        print("muster: shown only once; whoever has it acts as them", file=sys.stderr)


def list_(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        lines = client.tokens()
    now_ms = int(time.time() * 1000)
    shown = [line for line in lines if arguments.all or line.state(now_ms) == "live"][: arguments.limit]
    if arguments.json:
        write_json(shown)
        return
    if not shown:
        write_lines(["there are no tokens" + ("" if arguments.all else " in force")])
        return
    write_lines(table(_HEAD, [_row(line, now_ms) for line in shown], (False,) * len(_HEAD)))


_HEAD = ("ID", "NAME", "FOR", "SCOPES", "WITHIN", "STATE", "UNTIL", "LAST USED", "FROM")


def _row(line: TokenLine, now_ms: int) -> tuple[str, ...]:
    used = timestamp(line.used_ms) if line.used_ms else "never"
    return tuple(
        printable(text)
        for text in (
            line.id, line.name, line.subject, ",".join(line.scopes), line.within.words(), line.state(now_ms),
            timestamp(line.expires_ms), used, line.used_from or "-",
        )
    )  # fmt: skip


def revoke(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        lines = [client.revoke_token(token_id) for token_id in arguments.id]
    if arguments.json:
        write_json(lines)
    else:
        write_lines([printable(f"token {line.id} of {line.subject} is revoked") for line in lines])


def who(arguments: argparse.Namespace) -> None:
    """The consoles that are here."""
    from console.client.presence import PresenceAsk, name_of

    ask = PresenceAsk(session=secrets.token_hex(16), page="shell", leaves=True)
    with closing(connect(arguments)) as client:
        here = client.present(ask).here
    if arguments.json:
        write_json(here)
        return
    rows = [
        (name_of(each), each.thing or each.page, each.doing, duration(each.since_s * 1000), each.account)
        for each in sorted(here, key=lambda each: (each.who, each.since_s))
    ]
    head = ("WHO", "ON", "DOING", "FOR", "ACCOUNT")
    shown = [tuple(map(printable, row)) for row in rows]
    write_lines(table(head, shown, (False,) * len(head)) if rows else ["no other consoles"])


DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
LONGEST_S = 1_800.0
"""However long the provider would wait."""
SLOWER_S = 5.0
"""Added pause after a provider's slow_down (RFC 8628, 3.5)."""


def login(arguments: argparse.Namespace) -> None:
    from console.client.remote import RemoteClient

    where = _where(arguments)
    with closing(RemoteClient(where)) as client:
        view = client.login_view()
        if not view.issuer:
            raise RefusedError(
                f"{where} has no OpenID provider", "Ask one of its admins for a token: muster token create"
            )
        ca_file = arguments.ca_file or settings_of(arguments).oidc_ca_file
        made = client.log_in(id_token_of(view.issuer, view.client_id, ca_file))
    _remember(where, made)


def _remember(where: str, made: NewToken) -> None:
    path = keep(where, made.token, os.environ)
    words = f"you are {made.line.subject} at {origin(where)} until {timestamp(made.line.expires_ms)} UTC"
    print(printable(f"{words}; kept in {path}"), file=sys.stderr)


def logout(arguments: argparse.Namespace) -> None:
    where = _where(arguments)
    if origin(where) not in kept(os.environ):
        raise RefusedError(f"you are not logged in at {origin(where)}", "See `muster policy whoami`")
    try:
        with closing(connect(arguments)) as client:
            token_id = kept(os.environ)[origin(where)].split("_")[1]
            client.revoke_token(token_id)
    except MusterError as error:
        print(printable(f"muster: it could not be revoked: {error}"), file=sys.stderr)
    keep(where, "", os.environ)
    print(printable(f"logged out of {origin(where)}"), file=sys.stderr)


def _where(arguments: argparse.Namespace) -> str:
    where = settings_of(arguments).connect
    if "://" not in where:
        raise SpecError("--connect", "names no URL", "Log in to an engine at a URL: --connect https://HOST:PORT")
    return where


def id_token_of(
    issuer: str,
    client_id: str,
    ca_file: str = "",
    *,
    tell: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """The ID token that the provider gives once somebody has said yes on its page. Raises RefusedError when they say no
    or nobody does in time, UnreachableError."""
    from console.client.oidc import check_url, discovered, fetched

    check_url(issuer, "issuer")
    ends = discovered(issuer, ca_file)
    device, token = ends.get("device_authorization_endpoint"), ends.get("token_endpoint")
    if not isinstance(device, str) or not isinstance(token, str):
        raise UnreachableError(f"{issuer} has no device flow", "Ask an admin of the engine for a token")
    for url in (device, token):
        check_url(url, "device flow")
    begun = fetched("POST", device, ca_file, {"client_id": client_id, "scope": "openid"})
    code, wait_s, until = _read_begun(begun, issuer)
    (tell or _tell)(_words(begun))
    while time.monotonic() < until:
        pause(wait_s)
        form = {"grant_type": DEVICE, "device_code": code, "client_id": client_id}
        said = fetched("POST", token, ca_file, form)
        found = said.get("id_token")
        if isinstance(found, str) and found:
            return found
        problem = str(said.get("error", "no ID token"))
        if problem == "slow_down":
            wait_s += SLOWER_S
        elif problem != "authorization_pending":
            raise RefusedError(f"the provider answered {problem[:60]!a}", "Log in again")
    raise RefusedError("login timed out", "Log in again")


def _read_begun(begun: dict[str, Any], issuer: str) -> tuple[str, float, float]:
    """The device code, how often to ask, and until when by the monotonic clock."""
    code, every, lasts = begun.get("device_code"), begun.get("interval", 5), begun.get("expires_in", 600)
    if not isinstance(code, str) or not all(isinstance(n, int | float) for n in (every, lasts)):
        said = str(begun.get("error", "an unknown error"))[:60]
        raise UnreachableError(f"{issuer} refused the device flow: {said!a}", "Ask its administrator")
    return code, min(max(float(every), 0.0), 60.0), time.monotonic() + min(float(lasts), LONGEST_S)


def _words(begun: dict[str, Any]) -> str:
    where, code = str(begun.get("verification_uri", ""))[:300], str(begun.get("user_code", ""))[:40]
    return f"open {where} in a browser and enter the code {code}"


def _tell(words: str) -> None:
    print(printable(words), file=sys.stderr, flush=True)
