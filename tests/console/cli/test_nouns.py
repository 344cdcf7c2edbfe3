"""Commands by noun and verb: help, the answer to a wrong word, completion; whatever names a command names one."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.cli.main import EXIT_CODES, parser, run
from console.cli.noun_commands import NOUNS
from console.forms.shell_parser import ShellParser
from console.text.terminal_text import remedy_text
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
MANUAL = (ROOT / "docs" / "shell.md").read_text()
SCREEN, COLUMNS = 45, 80
Out = pytest.CaptureFixture[str]


def refused(capsys: Out, *words: str) -> str:
    """What standard error has of a call that is wrong usage."""
    with pytest.raises(SystemExit, match=r"^2$"):
        run(words)
    told = capsys.readouterr()
    assert not told.out
    return told.err


# -- help -------------------------------------------------------------------------------------------------------------


def test_each_page_of_commands_fits_a_screen() -> None:
    pages = [parser(), *(made for _, made in parser().commands() if made.below)]
    assert len(pages) > 15
    for page in pages:
        lines = page.format_help().splitlines()
        assert len(lines) <= SCREEN, page.prog
        assert max(map(len, lines)) <= COLUMNS, page.prog
        for word in page.below:
            assert re.search(rf"(^|\s){re.escape(word)}(\s|$)", "\n".join(lines)), (page.prog, word)


def test_a_noun_alone_is_its_help_and_so_are_help_and_the_option(capsys: Out) -> None:
    nouns = [word for word, (section, _) in parser().below.items() if section == NOUNS]
    assert {"node", "queue", "proposal", "audit"} <= set(nouns)
    for noun in nouns:
        told = set()
        for words in ([noun], ["help", noun]):
            assert run(words) == 0
            told.add(capsys.readouterr().out)
        with pytest.raises(SystemExit, match=r"^0$"):
            run([noun, "--help"])
        assert told == {capsys.readouterr().out}


def test_what_does_not_fit_the_help_is_a_topic_of_it(capsys: Out) -> None:
    assert run(["help", "exit-codes"]) == 0
    codes = capsys.readouterr().out
    for code, (meaning, _) in EXIT_CODES.items():
        assert f"  {code:<3}  {meaning}\n" in codes
        assert f"| {code} | {meaning} |" in MANUAL
    assert run(["help", "options"]) == 0
    assert "--demo" in capsys.readouterr().out
    assert run(["help", "node", "drain"]) == 0
    assert "Usage: muster node drain NODE" in capsys.readouterr().out
    assert "Did you mean 'node drain'?" in refused(capsys, "help", "node", "drian")


def test_the_manual_names_every_command() -> None:
    rows = dict(re.findall(r"^\| `muster ([a-z ]+)` \| ([a-z, -]+) \|$", MANUAL, re.MULTILINE))
    told = {(*noun.split(), verb) for noun, verbs in rows.items() for verb in verbs.split(", ")}
    alone = {
        word
        for words in re.findall(r"^\| (?:every day|to [a-z]+) \| (.+) \|$", MANUAL, re.MULTILINE)
        for word in words.split(", ")
    }
    known = {words for words, _ in parser().commands() if words[:2] != ("proposal", "new") or len(words) == 2}
    assert known - told - {(word,) for word in (*alone, *rows)} == set()
    assert told - known == set()


# -- a wrong word -----------------------------------------------------------------------------------------------------


def test_a_slip_is_told_the_nearest_and_never_a_list(capsys: Out) -> None:
    for words, told in (
        ("overvew", "There is no command 'overvew'. Did you mean 'overview'?"),
        ("node drian", "There is no command 'node drian'. Did you mean 'node drain'?"),
        ("policy operater", "There is no command 'policy operater'. Did you mean 'policy operator'?"),
    ):
        said = refused(capsys, *words.split())
        assert told in said
        assert len(said.splitlines()) == 2
    assert refused(capsys, "xyzzy") == "muster: There is no command 'xyzzy'.\n  See: muster --help\n"


def test_a_verb_without_its_noun_is_told_the_noun(capsys: Out) -> None:
    for typed, use in {
        "drain": "node drain", "hold-queue": "queue hold", "set-quota": "queue set-quota", "scale-pool": "pool scale",
        "approve": "proposal approve", "propose": "proposal new", "proposals": "proposal list", "pools": "pool list",
        "mirror": "cell mirror", "budgets": "budget list", "login": "token login", "whoami": "policy whoami",
        "spot": "budget efficiency", "operator": "policy operator", "set-quta": "queue set-quota",
        "explain": "recommend", "node hold": "workload hold", "workload why": "why", "resume": "workload resume",
    }.items():  # fmt: skip
        first = refused(capsys, *typed.split()).splitlines()[1]
        assert first == f"  Use: muster {use}", typed


def test_every_old_name_of_an_action_leads_to_its_noun(capsys: Out) -> None:
    from runbooks.actions.catalogue import CATALOG

    for action in CATALOG.values():
        if action.word not in parser().below:
            assert f" muster {action.shell}\n" in refused(capsys, action.word)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "cost --nodes -4",
            "muster: --nodes: -4 is below 1; give a whole number from 1 on\n  See: muster cost --help\n",
        ),
        ("why", "muster: missing ID\n  Usage: muster why ID [OPTIONS]\n"),
        ("why a b", "muster: unexpected argument 'b'\n  See: muster why --help\n"),
        ("cost --noeds 4", "muster: there is no option '--noeds'; did you mean --nodes?\n  See: muster cost --help\n"),
        ("get worklods", "muster: there is no 'worklods'; did you mean workloads?\n  See: muster get --help\n"),
        ("node drain", "muster: missing NODE\n  Usage: muster node drain NODE [NODE ...] [OPTIONS]\n"),
    ],
)
def test_wrong_usage_is_what_was_wrong_and_a_line_how(line: str, told: str, capsys: Out) -> None:
    assert refused(capsys, *line.split()) == told


def test_an_example_of_a_url_is_whole_and_a_link_of_strangers_is_not(capsys: Out) -> None:
    assert run(["token", "login", "--connect", "nowhere"]) == 2
    assert "https://HOST:PORT" in capsys.readouterr().err
    for whole in ("http://127.0.0.1:9090", "https://HOST/PATH", "postgresql://USER@HOST:PORT/DATABASE"):
        assert remedy_text(f"Give {whole}") == f"Give {whole}"
    for link in (
        "http://127.0.0.1.evil.example",
        "http://127.0.0.1:80@evil.example",
        "https://HOST.example",
        "http://x",
    ):
        assert remedy_text(link) == link.replace("://", "[:]//")


# -- completion -------------------------------------------------------------------------------------------------------


def test_completion_offers_nouns_then_verbs_then_options(capsys: Out) -> None:
    assert run(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for typed, offered in (
        ("nod", "node"), ("get --l", "--limit"), ("node dr", "drain"), ("--cell lab queue ho", "hold"),
        ("policy operator li", "list"), ("proposal new node dra", "drain"), ("get work", "workloads"),
        ("node drain --dry", "--dry-run"), ("drai", ""),
    ):  # fmt: skip
        words = ["muster", *typed.split()]
        ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _muster; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.stdout.strip(), done.stderr) == (offered, ""), typed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_know_every_command(shell: str, capsys: Out) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    for words, _ in parser().commands():
        assert " ".join(words) in script
    assert "gpus-per-task" in script


# -- whatever names a command -----------------------------------------------------------------------------------------

NO_COMMAND = ("writer ", "engine ", "standby ", "command ", "fleet stops")
"""What stands behind "muster" where no command is named."""
NOT_YET = "lift"
"""The manual's example of an action that somebody adds."""
STANDS_FOR = {"N": "1"}
IN_PART = re.compile("muster: (missing |.* needs a value|.here is no (command )?'(.* )?([A-Z]+s?|lift)')")
"""Of a line that was cut short, or names a thing by a word in capitals."""
MENTION = re.compile(r"(?<![\w/.@-])muster((?: --?[a-z][\w-]*| [^\s`]+)*)")


