"""Settings: one TOML file, variables, flags. The nearest wins: flag, MUSTER_*, the environment of the file that was
chosen, the rest of the file, default.

Also `[keys]` as the file has it, and the paths of a cell's files. Read before the first paint, so it loads nothing
heavy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from console.forms.runtime_folder import MAX_SOCKET_BYTES, runtime_folder
from engine.model.errors import SpecError, did_you_mean

FILE_NAME = "muster.toml"
ENVIRONMENT = "MUSTER_"
"""Longest path a Unix socket is bound to. The kernel's limit is 107 bytes on Linux and 103 on macOS."""

APPROVALS = ("solo", "pair", "team")
"""The starting points of the approval policy, `runbooks.gate.approval_policy.BUILT_IN`."""
START_PAGES = (
    "overview", "queues", "workloads", "nodes", "pools", "topology", "events", "whatif", "recommendations", "forecast",
    "cost", "proposals", "runbooks", "audit",
)  # fmt: skip
RESTORE = ("lost", "always")
THEMES = ("auto", "dark", "light", "contrast", "safe", "sixteen", "plain")
COLOURS = ("red", "yellow", "green", "cyan", "blue", "magenta")
CONFIRM = ("usual", "digest")
LOG_FORMATS = ("text", "json")
EGRESS = ("local", "trusted", "external")
DURATIONS = ("keep_minutes", "keep_fives", "keep_hours", "keep_events", "model_deadline")
"""Settings that are times such as "2d"."""
AMOUNTS = ("model_price_in", "model_price_out", "model_budget_call", "model_budget_hour", "model_budget_day")
"""Settings that are amounts of USD such as "0.25"."""
TABLES = ("keys", "environments")
"""Tables of the file; every other key of it is a setting."""
MAX_COUNT = 1_000_000
MAX_USD = 10**12
MODEL_KEY = "MUSTER_MODEL_KEY"
"""Variable of the environment that holds the key of the model's endpoint. No setting: it would be shown as one."""
TOKEN = "MUSTER_TOKEN"
"""Variable of the environment that holds a token to show to an engine at a URL. No setting, for the same reason."""
WEB_ADDRESS = "MUSTER_WEB_ADDRESS"
"""Variable by which `muster web` tells a console the address of its page."""

DEFAULT_CELL = "default"
DEMO_CELL = "demo"


