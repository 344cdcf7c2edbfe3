"""Parsers of the commands around the approval gate: proposals, runbooks, policy, people, freezes, audit and intents.

Like `console.cli.main` it loads nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import Any

from console.forms.command_arguments import as_json, command, path_of, positive, reach

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


def proposal_commands(commands: Any) -> None:
    """Add the commands on proposals: put to the vote, vote, carry out, take back."""
    from console.forms.action_arguments import action_arguments  # `--version` does without the declarations
    from runbooks.actions.catalogue import CATALOG

    told = "put an action, or a plan of several, to the vote; nothing is done"
    propose = command(commands, "propose", "console.commands.proposals:propose", told)
    propose.add_argument("-f", "--file", metavar="PLAN", help="YAML with several steps instead; - for standard input")
    propose.add_argument(
        "--again", metavar="PROPOSAL", type=proposal_id, help="what that one was, for the cell as it is now"
    )
    _asking(propose)
    kinds = propose.add_subparsers(title="actions", metavar="ACTION", dest="action")
    for action in CATALOG.values():
        kind = command(kinds, action.shell, "console.commands.proposals:propose", action.summary)
        action_arguments(kind, action)
        _asking(kind, sub=True)
    listed = command(
        commands, "proposals", "console.commands.proposals:proposals", "what is proposed, what needs you first"
    )
    listed.add_argument("--state", action="append", metavar="STATE", help="those in this state, such as paused")
    listed.add_argument("--mine", action="store_true", help="those that you wrote")
    listed.add_argument("--all", action="store_true", help="those that are over too")
    reach(listed, sub=True)
    deeds: dict[str, tuple[str, tuple[str, ...]]] = {
        "show": ("all of a proposal that a voter must see", ()),
        "approve": ("vote yes to exactly the plan shown; the last yes needed carries it out", ("digest", "comment")),
        "reject": ("vote no: that ends it", ("reason!",)),
        "abstain": ("say that you looked and do not vote", ("comment",)),
        "execute": ("carry out what is approved, or go on with what was interrupted", ()),
        "pause": ("have no further step done", ("reason",)),
        "confirm": ("say go to a step that waits for it", ("step",)),
        "rollback": ("show what taking it back does now, ask, and do that", ("reason", "yes")),
        "withdraw": ("take a proposal back before anything of it is done", ("reason",)),
        "revise": ("put another plan, or the same for the cell as it is now, under the same id", ("file",)),
        "break-glass": ("carry it out without the votes of others; somebody must review that", ("reason!", "digest")),
    }  # fmt: skip
    for name, (text, wants) in deeds.items():
        deed = command(commands, name, f"console.commands.proposals:{name.replace('-', '_')}", text)
        deed.add_argument("id", metavar="PROPOSAL", type=proposal_id, help="such as P-3; 3 will do")
        if "step" in wants:
            deed.add_argument("step", metavar="STEP", help="its id, as `muster show` has it")
        if "digest" in wants:
            deed.add_argument("--digest", metavar="PREFIX", help="of the plan you looked at: 6 characters or more")
        if "comment" in wants:
            deed.add_argument("--comment", default="", metavar="TEXT", help="kept with the vote")
        if "reason" in wants or "reason!" in wants:
            deed.add_argument("--reason", required="reason!" in wants, default="", metavar="WHY", help="kept with it")
        if "yes" in wants:
            deed.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
            deed.add_argument("--dry-run", action="store_true", help="show what it would do now, do nothing")
        if "file" in wants:
            deed.add_argument("-f", "--file", metavar="PLAN", help="YAML as for `muster propose -f`")
        reach(deed, sub=True)
    reach(
        command(commands, "reviews", "console.commands.proposals:reviews", "what waits for a person to look at it"),
        sub=True,
    )
    review = commands.add_parser("review", help="what a review found", allow_abbrev=False)
    kinds = review.add_subparsers(title="commands", metavar="COMMAND", required=True)
    close = command(
        kinds, "close", "console.commands.proposals:close_review", "say that it was looked at, and what was found"
    )
    close.add_argument("review", type=positive, metavar="N")
    close.add_argument("--comment", required=True, metavar="TEXT", help="what was found, in 10 characters or more")
    reach(close, sub=True)


def proposal_id(text: str) -> str:
    """Proposal id as people type it: P-3, p-3 or 3."""
    digits = text[2:] if text[:2] in ("P-", "p-") else text
    return f"P-{digits}" if digits.isascii() and digits.isdigit() else text


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


def policy_commands(commands: Any) -> None:
    """Add the commands for the policy, its people and their keys, and freezes."""
    kinds = _group(commands, "policy", "who may do what, and how many must agree")
    shown = command(kinds, "show", "console.commands.policy:show", "the policy in force, and those that wait for votes")
    shown.add_argument("--file", action="store_true", help="as a file, to write the next one from")
    reach(shown, sub=True)
    for name, text in (
        ("check", "whether a file may be a policy, and what it would change"),
        ("propose", "put the policy of a file to the vote"),
    ):
        given = command(kinds, name, f"console.commands.policy:{name}", text)
        given.add_argument("file", metavar="FILE")
        reach(given, sub=True)
    use = command(
        kinds, "use", "console.commands.policy:use", "put a built-in policy to the vote, for the people there are"
    )
    use.add_argument("name", choices=("team", "solo"))
    yes = command(
        kinds, "approve", "console.commands.policy:approve", "vote for a new policy, after seeing what it changes"
    )
    reach(
        command(kinds, "reject", "console.commands.policy:reject", "vote against a new policy: one no ends it"),
        sub=True,
    )
    kinds.choices["reject"].add_argument("id", metavar="ID", help="such as policy-3")
    yes.add_argument("id", metavar="ID", help="such as policy-3")
    for voting in (use, yes):
        voting.add_argument(
            "--digest", metavar="HEX", help="how its digest begins, where nobody can be asked to type it"
        )
        reach(voting, sub=True)

    people = _group(commands, "operator", "the people that the policy names, and their keys")
    reach(command(people, "list", "console.commands.policy:operators", "who they are and what they may do"), sub=True)
    added = command(
        people, "add", "console.commands.policy:add_operator", "put a policy to the vote that names one more"
    )
    removed = command(
        people, "remove", "console.commands.policy:remove_operator", "put one to the vote without somebody"
    )
    for person in (added, removed):
        person.add_argument("id", metavar="NAME", help="a short name that stays theirs, such as alice")
        person.add_argument("--print", action="store_true", help="write the file instead of putting it to the vote")
        person.set_defaults(digest="")
        reach(person, sub=True)
    added.add_argument("--name", default="", help="as it is shown")
    added.add_argument(
        "--account",
        action="append",
        default=[],
        metavar="ACCOUNT",
        help="unix:UID, oidc:ISSUER#SUBJECT or cert:NAME; may be repeated",
    )
    added.add_argument(
        "--role", action="append", default=[], choices=("submitter", "operator", "approver", "admin", "auditor")
    )
    added.add_argument(
        "--key", dest="key_files", action="append", default=[], metavar="KEY|FILE", help="public key, or its file"
    )
    keys = _group(people, "key", "keys to sign with")
    made = command(keys, "new", "console.commands.policy:new_key", "make a key under a passphrase")
    made.add_argument("path", nargs="?", metavar="FILE", help="where to keep it (default key.pem beside the settings)")
    listed = command(keys, "list", "console.commands.policy:keys", "the keys that could sign here")
    for one in (made, listed):
        reach(one, sub=True)
    reach(command(commands, "whoami", "console.commands.policy:whoami", "as whom the engine knows you"), sub=True)
    _freeze_commands(commands)


def _freeze_commands(commands: Any) -> None:
    freeze = command(commands, "freeze", "console.commands.policy:freeze", "let no plans run during a window")
    freeze_arguments(freeze)
    thaw = command(commands, "thaw", "console.commands.policy:thaw", "end a freeze that was set by hand")
    thaw.add_argument("name", metavar="NAME")
    listed = command(commands, "freezes", "console.commands.policy:freezes", "when plans do not run")
    for one in (freeze, thaw, listed):
        reach(one, sub=True)


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


def _group(commands: Any, name: str, text: str) -> Any:
    """Commands of two words."""
    made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    return made.add_subparsers(title="commands", metavar="COMMAND", required=True)


def incident_commands(commands: Any) -> Any:
    """Add the commands on incidents. Returns the group, for what is written about them."""
    kinds = _group(commands, "incident", "incidents: what alerts opened, who has it, what came of it")
    module = "console.commands.incidents"
    listed = command(kinds, "list", f"{module}:list_", "those that are not closed, newest first")
    listed.add_argument("--all", action="store_true", help="those that are closed too")
    opened = command(kinds, "open", f"{module}:open_", "open one by hand")
    opened.add_argument("title", metavar="TITLE", help="what is wrong, in a line")
    opened.add_argument("--severity", choices=("info", "warning", "critical"), default="warning")
    opened.add_argument("--on", action="append", default=[], metavar="KIND:NAME", help="as queue:research or node:n-17")
    shown = command(kinds, "show", f"{module}:show", "one whole: its waits, what changed before it, what would help")
    claimed = command(kinds, "claim", f"{module}:claim", "make it yours")
    claimed.add_argument("--over", action="store_true", help="although somebody else has it")
    handed = command(kinds, "hand-over", f"{module}:hand_over", "make it somebody else's")
    handed.add_argument("--to", required=True, metavar="NAME", help="a person of the policy, as bob")
    handed.add_argument("--note", default="", metavar="TEXT", help="kept with it")
    noted = command(kinds, "note", f"{module}:note", "write a line beside it")
    closed = command(kinds, "close", f"{module}:close", "end it, saying what was found")
    closed.add_argument("--found", required=True, metavar="TEXT", help="what it was, in 10 characters or more")
    for one in (shown, claimed, handed, noted, closed):
        one.add_argument("id", metavar="INCIDENT", type=incident_id, help="such as I-12; 12 will do")
    noted.add_argument("text", metavar="TEXT")
    for one in (listed, opened, shown, claimed, handed, noted, closed):
        reach(one, sub=True)
    return kinds


def incident_id(text: str) -> str:
    """Incident id as people type it: I-12, i-12 or 12."""
    digits = text[2:] if text[:2] in ("I-", "i-") else text
    return f"I-{digits}" if digits.isascii() and digits.isdigit() else text


def runbook_commands(commands: Any) -> None:
    runbook = commands.add_parser(
        "runbook", help="written procedures: look, check, try, run, approve", allow_abbrev=False
    )
    kinds = runbook.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listed = command(kinds, "list", "console.commands.runbooks:list_", "which there are, and which are approved")
    reach(listed, sub=True)
    shown = command(kinds, "show", "console.commands.runbooks:show", "one of them whole")
    linted = command(
        kinds, "lint", "console.commands.runbooks:lint", "what is wrong with files; exit code 2 if anything is"
    )
    linted.add_argument("files", nargs="+", metavar="FILE", help="Markdown with front matter; - reads standard input")
    as_json(linted)
    ran = command(kinds, "run", "console.commands.runbooks:run", "resolve its inputs, simulate it, and propose it")
    approved = command(
        kinds, "approve", "console.commands.runbooks:approve", "let its exact bytes be used in this cell"
    )
    retired = command(kinds, "retire", "console.commands.runbooks:retire", "end the use of what it says now, for good")
    for one in (shown, ran, approved, retired):
        one.add_argument("id", metavar="RUNBOOK")
        reach(one, sub=True)
    ran.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", help="several ids with commas between"
    )
    ran.add_argument("--dry-run", action="store_true", help="only show what it would do; no approval of it is needed")
    ran.add_argument("--reason", default="", help="kept with the proposal")
    approved.add_argument("--sha256", metavar="HEX", help="of the file that was looked at; at least 12 digits")
    approved.add_argument("--comment", default="", help="kept with the vote")
    retired.add_argument("--reason", required=True, help="why it must not be used any more")
    for one in (approved, retired):
        one.add_argument("--yes", action="store_true", help="do not ask")


def audit_commands(commands: Any) -> None:
    audit = commands.add_parser("audit", help="who did what, on whose vote", allow_abbrev=False)
    kinds = audit.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = command(kinds, "show", "console.commands.audit:show", "records, newest last")
    show.add_argument("proposal", nargs="?", metavar="PROPOSAL", help="of this one alone, as P-3")
    show.add_argument("--seq", type=positive, metavar="N", help="one record, whole")
    show.add_argument("--actor", default="", metavar="SUBJECT", help="of whom, as person:alice")
    show.add_argument("--type", default="", metavar="TYPE", help="as vote.approve, or vote for all of that kind")
    show.add_argument("--since", default="", metavar="TIME", help="so long ago, as 24h, or since a time (UTC)")
    show.add_argument("--before", type=positive, metavar="N", help="records before this one")
    show.add_argument("--limit", type=positive, default=100, metavar="N", help="so many (100)")
    reach(show, sub=True)
    verify = command(kinds, "verify", "console.commands.audit:verify", "check the log; needs no engine")
    verify.epilog = _AUDIT_CODES
    verify.formatter_class = argparse.RawDescriptionHelpFormatter
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
    export = command(
        kinds, "export", "console.commands.audit:export", "records with what it takes to check them elsewhere"
    )
    export.add_argument(
        "--format", choices=("jsonl", "csv"), default="jsonl", help="csv is for spreadsheets and cannot be checked"
    )
    export.add_argument("--range", default="", metavar="A:B", help="from record A to B (default all that is signed)")
    export.add_argument("--redact", action="store_true", help="without the texts that are kept apart")
    export.add_argument("--out", default="-", metavar="FILE", help="a new file (default standard output)")
    reach(export, sub=True)
    redact = command(
        kinds, "redact", "console.commands.audit:redact", "erase a text that is kept apart; the chain stays valid"
    )
    redact.add_argument("ref", metavar="REF", help="as `muster audit show` names it")
    redact.add_argument("--reason", required=True, help="kept in the log")
    anchor = command(
        kinds, "anchor", "console.commands.audit:anchor", "print a new checkpoint, and send it to all anchors"
    )
    reach(anchor, sub=True)
    key = command(kinds, "key", "console.commands.audit:key", "the public key that signs the log")
    key.add_argument("--rotate", action="store_true", help="make another that signs from now on")
    for one in (redact, key):
        one.add_argument("--yes", action="store_true", help="do not ask")
        reach(one, sub=True)


def intent_commands(intents: argparse.ArgumentParser) -> None:
    kinds = intents.add_subparsers(title="commands", metavar="COMMAND")
    show = command(kinds, "show", "console.commands.slurm:show", "all that is known of one, and what Slurm shows now")
    retry = command(
        kinds, "retry", "console.commands.slurm:retry", "have one in doubt done again: an act is proposed anew"
    )
    settle = command(kinds, "settle", "console.commands.slurm:settle", "say what came of one in doubt")
    for each in (show, retry, settle):
        each.add_argument("number", type=intent_number, metavar="N", help="its number, such as i17")
    settle.add_argument("outcome", choices=("done", "undone"), help="what was found in Slurm")
    for each in (retry, settle):
        each.add_argument("--reason", required=True, metavar="TEXT", help="what was found, in 10 characters or more")
        each.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    retry.add_argument("--dry-run", action="store_true", help="of an act: show the plan and its effect, do nothing")
    for each in (show, retry, settle):
        reach(each, sub=True)


def intent_number(text: str) -> int:
    """Number of an intent as people type it: i17 or 17."""
    digits = text.removeprefix("i")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is no number of an intent, such as i17")
    return int(digits)
