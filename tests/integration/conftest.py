"""For tests of whole commands: the command line, run in this process."""

import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from l0drop.app.cli import main


class Ran(NamedTuple):
    code: int
    out: bytes
    stderr: str

    @property
    def errors(self) -> str:
        """Standard error on one line."""
        return " ".join(self.stderr.split())

    @property
    def lines(self) -> list[str]:
        return self.out.decode().split("\n")[:-1]


@pytest.fixture
def l0drop(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """The command line, in this process."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Ran:
        out = io.BytesIO()
        monkeypatch.setattr(sys, "argv", ["l0drop", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
        capfd.readouterr()
        try:
            main()
            code: Any = 0
        except SystemExit as stopped:
            code = stopped.code or 0
        sys.stdout.flush()
        return Ran(code, out.getvalue(), capfd.readouterr().err)

    return run
