"""Commands of the approval policy: `muster policy`, `muster policy operator`, `muster policy freeze`.

A change of the policy is put to the vote as a whole new version. No command changes a person, a key or a limit alone.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from console.client.attach import connect, identity_of, settings_of
from console.commands.show import at_terminal, tell_lines, write_json, write_lines
from console.forms.settings import APPROVALS
from console.text.guarded_streams import exact_output
from console.text.plain_tables import facts, table
from console.text.terminal_text import printable, wall_time
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError, UnreachableError
from runbooks.gate.approval_policy import PolicyChange, PolicyVote
from runbooks.plans.identity import Scope
from runbooks.plans.typed_plan import DIGEST_TYPED

if TYPE_CHECKING:
    from console.client.protocol import Client
    from runbooks.gate.approval_policy import Candidate, PolicyCheck, PolicyDifference, PolicyView
    from runbooks.gate.run_limits import Freeze, FreezeSpec
    from runbooks.plans.identity import Signed


UNCHOSEN = "Nobody has chosen a policy for this cell: that of a team holds until somebody does."
WIDTH = 78
INDENT = 2

# -- the policy -------------------------------------------------------------------------------------------------------


def show(arguments: argparse.Namespace) -> None:
    """The policy in force, what its two-person rule is worth here, and what waits for votes."""
    with closing(connect(arguments)) as client:
        view = client.policy()
    if arguments.json:
        write_json(view)
    elif arguments.file:
        exact_output().write(view.text.rstrip("\n") + "\n")
    else:
        write_lines(policy_lines(view))


def policy_lines(view: PolicyView) -> list[str]:
    since = f", since {wall_time(view.since_ms)}, by {_short(view.by)}" if view.since_ms else ", built in"
    lines = facts(
        [
            ("policy", f"{printable(view.name)} version {view.version}{since}"),
            ("mode", view.mode),
            ("digest", view.digest),
        ]
    )
    lines += ["", *_wrapped(view.two_people)]
    if view.unchosen:
        lines += ["", *_wrapped(f"{UNCHOSEN} `muster policy use` shows what each lets one person do.")]
    lines += _section("at night, alone, you may", [f"{what}: {needs}" for what, needs in view.alone])
    if view.people:
        lines += ["", *_people_lines(view)]
    lines += _section("needs", [f"{what}: {needs}" for what, needs in view.rules])
    lines += _section("with their own work, owners alone may", [view.own_work] if view.own_work else [])
    lines += _section("limits per hour", [f"{what}: {most}" for what, most in view.limits])
    lines += _section("freezes", [_freeze_line(freeze) for freeze in view.freezes])
    lines += _section("services (draft, never vote)", [", ".join(view.services)] if view.services else [])
    lines += _section("channels", [f"{name}: {target}" for name, target in view.channels])
    lines += _section("changing the policy needs", [view.change_need])
    lines += _section("notes", view.notes)
    for candidate in view.candidates:
        lines += ["", *candidate_lines(candidate)]
    return lines


def candidate_lines(candidate: Candidate, *, brief: bool = False) -> list[str]:
    """State of a candidate; unless `brief`, also its changes."""
    state = candidate.state.replace("_", " ")
    waits = f", needs {candidate.needs} more: {candidate.need}" if candidate.needs else ""
    first = f"{candidate.id} [version {candidate.revision}, digest {candidate.digest[:12]}] is {state}{waits}"
    return [
        *_wrapped(f"{first}; proposed by {_short(candidate.author)}"),
        *([] if brief else change_lines(candidate.changes)),
        *(f"{' ' * INDENT}vote: {_short(printable(vote))}" for vote in candidate.votes),
    ]


def change_lines(changes: tuple[PolicyDifference, ...]) -> list[str]:
    """A line per change; `!` marks one that loosens."""
    if not changes:
        return [f"{' ' * INDENT}changes nothing"]
    found: list[str] = []
    for change in changes:
        mark = "! " if change.loosens else "  "
        found += _wrapped(printable(change.text), mark, "    ")
    return [*found, *(["(! loosens)"] if any(change.loosens for change in changes) else [])]


def check(arguments: argparse.Namespace) -> None:
    """Check a policy file; with an engine, also print its changes there."""
    text = _text_of(arguments.file)
    found = _checked_alone(text, arguments.file)  # its errors name the file; those of an engine cannot
    with suppress(UnreachableError), closing(connect(arguments)) as client:
        found = client.check_policy(text)
    if arguments.json:
        write_json(found)
        return
    write_lines(check_lines(found))


def _checked_alone(text: str, name: str) -> PolicyCheck:
    from runbooks.gate.approval_policy import PolicyCheck
    from runbooks.gate.policy_changes import two_people
    from runbooks.gate.policy_files import notes, read_policy

    policy = read_policy(text.encode(), name)
    return PolicyCheck(
        version=policy.version, digest=policy.digest(), mode=policy.mode, changes=(), notes=notes(policy),
        two_people=two_people(policy), roles=(), need="",
    )  # fmt: skip


def check_lines(found: PolicyCheck) -> list[str]:
    lines = facts([("version", str(found.version)), ("mode", found.mode), ("digest", found.digest)])
    lines += ["", *_wrapped(found.two_people)]
    if found.need:
        lines += ["", "compared with the policy in force:", *change_lines(found.changes)]
        lines += [
            "",
            *_wrapped(f"Putting it into force needs {found.need}."),
            f"You would be {', '.join(found.roles)}.",
        ]
    return lines + _section("notes", found.notes)


def propose(arguments: argparse.Namespace) -> None:
    """Put the policy of a file to the vote."""
    with closing(connect(arguments)) as client:
        _propose(arguments, client, PolicyChange(text=_text_of(arguments.file)))


def use(arguments: argparse.Namespace) -> None:
    """Put a built-in policy to the vote; where whoever asks is alone, have it in force when they say so. Without a
    name, show what each of them lets one person do."""
    if arguments.name is None:
        tell_starting_points(arguments)
        return
    with closing(connect(arguments)) as client:
        _propose(arguments, client, PolicyChange(built_in=arguments.name), vote=True)


def tell_starting_points(arguments: argparse.Namespace) -> None:
    """The starting points, to standard output."""
    from runbooks.gate.starting_points import table as starting_points

    if arguments.json:
        head, *rows = starting_points()
        write_json([dict(zip((head[0], *APPROVALS), row, strict=True)) for row in rows])
    else:
        write_lines(starting_point_lines())


def starting_point_lines() -> list[str]:
    """What each starting point lets one person do."""
    from runbooks.gate.starting_points import FOR_WHOM, one_person

    lines: list[str] = []
    for name, whom in FOR_WHOM.items():
        lines += ["", f"{name}, for {whom}:"] if lines else [f"{name}, for {whom}:"]
        for what, answer in one_person(name):
            lines += _wrapped(f"{what}: {answer}", " " * INDENT, " " * 2 * INDENT)
    return lines


def choose_first(arguments: argparse.Namespace, client: Client) -> None:
    """Before the first act in a cell that nobody chose a policy for: ask the one who may choose, at a terminal. It is a
    change of the policy like any other: proposed, voted and recorded. Enter keeps the strictest."""
    if arguments.json or arguments.yes or not at_terminal() or "admin" not in client.whoami().roles:
        return
    view = client.policy()
    if not view.unchosen or view.candidates:
        return
    tell_lines([*_wrapped(f"{UNCHOSEN} One person may, under each:"), "", *starting_point_lines(), ""])
    print(printable(f"Which one? {', '.join(APPROVALS)} [team]: "), end="", file=sys.stderr, flush=True)
    name = sys.stdin.readline().strip().lower() or "team"
    if name not in APPROVALS:
        raise RefusedError(f"{name[:40]!a} is not a starting point, nothing was done", f"Say {' or '.join(APPROVALS)}")
    candidate = client.propose_policy(PolicyChange(built_in=name))
    said = candidate.digest if name == "team" else ""  # which takes nothing more than a word: it loosens nothing
    _put_in_force(argparse.Namespace(**(vars(arguments) | {"digest": said})), client, candidate)


def _put_in_force(arguments: argparse.Namespace, client: Client, candidate: Candidate) -> Candidate:
    """Vote for one's own candidate; withdraw what is not wanted after all."""
    try:
        return _vote(arguments, client, candidate, "approve")
    except BaseException:
        # It must not wait for votes, and stand in the way of the next try.
        with suppress(MusterError):
            client.vote_policy(PolicyVote(candidate=candidate.id, digest=candidate.digest, verdict="reject"))
        raise


