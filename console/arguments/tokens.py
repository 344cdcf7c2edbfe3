"""What can be typed about who asks over the network: `muster token`, `muster login`, `muster logout`.

Like `console.cli.main`, it loads nothing heavy.
"""

from __future__ import annotations

from typing import Any

from console.arguments.parsing import command, positive, reach

SCOPES = (
    "read", "submit", "configure", "propose", "vote", "execute", "freeze", "policy", "break-glass", "audit", "agent",
)  # fmt: skip
"""As in `console.auth.token_queries`, which takes longer to load."""


def token_commands(commands: Any) -> None:
    text = "tokens that prove over the network who asks"
    tokens = commands.add_parser("token", help=text, description=text, allow_abbrev=False)
    kinds = tokens.add_subparsers(title="commands", metavar="COMMAND", required=True)
    made = command(kinds, "create", "console.cli.tokens:create", "make one; its secret is printed this once")
    made.add_argument("name", metavar="NAME", help="what it is for, such as ci-nightly")
    made.add_argument("--scope", action="append", default=[], choices=SCOPES, help="what it may be used for (read)")
    made.add_argument("--for", dest="life", default="90d", metavar="TIME", help="how long it holds, such as 8h (90d)")
    made.add_argument("--service", default="", metavar="ID", help="for a service instead of yourself")
    for part in ("pool", "queue", "tenant"):
        made.add_argument(
            f"--{part}", action="append", default=[], metavar="NAME", help=f"only what touches this {part}"
        )
    made.add_argument("--out", metavar="FILE", help="a new file for the secret, readable by you alone")
    listed = command(kinds, "list", "console.cli.tokens:list_", "yours; for an admin all of them")
    listed.add_argument("--all", action="store_true", help="those that are expired or revoked too")
    listed.add_argument("--limit", type=positive, default=200, metavar="N", help="so many (200)")
    revoked = command(kinds, "revoke", "console.cli.tokens:revoke", "it counts for nothing from now on")
    revoked.add_argument("id", metavar="ID", nargs="+", help="as `muster token list` has it")
    for one in (made, listed, revoked):
        reach(one, sub=True)
    who = command(commands, "who", "console.cli.tokens:who", "who is here: the consoles, and what they are on")
    login = command(
        commands, "login", "console.cli.login:login", "log in to an engine at a URL with its OpenID provider"
    )
    login.add_argument(
        "--ca-file", default="", metavar="FILE", help="certificates (PEM) that the provider's comes from"
    )
    logout = command(commands, "logout", "console.cli.login:logout", "revoke and forget what `muster login` got")
    for one in (login, logout, who):
        reach(one, sub=True)
