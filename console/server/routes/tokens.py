"""Tokens over HTTP, and logging in with what an OpenID provider says.

What makes a token answers in a way of its own: its answer holds the secret, and is kept nowhere.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from console.auth.identity import CALLER
from console.auth.oidc import OpenIdProvider
from console.auth.token_queries import LoginView, NewToken, TokenAsk
from console.client.protocol import Login
from console.client.questions import question_of, refuse_read_only
from console.server.authentication import MAX_LOGIN
from console.server.operations import Operation, asked_by
from console.server.responses import Crowded, Forbidden, answer, body, decoded
from console.service.local_client import LocalClient

LOGIN_LIFE_MS = 12 * 3_600_000
"""Of a token that a login gives: a shift."""
LOG_IN = question_of(Login.log_in)
MAX_LOGINS = 8
"""Under way: each may wait for the provider, and keeps a thread that others need."""


class TokenRoutes:
    """The handlers. `provider`: who says who people are, where one is set."""

    def __init__(self, client: LocalClient, provider: OpenIdProvider | None = None) -> None:
        self._of_nobody = client
        self._provider = provider
        self._logins = 0

    def operations(self) -> tuple[Operation, ...]:
        return (
            asked_by(question_of(Login.login_view), self.login),
            asked_by(LOG_IN, self.log_in),
        )

    async def create(self, request: Request) -> Response:
        self._forbid_if_read_only()
        ask = decoded(await body(request, MAX_LOGIN), TokenAsk)
        client = self._of_nobody.acting_as(CALLER.get())
        return _unkept(await answer(lambda: client.create_token(ask)))

    async def login(self, request: Request) -> Response:
        provider = self._provider
        shown = LoginView() if provider is None else LoginView(issuer=provider.issuer, client_id=provider.client_id)
        return await answer(lambda: shown)

    async def log_in(self, request: Request) -> Response:
        self._forbid_if_read_only()
        given = decoded(await body(request, MAX_LOGIN), LOG_IN.takes)
        if self._logins >= MAX_LOGINS:
            raise Crowded(f"{MAX_LOGINS} logins are under way", "Come again in a few seconds", 3)
        self._logins += 1
        try:
            return _unkept(await answer(lambda: self._logged_in(given.id_token)))
        finally:
            self._logins -= 1

    def _logged_in(self, id_token: str) -> NewToken:
        if self._provider is None:
            raise Forbidden("this engine has no OpenID provider", "Set oidc_issuer, or ask an admin for a token")
        proof = self._provider.proved(id_token)
        return self._of_nobody.tokens_kept.log_in(proof, LOGIN_LIFE_MS)

    def _forbid_if_read_only(self) -> None:
        if self._of_nobody.read_only:
            raise Forbidden(refuse_read_only().problem, "This engine was started with --readonly")


def _unkept(response: Response) -> Response:
    response.headers["cache-control"] = "no-store"
    return response
