"""Messages of the library name arguments; the command line shows its options."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from l0drop.app.cli import app
from l0drop.app.command import Command, with_options
from tests.snippets import ROOT

PACKAGE = ROOT / "l0drop"
REFERENCE = PACKAGE / "recipe" / "reference.py"
"""Writes a page of the documentation, which shows commands."""
BELOW_APP = sorted({*PACKAGE.rglob("*.py")} - {*(PACKAGE / "app").rglob("*.py"), REFERENCE})
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def command_that_raises(message: str) -> typer.Typer:
    made = typer.Typer()

    @made.command(cls=Command)
    def run(
        max_source: int = 1, input_: Annotated[str, typer.Option("--input", "-i")] = "", resume: bool = False
    ) -> None:
        raise ValueError(message)

    return made


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`max_source`: too long", "--max-source: too long"),
        ("`input`: missing", "--input: missing"),
        ("use `resume=True` to continue", "use --resume to continue"),
        ('give `input="a.txt"`', "give --input a.txt"),
        ("`other` and `model.generate` and `hf auth login`", "`other` and `model.generate` and `hf auth login`"),
        ("input: a file of this name", "input: a file of this name"),
    ],
)
def test_errors_name_the_options_of_the_command(message: str, shown: str) -> None:
    ran = CliRunner().invoke(command_that_raises(message), [])
    assert str(ran.exception) == shown
    assert with_options(message) == message, "outside the command nothing is replaced"


def test_errors_with_several_parts_stay_as_they_are() -> None:
    made = typer.Typer()

    @made.command(cls=Command)
    def run(reason: str = "") -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "`reason`")

    assert "`reason`" in str(CliRunner().invoke(made, []).exception)


def all_commands(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        yield from all_commands(command) if hasattr(command, "commands") else (command,)


def test_every_command_names_its_options() -> None:
    assert all(isinstance(command, Command) for command in all_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("arguments", [[], ["translate"], ["bench", "predict"]])
def test_the_help_shows_no_type_for_flags(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = CliRunner().invoke(app, [*arguments, "--help"])
    assert "--help" in ran.output
    assert "bool" not in ran.output.lower()


def test_the_help_wraps_paragraphs_at_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = CliRunner().invoke(app, ["analyze", "--help"]).output
    lines = [line.strip() for line in page.partition("╭")[0].splitlines()]
    for line, following in pairwise(lines):
        if line and following:
            word = following.split()[0]
            assert len(f"{line} {word}") > 96, f"{line!r} has room for {word!r}"


def texts(tree: ast.AST) -> Iterator[str]:
    """String literals with the constant parts of f-strings joined; docstrings too."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


@pytest.mark.parametrize("path", BELOW_APP, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_command_line_speaks_of_its_options(path: Path) -> None:
    """Allowed below it: an element of a subprocess's command, and a whole command for the user to type."""
    for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
        if FLAG.fullmatch(text.partition("=")[0]) or re.search(r"(?<!import )l0drop [a-z]+ ", text):
            continue
        assert not FLAG.search(text), f"{text!r}: name the argument in backquotes instead"
