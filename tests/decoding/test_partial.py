"""Output that survives an interruption at any moment."""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from l0drop.decoding import partial as partial_module
from l0drop.decoding.partial import Position, locked_output, partial_file, refuse_clashes
from tests.mutations import KINDS, fields, mutated

MADE = {"model": "m", "settings": {"beams": 4}}


class Killed(BaseException):
    """Raised instead of a kill."""


def write(output: Path, windows: list[str], *, resume: bool = False, made: dict = MADE) -> None:  # type: ignore[type-arg]
    with locked_output(output, resume=resume), partial_file(output, made, resume=resume) as file:
        for number in range(file.position.lines, len(windows)):
            file.append(windows[number], Position(number + 1, f"digest{number + 1}", {"lines": number + 1}))


def interrupt(output: Path) -> None:
    with suppress(Killed), locked_output(output), partial_file(output, MADE) as file:
        file.append("a\n", Position(1, "d", {}))
        raise Killed


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_output_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    output = tmp_path / "new" / "out.txt"
    with locked_output(output), partial_file(output, MADE) as file:
        file.append("a\n", Position(1, "d", {}))
        assert not output.exists()
        assert {"out.txt.partial", "out.txt.partial.json"} <= names(output.parent)
    assert output.read_text() == "a\n"
    assert names(output.parent) == {"out.txt"}


@pytest.mark.parametrize("moment", ["before the record", "after the record"])
@pytest.mark.parametrize("window", [0, 1, 2])
def test_kill_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, window: int) -> None:
    output, windows, real = tmp_path / "out.txt", ["a\nä\n", "b\n", "c\n"], partial_module.write_whole
    calls = []

    def kill(file: Path, text: str) -> None:
        calls.append(file)
        if len(calls) == window + 1 and moment == "before the record":
            os._exit(9)
        real(file, text)
        if len(calls) == window + 1:
            os._exit(9)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(partial_module, "write_whole", kill)
        write(output, windows)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert not output.exists()
    write(output, windows, resume=True)
    assert output.read_text() == "a\nä\nb\nc\n"
    assert names(tmp_path) == {"out.txt"}