def _propose(arguments: argparse.Namespace, client: Client, change: PolicyChange, *, vote: bool = False) -> None:
    candidate = client.propose_policy(change)
    at_once = vote and candidate.alone
    if at_once:
        candidate = _put_in_force(arguments, client, candidate)
    if arguments.json:
        write_json(candidate)
        return
    write_lines(candidate_lines(candidate, brief=at_once))
    if candidate.state == "awaiting":
        print(f"Review it, then: muster policy approve {printable(candidate.id)}", file=sys.stderr)


def approve(arguments: argparse.Namespace) -> None:
    """Show what a new policy changes, ask, and vote for it; the last vote needed puts it in force."""
    _decide(arguments, "approve")


def reject(arguments: argparse.Namespace) -> None:
    """Vote against a new policy: one no ends it."""
    _decide(arguments, "reject")


def _decide(arguments: argparse.Namespace, verdict: str) -> None:
    with closing(connect(arguments)) as client:
        waiting = client.policy().candidates
        candidate = next((each for each in waiting if each.id == arguments.id), None)
        if candidate is None:
            ids = ", ".join(each.id for each in waiting) or "none"
            raise NotFoundError(f"no new policy {arguments.id[:40]!a} waits for votes", f"Waiting: {ids}")
        done = _vote(arguments, client, candidate, verdict)
    write_json(done) if arguments.json else write_lines(candidate_lines(done, brief=True))