@dataclass(frozen=True)
class ConsoleSettings:
    """Settings of a person. Every field is a key of the file and, in upper case after MUSTER_, of the environment."""

    cell: str = ""
    """The cell that commands talk to, by the name of its state folder; empty: the one that runs on this machine, or
    "default" where none runs."""
    connect: str = ""
    """URL or socket path of an engine to attach to instead of this machine's own."""
    environment: str = ""
    """The `[environments.NAME]` of the settings file that is meant; empty: the one that the cell's name belongs to."""
    readonly: bool = False
    """Show, never act."""
    database: str = ""
    """URL of the PostgreSQL database that an engine started from here keeps its cell in; empty: a file of its own."""
    speed: float = 1.0
    """Cell seconds per wall second of an engine started from here; 1 is real time."""
    state_dir: str = ""
    """Folder that holds one folder per cell; empty means the user's state folder."""
    fleet: str = ""
    """Folder of the journal and the socket of a fleet of cells; empty: `fleet` in the state folder."""
    keep_minutes: str = "2d"
    """How long an engine started from here keeps measurements by the minute; then summed up over five minutes."""
    keep_fives: str = "14d"
    """How long by five minutes; then by the hour."""
    keep_hours: str = "400d"
    """How long by the hour."""
    keep_events: str = "400d"
    """How long the journal keeps events, cell time: as far back `--at`, diff and replays can look. The audit stays."""
    keep_runs: int = 200_000
    """Ended workloads whose record is kept."""
    keep_series: int = 50_000
    """Different series of measurements at most."""
    prometheus: str = ""
    """URL of the Prometheus that an engine started from here follows for GPU use; empty: none. See docs/gpu-use.md."""
    prometheus_token_file: str = ""
    """File, readable by you alone, that holds the bearer token to show to it; empty: none."""
    prometheus_step: str = "1m"
    """How often it is asked: 15s, 30s, 1m or 5m."""
    operator: str = ""
    """In whose name you act, as the policy names you; empty: as whom your account is."""
    key: str = ""
    """What you sign with: the path of a key file, or `agent`; empty: your ssh-agent, then key.pem beside this file."""
    key_passphrase_file: str = ""
    """File, readable by you alone, that holds the passphrase of the key file; empty: it is asked for."""
    token_file: str = ""
    """File, readable by you alone, that holds the token to show to an engine at a URL; empty: MUSTER_TOKEN, or what
    `muster token login` got."""
    client_cert: str = ""
    """File (PEM) of the certificate to show to an engine that is reached by https; empty: none."""
    client_key: str = ""
    """File (PEM) of its key, readable by you alone, without a passphrase."""
    oidc_issuer: str = ""
    """URL of the OpenID provider whose people may log in to an engine started from here; empty: none."""
    oidc_client: str = ""
    """The client id by which that provider knows it."""
    oidc_ca_file: str = ""
    """Certificates (PEM) that the provider's must come from, in place of the system's."""
    oidc_groups: str = "groups"
    """The claim of its ID tokens that names the groups of an account, for the views of the policy."""
    chat_channel: str = ""
    """Channel of the policy where an engine started from here announces proposals and findings; empty: nowhere."""
    chat_secret_file: str = ""
    """File, readable by you alone, that holds the secret shared with the chat (Slack: the signing secret)."""
    chat_url: str = ""
    """URL at which people reach this engine's HTTP service, for links in messages; empty: no links."""
    log_format: str = "text"
    """The log of an engine started from here: text, or json, one object a line, which names every request."""
    trace_url: str = ""
    """Where a collector of OpenTelemetry takes traces of an engine started from here, such as
    http://127.0.0.1:4318/v1/traces; empty: none are made. See docs/metrics.md."""
    trace_percent: int = 100
    """Of the requests that come without a trace, how many in a hundred begin one."""
    approval: str = ""
    """Approval policy of a cell that was given none, where an engine is started from here: "solo", "pair" or "team";
    empty: that of a team, until somebody chooses."""
    audit_key: str = ""
    """File of the key that signs the audit of an engine started from here; empty: one for the cell beside this file."""
    runbooks: tuple[str, ...] = ()
    """Folders with runbooks of an engine started from here, besides those that are built in; absolute paths."""
    audit_anchors: str = ""
    """Where checkpoints of the audit are remembered, as "syslog, file:/mnt/other/muster.notes"."""
    model_url: str = ""
    """Base URL of the OpenAI-compatible server that an engine started from here may ask for drafts, such as
    http://127.0.0.1:8000/v1; empty: none. See docs/drafts.md."""
    model: str = ""
    """The model's name there."""
    model_aliases: tuple[str, ...] = ()
    """Other names by which that model may answer, such as its dated version; an answer by any other name is refused."""
    model_egress: str = "external"
    """What the server may be told: "local" and "trusted" see excerpts too, "external" facts and pseudonyms alone."""
    model_key_file: str = ""
    """File, readable by you alone, that holds the server's key; empty: MUSTER_MODEL_KEY, or the keyring."""
    model_deadline: str = "20s"
    """Longest wait for an answer."""
    model_max_tokens: int = 2_048
    """Of an answer."""
    model_price_in: str = "0"
    """USD for a million tokens that are sent."""
    model_price_out: str = "0"
    """USD for a million tokens of answers."""
    model_budget_call: str = "0.25"
    """USD that one call may cost."""
    model_budget_hour: str = "1"
    """USD that may be spent in any hour."""
    model_budget_day: str = "5"
    """USD that may be spent in any 24 hours."""
    model_calls_minute: int = 20
    """Most calls in a minute."""
    model_ca_file: str = ""
    """Certificates (PEM) that the server's must come from, in place of the system's."""
    model_tenants: tuple[str, ...] = ()
    """Tenants whose things an external server may be told of; empty: none of any tenant."""
    theme: str = "auto"
    """How the console looks: dark, light, contrast, safe (for the colour-blind), sixteen (the terminal's own colours),
    plain (no colours), or auto: as the terminal and NO_COLOR say, and as it was last chosen."""
    linear: bool = False
    """The console line by line, for screen readers and terminals that cannot place a cursor."""
    start_page: str = "overview"
    """The page that the console begins with, unless it goes on from where it was."""
    restore: str = "lost"
    """Which console the next goes on from: "lost", one that was killed or lost its terminal; "always", also one that
    was left."""
    production: tuple[str, ...] = ("prod", "prod-*", "*-prod", "production", "*-production")
    """Patterns of names of cells, and of environments, whose header is red and says PRODUCTION."""
    alert_labels: tuple[str, ...] = ()
    """Labels of alerts that name objects of the cell of an engine started from here, besides those that docs/alerts.md
    lists, each as in "slurm_part=queue"."""
    socket_group: str = ""
    """OS group whose members may connect to an engine started from here; empty: nobody but its owner."""


