"""The stage: a folder with tiny models, runs and texts that every case starts from, and the command line in it."""

import gzip
import io
import os
import shutil
import sys
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import yaml

from l0drop import load
from l0drop.app.cli import main
from tests.decoding import folders
from tests.fuzz.findings import require
from tests.training import tiny

SHORT = {"steps": 4, "save_every": 2, "eval_every": 4, "log_every": 1}
WRITABLE = ("runs/sparse", "runs/points-sweep", "out")
"""Commands may write there; other files are inputs, which stay as they are."""


class Ran(NamedTuple):
    code: int
    out: bytes
    errors: str


class Stage:
    """The working directory of all cases. `restore` undoes the changes of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.chdir(folder)
        texts = folder / "text"
        recipes = {"base": tiny.recipe(texts, "base", train=SHORT)}
        recipes["sparse"] = tiny.sparse(texts, "runs/base", "sparse", train=SHORT)
        recipes["points"] = {**recipes["sparse"], "name": "points"}
        for name, recipe in recipes.items():
            Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        for arguments in (
            ["train", "base.yaml"],
            ["train", "sparse.yaml"],
            ["sweep", "points.yaml", "--target", "0.4"],
            ["evaluate", "runs/sparse", "--baseline", "runs/base"],
            ["analyze", "runs/sparse"],
        ):
            ran = command(*arguments)
            assert not ran.code, ran.errors
        folders.sparse(Path("runs/base"), Path("model"))
        lines = "".join(f"{line}\n" for line in folders.SENTENCES)
        Path("lines.txt").write_text(lines)
        Path("lines.txt.gz").write_bytes(gzip.compress(lines.encode()))
        Path("lines.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in folders.SENTENCES))
        Path("out").mkdir()
        self.files = {path: path.read_bytes() for path in _files(Path())}

    def restore(self) -> None:
        for path in sorted(set(Path().rglob("*")), reverse=True):
            if path not in self.files and not any(path in file.parents for file in self.files) and path != Path("out"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path, content in self.files.items():
            if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
                if path.is_symlink():
                    path.unlink()
                elif path.is_dir():
                    shutil.rmtree(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def require_same_inputs(self, *changed: str | Path) -> None:
        """Raise if a command changed one of its inputs; `changed` are files that the case itself changed."""
        excused = {Path(os.path.normpath(path)) for path in changed}
        for path, content in self.files.items():
            is_input = not path.as_posix().startswith(WRITABLE) and not path.name.endswith(".lock")
            if is_input and path not in excused:
                require(path.is_file() and path.read_bytes() == content, f"{path}: an input was changed")

    @cached_property
    def model(self) -> Any:
        """The sparse model in float64."""
        return load("model", "cpu", "float64")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def command(*arguments: str, stdin: bytes = b"") -> Ran:
    """The command line, in this process; raises whatever a user would see as a traceback."""
    out, errors = io.BytesIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", ["l0drop", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))))
        stdout = stack.enter_context(mock.patch.object(sys, "stdout", io.TextIOWrapper(out)))
        stack.enter_context(mock.patch.object(sys, "stderr", errors))
        stack.enter_context(mock.patch.dict(os.environ))
        try:
            main()
            code: Any = 0
        except SystemExit as stopped:
            code = stopped.code or 0
        stdout.flush()
        ran = Ran(code, out.getvalue(), errors.getvalue())
        stdout.detach()
    require(ran.code in (0, 2), f"exit code {ran.code}: {ran.errors[-300:]}")
    require("Traceback" not in ran.errors, f"a traceback was printed: {ran.errors[-1000:]}")
    require(ran.code == 0 or bool(ran.errors.strip()), "an error without a message")
    return ran