def said_in(path: Path) -> Iterator[str]:
    """Texts of a file that may name commands: what a document sets as code, each string of a module, with X for what it
    puts in."""
    if path.suffix != ".py":
        text = path.read_text()
        yield from (re.sub(r"\s+", " ", code) for code in re.findall(r"(?<!`)`[^`]+`(?!`)", text))
        yield from (line.partition("  ")[0] for line in re.findall(r"^muster .*", text, re.MULTILINE))
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield re.sub(r"\s+", " ", "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\s+", " ", node.value)


def texts() -> Iterator[tuple[Path, str]]:
    files = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "docs").glob("*.md")]
    for package in ("console", "engine", "recommender", "runbooks"):
        files += [path for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".md")]
    for path in files:
        for text in said_in(path):
            yield path, text


def leads_nowhere(words: list[str]) -> str:
    """The word of a mention that is no command where it stands; empty for a command, or a noun alone."""
    of: ShellParser = parser()
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word) or not of.below or word == NOT_YET:
            return ""
        if word not in of.below:
            return word
        of = of.command(word)
    return ""


def test_every_command_that_is_named_anywhere_is_one() -> None:
    wrong, seen = [], 0
    for path, text in texts():
        for mention in MENTION.findall(text):
            words = re.sub(r" --(?:as|cell|connect) [^\s,]+", "", mention).split()
            plain = [word.strip(".,;:)'\"") for word in words]
            seen += bool(plain)
            if leads_nowhere(plain) and not f"{' '.join(plain)} ".startswith(NO_COMMAND):
                wrong.append(f"{path.relative_to(ROOT)}: muster{mention[:60]}")
    assert wrong == []
    assert seen > 500


def test_every_line_in_backquotes_can_be_typed(capsys: Out) -> None:
    wrong, seen = [], 0
    for path, text in texts():
        for line in re.findall(r"(?<!`)`muster ([^`|…]+)`(?!`)", text):
            try:
                words = [STANDS_FOR.get(word, word) for word in shlex.split(line.replace("...", ""))]
            except ValueError:
                wrong.append(f"{path.relative_to(ROOT)}: {line}: quotes")
                continue
            seen += 1
            if words[-1:] in (["--help"], ["--version"]):
                words = words[:-1]
            try:
                parser().parse_args(words)
            except SystemExit:
                said = capsys.readouterr().err
                if not IN_PART.match(said):
                    wrong.append(f"{path.relative_to(ROOT)}: {line}: {said.splitlines()[0]}")
    assert wrong == []
    assert seen > 150