@dataclass(frozen=True)
class Environment:
    """A table `[environments.NAME]` of the file: how to reach some cells, and how the console of one looks."""

    name: str = ""
    cells: tuple[str, ...] = ()
    """Patterns of names of cells that belong to it; empty: NAME, NAME-* and *-NAME."""
    cell: str = ""
    """The cell that it stands for, by the name of its state folder."""
    connect: str = ""
    """URL or socket path of its engine."""
    readonly: bool = False
    """Show, never act."""
    production: bool = False
    """The console says PRODUCTION."""
    colour: str = ""
    """Of its name in the header: red, yellow, green, cyan, blue or magenta; empty: red for production, else blue."""
    theme: str = ""
    """How its console looks; empty: as elsewhere."""
    confirm: str = "usual"
    """What a yes to a change needs: "usual", as its tier wants; "digest", the beginning of the plan's digest at every
    tier."""

    @property
    def patterns(self) -> tuple[str, ...]:
        return self.cells or (self.name, f"{self.name}-*", f"*-{self.name}")

    @property
    def settings(self) -> dict[str, Any]:
        """Those that it sets, by name."""
        given = {name: getattr(self, name) for name in ("cell", "connect", "readonly", "theme")}
        return {name: value for name, value in given.items() if value}


EnvironmentOf = Callable[[Sequence[str]], Environment]
"""Gives the environment of a cell that is called so."""


def no_environment(_names: Sequence[str]) -> Environment:
    return Environment()


class GivenKeys(NamedTuple):
    """One line of `[keys]`, not checked."""

    value: Any
    where: str
    """File and line."""


class CellPaths(NamedTuple):
    """Paths of one cell's files."""

    folder: Path
    journal: Path
    socket: Path
    record: Path
    log: Path


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> ConsoleSettings:
    """Settings from every source. `flags` are those that were given; None means "not given". Raises SpecError."""
    env = os.environ if environment is None else environment
    path = config_file(env)
    table, text = read_file(path)
    known = environments(env)
    told = [_scalars(path, table, text), _from_variables(env)]
    told.append({name: value for name, value in flags.items() if name in _types() and value is not None})
    chosen = next((each["environment"] for each in reversed(told) if each.get("environment")), "")
    told.insert(1, environment_named(chosen, known, str(path)).settings if chosen else {})
    settings = ConsoleSettings()
    for each in told:
        settings = replace(settings, **each)
    return settings


def problems(environment: Mapping[str, str]) -> list[SpecError]:
    """All that is wrong with the file, but for its keys, and with the variables."""
    path = config_file(environment)
    try:
        table, text = read_file(path)
        named = _subtable(table, "environments", path, text)
        _subtable(table, "keys", path, text)
    except SpecError as error:
        return [error]
    tries: list[Callable[[], object]] = [
        partial(checked, key, value, place(path, text, key)) for key, value in table.items() if key not in TABLES
    ]
    tries += [
        partial(_check_environment, name, values, place(path, text, "environments", name))
        for name, values in named.items()
    ]
    tries += [
        partial(_of_environment, key, value, place(path, text, "environments", name, key))
        for name, values in named.items() if isinstance(values, dict) for key, value in values.items()
    ]  # fmt: skip
    tries.append(lambda: _from_variables(environment))
    found = list(filter(None, map(_refusal, tries)))
    return found or list(filter(None, [_refusal(lambda: load({}, environment))]))


def _refusal(attempt: Callable[[], object]) -> SpecError | None:
    try:
        attempt()
    except SpecError as error:
        return error
    return None


def environments(environment: Mapping[str, str]) -> tuple[Environment, ...]:
    """The environments of the file, in its order. Raises SpecError."""
    path = config_file(environment)
    table, text = read_file(path)
    return tuple(_environment(name, path, table, text) for name in _subtable(table, "environments", path, text))


def environment_named(name: str, known: Sequence[Environment], where: str) -> Environment:
    """Raises SpecError naming those there are."""
    found = next((each for each in known if each.name == name), None)
    if found is None:
        there = ", ".join(each.name for each in known)
        remedy = f"Use one of: {there}" if there else f"Add it to the file: [environments.{name[:40]}]"
        raise SpecError(where, f"there is no environment {name[:40]!a}", remedy)
    return found


