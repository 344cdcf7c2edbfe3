"""Commands by noun: what the cell, its work and its money consist of.

An action stands under its noun by its declaration alone. The nouns around the approval gate are in
`console.forms.gate_arguments`. Loads nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import Any

from console.cli.daily_commands import drafted_from
from console.forms.command_arguments import (
    SCOPES,
    as_json,
    count,
    list_arguments,
    positive,
    reach,
    reached,
    submit_arguments,
)
from console.forms.gate_arguments import (
    audit_verbs,
    incident_verbs,
    intent_number,
    policy_verbs,
    proposal_verbs,
    runbook_verbs,
)
from console.forms.shell_parser import HelpSection, ShellParser

NOUNS = HelpSection("By noun: `muster NOUN` lists its verbs, such as `muster node drain`")
FORMATS = ("swf", "openb", "itp", "philly")
STATES = ("waiting", "sending", "routed", "moving", "ended", "withdrawn")


def add_nouns(root: ShellParser) -> None:
    for word, text, fill in (
        ("node", "machines: drain, cordon, reserve, report that they are alive", _node),
        ("queue", "quota, fairness, hold and open", _queue),
        ("workload", "hold, move, resize, preempt, suspend, resume", _workload),
        ("pool", "how many nodes: scale, targets, prices, orders", _pool),
        ("cell", "define it, its policy, consolidation, notices, all actions", _cell),
        ("budget", "what was spent, by whom, and what is left", _budget),
        ("incident", "what alerts opened, who has it, what came of it", _incident),
        ("proposal", "propose, vote, execute, roll back, review", proposal_verbs),
        ("runbook", "written procedures: look, check, try, run, approve", runbook_verbs),
        ("policy", "who may do what; operators, keys and freezes", policy_verbs),
        ("audit", "the record: who did what, on whose vote", audit_verbs),
        ("intent", "what was asked of Slurm or Kubernetes, and what came of it", _intent),
        ("kubernetes", "what can be read of a Kubernetes cluster, and what changes there", _kubernetes),
        ("fleet", "several cells as one: submit to whichever suits", _fleet),
        ("history", "what was measured, and the forecast made of it", _history),
        ("token", "tokens and logins that prove over the network who asks", _token),
        ("config", "the settings file and the keys: check, keys", _config),
        ("database", "where a cell is kept: look, check, back up, copy", _database),
    ):
        root.add(word, text, "", fill, NOUNS)


def _actions(noun: ShellParser) -> None:
    from console.forms.action_arguments import noun_actions  # other nouns do without the declarations

    noun_actions(noun)


def _list(noun: ShellParser, text: str) -> None:
    """Add the list of that kind, which `get` shows too."""

    def fill(made: ShellParser) -> None:
        made.set_defaults(kind=f"{noun.prog.split()[-1]}s")
        list_arguments(made)

    noun.add("list", text, "console.commands.show:get", fill)


def _node(node: ShellParser) -> None:
    _list(node, "list nodes, or show one; as `muster get nodes`")
    _actions(node)
    node.add("agent", "tell a cell that nodes are alive, until stopped", "console.commands.agent:agent", _agent)


def _agent(agent: argparse.ArgumentParser) -> None:
    agent.add_argument("--node", metavar="ID", action="append", required=True, help="a node; may be given again")
    agent.add_argument("--leave", action="store_true", help="say that no agent will call for it any more, and end")
    reach(agent, sub=True)


def _queue(queue: ShellParser) -> None:
    _list(queue, "list queues, or show one; as `muster get queues`")
    _actions(queue)
    told = "shares of the queues, and who went first why"
    queue.add("fairness", told, "console.commands.capacity:fairness", _fairness)


def _fairness(fairness: argparse.ArgumentParser) -> None:
    fairness.add_argument("queue", nargs="?", help="only this queue and its starts")
    reach(fairness, sub=True)


def _workload(workload: ShellParser) -> None:
    _list(workload, "list workloads, or show one; as `muster get workloads`")
    _actions(workload)
    workload.add("size", "what work asks for against what it uses", "console.commands.advice:size", _size)
    workload.add("advise", "where a workload would do best", "console.commands.advice:advise", _advise)
    told = "the processes of a workload, by attempt; without an id of all that runs here"
    workload.add("processes", told, "console.commands.processes:processes", _processes)


def _size(size: argparse.ArgumentParser) -> None:
    size.add_argument("id", nargs="?", help="only work like this workload")
    size.add_argument("--all", action="store_true", help="every kind of work, not only a screen of them")
    reach(size, sub=True)


def _advise(advise: argparse.ArgumentParser) -> None:
    advise.add_argument("id")
    reach(advise, sub=True)


def _processes(processes: argparse.ArgumentParser) -> None:
    processes.add_argument("id", nargs="?")
    reach(processes, sub=True)


def _pool(pool: ShellParser) -> None:
    _list(pool, "size, booting nodes, price and pauses of each pool")
    _actions(pool)

    def orders(made: ShellParser) -> None:
        made.set_defaults(kind="orders")
        list_arguments(made)

    pool.add(
        "orders", "orders of nodes: what was asked for, and what has come of it", "console.commands.show:get", orders
    )
    pool.add("scaling", "how large pools are and should be", "console.commands.capacity:scaling", reached)


def _cell(cell: ShellParser) -> None:
    cell.add("define", "give an empty cell its pools, nodes and queues", "console.commands.acting:define", _define)
    _actions(cell)
    told = "how much of the free GPU is of no use, and to whom"
    cell.add("fragmentation", told, "console.commands.capacity:fragmentation", reached)
    told = "how the mirror of a Slurm or Kubernetes cluster does, and what it leaves out"
    cell.add("mirror", told, "console.commands.external_scheduler:mirror", reached)
    cell.add("who", "who is here: the consoles, and what they are on", "console.commands.tokens:who", reached)
    cell.add("model", "which model is asked, and what it has cost", "console.commands.drafts:model", reached)
    cell.add("actions", "what can be done to a cell, and how risky it is", "console.cli.reference:actions", _table)


def _define(define: argparse.ArgumentParser) -> None:
    define.add_argument("file", help="YAML or JSON that defines the cell")
    define.add_argument("--prices", metavar="FILE", help="CSV that prices its pools by machine type")
    reach(define, sub=True)


def _table(table: argparse.ArgumentParser) -> None:
    table.add_argument("--markdown", action="store_true", help="as a table for documents")
    as_json(table)


def _budget(budget: ShellParser) -> None:
    budget.add("list", "what budgets have left, and when they are spent", "console.commands.money:budgets", reached)
    _actions(budget)
    budget.add("showback", "who was charged what, and what was idle", "console.commands.money:showback", _showback)
    told = "what finished work has cost, how much of that was of use, and what providers took back"
    budget.add("efficiency", told, "console.commands.money:spot", reached)


def _showback(showback: argparse.ArgumentParser) -> None:
    showback.add_argument("--by", default="tenant", metavar="GROUP", help="tenant, team, queue, pool or tag:KEY")
    showback.add_argument("--days", type=positive, default=30, metavar="N", help="the last so many days (30)")
    showback.add_argument("--since", metavar="DAY", help="instead: from this day (UTC) on, such as 2026-03-01")
    showback.add_argument("--until", metavar="DAY", help="with --since: up to the end of this day")
    reach(showback, sub=True)


def _incident(incident: ShellParser) -> None:
    incident_verbs(incident)
    incident.add("summary", "a summary of what happened lately", "console.commands.drafts:incident", _summary)


def _summary(summary: argparse.ArgumentParser) -> None:
    summary.add_argument("question", nargs="?", default="", metavar="TEXT", help="what it was, in your words")
    summary.add_argument("--since", default="", metavar="TIME", help="so far back (2h)")
    drafted_from(summary)
    reach(summary, sub=True)


def _intent(intent: ShellParser) -> None:
    of = "console.commands.external_scheduler"
    intent.add("list", "those under way, and what came of the last ones", f"{of}:intents", _intents)
    intent.add("show", "all that is known of one, and what the cluster shows of it now", f"{of}:intent", _one_intent)
    intent.add("retry", "have one in doubt done again: an act is proposed anew", f"{of}:retry", _retry)
    intent.add("settle", "say what came of one in doubt", f"{of}:settle", _settle)


def _intents(listed: argparse.ArgumentParser) -> None:
    listed.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (50)")
    reach(listed, sub=True)


def _numbered(target: argparse.ArgumentParser) -> None:
    target.add_argument("number", type=intent_number, metavar="N", help="its number, such as i17")


def _one_intent(shown: argparse.ArgumentParser) -> None:
    _numbered(shown)
    reach(shown, sub=True)


def _retry(retry: argparse.ArgumentParser) -> None:
    _numbered(retry)
    _found(retry)
    retry.add_argument("--dry-run", action="store_true", help="of an act: show the plan and its effect, do nothing")
    reach(retry, sub=True)


def _settle(settle: argparse.ArgumentParser) -> None:
    _numbered(settle)
    settle.add_argument("outcome", choices=("done", "undone"), help="what was found in the cluster")
    _found(settle)
    reach(settle, sub=True)


def _found(target: argparse.ArgumentParser) -> None:
    target.add_argument("--reason", required=True, metavar="TEXT", help="what was found, in 10 characters or more")
    target.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")


def _kubernetes(kubernetes: ShellParser) -> None:
    of = "console.commands.kubernetes"
    kubernetes.add("look", "what can be read of a cluster, and how much there is", f"{of}:look", _cluster)
    kubernetes.add("watch", "what changes in a cluster, as it happens", f"{of}:watch", _watch)


def _cluster(target: argparse.ArgumentParser) -> None:
    group = target.add_argument_group("which cluster")
    group.add_argument("--context", metavar="NAME", help="of the kubeconfig (its current context)")
    group.add_argument("--kubeconfig", metavar="FILE", help="instead of those of KUBECONFIG, or ~/.kube/config")
    group.add_argument("--in-cluster", action="store_true", help="the cluster that this is a pod of")
    told = "let a kubeconfig leave the server's certificate unchecked"
    group.add_argument("--insecure-skip-tls-verify", dest="insecure", action="store_true", help=told)
    as_json(target)


def _watch(watch: argparse.ArgumentParser) -> None:
    watch.add_argument("kinds", nargs="*", metavar="KIND", help="such as pods or workloads (all that can be read)")
    watch.add_argument("--for", dest="duration", metavar="TIME", help="end after so long, such as 30s")
    _cluster(watch)


def _history(history: ShellParser) -> None:
    history.add("show", "what was measured, by window", "console.commands.history:history", _measured)
    history.add("import", "bring history from elsewhere", "console.commands.history:import_history", _import)
    history.add("forecast", "demand of the next 48 hours", "console.commands.advice:forecast", _forecast)


def _measured(history: argparse.ArgumentParser) -> None:
    history.add_argument("metric", nargs="?", default="", help="such as demand_gpu; without: what there is")
    history.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="as queue:research")
    history.add_argument("--since", default="24h", metavar="TIME", help="so far back (24h)")
    history.add_argument("--step", default="", metavar="TIME", help="one line for each so long")
    reach(history, sub=True)


def _import(brought: argparse.ArgumentParser) -> None:
    brought.add_argument("source", choices=("prometheus", *FORMATS, "genai", "dlrm"))
    brought.add_argument("where", nargs="+", metavar="URL|FILE")
    brought.add_argument("--since", default="7d", metavar="TIME", help="prometheus: so far back (7d)")
    brought.add_argument(
        "--step", default="1m", metavar="TIME", help="prometheus: between samples, at least as long as it scrapes (1m)"
    )
    reach(brought, sub=True)


def _forecast(forecast: argparse.ArgumentParser) -> None:
    forecast.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="as queue:research, pool:h100")
    forecast.add_argument(
        "--metric", default="", metavar="METRIC", help="demand_gpu (default) or another of `history show`"
    )
    forecast.add_argument("--hours", type=positive, default=48, metavar="N", help="so many ahead (48)")
    reach(forecast, sub=True)


_WHERE = "URL of a database or path of a file (default: that of the cell)"


def _database(database: ShellParser) -> None:
    of = "console.commands.database"
    database.add("show", "what is there, who writes it, and who stands by", f"{of}:show", _kept)
    database.add("check", "read every event and snapshot, and verify them", f"{of}:check", _kept)
    database.add("backup", "write a cell to a file while its engine runs, and verify it", f"{of}:backup", _backup)
    database.add("restore", "have the cell of such a file again; the present one is kept", f"{of}:restore", _backup)
    database.add("copy", "copy a cell that no engine serves, whole, to a new place", f"{of}:copy", _copy)


def _kept(target: argparse.ArgumentParser) -> None:
    target.add_argument("where", nargs="?", default="", metavar="WHERE", help=_WHERE)
    reach(target, sub=True)


def _backup(kept: argparse.ArgumentParser) -> None:
    kept.add_argument("file", metavar="FILE", help="the backup")
    reach(kept, sub=True)


def _copy(copied: argparse.ArgumentParser) -> None:
    copied.add_argument("source", metavar="FROM", help="file or URL")
    copied.add_argument("target", metavar="TO", help="file or URL; must be new")
    reach(copied, sub=True)


def _config(config: ShellParser) -> None:
    config.add("check", "what is wrong with it, by file and line", "console.cli.config:check", as_json)
    config.add("keys", "every action with its keys, as [keys] has them", "console.cli.config:keys", as_json)


def _token(token: ShellParser) -> None:
    of = "console.commands.tokens"
    token.add("create", "make one; its secret is printed this once", f"{of}:create", _create)
    token.add("list", "yours; for an admin all of them", f"{of}:list_", _tokens)
    token.add("revoke", "it counts for nothing from now on", f"{of}:revoke", _revoke)
    token.add("login", "log in to an engine at a URL with its OpenID provider", f"{of}:login", _login)
    token.add("logout", "revoke and forget what `muster token login` got", f"{of}:logout", reached)


def _create(made: argparse.ArgumentParser) -> None:
    made.add_argument("name", metavar="NAME", help="what it is for, such as ci-nightly")
    made.add_argument(
        "--scope", action="append", default=[], choices=tuple(SCOPES), help="what it may be used for (read)"
    )
    made.add_argument("--for", dest="life", default="90d", metavar="TIME", help="how long it holds, such as 8h (90d)")
    made.add_argument("--service", default="", metavar="ID", help="for a service instead of yourself")
    for part in ("pool", "queue", "tenant"):
        made.add_argument(
            f"--{part}", action="append", default=[], metavar="NAME", help=f"only what touches this {part}"
        )
    made.add_argument("--out", metavar="FILE", help="a new file for the secret, readable by you alone")
    reach(made, sub=True)


def _tokens(listed: argparse.ArgumentParser) -> None:
    listed.add_argument("--all", action="store_true", help="those that are expired or revoked too")
    listed.add_argument("--limit", type=positive, default=200, metavar="N", help="so many (200)")
    reach(listed, sub=True)


def _revoke(revoked: argparse.ArgumentParser) -> None:
    revoked.add_argument("id", metavar="ID", nargs="+", help="as `muster token list` has it")
    reach(revoked, sub=True)


def _login(login: argparse.ArgumentParser) -> None:
    login.add_argument(
        "--ca-file", default="", metavar="FILE", help="certificates (PEM) that the provider's comes from"
    )
    reach(login, sub=True)


# -- several cells ----------------------------------------------------------------------------------------------------


def _fleet(fleet: ShellParser) -> None:
    for verb, text, fill in (
        ("serve", "run the fleet of a file in the foreground", _serve_fleet),
        ("stop", "stop the fleet's process; nothing is forgotten", _of_fleet),
        ("check", "read a fleet's file and say what is wrong with it", _check_fleet),
        ("copy", "copy a fleet's journal that no process has open, to a new place", _copy_fleet),
        ("status", "cells, what tenants hold of all of them, and what waits", _of_fleet),
        ("submit", "submit to the cell where it starts sooner or costs less", _submit_to_fleet),
        ("jobs", "what was submitted to the fleet, newest first", _fleet_jobs),
        ("show", "one submission: where it went, and what each cell had to offer", _fleet_job),
        ("withdraw", "take back what waits in the fleet and is in no cell", _withdraw),
        ("close", "send nothing more to a cell; what is there goes on", _fleet_cell),
        ("open", "send work to a cell again", _fleet_cell),
    ):
        fleet.add(verb, text, f"console.commands.fleet:{verb}", fill)


def _which_fleet(made: argparse.ArgumentParser) -> Any:
    group = made.add_argument_group("which fleet")
    group.add_argument("--fleet", metavar="DIR", help="folder of its journal and socket (default: the user's)")
    return group


def _of_fleet(made: ShellParser) -> None:
    """Add what a command has that asks a running fleet."""
    group = _which_fleet(made)
    if made.prog.split()[-1] in ("submit", "withdraw", "close", "open", "stop"):
        group.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="show, never act")
    as_json(made)


def _serve_fleet(serve: ShellParser) -> None:
    serve.add_argument(
        "--file", required=True, metavar="FILE", help="YAML that names the cells, as docs/fleet.md tells"
    )
    serve.add_argument("--socket-group", metavar="GROUP", help="OS group that may submit too")
    serve.add_argument("--listen", metavar="HOST:PORT", help="serve TCP too, with TLS, whoever has a token of a cell")
    serve.add_argument("--tls-cert", metavar="FILE", help="with --listen: PEM of the certificate, read again when new")
    serve.add_argument("--tls-key", metavar="FILE", help="with --tls-cert: PEM of its key, readable by you alone")
    serve.add_argument("--tls-client-ca", metavar="FILE", help="with --tls-cert: who vouches for callers' certificates")
    serve.add_argument("--database", metavar="URL", help="PostgreSQL database for its journal, instead of a file")
    serve.add_argument("--standby", action="store_true", help="with --database: wait, and take over from the other")
    _which_fleet(serve)


def _check_fleet(check: ShellParser) -> None:
    check.add_argument("file", metavar="FILE")
    _which_fleet(check)


def _copy_fleet(copied: ShellParser) -> None:
    copied.add_argument("--file", required=True, metavar="FILE", help="YAML of the fleet, which tells its name")
    copied.add_argument("source", metavar="FROM", help="file or URL")
    copied.add_argument("target", metavar="TO", help="file or URL; must be new")
    _which_fleet(copied)


def _submit_to_fleet(submit: ShellParser) -> None:
    submit_arguments(submit)
    routing = submit.add_argument_group("which cells")
    routing.add_argument("--to", nargs="+", metavar="CELL", default=(), help="these cells alone")
    routing.add_argument(
        "--residency", nargs="+", metavar="LABEL", default=(), help="stays in one of these, such as eu"
    )
    routing.add_argument(
        "--dataset", nargs="+", metavar="NAME", default=(), help="reads these data of the fleet's file"
    )
    submit.add_argument("--dry-run", action="store_true", help="say where it would go and why; submit nothing")
    _of_fleet(submit)


def _fleet_jobs(jobs: ShellParser) -> None:
    jobs.add_argument(
        "--state", action="append", choices=STATES, default=[], help="those in this state; may be repeated"
    )
    jobs.add_argument("--before", type=count, default=0, metavar="N", help="those submitted before number N")
    jobs.add_argument("--limit", type=positive, default=100, metavar="N", help="so many at most (100)")
    _of_fleet(jobs)


def _fleet_job(show: ShellParser) -> None:
    show.add_argument("id", metavar="ID")
    _of_fleet(show)


def _withdraw(withdraw: ShellParser) -> None:
    withdraw.add_argument("ids", nargs="+", metavar="ID")
    _of_fleet(withdraw)


def _fleet_cell(one: ShellParser) -> None:
    one.add_argument("cell", metavar="CELL")
    one.add_argument("--reason", default="", help="kept with it")
    _of_fleet(one)
