"""What an engine on a Slurm cluster has in place before it goes on with what was approved before a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_slurm import outside_cell

from console.server import engine_process
from console.server.engine_process import ServeOptions
from console.service.slurm_cell import SlurmAt
from engine.control import Engine


class Reached(Exception):
    pass


@pytest.mark.parametrize("acts", [False, True])
def test_an_engine_knows_whether_it_may_act_before_its_gate_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, acts: bool
) -> None:
    known: list[bool] = []

    def gate(engine: Engine, *others: object, **labels: object) -> None:
        known.append(engine.acts)
        raise Reached

    monkeypatch.setattr(engine_process, "Gate", gate)
    monkeypatch.setattr(engine_process, "keep_state", lambda: None)
    engine = outside_cell()
    engine.acts = False
    cluster = SlurmAt("http://127.0.0.1:9", acts=acts)
    with pytest.raises(Reached):
        engine_process._serve(ServeOptions("hpc", None, unix_socket=tmp_path / "s", mirrors=cluster), engine)
    assert known == [acts]