def test_partial_output_is_not_lost_by_accident(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    interrupt(output)
    with pytest.raises(
        ValueError, match=r"an interrupted run left 1 lines here; use `resume=True` to continue, or `restart=True`"
    ):
        write(output, ["a\n"])
    with pytest.raises(ValueError, match=r"had other settings \(different: settings\)"):
        write(output, ["a\n"], resume=True, made={**MADE, "settings": {"beams": 5}})
    assert (tmp_path / "out.txt.partial").read_text() == "a\n"
    with locked_output(output, restart=True), partial_file(output, MADE) as file:
        assert file.position.lines == 0
        file.append("b\n", Position(1, "d", {}))
    assert output.read_text() == "b\n"
    assert names(tmp_path) == {"out.txt"}


def test_an_error_before_the_first_lines_leaves_no_file(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("before")
    with pytest.raises(ValueError, match="wrong"), locked_output(output), partial_file(output, MADE):
        raise ValueError("wrong")
    assert names(tmp_path) == {"out.txt"}
    assert output.read_text() == "before"


def test_a_bad_record_is_an_error(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    interrupt(output)
    (tmp_path / "out.txt.partial").write_text("")
    with pytest.raises(ValueError, match="does not belong to out.txt.partial; start again with `restart=True`"):
        write(output, ["a\n"], resume=True)
    (tmp_path / "out.txt.partial.json").write_text("{")
    with pytest.raises(ValueError, match="out.txt.partial.json: damaged"):
        write(output, ["a\n"], resume=True)


def test_two_writers_and_unwritable_paths(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    with (
        locked_output(output),
        pytest.raises(ValueError, match="another process is writing this file"),
        locked_output(output),
    ):
        pass
    with pytest.raises(ValueError, match="is not a regular file"), locked_output(tmp_path):
        pass
    with pytest.raises(ValueError, match="/dev/null: is not a regular file"), locked_output(Path("/dev/null")):
        pass
    output.write_text("x")
    with pytest.raises(ValueError, match="cannot be written \\("), locked_output(output / "inside.txt"):
        pass


def test_changed_partial_output_is_not_resumed(tmp_path: Path) -> None:
    output, partial = tmp_path / "out.txt", tmp_path / "out.txt.partial"
    interrupt(output)
    partial.write_text("b\n")
    with pytest.raises(
        ValueError,
        match=r"out\.txt\.partial: was changed after the interrupted run wrote it; restore the file, or use `restart",
    ):
        write(output, ["a\n", "c\n"], resume=True)
    assert partial.read_text() == "b\n"
    partial.write_text("a\nunfinished")
    with suppress(Killed), locked_output(output, resume=True), partial_file(output, MADE, resume=True) as file:
        file.append("c\n", Position(2, "d", {}))
        raise Killed
    write(output, ["a\n", "c\n", "e\n"], resume=True)  # the digest continues over an interruption
    assert output.read_text() == "a\nc\ne\n"


def test_a_record_of_another_version_is_not_resumed(tmp_path: Path) -> None:
    output, record = tmp_path / "out.txt", tmp_path / "out.txt.partial.json"
    interrupt(output)
    values = json.loads(record.read_text())
    record.write_text(json.dumps({**values, "format": 1}))
    with pytest.raises(ValueError, match="another version of l0drop wrote it.*`restart=True`"):
        write(output, ["a\n"], resume=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_a_changed_field_is_not_resumed(kind: str, tmp_path: Path) -> None:
    output, record = tmp_path / "out.txt", tmp_path / "out.txt.partial.json"
    interrupt(output)
    values = json.loads(record.read_text())
    for field in fields(values):
        record.write_text(json.dumps(mutated(values, field, kind)))
        with pytest.raises(ValueError, match=r"out\.txt\.partial\.json: damaged .*`restart=True`") as error:
            write(output, ["a\n"], resume=True)
        assert "\n" not in str(error.value)
    record.write_text(json.dumps(values))
    write(output, ["a\n"], resume=True)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000])
def test_a_record_that_is_no_object_is_not_resumed(content: str, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    interrupt(output)
    (tmp_path / "out.txt.partial.json").write_text(content)
    with pytest.raises(ValueError, match=r"out\.txt\.partial\.json: damaged .*`restart=True`"):
        write(output, ["a\n"], resume=True)


def test_nothing_is_left_to_resume(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("done\n")
    with (
        pytest.raises(ValueError, match=r"nothing is left to do, .*out\.txt is complete; .*omit `resume`"),
        locked_output(output, resume=True),
    ):
        pass
    assert output.read_text() == "done\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_full_disk_keeps_the_lines_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.txt"
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: Any) -> None:
        raise full

    with suppress(Killed), locked_output(output), partial_file(output, MADE) as file:
        file.append("a\n", Position(1, "x"))
        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(ValueError, match=r"No space left on device; the first 1 lines are saved: .*`resume=True`"):
            file.append("b\n", Position(2, "y"))
        raise Killed
    monkeypatch.undo()
    with locked_output(output, resume=True), partial_file(output, MADE, resume=True) as file:
        assert file.position.lines == 1
        file.append("b\n", Position(2, "y"))
    assert output.read_text() == "a\nb\n"


@pytest.mark.parametrize("role", ["output", "summary"])
def test_loops_of_links_are_refused(role: str, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    files = {"output": tmp_path / "out.txt", "summary": None, role: tmp_path / "a"}
    with pytest.raises(ValueError, match="a: is a loop of symbolic links"):
        refuse_clashes(None, files["output"], files["summary"])
    assert (tmp_path / "a").is_symlink()


SIDE_FILES = ("out.txt.partial", "out.txt.partial.json", "out.txt.partial.lock")


@pytest.mark.parametrize("link", ["same name", "symbolic link", "hard link", "linked folder", "descriptor"])
@pytest.mark.parametrize("name", ["out.txt", *SIDE_FILES])
def test_an_input_that_the_output_would_overwrite_is_refused(tmp_path: Path, name: str, link: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text("mine")
    (tmp_path / "linked").symlink_to(folder)
    other = tmp_path / "in.txt"
    given: Path | int = folder / "." / name
    if link == "symbolic link":
        other.symlink_to(folder / name)
        given = other
    elif link == "hard link":
        os.link(folder / name, other)
        given = other
    elif link == "linked folder":
        given = tmp_path / "linked" / name
    with (folder / name).open("rb") as opened:
        given = opened.fileno() if link == "descriptor" else given
        with pytest.raises(ValueError, match=r"^`(output`: .* is the input file|input`: .* is the file .*out\.txt)"):
            refuse_clashes(given, folder / "out.txt", None)
        refuse_clashes(given, folder / "other.txt", None)


@pytest.mark.parametrize("name", ["out.txt", "in.txt"])
def test_a_summary_that_would_overwrite_another_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="^`summary`: .* is also `.*put` and would be overwritten"):
        refuse_clashes(tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "x" / ".." / name)
    (tmp_path / name).write_text("mine")
    os.link(tmp_path / name, tmp_path / "linked.json")
    with pytest.raises(ValueError, match="^`summary`: .* is also `.*put` and would be overwritten"):
        refuse_clashes(tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "linked.json")


@pytest.mark.parametrize("name", SIDE_FILES)
def test_files_of_an_interrupted_run_are_not_overwritten(tmp_path: Path, name: str) -> None:
    for output, summary in ((tmp_path / name, None), (tmp_path / "other.txt", tmp_path / name)):
        with pytest.raises(ValueError, match="has the name of an interrupted run's file; choose another name"):
            refuse_clashes(None, output, summary)
    (tmp_path / name).write_text("mine")
    (tmp_path / "totals.json").symlink_to(tmp_path / name)
    with pytest.raises(ValueError, match="is also a file of `output`"):
        refuse_clashes(None, tmp_path / "out.txt", tmp_path / "totals.json")
