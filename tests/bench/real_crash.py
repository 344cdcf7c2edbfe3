"""Work that runs for real on this machine, with the engine killed at random while it is being submitted:

    python tests/bench/real_crash.py [ROUNDS] [JOBS]

Prints how often the engine was killed, and how many jobs were lost or begun twice. Both must be 0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.support.real_crash import crash_rounds

    rounds, jobs = (int(word) for word in (sys.argv[1:] + ["40", "400"][len(sys.argv) - 1 :]))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-real-") as folder:
        found = crash_rounds(Path(folder), rounds, jobs)
    print(f"{found.killed} engines killed with -9 in {time.monotonic() - began:.0f} s")
    print(f"{len(found.acknowledged)} jobs acknowledged; {dict(found.states)}, at most {found.attempts} attempts")
    print(f"lost {found.lost}, begun twice {found.doubled}")


if __name__ == "__main__":
    main()
