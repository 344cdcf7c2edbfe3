"""The commands that start and stop: `muster` (the console), `muster serve`, `muster stop`.

The console's part is loaded before the first paint: it imports Textual and nothing else that is heavy.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from console.client.attach import as_of, only_running, running_paths, settings_of, settings_with_cell
from console.forms.settings import (
    DEFAULT_CELL,
    DEMO_CELL,
    CellPaths,
    ConsoleSettings,
    audit_key_path,
    cell_paths,
    cells_folder,
    check_cell_name,
    check_speed,
    environment_of,
    environments,
    given_keys,
    paths_in,
)
from console.service.this_machine import RUNS, LocalExecution, new_cell
from console.text.terminal_text import printable
from engine.model.errors import RefusedError, SpecError, UnreachableError

if TYPE_CHECKING:
    from console.actions.registry import ScreenName
    from console.client.credentials import Identity
    from console.client.protocol import Client
    from console.forms.session_state import SessionState
    from console.server.engine_process import ServeOptions
    from console.service.kubernetes_cell import KubernetesAt
    from console.service.mirrored_cluster import ClusterAt
    from console.service.prometheus_at import PrometheusAt
    from console.service.slurm_cell import SlurmAt
    from engine.control import Engine
    from engine.journal.database import Schema
    from engine.model.specs import CellSpec
    from recommender.history.metrics import Retention
    from runbooks.audit.witnesses import CheckpointSigner


FRAMES_PER_S = "250"
"""Upper bound of frames a second. At Textual's 60, the answer to a key waits up to 17 ms for its frame, which is all of
the budget of a key's median."""
STOP_S = 30.0
"""Longest wait for an engine to write its snapshot and go."""
JOURNAL_FILES = ("journal.db", "journal.db-wal", "journal.db-shm")


def open_console(arguments: argparse.Namespace) -> int:
    """Run the console. It paints first; the engine is found or started on a worker thread after that. A passphrase
    that every request needs is asked for before, while the terminal is a terminal."""
    if not arguments.demo and (arguments.fresh or arguments.nodes or arguments.scenario or arguments.quiet_day):
        raise SpecError("--fresh, --nodes, --scenario and --quiet-day", "belong to the demo", "Add --demo")
    settings = settings_of(arguments)
    cell = _cell_name(arguments, settings)
    if arguments.fresh and not cell.startswith(DEMO_CELL):
        raise RefusedError(
            f"--fresh removes the journal of a demo, and cell '{printable(cell)}' may not be a demo",
            "Leave out --cell, or use a cell name that starts with 'demo'",
        )
    if arguments.fresh and settings.readonly:
        raise RefusedError("--fresh deletes a demo, and this session is read-only", "Start without --readonly")
    linear = settings.linear or cannot_place_a_cursor()
    if not linear:
        refuse_without_terminal()
        # Until the first frame, which comes 30 ms earlier: what is loaded stays.
        gc.disable()
        os.environ.setdefault("TEXTUAL_FPS", FRAMES_PER_S)  # read when Textual is loaded
        if sys.stdout.isatty():
            from console.tui.terminal_guard import watched

            ended = watched()
            if ended is not None:
                return ended
    if arguments.speed is not None:
        check_speed(arguments.speed, "--speed")
    from console.client.credentials import Identity

    identity = Identity(settings)
    identity.unlock()
    connect, title, folder = _connector(arguments, settings, identity)
    at = getattr(arguments, "at", None) or ""
    of_names = partial(environment_of, known=environments(os.environ), settings=settings)
    session = _session(settings, folder, fresh=arguments.fresh)
    if linear:
        from console.cli.linear_conversation import run as converse
        from console.views.welcome import SEEN, is_due

        is_first = is_due(vars(arguments), session.recall(SEEN))
        session.remember(SEEN, is_first or session.recall(SEEN))
        begin = (lambda: as_of(connect(), at)) if at else connect
        status = converse(
            begin, identity, read_only=settings.readonly or bool(at), environment_of=of_names,
            begin="welcome" if is_first else "findings",
        )  # fmt: skip
    else:
        from console.actions.key_map import key_map
        from console.tui.app import run

        status = run(
            connect, read_only=settings.readonly, title=title, log=folder / "console.log", identity=identity,
            theme=settings.theme, keys=key_map(given_keys(os.environ)), flags=vars(arguments),
            page=getattr(arguments, "page", None) or "",
            environment_of=of_names,
            start=cast("ScreenName", settings.start_page), session=session, at=at,
        )  # fmt: skip
    if not settings.connect:
        _tell_what_goes_on(folder, title)
    return status