def environment_of(names: Sequence[str], known: Sequence[Environment], settings: ConsoleSettings) -> Environment:
    """The environment of a cell that is called so. Its names decide before what was chosen: whoever chose "test" and
    reaches production by mistake must see so."""

    def called(patterns: Sequence[str], *names: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    mine = next((each for each in known if called(each.patterns, *names)), None)
    chosen = next((each for each in known if each.name == settings.environment), None)
    found = mine or chosen or Environment()
    return replace(found, production=True) if called(settings.production, found.name, *names) else found


def given_keys(environment: Mapping[str, str]) -> dict[str, GivenKeys]:
    """`[keys]` of the file: action -> what was given for it. Raises SpecError where that is no table."""
    path = config_file(environment)
    table, text = read_file(path)
    keys = _subtable(table, "keys", path, text)
    return {name: GivenKeys(value, place(path, text, "keys", name)) for name, value in keys.items()}


def _subtable(table: Mapping[str, Any], name: str, path: Path, text: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise SpecError(place(path, text, name), f"'{name}' is a value, and must be a table",
                        f"Write [{name}] on a line of its own, and what belongs to it below")  # fmt: skip
    return found


def _environment(name: str, path: Path, table: Mapping[str, Any], text: str) -> Environment:
    """Raises SpecError."""
    values = table["environments"][name]
    _check_environment(name, values, place(path, text, "environments", name))
    given = {key: _of_environment(key, values[key], place(path, text, "environments", name, key)) for key in values}
    return replace(Environment(name), **given)


def _check_environment(name: str, values: object, where: str) -> None:
    """Raises SpecError."""
    if not isinstance(values, dict) or not re.fullmatch(r"[A-Za-z0-9._-]{1,24}", name):
        raise SpecError(where, f"{name[:40]!a} is not an environment",
                        "Write [environments.NAME], with at most 24 letters, digits, '.', '-' and '_'")  # fmt: skip


def _of_environment(key: str, value: Any, where: str) -> Any:
    """Raises SpecError."""
    types = {field.name: type(getattr(Environment(), field.name)) for field in fields(Environment)}
    del types["name"]
    value = _of_type(key, value, types, where)
    _check_choice(key, value, where)
    return value


def config_file(environment: Mapping[str, str]) -> Path:
    """The settings file: $MUSTER_CONFIG, or muster.toml in the user's configuration folder."""
    named = environment.get("MUSTER_CONFIG")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_config_dir("muster")) / FILE_NAME


def unknown_environment(environment: Mapping[str, str]) -> list[str]:
    """MUSTER_* variables without a meaning: most likely misspelt."""
    known = {ENVIRONMENT + name.upper() for name in _types()} | {"MUSTER_CONFIG", MODEL_KEY, TOKEN, WEB_ADDRESS}
    return sorted(name for name in environment if name.startswith(ENVIRONMENT) and name not in known)


def cells_folder(settings: ConsoleSettings) -> Path:
    """The folder that holds one folder per cell."""
    if settings.state_dir:
        return Path(settings.state_dir).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_state_dir("muster"))


def cell_paths(settings: ConsoleSettings, cell: str = "") -> CellPaths:
    """Paths of a cell's files; nothing is created. Raises SpecError for a name that is not a folder name."""
    name = cell or settings.cell or DEFAULT_CELL
    check_cell_name(name)
    return paths_in(cells_folder(settings) / name)


def audit_key_path(settings: ConsoleSettings, cell: str, paths: CellPaths) -> Path:
    """Path of the key that signs a cell's audit. It is not in the folder of the journal, because whoever has both can
    forge it. A cell whose files are not in the default place has it beside its folder."""
    if settings.audit_key:
        return Path(settings.audit_key).expanduser().absolute()
    usual = cell_paths(settings, cell).folder
    if settings.state_dir or os.path.realpath(paths.folder) != os.path.realpath(usual):
        return paths.folder.with_name(f"{paths.folder.name}.audit.key")
    return config_file(os.environ).parent / "audit" / f"{cell}.key"


def check_cell_name(name: str, where: str = "cell") -> None:
    """A cell name is a folder name: it must not climb or hide."""
    if not name or "/" in name or name.startswith(".") or not name.isprintable() or len(name) > 64:
        raise SpecError(where, f"{name[:40]!a} is not a cell name", "Use at most 64 letters, digits, '-' and '_'")


