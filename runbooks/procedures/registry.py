"""The runbook registry: the runbooks that there are, their approved versions, and each in words.

Files are read when they are looked at. A runbook can be run only while the SHA-256 of its exact bytes is approved, by
as many people as the policy in force asks for plans of tier T2, by their present roles and keys. Neither its owner nor
the OS account of its file counts. Any other runbook can be shown, and tried on a fork.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, insert

from engine.journal.database import create_tables
from engine.model.errors import JournalError, NotFoundError, RefusedError, SpecError
from engine.model.quantities import utc
from runbooks.actions import wording
from runbooks.actions.catalogue import find
from runbooks.audit.log import reread
from runbooks.gate import approval_policy
from runbooks.gate.approval_gate import wall_ms
from runbooks.gate.approval_policy import Policy, Vote, vote_of
from runbooks.gate.authority import METADATA, RUNBOOK_VOTE, RunbookDecision, Votes, authors, missing, need
from runbooks.gate.composition import Composed
from runbooks.gate.policy_versions import kept_signature, used_nonce
from runbooks.gate.store import new_id
from runbooks.plans import checks
from runbooks.plans.checks import MEANINGS
from runbooks.plans.identity import Actor, AuthRefused
from runbooks.plans.queries import (
    FileProblem,
    InputLine,
    RunbookAsk,
    RunbookLine,
    RunbookRun,
    RunbookView,
    RunbookVote,
    Status,
)
from runbooks.plans.typed_plan import MAX_COMMENT, Act, Plan, Request, RunbookRef, check_line
from runbooks.procedures.compiler import compile_runbook
from runbooks.procedures.linter import lint_file
from runbooks.procedures.program import (
    LIBRARY,
    CheckLine,
    Input,
    LimitLine,
    Runbook,
    RunbookFile,
    StepLine,
    files_of,
    near,
    parse,
)
from runbooks.untrusted.stranger_texts import skeleton

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.gate.approval_gate import Gate


def view_of(
    line: RunbookLine, runbook: Runbook | None, problems: tuple[FileProblem, ...], votes: tuple[str, ...], data: bytes
) -> RunbookView:
    """All of one file. A file that is no runbook is shown as its text."""
    if runbook is None:
        return RunbookView(
            line=line, inputs=(), when=(), limits="", steps=(), prose=data.decode("utf-8", "replace"), votes=votes,
            problems=problems,
        )  # fmt: skip
    front = runbook.front
    return RunbookView(
        line=line,
        inputs=tuple(input_line(name, one) for name, one in front.inputs.items()),
        when=tuple(asked(check) for check in front.when),
        limits=limited(front.limits),
        steps=tuple(line for step in front.steps for line in step_lines(step)),
        prose=runbook.prose.strip("\n"),
        votes=votes,
        problems=problems,
    )


def input_line(name: str, one: Input) -> InputLine:
    bounds = [f"at most {one.max_items}"] if one.max_items is not None else []
    if one.min is not None:
        bounds.append(f"{one.min} to {one.max}")
    if one.choices:
        bounds.append(" | ".join(one.choices))
    if one.select is not None:
        by = (
            f"{field} {value}" for field in ("pool", "zone", "queue", "tenant") if (value := getattr(one.select, field))
        )
        what = f"{one.select.nodes} nodes" if one.select.nodes else f"{one.select.workloads} workloads"
        first = f", {one.select.sort} first" if one.select.workloads else ""
        bounds.append(f"else {what} of {', '.join(by)}{first}")
    elif one.default is not None:
        bounds.append(f"default {one.default}")
    elif not one.required:
        bounds.append("optional")
    return InputLine(name=name, type=one.type, help=one.help, bounds=", ".join(bounds) or "required")


def asked(line: CheckLine) -> str:
    """A check as it is written, in words; what its reference stands for is known when it runs."""
    prefix = "" if line.op == "==" else "not " if line.op == "!=" else f"{line.op} "
    meaning = next((meaning for name, meaning in MEANINGS.items() if name == line.check), None)
    text = f"{line.check} {line.of}" if meaning is None else meaning.says
    said = text.replace("{of}", plain(line.of)).replace("{value}", f"{prefix}{plain(line.value)}")
    tolerance = f", {line.tolerance_permille}/1000 granted" if line.tolerance_permille else ""
    return f"{said}{tolerance}{', within ' + line.within if line.within else ''}"


def step_lines(step: StepLine) -> list[str]:
    given = ", ".join(f"{name} {plain(value)}" for name, value in step.with_.items())
    lines = [f"{step.id}: {step.action} {given}".rstrip()]
    lines += [f"  needs: {asked(check)}" for check in step.pre]
    lines += [f"  then: {asked(check)}" for check in step.verify]
    if step.rollback == "inverse":
        lines.append("  rollback: the inverse action, to the old values")
    elif step.rollback == "cannot":
        lines.append("  rollback: not possible")
    elif not isinstance(step.rollback, str):
        lines += [
            f"  rollback: {act.action} {', '.join(f'{name} {plain(value)}' for name, value in act.with_.items())}"
            for act in step.rollback
        ]
    if step.confirm != "none":
        lines.append(f"  needs confirmation by an {step.confirm}")
    lines.append(f"  if it fails: {step.on_fail}")
    return lines


def limited(limits: LimitLine) -> str:
    counts = ((limits.max_nodes, "nodes"), (limits.max_gpus, "GPUs"), (limits.max_workloads, "workloads"))
    told = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    return f"at most {told or 'nothing'}; {limits.max_duration}"


def plain(value: Any) -> str:
    """A value of the file: references as <name>."""
    if isinstance(value, list):
        return ", ".join(plain(one) for one in value)
    text = str(value)
    return f"<{text[9:-1]}>" if text.startswith("${inputs.") and text.endswith("}") else text


def rollback_of(plan: Plan) -> tuple[str, ...]:
    """The way back of each step, the last step first."""
    return tuple(
        f"{step.id}: {'; '.join(map(wording.title, step.rollback)) or without_acts(step.act)}"
        for step in reversed(plan.steps)
    )


def without_acts(act: Act) -> str:
    """The sentence for a step whose way back has no acts."""
    return "cannot be rolled back" if find(act.action).back is None else "nothing to roll back"


def verifications_of(plan: Plan) -> tuple[str, ...]:
    """The checks after each step."""
    return tuple(
        f"{step.id}: {checks.words(check)}{f' within {check.within_ms // 1000} s' if check.within_ms else ''}"
        for step in plan.steps
        for check in step.verify
    )


T = TypeVar("T")


class EngineCall(Protocol):
    """A call that runs on the engine's thread."""

    def __call__(self, ask: Callable[[Engine], T], /) -> T: ...


