"""`muster login`: says who one is with the OpenID provider of an engine, by its device flow (RFC 8628): the provider
shows its page in any browser, on any machine; nothing is typed here, and no port is opened.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from console.auth.credentials import keep, kept, origin
from console.processes.attach import connect, settings_of
from console.text.terminal_text import printable, timestamp
from engine.model.errors import MusterError, RefusedError, SpecError, UnreachableError

if TYPE_CHECKING:
    from console.auth.token_queries import NewToken

DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
LONGEST_S = 1_800.0
"""However long the provider would wait."""
SLOWER_S = 5.0
"""What a provider that says slow_down is asked less often by (RFC 8628, 3.5)."""


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
        raise RefusedError(f"you are not logged in at {origin(where)}", "See `muster whoami`")
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
    from console.auth.oidc import check_url, discovered, fetched

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
            raise RefusedError(f"the provider says {problem[:60]!a}", "Log in again")
    raise RefusedError("nobody logged in in time", "Log in again")


def _read_begun(begun: dict[str, Any], issuer: str) -> tuple[str, float, float]:
    """The device code, how often to ask, and until when by the monotonic clock."""
    code, every, lasts = begun.get("device_code"), begun.get("interval", 5), begun.get("expires_in", 600)
    if not isinstance(code, str) or not all(isinstance(n, int | float) for n in (every, lasts)):
        said = str(begun.get("error", "something else"))[:60]
        raise UnreachableError(f"{issuer} answers the device flow with {said!a}", "Ask whoever runs it")
    return code, min(max(float(every), 0.0), 60.0), time.monotonic() + min(float(lasts), LONGEST_S)


def _words(begun: dict[str, Any]) -> str:
    where, code = str(begun.get("verification_uri", ""))[:300], str(begun.get("user_code", ""))[:40]
    return f"open {where} in a browser and enter the code {code}"


def _tell(words: str) -> None:
    print(printable(words), file=sys.stderr, flush=True)