def open_here(arguments: argparse.Namespace) -> int:
    """Run the console of a cell that is this machine."""
    arguments.here = True
    if arguments.demo or settings_of(arguments).connect:
        raise SpecError("here", "is this machine: --demo and --connect have no meaning", "Leave them out")
    return open_console(arguments)


def open_tour(arguments: argparse.Namespace) -> int:
    """Run the console on the demo, with the tour of its incident."""
    if settings_of(arguments).connect or arguments.quiet_day or arguments.scenario:
        raise SpecError("tour", "walks the incident of the demo", "Leave out --connect, --quiet-day and --scenario")
    arguments.demo = arguments.tour = True
    return open_console(arguments)


def _session(settings: ConsoleSettings, folder: Path, *, fresh: bool) -> SessionState:
    """State kept of this person for this cell; for an engine elsewhere beside the cells, by its address. `fresh`:
    the cell begins anew, and with it the position."""
    from console.forms.session_state import SessionState

    if not settings.connect:
        session = SessionState(folder, restore=settings.restore)
        while fresh and session.lost() is not None:
            pass
        return session
    import hashlib

    where = hashlib.sha256(settings.connect.encode()).hexdigest()[:12]
    return SessionState(folder, f"console-{where}", restore=settings.restore)


def _tell_what_goes_on(folder: Path, cell: str) -> None:
    """Report that the engine outlives its console, and how to end it."""
    from console.client.launch import read_record

    record = read_record(paths_in(folder).record)
    if record is not None and not record.has_ended:
        told = f"the engine keeps running as process {record.process.pid}; stop it with: muster stop --cell {cell}"
        with contextlib.suppress(OSError):  # the terminal may be gone, which is why it left
            print(printable(told), file=sys.stderr)


def serve_engine(arguments: argparse.Namespace) -> None:
    """Run an engine in the foreground until it is told to stop."""
    if not arguments.cell_file:
        _serve(_served(arguments))
        return
    from console.forms.documents import read_document
    from console.forms.work_files import cell_of, placed

    document = read_document(arguments.cell_file)
    served = _served(arguments, cell_of(document))
    with placed(document):
        _serve(served)


def _serve(served: ServeOptions) -> None:
    from console.server.engine_process import serve

    serve(served)


def stop_engine(arguments: argparse.Namespace) -> None:
    """Ask the cell's engine to write a snapshot and end, and wait until it has."""
    settings = settings_with_cell(arguments)
    if settings.connect:
        raise RefusedError("an engine is stopped on its own machine", "Use `muster stop` on that machine")
    if settings.readonly:
        raise RefusedError("this session is read-only", "Start without --readonly to act")
    pid = stop_running(running_paths(settings))
    if arguments.json:
        import json

        print(json.dumps({"cell": settings.cell, "pid": pid}))
        return
    print(f"engine of cell '{printable(settings.cell)}', process {pid:d}, has stopped", file=sys.stderr)


def stop_running(paths: CellPaths) -> int:
    """Stop the engine that listens on the cell's socket. Returns its process id; raises UnreachableError."""
    import signal

    from console.client.launch import alive, running

    peer = running(paths.socket)
    pid = peer.pid if peer is not None and peer.pid > 0 else _written_pid(paths)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline:
        if not alive(pid):
            return pid
        time.sleep(0.02)
    raise UnreachableError(f"engine process {pid} did not stop within {STOP_S:g} s", f"See {paths.log}")


