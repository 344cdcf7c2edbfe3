"""Asks a command server to run a command, and stands in for its process: waits for its exit code, hands signals on.

Loads no more than that takes: it is most of what a short command costs.
"""

import os
import signal
import socket
import struct
import sys

import console

READY_S = 10.0
"""Longest wait for a command server, which may have to load first. Then the command is run here."""
READY, GO = b"ready", b"go"
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def ask(sockets: list[str], arguments: list[str]) -> int | None:
    """Exit code of the command as the first command server that answers ran it; None where it has to be run here.
    Raises OSError likewise: nothing was done."""
    if not _is_ordinary(arguments):
        return None
    for path in sockets:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(READY_S)
            try:
                asking.connect(path)
            except OSError:  # of an engine that has ended
                continue
            child = _ready(asking, arguments) if _is_mine(asking) else 0
            return _ended(asking, child) if child else None
    return None


def build() -> str:
    """What a command server must have in common with its caller, to do as it would."""
    begins = ("PYTHON", "LD_", "OPENSSL_", "GLIBC_", "MALLOC_")  # variables that are read as a process begins
    variables = sorted(item for item in os.environ.items() if item[0].startswith(begins))
    return repr((console.VERSION, console.__file__, sys.version, sys.prefix, sys.flags, sys.warnoptions, sys._xoptions,
                 sys.getfilesystemencoding(), variables))  # fmt: skip


def _is_ordinary(arguments: list[str]) -> bool:
    """True for a process that acts as its user, has the usual three files, is in the foreground of its terminal, and
    is given no file that another process does not have. Raises OSError where that cannot be found out."""
    if os.getuid() != os.geteuid() or os.getgid() != os.getegid() or None in (sys.stdin, sys.stdout, sys.stderr):
        return False
    if any("/dev/" in word or "/proc/" in word for word in arguments):
        return False
    return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()


def _is_mine(asking: socket.socket) -> bool:
    _, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.getuid())


def _ready(asking: socket.socket, arguments: list[str]) -> int:
    """Descriptor of the process that will run the command once it is told to go; 0 when the server refuses."""
    standard = (sys.stdin, sys.stdout, sys.stderr)
    streams = [f"{each.encoding}:{each.errors}:{int(each.write_through)}" for each in standard]
    texts = [build(), *streams, str(len(arguments) + 1), sys.argv[0], *arguments]
    parts = [*map(os.fsencode, texts), *(name + b"=" + value for name, value in os.environb.items())]
    request = b"\0".join(parts)
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
    socket.send_fds(asking, [len(request).to_bytes(4, "big")], [0, 1, 2, folder])
    os.close(folder)
    asking.sendall(request)
    answer = asking.recv(64)
    return os.pidfd_open(int(answer[len(READY) :])) if answer.startswith(READY) else 0


def _ended(asking: socket.socket, child: int) -> int:
    """Let it begin, hand on the signals that come, and return its exit code. From here on it is never run again."""
    sent: list[int] = []
    _hand_on_signals(child, sent)
    asking.settimeout(None)
    try:
        asking.sendall(GO)
        code = asking.recv(1)
    except OSError:
        code = b""
    if code:
        return code[0]
    for number in sent[-1:]:  # which ended the other
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    print("muster: the process that ran this command was ended", file=sys.stderr)
    return 1


def _hand_on_signals(child: int, sent: list[int]) -> None:
    """Send the process what this one is sent, and add it to `sent`."""

    def hand_on(number: int, _frame: object) -> None:
        sent.append(number)
        _send(child, number)

    def stop(_number: int, _frame: object) -> None:
        _send(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        _send(child, signal.SIGCONT)

    for number in HANDED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, hand_on)
    if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, stop)


def _send(child: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(child, number)
    except ProcessLookupError:  # it has ended, and this process is about to hear of it
        return
