"""A Slurm cluster, as slurmrestd and Slurm's own commands give it: everything that can be asked of it or told to it.

What comes back is in `engine.slurm.records`; what can go wrong is in `engine.slurm.errors`. Success is what the answer
says, never the HTTP status alone (`engine.slurm.answers`). All methods may be called from several threads.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import SpecError
from engine.slurm import hostlist
from engine.slurm.answers import NOTHING_FOUND, Answer, require, split
from engine.slurm.capabilities import Capabilities, capabilities
from engine.slurm.dialects import accounts as read_accounts
from engine.slurm.dialects import history as read_history
from engine.slurm.dialects import jobs as read_jobs
from engine.slurm.dialects import nodes as read_nodes
from engine.slurm.dialects.dialect import Change, Dialect, whole_minutes
from engine.slurm.dialects.entry import number_in, read_all
from engine.slurm.dialects.v38 import V38
from engine.slurm.dialects.v42 import V42
from engine.slurm.errors import SlurmDenied, SlurmGone, SlurmLacks, SlurmUnavailable, SlurmUnreadable
from engine.slurm.line import Line, where
from engine.slurm.records import (
    Association,
    Diag,
    Job,
    Jobs,
    JobState,
    Node,
    Nodes,
    Partition,
    PastJob,
    Qos,
    Reservation,
    ReservationWish,
    Share,
    StartGuess,
    Submitted,
    Switch,
    Wish,
)
from engine.slurm.scontrol import Commands
from engine.slurm.tokens import TokenFile
