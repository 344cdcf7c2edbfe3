"""Structs that many threads decode at once for the first time: msgspec alone ends the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from console.client.questions import decoder, know_structs
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
DEPTH = 60
RACE = """
import sys, threading, types
import msgspec
from console.client.questions import decoder, know_structs

deep = sys.modules["deep"] = types.ModuleType("deep")
source = "from __future__ import annotations\\nimport msgspec\\nclass T{last}(msgspec.Struct):\\n    f: int = 0\\n"
for at in range({last}):
    fields = "".join(f"    f{{n}}: T{{at + 1}} | None = None\\n" for n in range(3))
    source += f"class T{{at}}(msgspec.Struct):\\n{{fields}}"
exec(source, deep.__dict__)
content = b"{{}}"
for _ in range({last} - 1):
    content = b'{{"f2":' + content + b"}}"
sys.setswitchinterval(1e-6)
{before}
together = threading.Barrier(6)
done = []
def run():
    together.wait()
    for _ in range(20):
        {decode}
    done.append(True)
threads = [threading.Thread(target=run) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(done))
"""


@pytest.mark.parametrize(
    ("before", "decode"),
    [
        ("", "decoder(deep.T0).decode(content)"),
        ("know_structs()", "msgspec.json.decode(content, type=deep.T0)"),
    ],
)
def test_threads_that_meet_a_struct_at_once_all_decode_it(before: str, decode: str) -> None:
    code = RACE.format(last=DEPTH - 1, before=before, decode=decode)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "6"), done.stderr


def test_what_is_never_decoded_is_left_alone() -> None:
    class Held(msgspec.Struct):
        either: threading.Thread | Path

    know_structs()
    with pytest.raises(TypeError):
        decoder(Held)