def paths_in(folder: Path) -> CellPaths:
    """Paths of a cell whose files are in `folder`."""
    return CellPaths(folder, folder / "journal.db", _socket_path(folder), folder / "engine.json", folder / "engine.log")


def _socket_path(folder: Path) -> Path:
    """`folder`/engine.sock, or a short stand-in where that is too long for a Unix socket: the same whatever links lead
    to the folder."""
    folder = Path(os.path.realpath(folder))
    path = folder / "engine.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
        return path
    import hashlib

    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16] + ".sock"
    return Path(runtime_folder()) / name


@cache
def _types() -> dict[str, type]:
    defaults = ConsoleSettings()
    return {field.name: type(getattr(defaults, field.name)) for field in fields(ConsoleSettings)}


def read_file(path: Path) -> tuple[dict[str, Any], str]:
    """The file as TOML and as text; nothing where there is none. Raises SpecError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}, ""
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"byte {error.start} is not UTF-8 text", "Save the file as UTF-8") from None
    except OSError as error:
        raise SpecError(str(path), f"cannot be read ({error.strerror})", "Check its permissions: ls -l") from None
    return parsed(text, str(path)), text


def parsed(text: str, path: str) -> dict[str, Any]:
    """The TOML of a file. Raises SpecError naming file, line and column."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+), column (\d+)", str(error))
        place = f"{path}:{at[1]}:{at[2]}" if at else f"{path}:{len(text.splitlines())}"
        fault = next((fault for fault in _TOML_FAULTS if str(error).startswith(fault[0])), _TOML_FAULTS[0])
        raise SpecError(place, fault[1], fault[2]) from None


_TOML_FAULTS = (
    ("Invalid value", "this is not a value", 'Put text in quotes, as in theme = "dark"; true and false in lower case'),
    ("Cannot overwrite a value", "this key is given twice", "Keep one of them"),
    ("Cannot declare", "this table is given twice", "Put its keys under one heading"),
    ("Expected '=' after a key", "there is no = after the key", 'Write it like theme = "dark"'),
    ("Expected newline", "there is more on the line than a value", "Put each key on its own line, and text in quotes"),
    ("Expected ']'", "the name of a table is not closed", "Write it like [keys], on a line of its own"),
    ("Invalid statement", "there is no key", 'Write it like theme = "dark"'),
    ("Invalid initial character", "there is no key", 'Write it like theme = "dark", and a table like [keys]'),
    ("Unclosed array", "a list is not closed", "Close it with ]"),
    ("Unclosed inline table", "a { is not closed", "Close it with }"),
    ("Unescaped", "a \\ in double quotes needs another before it", "Put the text in single quotes"),
    ("Illegal character", "a quote is not closed on its line", "Close the quote"),
    ("Unterminated string", "a quote is not closed", "Close the quote"),
    ("Expected \"'\"", "a quote is not closed", "Close the quote"),
)  # fmt: skip
"""How the parser begins to say what it could not read, and (problem, remedy) in words for who wrote the file."""


def _scalars(path: Path, table: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {key: checked(key, value, place(path, text, key)) for key, value in table.items() if key not in TABLES}


def _from_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, kind in _types().items():
        name = ENVIRONMENT + key.upper()
        if environment.get(name):
            found[key] = checked(key, _parsed(environment[name], kind), name)
    return found


def from_text(key: str, text: str) -> Any:
    """Typed or environment text as the setting's type; text that does not fit is left for `checked`."""
    return _parsed(text, _types().get(key, str))


def _parsed(text: str, kind: type) -> Any:
    """Environment text as the key's type; text that does not fit is left for `checked` to refuse."""
    if kind is tuple:
        return [part for part in text.split(os.pathsep) if part]
    if kind is bool:
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.lower(), text)
    if kind in (float, int):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def checked(key: str, value: Any, where: str) -> Any:
    """A value as the setting has it. Raises SpecError with the accepted values; `where` names the source."""
    value = _of_type(key, value, _types(), where)
    if isinstance(value, float):
        check_speed(value, where)
    _check_choice(key, value, where)
    _check_model(key, value, where)
    if key == "cell" and value:
        check_cell_name(value, where)
    if key == "trace_percent" and not 0 <= value <= 100:
        raise SpecError(where, f"'{key}' cannot be {value}", "Give a whole number from 0 to 100")
    if key == "trace_url" and value:
        _check_collector(value, where)
    if key == "alert_labels":
        from runbooks.plans.incidents import label_table

        label_table(value, where)
    if key in DURATIONS:
        from engine.model.quantities import duration_ms

        try:
            duration_ms(value)
        except ValueError as error:
            raise SpecError(where, f"'{key}': {error}", "") from None
    return value


