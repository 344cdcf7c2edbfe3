"""The HTTP routes for the approval policy and for who asks.

GET  /v1/whoami /v1/policy
POST /v1/policy/check {"text"}   /v1/policy/propose   /v1/policy/vote
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.faces import CallerFaces
from console.http_answers import answer, body, decoded
from runbooks.policy_shown import PolicyChange, PolicyVote


class CheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class PolicyFaces(CallerFaces):
    """The handlers. Who may change the policy is the policy's to say."""

    def routes(self) -> list[Route]:
        return [
            Route("/v1/whoami", self.whoami, methods=["GET"]),
            Route("/v1/policy", self.policy, methods=["GET"]),
            Route("/v1/policy/check", self.check, methods=["POST"]),
            Route("/v1/policy/propose", self.propose, methods=["POST"]),
            Route("/v1/policy/vote", self.vote, methods=["POST"]),
        ]

    async def whoami(self, request: Request) -> Response:
        return await answer(self._client.whoami)

    async def policy(self, request: Request) -> Response:
        return await answer(self._client.policy)

    async def check(self, request: Request) -> Response:
        given = decoded(await body(request), CheckBody)
        return await answer(lambda: self._client.check_policy(given.text))

    async def propose(self, request: Request) -> Response:
        change = decoded(await body(request), PolicyChange)
        return await answer(lambda: self._client.propose_policy(change))

    async def vote(self, request: Request) -> Response:
        vote = decoded(await body(request), PolicyVote)
        return await answer(lambda: self._client.vote_policy(vote))
