"""Declarations of the questions that a service answers, and decoders of their answers.

    class Client(Asking):
        @asks("GET", "/v1/queues/{name:path}", copied=True)
        def queue(self, name: str) -> QueueDetail:
            '''A queue, its quota and who waits.'''

One declaration gives the method of the remote client, the route (`console.server.operations`) and its description
(`console.server.application`). The class that answers has a method of the same name (`wrap_answers`).

The leading parameters fill the places of the path. The others of a GET or DELETE are its query, a struct field by
field. A POST has one struct as its body, or with `body` an object with a field for each parameter: `proposal_id` is
`proposal` there. `msgspec.Meta` gives a parameter bounds and a description.

Decoders are made one at a time: msgspec 0.22 completes its knowledge of a struct while it makes the first decoder that
needs it, and a thread that meets it half complete ends the process with a segmentation fault. A process that decodes on
several threads calls `know_structs` before the first of them starts. The console cannot wait for all modules, and
decodes on threads through `decoder`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgspec

from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import utc

Method = Literal["GET", "POST", "DELETE"]
Arguments = dict[str, Any]
"""Of a call, by parameter, with the defaults."""
Declared = TypeVar("Declared", bound=Callable[..., Any])
UNSENT = object()
"""Marks a parameter (`Annotated`) that tells how to ask, and is not sent."""
PLACE = re.compile(r"{(\w+)(?::path)?}")
"""A place in a path; with `:path` slashes may be in it."""


class SentParameter(NamedTuple):
    """A parameter, or a field of a struct that is one, as it is sent."""

    name: str
    of: str
    """The parameter."""
    kind: Any
    default: Any
    """`inspect.Parameter.empty`: there is none."""
    whole: bool
    """The parameter itself, and not a field of it."""


class RequestParts(NamedTuple):
    """A question on its way."""

    path: str
    query: dict[str, Any]
    body: object | None


@dataclass(frozen=True, eq=False)
class ServiceQuestion:
    """One declaration. The flags that are functions take the parameters of the method by name."""

    declared: Callable[..., Any]
    method: Method
    path: str
    changes: bool | Callable[..., bool] = False
    """It changes something: refused when read-only, made in the asker's name, seen in what they ask next."""
    needs: str = ""
    """The right (`runbooks.gate.approval_policy.Deed`) that the policy must give the asker, where the gate does not
    decide by what the change is about. Everybody who asks needs `read`."""
    keyed: bool = True
    """A change: an Idempotency-Key goes with it, by which it takes effect once."""
    signed: bool | Callable[..., bool] = False
    """No change, but asked in the asker's name."""
    once: bool = False
    """Not sent again when the connection breaks."""
    waits_s: Callable[..., float] | None = None
    """How long the service may take beyond the usual."""
    copied: bool = False
    """The engine, or its copy, answers by its method of the same name."""
    slow: bool = False
    """It waits or computes for longer than a screen would."""
    follows: bool = False
    """It waits for news without a thread."""
    body: str = ""
    """Name, in the description, of the object made of the parameters."""
    limit: int = 0
    """Bytes that its body may have at most, where that is less than of others."""

    @property
    def name(self) -> str:
        return self.declared.__name__

    @property
    def says(self) -> str:
        """Summary for the description: the first paragraph of the docstring."""
        first, _, _ = inspect.cleandoc(self.declared.__doc__ or "").partition("\n\n")
        return " ".join(first.split()).removesuffix(".")

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """Without `self`."""
        whole = inspect.signature(self.declared)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    @functools.cached_property
    def gives(self) -> Any:
        """Type of the answer."""
        return self._types["return"]

    @functools.cached_property
    def takes(self) -> Any:
        """Type of the body; None without one."""
        if self.method != "POST":
            return None
        if not self.body:
            (whole,) = self.others
            return whole.kind
        return _object(self.body, tuple((part.name, part.kind, part.default) for part in self.others))

    @property
    def places(self) -> tuple[SentParameter, ...]:
        """Parts that fill the path, in its order."""
        return self._parts[: self._in_path]

    @property
    def others(self) -> tuple[SentParameter, ...]:
        """The query or the body."""
        return self._parts[self._in_path :]

    def bound(self, *arguments: Any, **named: Any) -> Arguments:
        """The arguments of a call. Raises TypeError."""
        found = self.signature.bind(*arguments, **named)
        found.apply_defaults()
        return found.arguments

    def changes_with(self, arguments: Arguments) -> bool:
        return self.changes(**arguments) if callable(self.changes) else self.changes

    def signed_with(self, arguments: Arguments) -> bool:
        if self.changes_with(arguments):
            return True
        return self.signed(**arguments) if callable(self.signed) else self.signed

    def sent(self, arguments: Arguments) -> RequestParts:
        def value(part: SentParameter) -> Any:
            given = arguments[part.of]
            return given if part.whole else getattr(given, part.name)

        places = iter(quote(str(value(part)), safe="") for part in self.places)
        path = PLACE.sub(lambda _: next(places), self.path)
        if self.method != "POST":
            return RequestParts(path, {part.name: _text(value(part)) for part in self.others}, None)
        body = {part.name: value(part) for part in self.others}
        return RequestParts(path, {}, body if self.body else next(iter(body.values())))

    def received(self, places: Mapping[str, str], query: Mapping[str, Any], body: Any) -> Arguments:
        """Arguments of a request that arrived. Raises SpecError for a place of the path that is not a number."""
        found: Arguments = {}
        texts = (places[name] for name in PLACE.findall(self.path))
        values = [_placed(part, text) for part, text in zip(self.places, texts, strict=True)]
        if self.method != "POST":
            values += [query[part.name] for part in self.others]
        elif self.body:
            values += [getattr(body, part.name) for part in self.others]
        else:
            values.append(body)
        fields: dict[str, dict[str, Any]] = {}
        for part, value in zip(self._parts, values, strict=True):
            if part.whole:
                found[part.of] = value
            else:
                fields.setdefault(part.of, {})[part.name] = value
        for name, given in fields.items():
            found[name] = self._types[name](**given)
        return self.bound(**found)

    def answered_by(self, answering: Asking, arguments: Arguments) -> Any:
        """Answer of the method with this name."""
        return getattr(answering, self.name)(**arguments)

    @functools.cached_property
    def _types(self) -> dict[str, Any]:
        # Types of every question take long to find, and most processes ask few.
        return typing.get_type_hints(self.declared, include_extras=True)

    @property
    def _in_path(self) -> int:
        return len(PLACE.findall(self.path))

    @functools.cached_property
    def _parts(self) -> tuple[SentParameter, ...]:
        return tuple(part for each in self.signature.parameters.values() for part in self._parts_of(each))

    def _parts_of(self, parameter: inspect.Parameter) -> list[SentParameter]:
        kind = self._types[parameter.name]
        if UNSENT in getattr(kind, "__metadata__", ()):
            return []
        if self.method != "POST" and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            types = typing.get_type_hints(kind, include_extras=True)
            fields = msgspec.structs.fields(kind)
            empty = inspect.Parameter.empty
            return [
                SentParameter(
                    each.name, parameter.name, types[each.name], empty if each.required else each.default, False
                )
                for each in fields
            ]
        sent = parameter.name.removesuffix("_id") if self.body else parameter.name
        return [SentParameter(sent, parameter.name, kind, parameter.default, True)]