def _of_type(key: str, value: Any, types: Mapping[str, type], where: str) -> Any:
    """The value as its key has it. Raises SpecError for another type, and for a key that is none of these."""
    if key not in types:
        remedy = did_you_mean(key, types, f"Known keys: {', '.join(types)}", "'{}'")
        raise SpecError(where, f"unknown key '{key}'", remedy)
    kind = types[key]
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and type(value) is list and all(isinstance(part, str) for part in value):
        value = tuple(value)
    if type(value) is not kind:
        wanted = {
            bool: "true or false",
            float: "a number",
            int: "a whole number",
            str: "text, in quotes",
            tuple: 'a list of texts, as in ["one", "two"]',
        }[kind]
        raise SpecError(where, f"'{key}' cannot be {ascii(value)[:42]}", f"Give {wanted}")
    return value


_CHOICES: dict[str, tuple[str, ...]] = {
    "theme": THEMES, "start_page": START_PAGES, "restore": RESTORE, "approval": APPROVALS, "colour": COLOURS,
    "confirm": CONFIRM, "log_format": LOG_FORMATS,
}  # fmt: skip


def _check_choice(key: str, value: Any, where: str) -> None:
    choices = _CHOICES.get(key)
    if choices is not None and value not in choices:
        raise _not_allowed(key, value, choices, where)


def _not_allowed(key: str, value: Any, choices: Sequence[str], where: str) -> SpecError:
    meant = did_you_mean(str(value), choices, form="'{}'")
    remedy = f"{meant} Use one of: {', '.join(choices)}".lstrip()
    return SpecError(where, f"'{key}' cannot be {str(value)[:40]!a}", remedy)


def _check_model(key: str, value: Any, where: str) -> None:
    if key == "model_egress" and value not in EGRESS:
        raise _not_allowed(key, value, EGRESS, where)
    if key in ("model_max_tokens", "model_calls_minute") and not 1 <= value <= MAX_COUNT:
        raise SpecError(where, f"'{key}' cannot be {value}", f"Give a whole number from 1 to {MAX_COUNT}")
    if key in AMOUNTS:
        microusd(value, key, where)


def _check_collector(url: str, where: str) -> None:
    """Raises SpecError for what is no URL of a collector, or would hold a secret."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        fine = fine and not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        fine = False
    if not fine:
        raise SpecError(
            where, f"'trace_url' cannot be {url[:80]!a}", "Give a URL such as http://127.0.0.1:4318/v1/traces"
        )


def microusd(text: str, key: str, where: str) -> int:
    """An amount of USD such as "0.25", in micro-USD. Raises SpecError."""
    from engine.model.quantities import money_microusd

    try:
        amount = money_microusd(text)
    except ValueError:
        amount = -1
    if not 0 <= amount < MAX_USD * 1_000_000:
        raise SpecError(
            where, f"'{key}' cannot be {text[:40]!a}", 'Give an amount of USD such as "0.25", to the micro-USD'
        )
    return amount


def check_speed(value: float, where: str) -> None:
    """Raises SpecError unless `value` is a speed the engine can keep: above 0, at most 1,000,000."""
    if not 0 < value <= 1_000_000:
        raise SpecError(where, f"speed cannot be {value:g}", "Give a number above 0 and at most 1000000, as in 60")


def place(path: Path, text: str, *names: str) -> str:
    """File and line that set a key, for messages: `names` are the tables that it is in, and its own. The nearest line
    of a table where the key has none of its own."""
    found, most = 0, 0
    for number, line_names in _named_lines(text):
        shared = next((at for at, (one, other) in enumerate(zip(line_names, names, strict=False)) if one != other),
                      min(len(line_names), len(names)))  # fmt: skip
        if shared > most and shared == len(line_names):
            found, most = number, shared
    return f"{path}:{found}" if found else str(path)


def _named_lines(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Lines that begin a table or set a key, with the names that lead there."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?([^\]]+)\]", line):
            table = _path(header[1])
            yield number, table
        elif setting := re.match(r"\s*([^=#]+)=", line):
            yield number, (*table, *_path(setting[1]))


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
