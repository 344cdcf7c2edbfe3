"""The question which policy a cell shall have, before the first act in it."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

import pytest

from console.commands import policy as commands
from engine.control import Engine
from engine.model.errors import RefusedError
from runbooks.audit.log import Audit
from runbooks.gate.approval_policy import Candidate, PolicyChange, PolicyView, PolicyVote
from runbooks.gate.policy_changes import caller_of, view_of
from runbooks.gate.policy_versions import Policies
from runbooks.plans.identity import OWNER, Actor
from tests.support.gate_cells import CELL, Clock

ME, OTHER = Actor(subject=OWNER, account=OWNER), Actor(subject="unix:9", account="unix:9")


class Asking:
    """The client of one person, as far as it is asked."""

    def __init__(self, actor: Actor) -> None:
        engine = Engine.open(None, cell=CELL)
        self.policies, self.actor = Policies(engine, Audit(engine, Clock()), Clock()), actor

    def whoami(self) -> Any:
        return caller_of(self.policies, self.actor)

    def policy(self) -> PolicyView:
        return view_of(self.policies, self.actor)

    def propose_policy(self, change: PolicyChange) -> Candidate:
        return self.policies.propose(self.actor, change)

    def vote_policy(self, vote: PolicyVote) -> Candidate:
        return self.policies.vote(self.actor, vote)


@pytest.fixture
def client() -> Asking:
    return Asking(ME)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "at_terminal", lambda: True)


def answer(monkeypatch: pytest.MonkeyPatch, client: Asking, said: str, **given: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    commands.choose_first(argparse.Namespace(**({"json": False, "yes": False} | given)), client)  # type: ignore[arg-type]


def test_enter_keeps_the_strictest_and_nobody_is_asked_again(
    client: Asking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, client, "\n")
    asked = capsys.readouterr().err
    assert "Which one? solo, pair, team [team]:" in asked
    assert "what disrupts (requeue, drain): you alone, signed" in asked
    assert (client.policy().name, client.policy().version, client.policy().unchosen) == ("team", 1, False)
    answer(monkeypatch, client, "solo\n")
    assert client.policy().name == "team"


def test_what_loosens_takes_its_digest_and_is_withdrawn_without(
    client: Asking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RefusedError, match="does not match its digest"):
        answer(monkeypatch, client, "solo\nno\n")
    assert (client.policy().name, client.policy().unchosen, client.policy().candidates) == ("team", True, ())
    with pytest.raises(RefusedError, match="is not a starting point"):
        answer(monkeypatch, client, "none\n")
    digest = client.policies.read("", "solo").digest()
    answer(monkeypatch, client, f"solo\n{digest[:6]}\n")
    assert client.policy().name == "solo"
    capsys.readouterr()


def test_nothing_is_asked_of_a_script_or_of_who_may_not_choose(
    client: Asking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, client, "", json=True)
    answer(monkeypatch, client, "", yes=True)
    answer(monkeypatch, Asking(OTHER), "")
    monkeypatch.setattr(commands, "at_terminal", lambda: False)
    answer(monkeypatch, client, "")
    assert capsys.readouterr().err == ""
    assert client.policy().unchosen