class Asking:
    """Base of classes that declare questions. A question that a class does not answer itself comes to `_answer_to`."""

    read_only: bool

    def _answer_to(self, question: ServiceQuestion, arguments: Arguments) -> Any:
        raise NotImplementedError(question.name)


def asks(method: Method, path: str, **terms: Any) -> Callable[[Declared], Declared]:
    """Declare the question that a method of an `Asking` class asks. `terms`: fields of `ServiceQuestion`."""

    def declare(declared: Declared) -> Declared:
        question = ServiceQuestion(declared, method, path, **terms)

        @functools.wraps(declared)
        def asked(self: Asking, *arguments: Any, **named: Any) -> Any:
            return self._answer_to(question, question.bound(*arguments, **named))

        asked.question = question  # type: ignore[attr-defined]
        return cast("Declared", asked)

    return declare


def question_of(declared: Callable[..., Any]) -> ServiceQuestion:
    """The question that a method declares."""
    found: ServiceQuestion = declared.question  # type: ignore[attr-defined]
    return found


def questions_of(asking: type[Asking]) -> tuple[ServiceQuestion, ...]:
    """Questions of a class and its bases, each class in its order."""
    names = dict.fromkeys(name for base in asking.__mro__ for name in vars(base))
    found = (getattr(asking, name) for name in names)
    return tuple(question_of(each) for each in found if hasattr(each, "question"))


Wrap = Callable[[ServiceQuestion, Callable[..., Any]], Callable[..., Any]]


def wrap_answers(answering: type[Asking], asking: type[Asking], wrap: Wrap) -> None:
    """Pass each answer of a class through `wrap`. Raises TypeError for a method whose parameters differ from those of
    its question."""
    for question in questions_of(asking):
        method = vars(answering).get(question.name)
        if method is None:
            continue
        if list(inspect.signature(method).parameters)[1:] != list(question.signature.parameters):
            raise TypeError(f"{answering.__name__}.{question.name} does not take {question.signature}")
        setattr(answering, question.name, wrap(question, method))


def refuse_read_only() -> RefusedError:
    """The error of any change when read-only."""
    return RefusedError("this session is read-only", "Start without --readonly to act")


AS_OF = "muster-as-of"
"""Header: the cell time, Unix milliseconds, as of which a question is asked."""


def refuse_past(at_ms: int) -> RefusedError:
    """The error of any change as of an earlier time."""
    return RefusedError(f"nothing can be changed as of {utc(at_ms)}", "That time is over; act on the cell as it is")


@functools.cache
def _object(name: str, fields: tuple[tuple[str, Any, Any], ...]) -> type[msgspec.Struct]:
    given = [
        (each, kind) if default is inspect.Parameter.empty else (each, kind, default) for each, kind, default in fields
    ]
    return msgspec.defstruct(name, given, frozen=True, forbid_unknown_fields=True, module=__name__)


def _text(value: Any) -> Any:
    return ",".join(value) if isinstance(value, (tuple, list)) else value


def _placed(part: SentParameter, text: str) -> Any:
    if part.kind is not int:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise SpecError(part.name, f"{text[:40]!a} is not a whole number", "")
    return int(text)


_MAKING = threading.Lock()
_MADE: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Decoder for a type. Safe to call from any thread."""
    found = _MADE.get(kind)
    if found is None:
        with _MAKING:
            found = _MADE.get(kind) or msgspec.json.Decoder(kind)
            _MADE[kind] = found
    return found


def know_structs() -> None:
    """Have msgspec complete every struct of the modules loaded so far: some 40 ms for those of an engine. Structs that
    cannot be decoded, or whose types are imported for checkers only, are skipped: they are never decoded."""
    with _MAKING:
        for kind in _below(msgspec.Struct):
            with contextlib.suppress(TypeError, NameError):
                msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
