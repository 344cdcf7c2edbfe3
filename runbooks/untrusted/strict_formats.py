"""Strict readers of strangers' YAML, JSON and chat completions: plain values or a refusal.

YAML is the subset that can only mean one thing, for runbooks and policy files. It is read event by event, so nothing is
built before it was looked at. Allowed are mappings with text keys, lists, text, decimal integers, `true`, `false` and
`null`. Refused, with file and line: aliases and anchors, tags, merge keys, directives, a second document, duplicate
keys, floats, more than 16 levels, more than 64 KiB, and invisible characters. A plain word that YAML 1.1 and 1.2 read
differently (`no`, `1:30`, `010`, `2026-11-22`, `1_000`) is refused: quote it. Text is never expanded: `${...}`,
`{{...}}` and backticks are characters.

JSON is bytes in, plain values out, or a named refusal. Python's parser accepts what RFC 8259 does not (NaN, duplicate
keys, UTF-16, integers of any length) and fails on deep nesting. Here size and depth are known before parsing, and every
value that two readers might read differently is refused.

The envelope of a chat completion is opened to one finished text of the assistant. Everything in it is the server's
claim; tokens are counted here where its figures cannot be right.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
import yaml

from engine.model.errors import Misfit, SpecError, did_you_mean, misfit

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16

YamlPath = tuple[str | int, ...]
"""Keys and indexes from the top to a value."""
T = TypeVar("T")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_WORDS = {"true": True, "false": False, "null": None}
_AMBIGUOUS_WORD = re.compile(r"~|=|<<|(?:y|yes|n|no|on|off|true|false|null)", re.IGNORECASE)
_NUMBER_LIKE = re.compile(
    r"[-+]?(?:\.?[0-9][0-9_,.]*(?:[eE][-+]?[0-9]*)?"  # 1.5, 1e3, 1_000, 010, and integers beyond what fits
    r"|0[xXoObB][0-9a-fA-F_]*"
    r"|[0-9][0-9_]*(?::[0-9]+)+(?:\.[0-9_]*)?"  # 1:30 is ninety in YAML 1.1
    r"|\.(?:inf|Inf|INF|nan|NaN|NAN))"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt\s].*)?")
_KEY = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
_YAML_FAULTS = (
    ("mapping values are not allowed", "is not valid YAML: a value contains ':'",
     "Quote the value, or start a new line"),
    ("could not find expected ':'", "is not valid YAML: expected ':' after a key", "Write 'key: value'"),
    ("did not find expected key", "is not valid YAML: this line does not fit its block",
     "Indent it like the lines above, and close all quotes"),
    ("did not find expected '-' indicator", "is not valid YAML: expected a list entry",
     "Indent it like the entries above, and start it with '- '"),
    ("did not find expected ',' or", "is not valid YAML: a bracket is not closed", "Close the bracket"),
    ("did not find expected node content", "is not valid YAML: a bracket is not closed", "Close the bracket"),
    ("found character that cannot start any token", "is not valid YAML: a tab, or a value that begins with @, ` or %",
     "Indent with spaces only, and put such a value in quotes"),
    ("found unexpected end of stream", "is not valid YAML: a quote is not closed", "Close the quote"),
    ("control characters are not allowed", "holds a control character", "Delete it"),
)  # fmt: skip
"""How libyaml begins to say what it could not read, and (problem, remedy) in words for who wrote the file."""
_PATH_PART = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


class YamlDocument:
    """The plain values of a file, and the line of each."""

    def __init__(self, name: str, value: Any, lines: dict[YamlPath, int]) -> None:
        self.name = name
        self.value = value
        self._lines = lines

    def line(self, path: YamlPath) -> int:
        """Line of the value at `path`, or of the nearest thing around it."""
        while path not in self._lines and path:
            path = path[:-1]
        return self._lines.get(path, 1)

    def place(self, path: YamlPath) -> str:
        """As in "drain.md:12"."""
        return f"{self.name}:{self.line(path)}"

    def convert(self, type_: type[T]) -> T:
        """The value as a struct. Raises SpecError naming file, line and field."""
        try:
            return msgspec.convert(self.value, type_)
        except msgspec.ValidationError as error:
            wrong = with_words(misfit(str(error)), type_)
            # The path has [...] for any key of a mapping; the place is then that of the mapping.
            path = [int(index) if index else key for key, index in _PATH_PART.findall(wrong.path)]
            place = self.place((*path, wrong.field) if wrong.field else tuple(path))
            field = wrong.path.lstrip(".")
            raise SpecError(f"{place}: {field}" if field else place, wrong.problem, wrong.remedy) from None


def with_words(wrong: Misfit, type_: Any) -> Misfit:
    """What is wrong with a value of that type; of one that is none of a few words, with those words."""
    there = type_at(type_, wrong.path) if wrong.problem.endswith(" is not allowed") else None
    if not isinstance(there, msgspec.inspect.LiteralType):
        return wrong
    words = [str(word) for word in there.values]
    meant = did_you_mean(wrong.problem.partition("'")[2].rpartition("'")[0], words, form="'{}'")
    return wrong._replace(remedy=f"{meant} Use one of: {', '.join(words)}".lstrip())


def type_at(type_: Any, path: str) -> msgspec.inspect.Type | None:
    """The type of what stands at a path such as `.groups[0].spread` of a value of that type."""
    kind = msgspec.inspect.type_info(type_)
    for name, _ in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        kind = _struct_of(kind)
        if name and isinstance(kind, msgspec.inspect.StructType):
            inner: Mapping[str, Any] = {field.name: field.type for field in kind.fields}
            if name not in inner:
                return None
            kind = inner[name]
        elif isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            kind = kind.item_type
        elif isinstance(kind, msgspec.inspect.DictType):
            kind = kind.value_type
        else:
            return None
    return _struct_of(kind)


def _struct_of(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """The type of an optional field without its None."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return next((one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)), kind)
    return kind