def _connector(
    arguments: argparse.Namespace, settings: ConsoleSettings, identity: Identity
) -> tuple[Callable[[], Client], str, Path]:
    """Function that gives the console its client, the title to show before that, and the folder for its log."""
    if settings.connect:
        return lambda: _remote(settings.connect, settings, identity), settings.connect, cells_folder(settings)
    nobody_named_it = not (arguments.demo or arguments.here or settings.cell)
    found = only_running(settings) if nobody_named_it else ""
    cell = found or _cell_name(arguments, settings)
    paths = cell_paths(settings, cell)
    serve_arguments = ["--data", str(paths.folder), "--cell", cell, *_load_arguments(arguments, settings)]

    answered = False
    as_asked = arguments.demo or arguments.here or arguments.speed is not None

    def start() -> Client:
        """Also called after every loss; only the first call may forget, and start what was stopped: never a cell that
        nobody named. An engine that died is started as it was, unless this console was asked for something else."""
        from console.client.launch import engine_again, ensure_engine, read_record

        nonlocal answered
        if arguments.fresh:
            forget(paths)
            arguments.fresh = False
        if not answered and found:
            socket = running_paths(replace(settings, cell=found)).socket
        elif answered or (not as_asked and read_record(paths.record) is not None):
            socket = engine_again(paths, read_only=settings.readonly)
        else:
            socket = ensure_engine(paths, serve_arguments, settings.socket_group, read_only=settings.readonly)
        answered = True
        return _remote(str(socket), settings, identity)

    return start, cell, paths.folder


def _load_arguments(arguments: argparse.Namespace, settings: ConsoleSettings) -> list[str]:
    if arguments.here:
        return ["--here"]
    if not arguments.demo:
        return ["--speed", str(settings.speed)]
    given = {"--scenario": arguments.scenario, "--nodes": arguments.nodes, "--speed": arguments.speed}
    quiet = ["--quiet-day"] if arguments.quiet_day else []
    return ["--demo", *quiet, *(word for flag, value in given.items() if value for word in (flag, str(value)))]


def _cell_name(arguments: argparse.Namespace, settings: ConsoleSettings) -> str:
    """Name of the cell. Each scenario has one of its own, as the demo does."""
    if not arguments.demo or arguments.cell is not None:
        return settings.cell or DEFAULT_CELL
    return f"{DEMO_CELL}-{arguments.scenario}" if arguments.scenario else DEMO_CELL


def forget(paths: CellPaths) -> None:
    """Stop the cell's engine and remove its journal. Only ever called for a demo, on request."""
    from console.client.launch import running

    if running(paths.socket) is not None:
        stop_running(paths)
    for name in JOURNAL_FILES:
        (paths.folder / name).unlink(missing_ok=True)


def _remote(where: str, settings: ConsoleSettings, identity: Identity) -> Client:
    from console.client.remote import RemoteClient

    return RemoteClient(where, settings.readonly, identity, live=True)


def _served(arguments: argparse.Namespace, cell: CellSpec | None = None) -> ServeOptions:
    from console.client.sockets import tls_given
    from console.server.engine_process import ServeOptions
    from engine.model.quantities import duration_ms
    from runbooks.audit.witnesses import anchors_of

    settings = settings_of(arguments)
    name = _cell_name(arguments, settings)
    check_cell_name(name)
    paths = paths_in(Path(os.path.realpath(arguments.data))) if arguments.data else cell_paths(settings, name)
    here = _here(arguments, paths)
    if arguments.demo and arguments.cell_file:
        raise SpecError("--demo and --cell-file", "exclude each other", "Give one of them")
    if arguments.catch_up and (arguments.demo or settings.speed != 1):
        raise SpecError("--catch-up", "is for a cell in real time", "Leave --demo and --speed out")
    if arguments.scenario and not arguments.demo:
        raise SpecError("--scenario", "belongs to the demo", "Add --demo")
    shared = {
        "name": name,
        "journal": _place(arguments, settings, name, paths),
        "standby": bool(arguments.standby),
        "unix_socket": Path(arguments.socket).absolute() if arguments.socket else paths.socket,
        "listen": arguments.listen or "",
        "tls": tls_given(arguments),
        "socket_group": settings.socket_group,
        "record": paths.record,
        # The setting is about faces; an engine is read-only for everybody, so only the flag says that.
        "read_only": bool(arguments.readonly),
        "seed": arguments.seed,
        "catch_up": bool(arguments.catch_up),
        "use_snapshot": not arguments.ignore_snapshot,
        "keep": _retention(settings),
        "keep_events_ms": duration_ms(settings.keep_events),
        "approval": _approval(arguments, settings, here=here is not None),
        "audit_key": audit_key_path(settings, name, paths),
        "anchors": anchors_of(settings.audit_anchors),
        "runbooks": folders_of(settings),
        "settings": settings,
        "prometheus": _prometheus(arguments, settings),
    }
    if arguments.demo:
        from console.cli import demo_cell

        seed = arguments.seed
        if arguments.scenario:
            return _playing(arguments, shared)
        speed = demo_cell.SPEED if arguments.speed is None else arguments.speed
        check_speed(speed, "--speed")
        cell = demo_cell.cell(arguments.nodes or demo_cell.NODES)
        quiet = ServeOptions(
            **shared,
            speed=speed,
            start_ms=demo_cell.START_MS,
            cell=cell,
            feed=lambda engine: demo_cell.feed(engine, seed),
        )
        return quiet if arguments.quiet_day else _with_a_past(quiet, cell, seed)
    check_speed(settings.speed, "--speed")
    now_ms = time.time_ns() // 1_000_000
    at = _cluster_of(arguments)
    if at is not None:
        return ServeOptions(**shared, start_ms=now_ms, keep_up=True, cell=_mirroring(name, cell, at), mirrors=at)
    if here is not None:
        return ServeOptions(**shared, start_ms=now_ms, keep_up=True, cell=new_cell(paths.folder, cell), here=here)
    return ServeOptions(**shared, speed=settings.speed, start_ms=now_ms, keep_up=settings.speed == 1, cell=cell)


