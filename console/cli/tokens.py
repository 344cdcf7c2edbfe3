"""`muster token`: tokens are made, listed and revoked."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from console.auth.token_queries import TokenAsk
from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.guarded_streams import exact_output
from console.text.plain_tables import table
from console.text.terminal_text import duration, printable, timestamp
from engine.model.errors import SpecError
from engine.model.quantity_parsing import duration_ms
from runbooks.people.identity import Scope

if TYPE_CHECKING:
    from console.auth.token_queries import NewToken, TokenLine


def create(arguments: argparse.Namespace) -> None:
    """Prints the secret alone on standard output, so that it can be piped to where it is kept."""
    try:
        life_ms = duration_ms(arguments.life)
    except ValueError as error:
        raise SpecError("--for", str(error), "Write for example 8h or 90d") from None
    within = Scope(pools=tuple(arguments.pool), queues=tuple(arguments.queue), tenants=tuple(arguments.tenant))
    ask = TokenAsk(
        name=arguments.name, scopes=tuple(arguments.scope) or ("read",), within=within, service=arguments.service,
        life_ms=life_ms,
    )  # fmt: skip
    if arguments.out and Path(arguments.out).exists():
        raise SpecError("--out", f"{arguments.out} is there already", "Name a new file")
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
    words = f"token {line.id} stands for {line.subject}, for {', '.join(line.scopes)} in {line.within.words()}"
    print(printable(f"muster: {words}, until {timestamp(line.expires_ms)} UTC"), file=sys.stderr)
    if not arguments.out:
        print("muster: it is shown this once; whoever has it is taken for them", file=sys.stderr)


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
    write_lines(table(head, shown, (False,) * len(head)) if rows else ["nobody else is here"])