def yaml_fault(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """(problem, remedy) of what the parser could not read, in words for who wrote the file."""
    said = str(error.problem)
    for start, problem, remedy in _YAML_FAULTS:
        if said.startswith(start):
            return problem, remedy
    return "is not valid YAML from here on", "Check this line and the one before it: indents, quotes, brackets"


def load(data: bytes, name: str) -> Any:
    """The one document in `data` as plain values. Raises SpecError naming `name` and line."""
    return read(data, name).value


def read(data: bytes, name: str, first_line: int = 1) -> YamlDocument:
    """The one document in `data`, with its places. `first_line` is the line of `name` on which `data` begins. Raises
    SpecError naming `name` and line."""
    text = decoded(data, name, first_line)
    for number, line in enumerate(text.split("\n"), first_line):
        hidden = unseen(line)
        if hidden:
            _refuse(name, number, f"holds {hidden}", "Delete it: nobody who reads the file can see it")
    lines: dict[YamlPath, int] = {}
    offset = first_line - 1
    try:
        events = (_plain(event, name, offset) for event in yaml.parse(text, Loader=_LOADER))
        value = _documents(events, lines, name, offset)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What ends too early is reported on the line after the last.
        at = min(mark.line if mark else 0, max(0, len(text.splitlines()) - 1))
        _refuse(name, at + 1 + offset, *yaml_fault(error))
    except yaml.YAMLError as error:
        _refuse(name, first_line, f"is not YAML ({str(error).splitlines()[0]})", "Check this line")
    return YamlDocument(name, value, lines)


def decoded(data: bytes, name: str, first_line: int = 1) -> str:
    """The text of a file that is small enough and UTF-8. Raises SpecError."""
    if len(data) > MAX_BYTES:
        _refuse(name, first_line, f"is larger than {MAX_BYTES // 1024} KiB", "Split it")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        _refuse(name, line, f"byte {error.start} is not UTF-8 text", "Save the file as UTF-8")
    return text.replace("\r\n", "\n")


def unseen(line: str) -> str:
    """The characters of a line that a reader does not see, or sees elsewhere; empty when all are visible.

    Control characters, and those of Unicode's category "format": zero width, bidirectional, byte order marks, tags;
    line and paragraph separators; variation selectors and fillers.
    """
    if line.isascii() and line.replace("\t", "").isprintable():
        return ""
    for char in line:
        if char == "\t":
            continue
        category = unicodedata.category(char)
        if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or char in _FILLERS or (
            category == "Mn" and "VARIATION SELECTOR" in unicodedata.name(char, "")
        ):  # fmt: skip
            return f"the character U+{ord(char):04X} ({unicodedata.name(char, 'a control character').lower()})"
    return ""


_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters and marks that are drawn as nothing."""


def _documents(events: Iterator[Any], lines: dict[YamlPath, int], name: str, offset: int) -> Any:
    value: Any = None
    begun = False
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if begun:
                _refuse(name, _line(event, offset), "a second document starts", "Keep one document in a file")
            begun = True
            value = _value(next(events), events, lines, (), name, offset)
    if not begun:
        _refuse(name, offset + 1, "is empty", "Add its content")
    return value


def _plain(event: Any, name: str, offset: int) -> Any:
    """The event, unless it is one by which a small file could mean a huge or a foreign one."""
    line = _line(event, offset)
    if isinstance(event, yaml.AliasEvent):
        _refuse(name, line, f"alias {_shown('*' + str(event.anchor))} is not allowed", "Write the value in full")
    if getattr(event, "anchor", None) is not None:
        _refuse(name, line, f"anchor {_shown('&' + event.anchor)} is not allowed", "Remove it")
    if getattr(event, "tag", None) is not None:
        _refuse(name, line, f"tag {_shown(event.tag)} is not allowed", "Remove it")
    if isinstance(event, yaml.DocumentStartEvent) and (event.version is not None or event.tags):
        _refuse(name, line, "a directive (%) is not allowed", "Remove it")
    return event


def _value(
    event: Any, events: Iterator[Any], lines: dict[YamlPath, int], path: YamlPath, name: str, offset: int
) -> Any:
    line = _line(event, offset)
    lines.setdefault(path, line)
    if len(path) >= MAX_DEPTH and not isinstance(event, yaml.ScalarEvent):
        _refuse(name, line, f"is nested more than {MAX_DEPTH} levels deep", "Flatten it")
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(events, lines, path, name, offset)
    if isinstance(event, yaml.SequenceStartEvent):
        return _sequence(events, lines, path, name, offset)
    if event.implicit[0]:
        return _scalar(event.value, name, line)
    hidden = unseen(event.value.replace("\n", ""))
    if hidden:
        # Written with an escape, "\u202e", it was not there to be seen in the file.
        _refuse(name, line, f"holds {hidden}", "Delete it: nobody who reads the value can see it")
    return event.value


def _mapping(
    events: Iterator[Any], lines: dict[YamlPath, int], path: YamlPath, name: str, offset: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        line = _line(event, offset)
        key = _key(event, name, line)
        if key in found:
            _refuse(name, line, f"key {_shown(key)} is given twice", "Keep one of them")
        lines[(*path, key)] = line
        found[key] = _value(next(events), events, lines, (*path, key), name, offset)
    return found


def _key(event: Any, name: str, line: int) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        _refuse(name, line, "a key must be text", "Write 'key: value'")
    key: str = event.value
    if not _KEY.fullmatch(key):
        _refuse(
            name, line, f"key {_shown(key)} is not of printable ASCII, at most 128 characters", "Type it anew in ASCII"
        )
    if key in ("<<", "="):
        _refuse(name, line, f"merge key {_shown(key)} is not allowed", "Write the fields out")
    if event.implicit[0] and not isinstance(_scalar(key, name, line), str):
        _refuse(name, line, f"key {_shown(key)} is not text", "Quote it if it is a name")
    return key


def _sequence(events: Iterator[Any], lines: dict[YamlPath, int], path: YamlPath, name: str, offset: int) -> list[Any]:
    found: list[Any] = []
    for event in events:
        if isinstance(event, yaml.SequenceEndEvent):
            break
        found.append(_value(event, events, lines, (*path, len(found)), name, offset))
    return found


def _scalar(text: str, name: str, line: int) -> str | int | bool | None:
    """The value of a plain word that means the same to every reader."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if text == "":
        _refuse(
            name, line, "there is no value", 'Give one, [] for an empty list, "" for empty text, or leave the key out'
        )
    if _AMBIGUOUS_WORD.fullmatch(text):
        _refuse(
            name,
            line,
            f"{_shown(text)} means different things to different readers",
            "Write true or false, or quote it",
        )
    if _NUMBER_LIKE.fullmatch(text):
        _refuse(
            name, line, f"{_shown(text)} is not a decimal integer of at most 18 digits",
            "Write a whole number in the unit of the field, or quote it if it is text",
        )  # fmt: skip
    if _DATE.fullmatch(text):
        _refuse(name, line, f"{_shown(text)} could be a date or text", "Quote it")
    return text


def _line(event: Any, offset: int) -> int:
    line: int = event.start_mark.line
    return line + 1 + offset


def _shown(text: str) -> str:
    """Foreign text inside an error: ASCII, short, in quotes."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:58]}…'"


def _refuse(name: str, line: int, problem: str, remedy: str) -> NoReturn:
    raise SpecError(f"{name}:{line}", problem, remedy) from None


MAX_JSON_BYTES = 256 * 1024
MAX_JSON_DEPTH = 32
MAX_ITEMS = 20_000
"""Values of all kinds together, members' names not counted; an empty container counts twice."""
MAX_DIGITS = 19
"""Of an integer: what 64 bits hold and a little more."""
MAX_NUMBER = 40
"""Characters of a number with a point or an exponent."""

# Both quantifiers are possessive: a string that does not end costs one pass, not one for every quote in it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[]{},")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NotJson(Exception):
    """The bytes are not JSON as we take it. `reason` is a stable token, `problem` says what and where.

    Reasons: too_large, encoding, depth, items, duplicate_key, number, string, syntax.
    """

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem


def loads(
    data: bytes,
    *,
    most_bytes: int = MAX_JSON_BYTES,
    most_depth: int = MAX_JSON_DEPTH,
    most_items: int = MAX_ITEMS,
) -> Any:
    """The one value in `data`: dict, list, str, int, float, bool or None. Raises NotJson and nothing else.

    Refused: more bytes, nesting or values than allowed; anything but UTF-8 without a byte order mark; an object with
    a key twice; NaN and the infinities, also as a number too large for a float; integers over 19 digits; raw control
    characters in strings; half a surrogate pair; anything before or after the value but white space.
    """
    if len(data) > most_bytes:
        raise NotJson("too_large", f"{len(data)} bytes where at most {most_bytes} are taken")
    if data.startswith(_BOMS):
        raise NotJson("encoding", "it begins with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson("encoding", f"byte {error.start} is not UTF-8") from None
    _measure(data, most_depth, most_items)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Invalid control character"):
            raise NotJson("string", f"raw control character in a string at character {error.pos}") from None
        raise NotJson("syntax", f"{error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise NotJson("syntax", type(error).__name__) from None
    if _ESCAPED_SURROGATE.search(text):
        _refuse_surrogates(value)
    return value


def _measure(data: bytes, most_depth: int, most_items: int) -> None:
    """Depth and number of values, told by brackets and commas outside of strings, before anything is built."""
    marks = _STRING.sub(b"", data).translate(None, _NOT_STRUCTURE)
    # One for each comma, one for what each container begins with, one for the whole.
    if marks.count(b",") + marks.count(b"[") + marks.count(b"{") + 1 > most_items:
        raise NotJson("items", f"more than {most_items} values")
    depth = 0
    for mark in marks.replace(b",", b""):
        if mark in b"[{":
            depth += 1
            if depth > most_depth:
                raise NotJson("depth", f"nested deeper than {most_depth}")
        else:
            depth -= 1


def _refuse_surrogates(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if _SURROGATE.search(one):
                raise NotJson("string", "half a surrogate pair in a string")
        elif isinstance(one, dict):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Which one is not said: no word of a stranger's is in what we say.
        raise NotJson("duplicate_key", "a key twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise NotJson("number", f"an integer of {len(digits)} digits where at most {MAX_DIGITS} are taken")
    return int(digits)


def _float(number: str) -> float:
    if len(number) > MAX_NUMBER:
        raise NotJson("number", f"a number of {len(number)} characters where at most {MAX_NUMBER} are taken")
    found = float(number)
    if not math.isfinite(found):
        raise NotJson("number", "a number too large for a float")
    return found


def _constant(name: str) -> Any:
    raise NotJson("number", f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)


MAX_ENVELOPE_ITEMS = 4_000
MAX_MODEL_NAME = 200
BYTES_A_TOKEN = 3
"""Of our estimate, on the high side: English has 4 a token, JSON and identifiers 2.5 to 3."""
SCARCE_BYTES_A_TOKEN = 16
"""A server that counts fewer tokens than one for each of these is not believed."""
TEMPLATE_TOKENS = 512
"""What a server's chat template may put around the messages."""


class EnvelopeContent(NamedTuple):
    content: str
    model: str
    """As the server calls itself: untrusted. Empty where it does not."""
    tokens_in: int
    tokens_out: int
    estimated: bool


class Unusable(Exception):
    """The answer is no finished text. `reason` is one of runbooks.drafts.typed_draft.REASONS."""

    def __init__(self, reason: str, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem
        self.remedy = remedy


def read_completion(body: bytes, *, prompt_bytes: int, max_tokens: int, most_bytes: int) -> EnvelopeContent:
    """The text in the body of a 200 answer to `chat.completions`. Raises Unusable and nothing else."""
    try:
        answer = loads(body, most_bytes=most_bytes, most_depth=MAX_DEPTH, most_items=MAX_ENVELOPE_ITEMS)
    except NotJson as error:
        reason = "response_too_large" if error.reason == "too_large" else "envelope_shape"
        raise Unusable(reason, f"the answer is not JSON as we take it: {error.problem}") from None
    if not isinstance(answer, dict) or answer.get("error") is not None:
        raise Unusable("envelope_shape", "the answer is no chat completion, though its status is 200")
    name = answer.get("model", "")
    if not isinstance(name, str) or len(name) > MAX_MODEL_NAME:
        raise Unusable("envelope_shape", "the model's name in the answer is no name")
    message, finish = _only_choice(answer.get("choices"))
    content = _content(message, finish)
    tokens_in, tokens_out, estimated = _tokens(answer.get("usage"), prompt_bytes, len(content.encode()), max_tokens)
    return EnvelopeContent(content, name, tokens_in, tokens_out, estimated)


def _only_choice(choices: Any) -> tuple[dict[str, Any], Any]:
    """(message, finish_reason) of the one choice."""
    if not isinstance(choices, list) or len(choices) != 1:
        count = len(choices) if isinstance(choices, list) else "no list of"
        raise Unusable("choices_count", f"the answer has {count} choices where one was asked for")
    choice = choices[0]
    if not isinstance(choice, dict):
        raise Unusable("message_shape", "the answer's choice is no object")
    index = choice.get("index", 0)
    if type(index) is not int or index != 0:
        raise Unusable("choices_count", "the answer's only choice is not its first")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unusable("message_shape", "the answer has no message")
    return message, choice.get("finish_reason")


def _content(message: dict[str, Any], finish: Any) -> str:
    if message.get("role") != "assistant":
        raise Unusable("message_shape", "the message is not the assistant's")
    if message.get("tool_calls") or message.get("function_call") or finish in ("tool_calls", "function_call"):
        raise Unusable("unexpected_tool_call", "the model calls a tool, and was given none")
    refusal = message.get("refusal")
    if refusal is not None and not isinstance(refusal, str):
        raise Unusable("message_shape", "the message's refusal is no text")
    if refusal:
        raise Unusable("refusal", "the model declines to answer")
    if finish == "length":
        raise Unusable("finish_reason", "the answer was cut at its most tokens", "Raise model_max_tokens")
    if finish == "content_filter":
        raise Unusable("finish_reason", "the server's content filter held the answer back")
    if finish != "stop":
        raise Unusable("finish_reason", "the answer does not say that it is finished")
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        raise Unusable("content_shape", "the message holds no text")
    return content


def _tokens(usage: Any, prompt_bytes: int, content_bytes: int, max_tokens: int) -> tuple[int, int, bool]:
    """(in, out, whether estimated). A figure of the server's counts only if it can be true."""
    if isinstance(usage, dict):
        tokens_in, tokens_out = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if (
            type(tokens_in) is int
            and type(tokens_out) is int
            and prompt_bytes // SCARCE_BYTES_A_TOKEN <= tokens_in <= prompt_bytes + TEMPLATE_TOKENS
            and max(1, content_bytes // SCARCE_BYTES_A_TOKEN) <= tokens_out <= max_tokens
        ):
            return tokens_in, tokens_out, False
    return estimate(prompt_bytes), estimate(content_bytes), True


def estimate(size: int) -> int:
    """Tokens of a text of `size` bytes, on the high side."""
    return math.ceil(size / BYTES_A_TOKEN)