def _approval(arguments: argparse.Namespace, settings: ConsoleSettings, *, here: bool) -> str:
    """A demo is one person's, and so is this machine, unless something else was said."""
    alone = arguments.demo or (here and not arguments.approval)
    return "solo" if alone else settings.approval


def _prometheus(arguments: argparse.Namespace, settings: ConsoleSettings) -> PrometheusAt | None:
    """The Prometheus to follow; None where none was named, one without an address to follow none. Raises SpecError."""
    from console.service.prometheus_at import PrometheusAt
    from engine.model.quantities import duration_ms
    from recommender.history.prometheus import address

    given, token = arguments.prometheus, arguments.prometheus_token_file or settings.prometheus_token_file
    url = given or settings.prometheus
    if not url:
        if arguments.prometheus_token_file:
            raise SpecError("--prometheus-token-file", "belongs to --prometheus", "Add --prometheus URL")
        return None
    if arguments.demo or settings.speed != 1:
        if given:
            raise SpecError("--prometheus", "is followed in real time", "Leave --demo and --speed out")
        return None
    if url == "none":
        return PrometheusAt("")
    address(url)
    try:
        step_ms = duration_ms(settings.prometheus_step)
    except ValueError as error:
        raise SpecError("prometheus_step", str(error), "Use 15s, 30s, 1m or 5m") from None
    return PrometheusAt(url, Path(token).expanduser().absolute() if token else None, step_ms)