def _vote(arguments: argparse.Namespace, client: Client, candidate: Candidate, verdict: str) -> Candidate:
    tell_lines(candidate_lines(candidate))
    if verdict == "approve":
        _confirmed(arguments, candidate)
    signed: Signed | None = None
    if candidate.signed:
        signed = identity_of(arguments).sign(
            client.whoami(), kind="policy", proposal=candidate.id, revision=candidate.revision,
            digest=candidate.digest, verdict=verdict,
        )  # fmt: skip
    vote = PolicyVote(candidate=candidate.id, digest=candidate.digest, verdict=verdict, signed=signed)  # type: ignore[arg-type]
    return client.vote_policy(vote)


def _confirmed(arguments: argparse.Namespace, candidate: Candidate) -> None:
    """Returns when the person typed, or gave with --digest, how the digest begins. Raises RefusedError."""
    wanted = candidate.digest[:DIGEST_TYPED]
    typed = arguments.digest or ""
    if not typed:
        if not at_terminal():
            raise RefusedError("no terminal to ask on, so nothing was done", f"Add --digest {wanted}")
        print(f"Type {printable(wanted)} to put it into force: ", end="", file=sys.stderr, flush=True)
        typed = sys.stdin.readline().strip()
    if len(typed) < DIGEST_TYPED or not candidate.digest.startswith(typed.lower()):
        raise RefusedError("that does not match its digest, so nothing was done", "Review it again")


# -- people and keys --------------------------------------------------------------------------------------------------


