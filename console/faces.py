"""What groups of HTTP handlers have in common: the client of whoever asks."""

from __future__ import annotations

from console.client import Client
from console.identity import CALLER
from console.local_client import LocalClient


class CallerFaces:
    """Handlers of one subject."""

    def __init__(self, client: LocalClient) -> None:
        self._of_nobody = client

    @property
    def _client(self) -> Client:
        """In the name of whoever makes the request that is answered; a defect where nobody was told."""
        return self._of_nobody.acting_as(CALLER.get())