class BesideCall(Protocol):
    """A call that runs what `prepare` returns beside the engine's thread, as `EngineLoop.call_beside` does."""

    def __call__(self, prepare: Callable[[Engine], Callable[[], T]], answer: type[T], /) -> T: ...


VERDICTS: dict[RunbookDecision, approval_policy.Verdict] = {"approve": "approve", "retire": "reject"}
"""How a signature over the deed calls it."""


class ParsedRunbook(NamedTuple):
    """A file and what it says."""

    file: RunbookFile
    sha256: str
    runbook: Runbook | None
    problems: tuple[FileProblem, ...]

    @property
    def id(self) -> str:
        return self.runbook.front.id if self.runbook is not None else self.file.name.removesuffix(".md")


class RunbookVoteSubject(NamedTuple):
    """The subject of a vote on a runbook, as signatures name it."""

    id: str
    revision: int
    digest: str


class RunbookRegistry:
    """The registry of one engine. `gate` receives the proposals of runs; its policies and its audit are used here
    too."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        folders: tuple[Path, ...] = (),
        clock: Callable[[], int] = wall_ms,
        call: EngineCall | None = None,
        call_beside: BesideCall | None = None,
    ) -> None:
        """`call` runs something on the engine's thread, `call_beside` what takes long beside it; None: where it is
        asked. Files are read and checked before that, on the asker's own."""
        self._engine = engine
        self._gate = gate
        self._audit = gate.audit
        self._policies = gate.policies
        self._clock = clock
        self._folders = folders
        self._call = call or (lambda ask: ask(engine))
        self._call_beside = call_beside or (lambda prepare, _: prepare(engine)())
        self._ready = False

    def _open(self) -> None:
        """Creates the tables, unless the journal cannot be written: then nothing was approved, and each use tries
        again."""
        if not self._ready:
            with contextlib.suppress(JournalError):
                self._engine.record(lambda connection: create_tables(connection, METADATA))
                self._ready = True

    # -- looking ----------------------------------------------------------------------------------------------------

    def lines(self) -> tuple[RunbookLine, ...]:
        """Every file, those with problems too."""
        found = self._read_all()

        def look(connection: Connection) -> tuple[RunbookLine, ...]:
            votes, in_force = Votes(connection), self._policies.current(connection)
            return tuple(self._line(votes, in_force, read) for read in found)

        return self._call(lambda engine: engine.recorded(look))

    def view(self, id_: str) -> RunbookView:
        """Raises NotFoundError with what may have been meant."""
        read = self._find(id_)

        def look(connection: Connection) -> RunbookView:
            votes = Votes(connection)
            line = self._line(votes, self._policies.current(connection), read)
            told = tuple(self._told(one.vote, one.deed) for one in votes.on(read.sha256))
            return view_of(line, read.runbook, read.problems, told, read.file.data)

        return self._call(lambda engine: engine.recorded(look))

    def text(self, id_: str) -> str:
        """The text of the file. Raises NotFoundError with what may have been meant."""
        return self._find(id_).file.data.decode("utf-8", "replace")

    def run(self, actor: Actor, ask: RunbookAsk) -> RunbookRun:
        """Compile it for the cell as it is, and show what it would do; unless it is a dry run, propose that.

        Raises SpecError and NotFoundError for inputs, and RefusedError for a runbook that is not approved or does not
        apply now, unless it is a dry run, which tells what it can.
        """
        read = self._find(ask.id)
        if ask.sha256 and ask.sha256 != read.sha256:
            raise RefusedError(f"{ask.id} is no longer the file that was shown", "Review it again")
        runbook = self._sound(read)
        shown, request = self._call(lambda _: self._compiled(ask, read, runbook))
        ref = RunbookRef(id=runbook.front.id, version=runbook.front.version, sha256=read.sha256)
        author, put = (None, self._gate.preview) if ask.dry_run else (actor, self._gate.propose)
        try:
            composed = self._call_beside(lambda _: self._gate.composition(request, author), Composed)
            proposal = self._call(lambda _: put(actor, request, runbook=ref, composed=composed))
        except (RefusedError, NotFoundError, SpecError) as error:
            if not ask.dry_run:
                raise
            return msgspec.structs.replace(shown, refused=str(error))
        return msgspec.structs.replace(
            shown,
            proposal=proposal,
            rollback=rollback_of(proposal.plan),
            checks=verifications_of(proposal.plan),
        )

    def _compiled(self, ask: RunbookAsk, read: ParsedRunbook, runbook: Runbook) -> tuple[RunbookRun, Request]:
        """The run without its proposal, and the request that is to be tried."""
        dry_run = ask.dry_run
        line = self._engine.recorded(lambda connection: self._line_of(connection, read))
        if not dry_run and line.status != "approved":
            raise RefusedError(
                f"{ask.id} version {line.version} is not approved for use: {line.note}",
                f"Use --dry-run, or have somebody other than its author run `muster runbook approve {ask.id}`",
            )
        made = compile_runbook(self._engine, runbook, ask.inputs, reason=ask.reason)
        shown = RunbookRun(
            line=line, when=made.when, applies=made.applies, inputs=made.inputs, skipped=made.skipped, dry_run=dry_run
        )
        if not dry_run and not made.applies:
            found = "; ".join(finding.found for finding in made.when if finding.verdict != "success")
            raise RefusedError(f"{ask.id} does not apply now: {found}", "See the runbook's conditions, or act directly")
        return shown, made.request if made.applies else made.without_when()

    # -- deciding ---------------------------------------------------------------------------------------------------

    def approve(self, actor: Actor, vote: RunbookVote) -> RunbookLine:
        """A person's yes to exactly the bytes with that SHA-256. Raises RefusedError, on record, for a vote that does
        not count, for another file, and for a version that is not above those approved before."""
        read = self._find(vote.id)
        check_line(vote.comment, "comment", MAX_COMMENT)
        self._sound(read)
        return self._call(lambda _: self._decide(actor, read, "approve", vote))

    def retire(self, actor: Actor, vote: RunbookVote) -> RunbookLine:
        """End what was approved, for good: these bytes are never approved again. Raises RefusedError, on record."""
        read = self._find(vote.id)
        check_line(vote.comment, "comment", MAX_COMMENT)
        if not vote.comment.strip():
            raise SpecError("reason", "is empty", "Give the reason for retiring it")
        return self._call(lambda _: self._decide(actor, read, "retire", vote))

    def _decide(self, actor: Actor, read: ParsedRunbook, deed: RunbookDecision, given: RunbookVote) -> RunbookLine:
        now_ms = self._clock()
        self._open()

        def write(connection: Connection) -> RefusedError | None:
            refused, who = self._why_not(connection, actor, read, deed, given, now_ms)
            about = {"runbook": read.id, "version": version_of(read), "sha256": read.sha256, "deed": deed}
            if refused is not None:
                data = {**about, "why": refused.problem[:500]}
                rows = used_nonce(connection, given.signed)
                self._audit.append(connection, "runbook.refused", actor, data=data, rows=rows)
                return refused
            vote = vote_of(who, "approve", now_ms)
            made = connection.execute(
                insert(RUNBOOK_VOTE).values(
                    runbook=read.id, version=version_of(read), sha256=read.sha256, deed=deed, owner=owner_of(read),
                    file_account=read.file.account, vote=msgspec.json.encode(vote), at_ms=now_ms,
                )
            )  # fmt: skip
            rows = reread(connection, RUNBOOK_VOTE, RUNBOOK_VOTE.c.id == new_id(made)) | used_nonce(
                connection, given.signed
            )
            sealed = self._audit.seal(connection, given.comment) if given.comment else None
            private = (sealed,) if sealed else ()
            if deed == "retire":
                self._audit.append(connection, "runbook.retired", who, data=about, private=private, rows=rows)
                return None
            data = {**about, "key": who.key, **kept_signature(given.signed)}
            self._audit.append(connection, "runbook.vote", who, data=data, private=private, rows=rows)
            if self._line_of(connection, read).status == "approved":
                self._audit.append(connection, "runbook.approved", who, data=about)
            return None

        refused = self._engine.record(write)
        if refused is not None:
            raise refused
        self._audit.after(at_once=True)
        return self._engine.recorded(lambda connection: self._line_of(connection, read))

    def _why_not(
        self,
        connection: Connection,
        actor: Actor,
        read: ParsedRunbook,
        deed: RunbookDecision,
        given: RunbookVote,
        now_ms: int,
    ) -> tuple[RefusedError | None, Actor]:
        """The refusal of a decision, if any, and its actor. A refusal is recorded, so it is not raised here."""
        in_force, version = self._policies.current(connection), version_of(read)
        if given.sha256 != read.sha256 and not (deed == "retire" and not given.sha256):
            text = f"the SHA-256 given does not match {read.id}, which is now {read.sha256[:12]}…"
            return RefusedError(text, "Review the file again, then approve it"), actor
        try:
            about, verdict = RunbookVoteSubject(f"runbook:{read.id}", version, read.sha256), VERDICTS[deed]
            actor = self._policies.proved(connection, actor, given.signed, "vote", about, verdict, now_ms)
        except AuthRefused as error:
            return error, actor
        why_not = self._policies.why_not(connection, actor, "runbook")
        if why_not:
            return RefusedError(f"you may not {deed} a runbook: {why_not}", "Ask an approver"), actor
        all_votes = Votes(connection)
        votes = all_votes.on(read.sha256)
        if any(one.deed == "retire" for one in votes):
            return RefusedError(f"{read.id} version {version} was retired", "Raise its version"), actor
        if deed == "retire":
            return None, actor
        above = all_votes.newest_version(read.id, read.sha256)
        if version <= above:
            text = f"{read.id} version {above} was approved with different content"
            return RefusedError(text, f"Raise its version above {above}"), actor
        vote = vote_of(actor, "approve", now_ms)
        for author, requester in authors(in_force, owner_of(read), read.file.account):
            why_not = approval_policy.why_not_counted(
                in_force, vote, author, requester, need(in_force), owner=self._policies.owner
            )
            if why_not:
                return RefusedError(f"your vote on {read.id} does not count: it {why_not}", "Ask an approver"), actor
        if any(one.deed == "approve" and one.vote.subject == actor.subject for one in votes):
            return RefusedError(f"{actor.subject} has already approved it", "Each person votes once"), actor
        return None, actor

    # -- standing ---------------------------------------------------------------------------------------------------

    def _status(self, all_votes: Votes, in_force: Policy, read: ParsedRunbook) -> tuple[Status, str]:
        if read.problems:
            first = read.problems[0]
            return "faulty", f"{first.where}: {first.problem}"
        votes = all_votes.on(read.sha256)
        retired = next((one.vote for one in votes if one.deed == "retire"), None)
        if retired is not None:
            return "retired", f"by {retired.subject} on {utc(retired.at_ms)}"
        owner = (owner_of(read), read.file.account)
        short, wanted = missing(self._policies, in_force, votes, (owner,))
        if not short:
            newer = all_votes.newest_version(read.id, read.sha256)
            if newer > version_of(read):
                return "retired", f"version {newer} replaced it"
            names = ", ".join(dict.fromkeys(one.vote.subject for one in votes if one.deed == "approve"))
            return "approved", f"by {names}"
        lacking = f"needs {short} more vote{'s' if short > 1 else ''}: {wanted}"
        before = all_votes.newest_version(read.id, read.sha256)
        if before:
            return "changed", f"version {before} was approved, but the file has changed;  {lacking}"
        return "draft", lacking

    def _line_of(self, connection: Connection, read: ParsedRunbook) -> RunbookLine:
        return self._line(Votes(connection), self._policies.current(connection), read)

    def _line(self, votes: Votes, in_force: Policy, read: ParsedRunbook) -> RunbookLine:
        status, note = self._status(votes, in_force, read)
        front = read.runbook.front if read.runbook is not None else None
        return RunbookLine(
            id=read.id,
            version=version_of(read),
            title=front.title if front is not None else "",
            owner=owner_of(read),
            status=status,
            note=note,
            source=read.file.source,
            sha256=read.sha256,
            problems=len(read.problems),
            signed=need(in_force).signed,
        )

    @staticmethod
    def _told(vote: Vote, deed: str) -> str:
        signed = f", signed with {vote.key}" if vote.key else ""
        return f"{'approved' if deed == 'approve' else 'retired'} by {vote.subject} on {utc(vote.at_ms)}{signed}"

    # -- files ------------------------------------------------------------------------------------------------------

    def _find(self, id_: str) -> ParsedRunbook:
        found = self._read_all()
        for read in found:
            if read.id == id_:
                return read
        shown = ascii(id_)[:64]
        raise NotFoundError(f"there is no runbook {shown}", near(id_, tuple(read.id for read in found)))

    @staticmethod
    def _sound(read: ParsedRunbook) -> Runbook:
        """Raises SpecError for one that has problems."""
        if read.runbook is None or read.problems:
            first = read.problems[0]
            more = f"; {len(read.problems) - 1} more" if len(read.problems) > 1 else ""
            raise SpecError(first.where, f"{first.rule}: {first.problem}{more}", first.remedy)
        return read.runbook

    def _read_all(self) -> list[ParsedRunbook]:
        """Built-in first; then folder by folder, by name. A second file of an id, or of one that looks like it, is
        faulty."""
        found: list[ParsedRunbook] = []
        taken: dict[str, ParsedRunbook] = {}
        for file in (*files_of(LIBRARY, built_in=True), *(f for folder in self._folders for f in files_of(folder))):
            read = self._read(file)
            other = taken.setdefault(skeleton(read.id), read)
            if other is not read and read.runbook is not None:
                place = read.runbook.place("id")
                text = f"the id {read.id} {'is' if read.id == other.id else 'looks like ' + other.id + ','} that of"
                problem = FileProblem(where=place, rule="taken", problem=f"{text} another file: {other.file.source}",
                                  remedy="Give it another id")  # fmt: skip
                read = read._replace(problems=(problem, *read.problems))
            found.append(read)
        return found

    def _read(self, file: RunbookFile) -> ParsedRunbook:
        sha256 = hashlib.sha256(file.data).hexdigest()
        if file.unreadable:
            return ParsedRunbook(
                file,
                "",
                None,
                (
                    FileProblem(
                        where=file.source, rule="unreadable", problem=file.unreadable, remedy="Fix or remove the file"
                    ),
                ),
            )
        return ParsedRunbook(file, sha256, *parsed(file.data, file.name))


@lru_cache(maxsize=256)
def parsed(data: bytes, name: str) -> tuple[Runbook | None, tuple[FileProblem, ...]]:
    """The runbook of a file and its problems, cached because files change seldom and are looked at often."""
    problems = lint_file(data, name)
    try:
        return parse(data, name), problems
    except SpecError:
        return None, problems


def version_of(read: ParsedRunbook) -> int:
    return read.runbook.front.version if read.runbook is not None else 0


def owner_of(read: ParsedRunbook) -> str:
    return read.runbook.front.owner if read.runbook is not None else ""