def whoami(arguments: argparse.Namespace) -> None:
    """As whom the engine knows you."""
    with closing(connect(arguments)) as client:
        caller = client.whoami(proved=True)
    if arguments.json:
        write_json(caller)
        return
    pairs = [("you are", _short(caller.subject)), ("account", caller.account), ("roles", ", ".join(caller.roles))]
    if caller.scoped:
        pairs.append(("also", "; ".join(map(printable, caller.scoped))))
    if caller.token:
        deeds = "everything your roles allow" if caller.deeds is None else ", ".join(caller.deeds)
        where = f", in {printable(caller.within)}" if caller.within else ""
        pairs.append(("token", f"{caller.token}, for: {deeds}{where}"))
    if caller.shared_with:
        pairs.append(("shared by", f"{', '.join(caller.shared_with)}: use --as NAME, and sign"))
    keys = caller.keys.get(caller.subject, ())
    write_lines(facts([*pairs, ("keys", ", ".join(keys) or "none enrolled")]))


def operators(arguments: argparse.Namespace) -> None:
    """The people of the policy in force."""
    with closing(connect(arguments)) as client:
        view = client.policy()
    if arguments.json:
        write_json(view.people)
    else:
        write_lines(_people_lines(view) if view.people else _wrapped(view.two_people))


def _people_lines(view: PolicyView) -> list[str]:
    rows = [[printable(id_), printable(roles), accounts, note] for id_, roles, accounts, _, note in view.people]
    lines = table(("WHO", "ROLES", "ACCOUNTS", ""), rows, (False,) * 4)
    keys = [(printable(id_), fingerprints) for id_, _, _, fingerprints, _ in view.people if fingerprints != "none"]
    return [*lines, *_section("keys", [f"{id_}: {key}" for id_, given in keys for key in given.split(", ")])]


def add_operator(arguments: argparse.Namespace) -> None:
    """Put a policy to the vote that names one person more, or gives one who is there more."""
    from runbooks.gate.policy_files import with_person

    keys = tuple(_key_line(given) for given in arguments.key_files)
    with closing(connect(arguments)) as client:
        text = with_person(
            client.policy(), arguments.id, accounts=tuple(arguments.account), keys=keys, roles=tuple(arguments.role),
            name=arguments.name,
        )  # fmt: skip
        _put(arguments, client, text)


def remove_operator(arguments: argparse.Namespace) -> None:
    """Put a policy to the vote that does not name somebody any more."""
    from runbooks.gate.policy_files import without_person

    with closing(connect(arguments)) as client:
        _put(arguments, client, without_person(client.policy(), arguments.id))


def _put(arguments: argparse.Namespace, client: Client, text: str) -> None:
    if arguments.print:
        exact_output().write(text)
        return
    _propose(arguments, client, PolicyChange(text=text))


def _key_line(given: str) -> str:
    """A public key: the line itself, or the file that has it."""
    if given.startswith("ssh-"):
        return given
    return _text_of(given).strip()


def new_key(arguments: argparse.Namespace) -> None:
    """Make a key under a passphrase; its public line, to be enrolled, goes to standard output."""
    from console.client.credentials import key_path, passphrase
    from runbooks.plans.keys import write_new_key

    settings = settings_of(arguments)
    path = Path(arguments.path).expanduser() if arguments.path else key_path(settings)
    secret = passphrase(settings, f"Passphrase for {path}: ", _typed_twice)
    public = write_new_key(path, secret)
    write_lines([public.line])
    tell_lines([printable(f"Kept in {path}. Enrol it: muster policy operator add NAME --key '{public.line[:28]}…'")])


def _typed_twice(prompt: str) -> str:
    from getpass import getpass

    if not at_terminal():
        raise SpecError("passphrase", "needs a terminal", "Set key_passphrase_file to a file of mode 0600")
    first = getpass(prompt)
    if first != getpass("Again: "):
        raise SpecError("passphrase", "does not match", "Try again")
    return first


