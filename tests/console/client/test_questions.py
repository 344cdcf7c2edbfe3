"""What is declared of a question holds for whoever asks and for whoever answers, and nothing else is needed for it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pytest

from console.client.protocol import Client
from console.client.questions import Asking, ServiceQuestion, asks, question_of, questions_of, wrap_answers
from console.client.remote import RemoteClient
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.loop import EngineLoop
from engine.model.errors import RefusedError, SpecError
from tests.support.gates import gate_of
from tests.support.served import running_loop, served_on_unix

QUESTIONS = questions_of(Client)
CHANGES = tuple(question for question in QUESTIONS if question.changes)
UNDER_WAY: Any = SimpleNamespace(dry_run=False)
"""Stands for any argument of a change."""
Word = Annotated[str, msgspec.Meta(description="Which word")]
Times = Annotated[int, msgspec.Meta(ge=1, le=9, description="How often")]


class Tone(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    loud: Annotated[int, msgspec.Meta(ge=0, le=10, description="How loud")] = 3


class Sounds(Asking):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def _answer_to(self, question: ServiceQuestion, arguments: dict[str, Any]) -> Any:
        self.asked.append((question.name, arguments))

    @asks("GET", "/v1/sounds/{id:path}/echo")
    def echo(self, request: Tone, far: Annotated[tuple[str, ...], msgspec.Meta(description="Where")] = ()) -> str:
        """An echo.

        Of a tone.
        """

    @asks("POST", "/v1/sounds/{number}", body="SoundBody")
    def sound(self, number: int, tone_id: str, loud: int = 3) -> None:
        """A sound of a tone."""

    @asks("POST", "/v1/sounds")
    def play(self, tone: Tone) -> None:
        """A tone played."""


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


def local(loop: EngineLoop, *, read_only: bool = False) -> LocalClient:
    return LocalClient(loop, gate_of(loop.engine), Advisor(loop), read_only)


def any_arguments(question: ServiceQuestion) -> list[Any]:
    return [UNDER_WAY for _ in question.signature.parameters]


def test_the_engine_answers_what_the_local_client_does_not() -> None:
    unanswered = {question.name for question in QUESTIONS if question.name not in vars(LocalClient)}
    assert unanswered == {question.name for question in QUESTIONS if question.copied}


def test_whoever_may_only_look_is_refused_every_change_before_it_leaves(loop: EngineLoop, tmp_path: Path) -> None:
    assert len(CHANGES) > 20
    for client in (local(loop, read_only=True), RemoteClient(str(tmp_path / "nobody.sock"), read_only=True)):
        for question in CHANGES:
            with pytest.raises(RefusedError, match="read-only"):
                getattr(client, question.name)(*any_arguments(question))


def test_the_author_of_any_change_sees_it_in_what_they_read_next(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(LocalClient, "_note_written", lambda _: noted.append("noted"))
    client = local(loop)
    for question in CHANGES:
        with contextlib.suppress(Exception):  # the argument is no good; an attempt counts too
            getattr(client, question.name)(*any_arguments(question))
        assert noted.pop() == "noted", question.name


def test_arguments_arrive_as_they_were_given() -> None:
    for declared, arguments in (
        (Sounds.echo, {"request": Tone(id="a/b ü", loud=7), "far": ("hill", "wood")}),
        (Sounds.sound, {"number": 5, "tone_id": "c", "loud": 9}),
        (Sounds.play, {"tone": Tone(id="d")}),
    ):
        question = question_of(declared)
        path, query, body = question.sent(arguments)
        places = {"/v1/sounds/a%2Fb%20%C3%BC/echo": {"id": "a/b ü"}, "/v1/sounds/5": {"number": "5"}}.get(path, {})
        came = msgspec.json.decode(msgspec.json.encode(body), type=question.takes) if question.takes else None
        read = {name: tuple(text.split(",")) if name == "far" else text for name, text in query.items()}
        assert question.received(places, read, came) == arguments


def test_a_body_is_the_struct_or_an_object_of_the_parameters() -> None:
    assert question_of(Sounds.play).takes is Tone
    made = question_of(Sounds.sound).takes
    assert made.__name__ == "SoundBody"
    assert made.__struct_fields__ == ("tone", "loud")
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"tone":"c","quiet":1}', type=made)


def test_a_place_that_is_to_be_a_number_is_one() -> None:
    with pytest.raises(SpecError, match="'five' is not a whole number"):
        question_of(Sounds.sound).received({"number": "five"}, {}, SimpleNamespace(tone="c", loud=1))


def test_a_call_is_checked_before_it_is_asked() -> None:
    asked = Sounds()
    with pytest.raises(TypeError, match="missing a required argument: 'tone_id'"):
        asked.sound(5)  # type: ignore[call-arg]
    asked.sound(5, "c")
    assert asked.asked == [("sound", {"number": 5, "tone_id": "c", "loud": 3})]


def test_the_first_paragraph_says_what_it_is() -> None:
    assert question_of(Sounds.echo).says == "An echo"
    assert all(question.says for question in QUESTIONS)


def test_an_answer_to_another_question_is_found_when_it_is_loaded() -> None:
    class Wrong(Sounds):
        def play(self, tune: Tone) -> None: ...

    with pytest.raises(TypeError, match=r"Wrong\.play does not take"):
        wrap_answers(Wrong, Sounds, lambda _, method: method)


def test_a_new_question_is_one_declaration_and_its_answer(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def shout(self: Client, word: Word, times: Times = 2) -> list[str]:
        """A word, several times.

        As loud as it was said.
        """
        raise NotImplementedError

    monkeypatch.setattr(Client, "shout", asks("GET", "/v1/shout")(shout), raising=False)
    monkeypatch.setattr(LocalClient, "shout", lambda self, word, times: [word] * times, raising=False)
    with served_on_unix(loop) as path:
        client: Any = RemoteClient(str(path))
        assert client.shout("no", 3) == ["no"] * 3
        assert client.shout("yes") == ["yes"] * 2
        with pytest.raises(SpecError, match="from 1 to 9"):
            client.shout("no", 10)
        described = client._http.get("/v1/openapi.json").json()["paths"]["/v1/shout"]["get"]
        client.close()
    assert described["summary"] == "A word, several times"
    assert [each["name"] for each in described["parameters"]] == ["word", "times", "muster-as-of"]


def test_declarations_say_nothing_twice() -> None:
    routes = [(question.method, question.path) for question in QUESTIONS]
    assert len(set(routes)) == len(routes)
    plain = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert plain - {question.name for question in QUESTIONS} == {"follow", "records", "close", "as_of"}
