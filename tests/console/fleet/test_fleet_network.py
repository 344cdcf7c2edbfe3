"""A fleet over TCP: TLS, and tokens of one of its cells, with what that cell's policy lets their holders do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from console.client.credentials import TokenAsk
from console.client.remote import RemoteClient
from console.client.sockets import bind_tcp
from console.fleet import callers
from console.fleet.callers import asked_of
from console.fleet.queries import FleetClient
from console.fleet.server import _who_comes
from engine.admission.fleet_routing import CellLink, FleetSpec
from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.plans.identity import OWNER
from tests.console.client.test_tls import certificate
from tests.support.cells import workload
from tests.support.fleets import Served, served_fleet
from tests.support.gates import gate_of
from tests.support.served import running_loop, served_on_unix


class Reached:
    """A fleet that is served over TCP, and its `people`: a real cell, as whose owner one asks for tokens."""

    def __init__(self, served: Served, where: str, owner: RemoteClient) -> None:
        self.served, self.where, self.owner = served, where, owner

    def token(self, *scopes: str) -> tuple[str, str]:
        """A new token and its id."""
        made = self.owner.create_token(TokenAsk(name="x", scopes=scopes))
        return made.token, made.line.id

    def client(self, token: str = "") -> FleetClient:
        return FleetClient(self.where, token=token)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reached]:
    tls, bound = certificate(tmp_path), bind_tcp("127.0.0.1:0", secured=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.certificate))
    monkeypatch.setattr(callers, "CHECK_S", 0.0)
    with (
        running_loop() as loop,
        served_on_unix(loop, gate=gate_of(loop.engine)) as path,
        closing(RemoteClient(str(path))) as owner,
        closing(bound),
        served_fleet(
            tmp_path / "f", secured=bound, tls=tls, ask=asked_of(CellLink(name="a", connect=str(path)))
        ) as served,
    ):
        yield Reached(served, f"https://localhost:{bound.getsockname()[1]}", owner)


def test_who_shows_a_token_is_who_they_are_in_the_cell_with_what_it_is_for(fleet: Reached) -> None:
    reads, _ = fleet.token("read")
    submits, name = fleet.token("read", "submit")
    with closing(fleet.client(reads)) as client:
        assert client.view().name == "lab"
        with pytest.raises(MusterError, match="may not do that here"):
            client.submit([workload("x")])
    with closing(fleet.client(submits)) as client:
        (taken,) = client.submit([workload("x", gpu=1000)])
        assert (taken.id, taken.by) == ("x", OWNER)
        with pytest.raises(MusterError, match="only the owner of the fleet"):
            client.set_closed("a", closed=True)
        fleet.owner.revoke_token(name)
        with pytest.raises(RefusedError, match="revoked"):
            client.view()


def test_nobody_comes_over_the_network_without_a_token_that_holds(fleet: Reached) -> None:
    for token in ("", "muster_0123456789ab_" + "x" * 43):
        with closing(fleet.client(token)) as client, pytest.raises(RefusedError):
            client.view()
    with closing(FleetClient(fleet.served.paths.socket)) as client:
        assert client.view().name == "lab", "on its own socket the account is who asks, as ever"


def test_who_may_do_all_in_the_cell_closes_cells(fleet: Reached) -> None:
    token, _ = fleet.token("read", "submit", "configure")
    with closing(fleet.client(token)) as client:
        assert client.set_closed("a", closed=True, reason="upgrade").cells[0].state == "closed"


def test_it_is_not_served_in_the_clear_nor_where_no_cell_knows_the_people(tmp_path: Path) -> None:
    links = (CellLink(name="a", connect="http://10.0.0.1:7373"),)
    tls = certificate(tmp_path)
    for spec, with_tls, told in (
        (FleetSpec(cells=links, people="a"), None, "needs a certificate"),
        (FleetSpec(cells=links), tls, "needs a cell that knows the people"),
        (FleetSpec(cells=links, people="a"), tls, "reached in the clear"),
    ):
        with pytest.raises(SpecError, match=told):
            _who_comes(spec, "0.0.0.0:7400", with_tls)
