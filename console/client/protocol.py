# mypy: disable-error-code="empty-body"
"""What can be asked of a cell: one declaration for each question (`console.client.questions`).

`console.service.local_client` answers, over an engine in this process; `console.client.remote` asks over HTTP, over a
Unix socket or TCP, and the routes of the server are those declared here. All have the same types and raise the same
errors. Calls block; the console makes them on worker threads.

A new question is a declaration in the module of its subject, and the method of that name in `LocalClient`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from console.auth.token_queries import LoginView, NewToken, TokenAsk, TokenLine
from console.client.advice_questions import AdviceQuestions
from console.client.cell_questions import CellQuestions
from console.client.gate_questions import GateQuestions
from console.client.presence import PresenceAsk, Present
from console.client.questions import UNSENT, Asking, asks
from engine.model.queries import Changes
from runbooks.policy.queries import Caller


class Client(CellQuestions, AdviceQuestions, GateQuestions):
    """What a face may ask. Errors are `engine.model.errors.MusterError` and its kinds, nothing else."""

    @asks("GET", "/v1/whoami", signed=lambda proved: proved)
    def whoami(self, proved: Annotated[bool, UNSENT] = False) -> Caller:
        """As whom the engine knows whoever asks.

        By their account; `proved`: in the name they act in, signed.
        """

    @asks("GET", "/v1/tokens", signed=True)
    def tokens(self) -> tuple[TokenLine, ...]:
        """The asker's own tokens; for an admin all of them.

        Those they made are theirs too.
        """

    # Its answer holds a secret, and is kept nowhere: so it goes without a key.
    @asks("POST", "/v1/tokens", changes=True, keyed=False)
    def create_token(self, ask: TokenAsk) -> NewToken:
        """Make a token. Its secret is told this once.

        For whoever asks, or for a service.
        """

    @asks("POST", "/v1/tokens/revoke", changes=True, body="RevokeAsk")
    def revoke_token(self, id: str) -> TokenLine:
        """A token counts for nothing from now on."""

    @asks("POST", "/v1/presence", follows=True)
    def present(self, ask: PresenceAsk) -> Present:
        """Where a console is, and who else is here; waits for news.

        Up to `wait_s` seconds.
        """

    def follow(self, after: int = -1) -> Iterator[Changes]:
        """What happens, as it happens, after a version or from now on; at least every other second something comes, if
        only the clock. Ends by UnreachableError, when the engine does."""
        raise NotImplementedError

    def records(self) -> int:
        """A number that is another one when somebody voted, proposed or decided since; -1 where that is not known
        without asking. Asks nobody."""
        return -1

    def close(self) -> None:
        """Let go of what was opened to ask; by default nothing was."""


class Login(Asking):
    """What is asked before one is known: over the network, with what an OpenID provider says."""

    @asks("GET", "/v1/login")
    def login_view(self) -> LoginView:
        """With which provider one logs in."""

    @asks("POST", "/v1/login/token", once=True, body="LoginAsk")
    def log_in(self, id_token: str) -> NewToken:
        """A token for whom an ID token names."""