def keys(arguments: argparse.Namespace) -> None:
    """The keys that could sign here: in the ssh-agent and in the key file."""
    import os

    from console.client.credentials import key_path
    from runbooks.plans.keys import agent_keys, agent_path

    rows = []
    if agent_path():
        rows = [[key.public.fingerprint, f"ssh-agent: {printable(key.comment)}"] for key in agent_keys(agent_path())]
    path = key_path(settings_of(arguments))
    if os.path.exists(path):
        rows.append(["under its passphrase", str(path)])
    if arguments.json:
        write_json(rows)
    elif rows:
        write_lines(table(("KEY", "WHERE"), rows, (False, False)))
    else:
        raise NotFoundError("no key found", "Make one: muster policy operator new-key; or start ssh-agent")


# -- freezes ----------------------------------------------------------------------------------------------------------


def freeze(arguments: argparse.Namespace) -> None:
    """Stop plans during a window."""
    with closing(connect(arguments)) as client:
        client.freeze(freeze_spec(arguments, client.whoami().now_ms))
        found = client.freezes()
    _tell_freezes(arguments, found)


def freeze_spec(arguments: argparse.Namespace, now_ms: int) -> FreezeSpec:
    """The freeze that was typed. `now_ms` is the engine's wall clock. Raises SpecError."""
    from engine.model.quantities import duration_ms
    from runbooks.gate.run_limits import FreezeSpec, moment_ms

    scope = Scope(pools=tuple(arguments.pool), queues=tuple(arguments.queue), tenants=tuple(arguments.tenant))
    start = until = None
    if not arguments.weekly:
        start = moment_ms(arguments.since, "--from") if arguments.since else now_ms
        if bool(arguments.until) == bool(arguments.lasting):
            raise SpecError("freeze", "needs an end", "Give --for 4h, --until MOMENT, or --weekly WINDOW")
        try:
            until = moment_ms(arguments.until, "--until") if arguments.until else start + duration_ms(arguments.lasting)
        except ValueError as error:
            raise SpecError("--for", str(error), "") from None
    return FreezeSpec(
        name=arguments.name, tier=arguments.tier, scope=scope, weekly=tuple(arguments.weekly),
        zone=arguments.zone, from_ms=start, until_ms=until, reason=arguments.reason,
    )  # fmt: skip


def thaw(arguments: argparse.Namespace) -> None:
    """End a freeze that was set by hand."""
    with closing(connect(arguments)) as client:
        client.thaw(arguments.name)
        found = client.freezes()
    _tell_freezes(arguments, found)


def freezes(arguments: argparse.Namespace) -> None:
    """List the times in which no plan runs."""
    with closing(connect(arguments)) as client:
        found = client.freezes()
    _tell_freezes(arguments, found)


def _tell_freezes(arguments: argparse.Namespace, found: tuple[Freeze, ...]) -> None:
    if arguments.json:
        write_json(found)
    else:
        write_lines([part for each in found for part in _wrapped(_freeze_line(each), "", "  ")] or ["no freezes"])


def _freeze_line(freeze: Freeze) -> str:
    from runbooks.gate.run_limits import freeze_words

    now = "in effect" if freeze.holds else "not in effect"
    by = f"set by {_short(freeze.by)}" if freeze.by else "by the policy"
    reason = f": {freeze.spec.reason}" if freeze.spec.reason else ""
    return printable(f"{freeze.spec.name} {now}, {by}: {freeze_words(freeze.spec)}{reason}")


# -- words ------------------------------------------------------------------------------------------------------------


def _section(title: str, lines: list[str] | tuple[str, ...]) -> list[str]:
    body = [part for line in lines for part in _wrapped(printable(line), " " * INDENT, " " * 2 * INDENT)]
    return ["", f"{title}:", *body] if body else []


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _short(subject: str) -> str:
    return subject.removeprefix("person:")


def _text_of(file: str) -> str:
    """Text of a small file. Raises SpecError."""
    from runbooks.untrusted.strict_formats import decoded

    try:
        with open(file, "rb") as reading:
            return decoded(reading.read(2**20), file)
    except OSError as error:
        raise SpecError(file[:120], f"cannot be read ({error.strerror})", "Give a file") from None