def _with_a_past(quiet: ServeOptions, cell: CellSpec, seed: int) -> ServeOptions:
    """Options of a demo that begins with thirty days behind it, and an incident."""
    from console.cli import demo_cell, demo_past

    def begin(engine: Engine, signer: CheckpointSigner | None) -> None:
        wall = demo_past.WallClock(time.time_ns() // 1_000_000, quiet.speed)
        demo_past.make_past(engine, cell, seed, signer, wall)

    return replace(
        quiet,
        start_ms=demo_past.BEGIN_MS,
        past=begin,
        feed=lambda engine: demo_cell.feed(engine, seed, demo_cell.WARM_MS),
    )


def _here(arguments: argparse.Namespace, paths: CellPaths) -> LocalExecution | None:
    """Options of work on this machine, where the cell runs any: a cell that was begun so continues so. Raises
    SpecError."""
    from engine.executors.task_files import Bounds
    from engine.model.quantities import memory_mib

    runs = paths.folder / RUNS
    given = [flag for flag in ("for_others", "output_limit") if getattr(arguments, flag)]
    elsewhere = arguments.demo or arguments.slurm or arguments.kubernetes is not None
    if not arguments.here and (elsewhere or not runs.is_dir()):
        if given:
            raise SpecError(f"--{given[0].replace('_', '-')}", "belongs to --here", "Add --here")
        return None
    clash = [flag for flag in ("demo", "slurm", "standby") if getattr(arguments, flag)]
    clash += ["kubernetes"] if arguments.kubernetes is not None else []
    if clash or (arguments.speed is not None and arguments.speed != 1):
        flag = clash[0] if clash else "speed"
        raise SpecError("--here", f"is this machine in real time: --{flag} has no meaning", f"Leave --{flag} out")
    bounds = Bounds()
    if arguments.output_limit:
        try:
            limit = memory_mib(arguments.output_limit) << 20
        except ValueError as error:
            raise SpecError("--output-limit", str(error), "Give a size such as 10GiB") from None
        bounds = Bounds(task=min(bounds.task, limit), all=limit)
    return LocalExecution(runs, bounds=bounds, for_others=bool(arguments.for_others))


def _cluster_of(arguments: argparse.Namespace) -> ClusterAt | None:
    """The cluster to mirror, if any. Raises SpecError."""
    slurm, kubernetes = _slurm_of(arguments), _kubernetes_of(arguments)
    if slurm is not None and kubernetes is not None:
        raise SpecError("--slurm and --kubernetes", "exclude each other", "Give one of them: a cell is one cluster's")
    return slurm or kubernetes


def _kubernetes_of(arguments: argparse.Namespace) -> KubernetesAt | None:
    from console.service.kubernetes_cell import KubernetesAt

    if arguments.kubernetes is None:
        given = [
            flag
            for flag in ("kubeconfig", "in_cluster", "insecure", "kubernetes_act", "act_by")
            if getattr(arguments, flag)
        ]
        given += ["kueue"] if arguments.kueue is not None else []
        if given:
            raise SpecError(f"--{given[0].replace('_', '-')}", "belongs to --kubernetes", "Add --kubernetes [CONTEXT]")
        return None
    if arguments.demo or (arguments.speed is not None and arguments.speed != 1):
        raise SpecError("--kubernetes", "is a real cluster in real time", "Leave --demo and --speed out")
    if arguments.act_by and not arguments.kubernetes_act:
        raise SpecError("--act-by", "belongs to --kubernetes-act", "Add --kubernetes-act")
    file = str(Path(arguments.kubeconfig).expanduser().absolute()) if arguments.kubeconfig else _own_kubeconfig()
    return KubernetesAt(
        arguments.kubernetes, file, arguments.in_cluster, arguments.insecure, kueue=arguments.kueue is not False,
        acts=arguments.kubernetes_act, act_by=arguments.act_by or "api",
    )  # fmt: skip


def _own_kubeconfig() -> str:
    """The one file of KUBECONFIG, for an engine that is started again where nobody has set it; empty where there is
    none, or several."""
    given = os.environ.get("KUBECONFIG", "")
    return str(Path(given).absolute()) if given and os.pathsep not in given else ""


def _slurm_of(arguments: argparse.Namespace) -> SlurmAt | None:
    from console.service.slurm_cell import SlurmAt

    if not arguments.slurm:
        given = [flag for flag in ("slurm_user", "slurm_token_file", "slurm_act") if getattr(arguments, flag)]
        if given:
            raise SpecError(f"--{given[0].replace('_', '-')}", "belongs to --slurm", "Add --slurm WHERE")
        return None
    if arguments.demo or (arguments.speed is not None and arguments.speed != 1):
        raise SpecError("--slurm", "is a real cluster in real time", "Leave --demo and --speed out")
    file = Path(arguments.slurm_token_file).expanduser().absolute() if arguments.slurm_token_file else None
    return SlurmAt(arguments.slurm, user=arguments.slurm_user or "", token_file=file, acts=arguments.slurm_act)


def _mirroring(name: str, given: CellSpec | None, at: ClusterAt) -> CellSpec:
    """A new cell that another scheduler decides, whose content comes from there. A cell file may give its settings."""
    import msgspec

    from console.service.mirrored_cluster import decider
    from engine.model.specs import CellSpec, Settings

    by: Any = decider(at)
    if given is not None and (given.pools or given.nodes or given.queues):
        raise SpecError("--cell-file", "defines pools, nodes or queues", f"With --{by} they come from the cluster")
    settings = Settings() if given is None else given.settings
    return CellSpec(
        name=name if given is None else given.name,
        settings=msgspec.structs.replace(
            settings,
            decided_by=by,
            # Slurm's partitions and QOS preempt in all queues; Kueue preempts at once, and in the queue that says so.
            preempt_across=by == "slurm",
            preempt_after_ms=0 if by == "kubernetes" else settings.preempt_after_ms,
        ),
        budgets=() if given is None else given.budgets,
    )


def _place(arguments: argparse.Namespace, settings: ConsoleSettings, cell: str, paths: CellPaths) -> Path | Schema:
    """File or schema that the cell is kept in. Raises SpecError."""
    from engine.journal.database import Schema, place_of, schema_for

    # A demo is kept in a file, unless it is asked for in so many words.
    wanted = arguments.database if arguments.demo else settings.database
    place = place_of(wanted, schema_for(cell)) if wanted else None
    if isinstance(place, Schema):
        if arguments.database and place.has_password:
            print("muster: other users of this machine can see a password on the command line: use ~/.pgpass or "
                  "MUSTER_DATABASE", file=sys.stderr)  # fmt: skip
        return place
    if arguments.standby:
        raise SpecError("--standby", "needs a database server", "Add --database postgresql://USER@HOST/DATABASE")
    if place is None and not arguments.demo:
        from console.client.launch import refuse_file

        refuse_file(f"cell '{cell}'", paths.folder, paths.journal)
    return paths.journal if place is None else place.path


def folders_of(settings: ConsoleSettings) -> tuple[Path, ...]:
    """Folders with runbooks. Raises SpecError for a relative one, which would differ between processes."""
    folders = tuple(Path(folder).expanduser() for folder in settings.runbooks)
    for folder in folders:
        if not folder.is_absolute():
            raise SpecError("runbooks", f"{str(folder)[:80]!a} is not an absolute path", "Start it with / or ~")
    return folders


def _retention(settings: ConsoleSettings) -> Retention:
    """Retention of the history. Raises SpecError when the times do not go together."""
    from engine.model.quantities import duration_ms
    from recommender.history.metrics import Retention

    return Retention(
        minutes_ms=duration_ms(settings.keep_minutes),
        fives_ms=duration_ms(settings.keep_fives),
        hours_ms=duration_ms(settings.keep_hours),
        runs=settings.keep_runs,
        series=settings.keep_series,
    )


def _playing(arguments: argparse.Namespace, shared: dict[str, Any]) -> ServeOptions:
    """Options that serve a scenario instead of the demo's days."""
    from console.cli import demo_cell
    from console.server.engine_process import ServeOptions
    from engine.scenarios.live_scenarios import scenario

    played = scenario(arguments.scenario)
    nodes = arguments.nodes or played.nodes
    speed = played.speed if arguments.speed is None else arguments.speed
    check_speed(speed, "--speed")
    return ServeOptions(
        **shared,
        speed=speed,
        start_ms=demo_cell.START_MS,
        cell=played.cell(nodes, demo_cell.START_MS),
        feed=lambda engine: demo_cell.ahead(engine, played.feed(nodes, arguments.seed, demo_cell.START_MS)),
    )


def refuse_without_terminal() -> None:
    """Raises SpecError unless a console can be shown here."""
    if os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver"):
        return  # a browser is the terminal: console.cli.web
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SpecError(
            "",
            "the console needs a terminal",
            "Use `muster --linear`, or `muster overview` and `muster get workloads`, in pipes and scripts",
        )
    if not sys.stderr.isatty():
        raise SpecError("standard error", "is redirected, and the console draws on the terminal", "Remove the 2>")
    if cannot_place_a_cursor():
        raise SpecError("TERM", "this terminal cannot position the cursor", "Use `muster --linear`, or set TERM")


def cannot_place_a_cursor() -> bool:
    """True for a terminal that says it can only write line after line."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") in ("", "dumb")


def _written_pid(paths: CellPaths) -> int:
    from console.client.launch import read_record

    record = read_record(paths.record)
    if record is None:
        raise UnreachableError("the engine's process id is not known", f"Look for it with `ps`; see {paths.log}")
    return record.process.pid
