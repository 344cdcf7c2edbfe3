"""An engine that stands by for its cell, takes over, and takes in work and notes as fast as it can until it is killed.
It writes down, for each, what it was told: kept (`S` and `R`), refused (`N`), or that nobody can tell (`U`).

    python database_chaos_worker.py URL FILE [HOST]       HOST: pretends to be on a machine of that name
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from cells import small_cell, submit, workload
from sqlalchemy import Column, Integer, MetaData, String, Table, insert

from engine.control import Engine
from engine.journal import postgres_store as leases
from engine.journal.database import Schema, create_some, place_of
from engine.journal.outside_readers import stand_by
from engine.journal.postgres_store import Holder
from engine.journal.side_tables import Records, RecordsError
from engine.model.errors import JournalError, JournalTaken
from runbooks.audit.log import Audit
from runbooks.plans.identity import SYSTEM

NOTES = Table("note", MetaData(), Column("id", Integer, primary_key=True, autoincrement=True), Column("name", String))
PACE_S = 0.002


def make_cell(url: str) -> None:
    engine = Engine.open(url, cell=small_cell(gpu_nodes=8), seed=11)
    engine.record(lambda connection: create_some(connection, [NOTES]))
    Audit(engine, lambda: 1, log_id="chaos").close()
    engine.close()


def main(url: str, told_path: str, host: str = "") -> None:
    if host:
        leases.this_process = lambda: Holder(host=host, pid=os.getpid(), boot=host)
    place = place_of(url)
    assert isinstance(place, Schema)
    told = os.open(told_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    stood_by = stand_by(place, threading.Event(), lambda news: None)
    assert stood_by is not None
    engine = Engine.open(place, snapshot_every=400, stood_by=stood_by)
    assert engine.lease is not None
    os.write(told, b"T\n")
    audit = Audit(engine, lambda: 1)
    records = Records(place, owner=engine.lease.owner)
    number, mine = 0, stood_by.lease.owner
    while True:
        number += 1
        name = f"w-{mine}-{number}"
        try:
            word = _one(engine, audit, records, number, name)
        except JournalTaken:
            os.write(told, f"U {name}\n".encode())
            os._exit(3)
        except JournalError as error:
            word = "U" if engine._journal._store.in_doubt or "cannot be seen yet" in str(error) else "N"
        except RecordsError:
            continue
        os.write(told, f"{word} {name}\n".encode())
        threading.Event().wait(PACE_S)


def _one(engine: Engine, audit: Audit, records: Records, number: int, name: str) -> str:
    """Work to do, a note, both in one, or what is beside; and what it was."""
    kind = number % 8
    if kind == 7:
        records.write(lambda connection: None)
        return "H"
    if kind in (2, 5):

        def keep(connection: Any) -> None:
            audit.append(connection, "chaos.note", SYSTEM, data={"name": name})
            connection.execute(insert(NOTES).values(name=name))

        engine.record(keep)
        return "R"
    beside = None
    if kind == 3:

        def beside(connection: Any) -> None:
            connection.execute(insert(NOTES).values(name=name))

    engine.command(submit(workload(name, gpu=1000, run=400)), beside=beside)
    if kind == 6:
        engine.advance(engine.now_ms + 300)
    return "B" if kind == 3 else "S"


if __name__ == "__main__":
    main(*sys.argv[1:])
