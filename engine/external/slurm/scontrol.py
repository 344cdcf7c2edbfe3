"""Slurm's own commands (`scontrol`, `squeue`, `sshare`, `sdiag`), for what a release's REST lacks.

They act as the user that Muster runs as, or with a token as the token's user. They speak to the controller that
slurm.conf names, which need not be the one behind slurmrestd: the session compares `since_s` with REST's before it uses
them. Arguments go as a list, never through a shell. The caller checks names (`names.check_name`), because scontrol
reads `NodeName=ALL` or `cpu[001-999]` as many.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from engine.external.slurm import names
from engine.external.slurm.capabilities import SlurmDenied, SlurmGone, SlurmLacks, SlurmRefused, SlurmUnavailable
from engine.external.slurm.records import JOB_STATES, JobState, JobStep, Share, TopologySwitch

LONGEST_OUTPUT = 256 << 20
PROBE_S = 5.0
_SAID = re.compile(r"^(?:slurm_\w+ error: |\w+: error: )", re.MULTILINE)


class Commands:
    """Slurm's commands in one folder (None: as the PATH finds them). `token` gives a JWT to act by, or empty."""

    def __init__(self, folder: str | Path | None = None, timeout_s: float = 30.0) -> None:
        self.folder = Path(folder) if folder else None
        self.timeout_s = timeout_s
        self.token: str = ""

    def at_hand(self) -> bool:
        return self._path("scontrol") is not None

    def since_s(self) -> int:
        """Return the Unix second from which `sdiag` counts. It equals that of REST's diag only if both speak to one
        controller."""
        said = self._run("sdiag", [], timeout_s=PROBE_S)
        found = re.search(r"^Data since\s.*\((\d+)\)", said, re.MULTILINE)
        return int(found[1]) if found else 0

    def put_back(self, job: int) -> None:
        self._run("scontrol", ["requeue", str(job)])

    @staticmethod
    def putting_back(job: int) -> str:
        """The same as the beginning of a sentence."""
        return f"requeueing job {job}"

    def update_node(self, name: str, state: str, reason: str) -> None:
        words = [f"NodeName={name}"]
        if state:
            words.append(f"State={state}")
        if reason:
            words.append(f"Reason={_one_line(reason)}")
        self._run("scontrol", ["update", *words])

    def update_partition(self, name: str, state: str) -> None:
        self._run("scontrol", ["update", f"PartitionName={name}", f"State={state}"])

    def create_reservation(self, words: Sequence[str]) -> None:
        self._run("scontrol", ["create", "reservation", *words])

    def delete_reservation(self, name: str) -> None:
        self._run("scontrol", ["delete", f"ReservationName={name}"])

    def partitions(self) -> dict[str, dict[str, str]]:
        """Every field of every partition, as `scontrol` names them."""
        fields = (_fields(line) for line in self._run("scontrol", ["-o", "show", "partition"]).splitlines())
        return {each["PartitionName"]: each for each in fields if "PartitionName" in each}

    def topology(self) -> tuple[TopologySwitch, ...]:
        """Nothing where topology/flat or none is configured."""
        lines = self._run("scontrol", ["show", "topology"]).splitlines()
        return tuple(switch for line in lines if (switch := _switch(line)))

    def job_states(self) -> tuple[JobState, ...]:
        """One row for each record of the controller, finished ones included."""
        output = self._run("squeue", ["-h", "-a", "-t", "all", "-o", "%A|%F|%K|%T|%Q|%r"])
        return tuple(state for line in output.splitlines() if (state := _state(line)))

    def resume_timeout_s(self) -> int:
        """Return how long slurmctld waits for a node to boot; 0 where it does not say."""
        said = self._configured("ResumeTimeout")
        return int(said) if said.isdecimal() else 0

    def boot(self) -> str:
        """Return when slurmctld started, as it says itself, to the second. 24.11 starts anew for a reconfigure, too."""
        return self._configured("BOOT_TIME")

    def min_job_age_s(self) -> int | None:
        """Return how long slurmctld keeps ended jobs in its list, 0 for good; None where it does not say."""
        said = self._configured("MinJobAge")
        return int(said) if said.isdecimal() else None

    def spool(self) -> str:
        return self._configured("SlurmdSpoolDir")

    def steps(self, job: int) -> tuple[JobStep, ...]:
        """Return the steps of the job that run now."""
        lines = self._run("squeue", ["-h", "-s", "-j", str(job), "-o", "%i|%A|%S|%N|%j"]).splitlines()
        return tuple(step for line in lines if (step := _step(line)))

    def shares(self) -> tuple[Share, ...]:
        columns = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare,LevelFS"
        lines = self._run("sshare", ["-P", "-n", "-a", "-o", columns]).splitlines()
        return _shares(lines)

    def _configured(self, name: str) -> str:
        """The first word of it, empty where the release does not say it."""
        said = self._run("scontrol", ["show", "config"], timeout_s=PROBE_S)
        found = re.search(rf"^{name}\s*=\s*(\S+)", said, re.MULTILINE)
        return found[1] if found else ""

    def _path(self, command: str) -> str | None:
        if self.folder:
            path = self.folder / command
            return str(path) if os.access(path, os.X_OK) else None
        return shutil.which(command)

    def _run(self, command: str, arguments: Sequence[str], timeout_s: float | None = None) -> str:
        timeout_s = timeout_s or self.timeout_s
        path = self._path(command)
        if path is None:
            raise SlurmLacks(0, f"{command} is not installed", f"Install it, or look in {self.folder or 'the PATH'}")
        environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        for name in [name for name in environment if name.startswith("SQUEUE_")]:
            del environment[name]
        if self.token:
            environment["SLURM_JWT"] = self.token
        try:
            done = subprocess.run(
                [path, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnavailable(f"{command} gave no answer in {timeout_s:.0f} s") from None
        except OSError as error:
            raise SlurmLacks(0, f"{command} cannot be run: {error.strerror}") from None
        if done.returncode:
            raise _meaning(command, done.stderr.decode("utf-8", "backslashreplace"))
        return done.stdout[:LONGEST_OUTPUT].decode("utf-8", "backslashreplace")


def _meaning(command: str, said: str) -> SlurmRefused | SlurmUnavailable:
    """Commands have no error numbers: their English is all there is."""
    text = _SAID.sub("", said).strip()[:400] or "no reason given"
    problem = f"{command}: {text}"
    if re.search(r"Unable to contact slurm controller \(connect failure\)", text):
        return SlurmUnavailable(problem, "Is slurmctld running?", answered=True, arrived=False)
    if re.search(r"Unable to contact|timed out|Zero Bytes|Communication connection|Transport endpoint", text):
        return SlurmUnavailable(problem, "Does slurmctld run?", answered=True)
    if re.search(r"Access/permission denied|Protocol authentication error|Invalid user", text):
        return SlurmDenied(2002, problem, "Ask who runs the cluster", bad_token="authentication" in text)
    if re.search(
        r"Invalid job id|Invalid node name|Invalid partition name|not found|No reservation|reservation is invalid", text
    ):
        return SlurmGone(2017, problem)
    return SlurmRefused(0, problem)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _switch(line: str) -> TopologySwitch | None:
    fields = _fields(line)
    if "SwitchName" not in fields:
        return None
    level = fields.get("Level", "0")
    try:
        return TopologySwitch(
            name=fields["SwitchName"],
            level=int(level) if level.isdecimal() else 0,
            nodes=names.hosts(fields.get("Nodes", "")),
            switches=names.hosts(fields.get("Switches", "")),
        )
    except ValueError:
        return None


def _state(line: str) -> JobState | None:
    parts = line.split("|", 5)
    if len(parts) != 6 or not parts[0].isdecimal():
        return None
    id_, array_id, task, word = int(parts[0]), parts[1], parts[2], parts[3].strip().upper()
    in_array = task not in ("", "N/A")
    alone = task if task.isdecimal() else ""
    known = word in JOB_STATES
    return JobState(
        id=id_,
        state=word if known else {"CONFIGURING": "RUNNING", "COMPLETING": "COMPLETING"}.get(word, word),
        flags=frozenset() if known else frozenset([word]),
        array_id=int(array_id) if in_array and array_id.isdecimal() else 0,
        array_task=int(alone) if alone else None,
        array_tasks="" if alone or not in_array else task,
        held=word == "PENDING" and (parts[4].strip() == "0" or parts[5].startswith("JobHeld")),
    )


def _step(line: str) -> JobStep | None:
    """`7.batch|1|1800000000|cpu001|batch`: the name comes last, as it may hold anything."""
    parts = line.split("|", 4)
    if len(parts) != 5 or "." not in parts[0]:
        return None
    try:
        nodes = names.hosts(parts[3])
    except ValueError:
        nodes = ()
    return JobStep(
        id=parts[0].partition(".")[2],
        name=parts[4],
        state="RUNNING",
        nodes=nodes,
        tasks=int(parts[1]) if parts[1].isdecimal() else 0,
        start_s=int(parts[2]) if parts[2].isdecimal() else 0,
    )


def _shares(lines: Sequence[str]) -> tuple[Share, ...]:
    """`sshare -P`: an account's depth is the spaces before it; its parent is the last one less deep."""
    found: list[Share] = []
    above: list[tuple[int, str]] = []
    for line in lines:
        parts = line.split("|")
        if len(parts) != 8:
            continue
        depth, account, user = len(parts[0]) - len(parts[0].lstrip()), parts[0].strip(), parts[1].strip()
        if not user:
            above = [one for one in above if one[0] < depth]
        found.append(
            Share(
                account=account,
                user=user,
                parent="" if user or not above else above[-1][1],
                shares=int(parts[2]) if parts[2].isdecimal() else None,
                shares_normalized=_real(parts[3]),
                usage_s=int(parts[4]) if parts[4].isdecimal() else 0,
                usage_effective=_real(parts[5]),
                factor=_real(parts[6]),
                level=_real(parts[7]),
            )
        )
        if not user:
            above.append((depth, account))
    return tuple(found)


def _real(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) != float("inf") and value == value else None
