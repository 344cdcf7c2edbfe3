"""Nouns around the approval gate: proposals, runbooks, policy with its people and freezes, and the audit.

Like `console.cli.main` it loads nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from console.forms.command_arguments import as_json, path_of, positive, reach, reached
from console.forms.settings import APPROVALS
from console.forms.shell_parser import Fill, ShellParser

if TYPE_CHECKING:
    from runbooks.actions.declaration import Action

_AUDIT_CODES = """\
exit codes of this command:
  0    all is well
  1    failed: no export could be had of the cell
  2    usage, or no such log
  3    the chain is broken, or the journal does not agree
  4    a checkpoint does not fit
  5    something is cut off
  6    a signature is bad
"""


# -- proposals --------------------------------------------------------------------------------------------------------


def proposal_verbs(proposal: ShellParser) -> None:
    """Add what is done with proposals: put to the vote, vote, carry out, take back, review."""
    from console.forms.action_arguments import noun_actions  # other nouns do without the declarations

    of = "console.commands.proposals"
    proposal.add("list", "what is proposed, what needs you first", f"{of}:proposals", _proposals)
    proposal.add("new", "put an action, or a plan of several, to the vote; nothing is done", f"{of}:propose", _new)
    proposal.add("show", "all of a proposal that a voter must see", f"{of}:show", _proposal)
    for verb, text, fill in (
        ("approve", "vote yes to exactly the plan shown; the last one needed executes it", _approve),
        ("reject", "vote no: that ends it", _must_say_why),
        ("abstain", "say that you looked and do not vote", _abstain),
        ("execute", "carry out what is approved, or go on with what was interrupted", _proposal),
        ("pause", "have no further step done", _may_say_why),
        ("resume", "go on with a paused proposal", _resume),
        ("confirm", "confirm a step that waits for it", _confirm),
        ("rollback", "show what taking it back does now, ask, and do that", _rollback),
        ("withdraw", "take a proposal back before anything of it is done", _may_say_why),
        ("revise", "replace the plan, or refresh it for the current state, under the same id", _revise),
        ("break-glass", "execute it without the votes of others; somebody must review that", _break_glass),
    ):
        proposal.add(verb, text, f"{of}:{verb.replace('-', '_')}", fill)
    proposal.add("reviews", "what waits for a person to look at it", f"{of}:reviews", reached)
    noun_actions(proposal)
    proposal.add("close-review", "say that it was looked at, and what was found", f"{of}:close_review", _close_review)


def _filtered(listed: argparse.ArgumentParser, example: str) -> None:
    listed.add_argument("-f", "--filter", default="", metavar="FILTER", help=f"those that match, such as '{example}'")


def _proposals(listed: argparse.ArgumentParser) -> None:
    _filtered(listed, "state:paused author:alice")
    listed.add_argument("--mine", action="store_true", help="those that you wrote")
    listed.add_argument("--all", action="store_true", help="those that are over too")
    reach(listed, sub=True)


def _new(new: ShellParser) -> None:
    """Every action, behind its noun as in the shell itself: `proposal new node drain g0`."""
    from runbooks.actions.catalogue import CATALOG

    new.set_defaults(action=None)
    new.add_argument("-f", "--file", metavar="PLAN", help="YAML with several steps instead; - for standard input")
    new.add_argument(
        "--again", metavar="PROPOSAL", type=proposal_id, help="the same as that one, for the current state"
    )
    _asking(new)
    for action in CATALOG.values():
        noun, _, verb = action.shell.rpartition(" ")
        below = new.noun(noun, f"actions of `muster {noun}`") if noun else new
        below.add(verb, action.summary, "console.commands.proposals:propose", _proposing(action))


def _proposing(action: Action) -> Fill:
    def fill(made: ShellParser) -> None:
        from console.forms.action_arguments import action_arguments

        made.set_defaults(action=action.word)
        action_arguments(made, action)
        _asking(made, sub=True)

    return fill


def _asking(target: argparse.ArgumentParser, *, sub: bool = False) -> None:
    """Add options that may stand before or after the action; the later one wins."""
    silent = argparse.SUPPRESS
    target.add_argument("--reason", metavar="WHY", default=silent if sub else "", help="kept with the proposal")
    for flag, told in (
        ("--when-asked", "the last vote does not begin it: somebody executes it"),
        ("--dry-run", "show what it would be, keep nothing"),
    ):
        target.add_argument(flag, action="store_true", default=silent if sub else False, help=told)
    followed = "that this follows, such as R-k3vq7"
    target.add_argument("--suggestion", metavar="ID", default=silent if sub else "", help=followed)
    reach(target, sub=True, json=silent if sub else False)


def _proposal(target: argparse.ArgumentParser) -> None:
    _names_proposal(target)
    reach(target, sub=True)


def _names_proposal(target: argparse.ArgumentParser) -> None:
    target.add_argument("id", metavar="PROPOSAL", type=proposal_id, help="such as P-3; 3 will do")


def proposal_id(text: str) -> str:
    """Proposal id as people type it: P-3, p-3 or 3."""
    digits = text[2:] if text[:2] in ("P-", "p-") else text
    return f"P-{digits}" if digits.isascii() and digits.isdigit() else text


def _approve(target: argparse.ArgumentParser) -> None:
    _digest(target)
    _abstain(target)


def _digest(target: argparse.ArgumentParser) -> None:
    target.add_argument("--digest", metavar="PREFIX", help="of the plan you looked at: 6 characters or more")


def _abstain(target: argparse.ArgumentParser) -> None:
    target.add_argument("--comment", default="", metavar="TEXT", help="kept with the vote")
    _proposal(target)


def _may_say_why(target: argparse.ArgumentParser) -> None:
    target.add_argument("--reason", default="", metavar="WHY", help="kept with it")
    _proposal(target)


def _must_say_why(target: argparse.ArgumentParser) -> None:
    target.add_argument("--reason", required=True, metavar="WHY", help="kept with it")
    _proposal(target)


def _break_glass(target: argparse.ArgumentParser) -> None:
    _digest(target)
    _must_say_why(target)


def _resume(target: argparse.ArgumentParser) -> None:
    target.add_argument("--accept", action="store_true", help="although a step is not verified")
    _proposal(target)


def _confirm(target: argparse.ArgumentParser) -> None:
    _names_proposal(target)
    target.add_argument("step", metavar="STEP", help="its id, as `muster proposal show` has it")
    reach(target, sub=True)


def _rollback(target: argparse.ArgumentParser) -> None:
    target.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    target.add_argument("--dry-run", action="store_true", help="show what it would do now, do nothing")
    _may_say_why(target)


def _revise(target: argparse.ArgumentParser) -> None:
    target.add_argument("-f", "--file", metavar="PLAN", help="YAML as for `muster proposal new -f`")
    _proposal(target)


def _close_review(close: argparse.ArgumentParser) -> None:
    close.add_argument("review", type=positive, metavar="N")
    close.add_argument("--comment", required=True, metavar="TEXT", help="what was found, in 10 characters or more")
    reach(close, sub=True)


# -- policy -----------------------------------------------------------------------------------------------------------


def policy_verbs(policy: ShellParser) -> None:
    """Add what is done with the policy, its people and their keys, and freezes."""
    of = "console.commands.policy"
    policy.add("show", "the policy in force, and those that wait for votes", f"{of}:show", _show_policy)
    policy.add("check", "whether a file may be a policy, and what it would change", f"{of}:check", _policy_file)
    policy.add("propose", "put the policy of a file to the vote", f"{of}:propose", _policy_file)
    policy.add("use", "propose a built-in policy for the current people", f"{of}:use", _use)
    policy.add("approve", "vote for a new policy, after seeing what it changes", f"{of}:approve", _approve_policy)
    policy.add("reject", "vote against a new policy: one no ends it", f"{of}:reject", _reject_policy)
    policy.add("whoami", "as whom the engine knows you", f"{of}:whoami", reached)
    policy.add("operator", "the people that the policy names, and their keys", "", _operator)
    policy.add("freeze", "let no plans run during a window", f"{of}:freeze", _freeze)
    policy.add("freezes", "when plans do not run", f"{of}:freezes", reached)
    policy.add("thaw", "end a freeze that was set by hand", f"{of}:thaw", _thaw)


def _show_policy(shown: argparse.ArgumentParser) -> None:
    shown.add_argument("--file", action="store_true", help="as a file, to write the next one from")
    reach(shown, sub=True)


def _policy_file(given: argparse.ArgumentParser) -> None:
    given.add_argument("file", metavar="FILE")
    reach(given, sub=True)


def _use(use: argparse.ArgumentParser) -> None:
    use.add_argument("name", choices=APPROVALS, nargs="?", help="left out: what each lets one person do")
    _typed_digest(use)


def _approve_policy(voted: argparse.ArgumentParser) -> None:
    voted.add_argument("id", metavar="ID", help="such as policy-3")
    _typed_digest(voted)


def _typed_digest(voting: argparse.ArgumentParser) -> None:
    voting.add_argument("--digest", metavar="HEX", help="how its digest begins, where nobody can be asked to type it")
    reach(voting, sub=True)


def _reject_policy(voted: argparse.ArgumentParser) -> None:
    voted.add_argument("id", metavar="ID", help="such as policy-3")
    reach(voted, sub=True)


def _operator(people: ShellParser) -> None:
    of = "console.commands.policy"
    people.add("list", "who they are and what they may do", f"{of}:operators", reached)
    people.add("add", "propose a policy with one more person", f"{of}:add_operator", _add_operator)
    people.add("remove", "propose a policy without somebody", f"{of}:remove_operator", _person)
    people.add("new-key", "make a key to sign with, under a passphrase", f"{of}:new_key", _new_key)
    people.add("keys", "the keys that could sign here", f"{of}:keys", reached)


def _person(person: argparse.ArgumentParser) -> None:
    person.add_argument("id", metavar="NAME", help="a short name that stays theirs, such as alice")
    person.add_argument("--print", action="store_true", help="write the file instead of putting it to the vote")
    person.set_defaults(digest="")
    reach(person, sub=True)


def _add_operator(added: argparse.ArgumentParser) -> None:
    _person(added)
    added.add_argument("--name", default="", help="as it is shown")
    added.add_argument(
        "--account", action="append", default=[], metavar="ACCOUNT",
        help="unix:UID, oidc:ISSUER#SUBJECT or cert:NAME; may be repeated",
    )  # fmt: skip
    added.add_argument(
        "--role", action="append", default=[], choices=("submitter", "operator", "approver", "admin", "auditor")
    )
    added.add_argument(
        "--key", dest="key_files", action="append", default=[], metavar="KEY|FILE", help="public key, or its file"
    )


def _new_key(made: argparse.ArgumentParser) -> None:
    made.add_argument("path", nargs="?", metavar="FILE", help="where to keep it (default key.pem beside the settings)")
    reach(made, sub=True)


def _thaw(thaw: argparse.ArgumentParser) -> None:
    thaw.add_argument("name", metavar="NAME")
    reach(thaw, sub=True)


def _freeze(freeze: argparse.ArgumentParser) -> None:
    freeze_arguments(freeze)
    reach(freeze, sub=True)


def freeze_arguments(freeze: argparse.ArgumentParser) -> None:
    """Add the arguments of `freeze`, for the shell and the console."""
    freeze.add_argument("name", metavar="NAME", help="what to call it")
    freeze.add_argument("--for", dest="lasting", metavar="TIME", help="from now on for so long, such as 4h")
    freeze.add_argument("--from", dest="since", metavar="MOMENT", help="such as 2026-12-20T18:00+01:00")
    freeze.add_argument("--until", metavar="MOMENT", help="its end")
    freeze.add_argument(
        "--weekly", action="append", default=[], metavar="WINDOW",
        help="instead: such as 'fri 16:00 - mon 08:00' or 'daily 22:00 - 06:00'",
    )  # fmt: skip
    freeze.add_argument("--zone", default="UTC", help="time zone of --weekly, such as Europe/Berlin")
    freeze.add_argument("--tier", choices=("T0", "T1", "T2", "T3"), default="T1", help="the lowest it stops (T1)")
    for part in ("pool", "queue", "tenant"):
        freeze.add_argument(
            f"--{part}", action="append", default=[], metavar="NAME", help=f"only what touches this {part}"
        )
    freeze.add_argument("--reason", default="", help="shown with it")


# -- runbooks ---------------------------------------------------------------------------------------------------------


def runbook_verbs(runbook: ShellParser) -> None:
    of = "console.commands.runbooks"
    runbook.add("list", "which there are, and which are approved", f"{of}:list_", _runbooks)
    runbook.add("show", "one of them whole", f"{of}:show", _runbook)
    runbook.add("lint", "what is wrong with files; exit code 2 if anything is", f"{of}:lint", _lint)
    runbook.add("run", "resolve its inputs, simulate it, and propose it", f"{of}:run", _run)
    runbook.add("approve", "let its exact bytes be used in this cell", f"{of}:approve", _approve_runbook)
    runbook.add("retire", "end the use of what it says now, for good", f"{of}:retire", _retire)


def _runbooks(listed: argparse.ArgumentParser) -> None:
    _filtered(listed, "status:approved")
    reach(listed, sub=True)


def _runbook(one: argparse.ArgumentParser) -> None:
    one.add_argument("id", metavar="RUNBOOK")
    reach(one, sub=True)


def _lint(linted: argparse.ArgumentParser) -> None:
    linted.add_argument("files", nargs="+", metavar="FILE", help="Markdown with front matter; - reads standard input")
    as_json(linted)


def _run(ran: argparse.ArgumentParser) -> None:
    _runbook(ran)
    ran.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", help="several ids with commas between"
    )
    ran.add_argument("--dry-run", action="store_true", help="only show what it would do; no approval of it is needed")
    ran.add_argument("--reason", default="", help="kept with the proposal")


def _approve_runbook(approved: argparse.ArgumentParser) -> None:
    _runbook(approved)
    approved.add_argument("--sha256", metavar="HEX", help="of the file that was looked at; at least 12 digits")
    approved.add_argument("--comment", default="", help="kept with the vote")
    approved.add_argument("--yes", action="store_true", help="do not ask")


def _retire(retired: argparse.ArgumentParser) -> None:
    _runbook(retired)
    retired.add_argument("--reason", required=True, help="why it must not be used any more")
    retired.add_argument("--yes", action="store_true", help="do not ask")


# -- incidents --------------------------------------------------------------------------------------------------------


def incident_verbs(incident: ShellParser) -> None:
    """Add what is done with incidents."""
    of = "console.commands.incidents"
    incident.add("list", "those that are not closed, newest first", f"{of}:list_", _incidents)
    incident.add("open", "open one by hand", f"{of}:open_", _open_incident)
    told = "one whole: its waits, what changed before it, what would help"
    incident.add("show", told, f"{of}:show", _incident)
    incident.add("claim", "make it yours", f"{of}:claim", _claim)
    incident.add("hand-over", "make it somebody else's", f"{of}:hand_over", _hand_over)
    incident.add("note", "write a line beside it", f"{of}:note", _note)
    incident.add("close", "end it, saying what was found", f"{of}:close", _close)


def _incidents(listed: argparse.ArgumentParser) -> None:
    _filtered(listed, "severity:critical objects~nlp")
    listed.add_argument("--all", action="store_true", help="those that are closed too")
    reach(listed, sub=True)


def _open_incident(opened: argparse.ArgumentParser) -> None:
    opened.add_argument("title", metavar="TITLE", help="what is wrong, in a line")
    opened.add_argument("--severity", choices=("info", "warning", "critical"), default="warning")
    opened.add_argument("--on", action="append", default=[], metavar="KIND:NAME", help="as queue:research or node:n-17")
    reach(opened, sub=True)


def _incident(one: argparse.ArgumentParser) -> None:
    one.add_argument("id", metavar="INCIDENT", type=incident_id, help="such as I-12; 12 will do")
    reach(one, sub=True)


def _claim(claimed: argparse.ArgumentParser) -> None:
    claimed.add_argument("--over", action="store_true", help="although somebody else has it")
    _incident(claimed)


def _hand_over(handed: argparse.ArgumentParser) -> None:
    handed.add_argument("--to", required=True, metavar="NAME", help="a person of the policy, as bob")
    handed.add_argument("--note", default="", metavar="TEXT", help="kept with it")
    _incident(handed)


def _note(noted: argparse.ArgumentParser) -> None:
    _incident(noted)
    noted.add_argument("text", metavar="TEXT")


def _close(closed: argparse.ArgumentParser) -> None:
    closed.add_argument("--found", required=True, metavar="TEXT", help="what it was, in 10 characters or more")
    _incident(closed)


def incident_id(text: str) -> str:
    """Incident id as people type it: I-12, i-12 or 12."""
    digits = text[2:] if text[:2] in ("I-", "i-") else text
    return f"I-{digits}" if digits.isascii() and digits.isdigit() else text


# -- audit ------------------------------------------------------------------------------------------------------------


def audit_verbs(audit: ShellParser) -> None:
    of = "console.commands.audit"
    audit.add("show", "records, newest last", f"{of}:show", _records)
    audit.add("verify", "check the log; needs no engine", f"{of}:verify", _verify)
    audit.add("export", "records with what it takes to check them elsewhere", f"{of}:export", _export)
    audit.add("redact", "erase a text that is kept apart; the chain stays valid", f"{of}:redact", _redact)
    audit.add("anchor", "print a new checkpoint, and send it to all anchors", f"{of}:anchor", reached)
    audit.add("key", "the public key that signs the log", f"{of}:key", _key)


def _records(show: argparse.ArgumentParser) -> None:
    show.add_argument("filter", nargs="*", metavar="TERM", help="filter: P-3 type:vote actor:alice since:24h")
    show.add_argument("--seq", type=positive, metavar="N", help="one record, whole")
    show.add_argument("--since", default="", metavar="TIME", help="so long ago, as 24h, or since a time (UTC)")
    show.add_argument("--before", type=positive, metavar="N", help="records before this one")
    show.add_argument("--limit", type=positive, default=100, metavar="N", help="so many (100)")
    reach(show, sub=True)


def _verify(verify: argparse.ArgumentParser) -> None:
    verify.epilog = _AUDIT_CODES
    verify.add_argument("files", nargs="*", metavar="FILE", help="journal or export (default the cell)")
    verify.add_argument(
        "--against", type=path_of, metavar="NOTEFILE", help="checkpoints that were remembered elsewhere"
    )
    verify.add_argument(
        "--key", dest="keys", action="append", default=[], metavar="KEY", help="a public key that you know"
    )
    verify.add_argument("--from", dest="since", type=positive, default=1, metavar="N", help="from about record N on")
    verify.add_argument("--to", dest="until", type=positive, default=0, metavar="N", help="up to about record N")
    verify.add_argument("--no-signatures", action="store_true", help="do not check signatures")
    reach(verify, sub=True)


def _export(export: argparse.ArgumentParser) -> None:
    export.add_argument(
        "--format", choices=("jsonl", "csv"), default="jsonl", help="csv is for spreadsheets and cannot be checked"
    )
    export.add_argument("--range", default="", metavar="A:B", help="from record A to B (default all that is signed)")
    export.add_argument("--redact", action="store_true", help="without the texts that are kept apart")
    export.add_argument("--out", default="-", metavar="FILE", help="a new file (default standard output)")
    reach(export, sub=True)


def _redact(redact: argparse.ArgumentParser) -> None:
    redact.add_argument("ref", metavar="REF", help="as `muster audit show` names it")
    redact.add_argument("--reason", required=True, help="kept in the log")
    redact.add_argument("--yes", action="store_true", help="do not ask")
    reach(redact, sub=True)


def _key(key: argparse.ArgumentParser) -> None:
    key.add_argument("--rotate", action="store_true", help="make another that signs from now on")
    key.add_argument("--yes", action="store_true", help="do not ask")
    reach(key, sub=True)


def intent_number(text: str) -> int:
    """Number of an intent as people type it: i17 or 17."""
    digits = text.removeprefix("i")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not the number of an intent; write it like i17")
    return int(digits)
