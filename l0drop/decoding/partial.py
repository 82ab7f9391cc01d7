"""Output that survives an interruption: it is written to OUTPUT.partial and renamed when it is complete.

OUTPUT.partial.json records the length and the digest of the valid part, the settings, and a digest of itself. The next
run cuts off anything after the valid part, so the two files always agree.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock, Timeout

from l0drop.data.whole import write_whole

FORMAT = 3
ENDINGS = (".partial", ".partial.json", ".partial.lock", ".partial.copy")
"""Endings of the names of the files that an interrupted run leaves."""
BLOCK = 1 << 20
"""Bytes read at a time for a digest."""


@dataclass(frozen=True)
class Position:
    """How far an output has got: lines and digest of the input read so far, and totals over them."""

    lines: int = 0
    digest: str = ""
    totals: Mapping[str, Any] = field(default_factory=dict)


class Output(Protocol):
    """Takes output lines; `position` is where it began, later where it is."""

    position: Position

    def append(self, text: str, position: Position) -> None:
        """Add complete lines; `position` describes the output with them."""

    def replace(self, lines: Mapping[int, str]) -> None:
        """Put other lines in place of those with these numbers, counted from 0, once the output is complete."""


class Pipe:
    """Standard output, or another file of bytes that cannot be resumed; flushed after every window."""

    def __init__(self, file: IO[bytes]) -> None:
        self.position = Position()
        self._file = file

    def append(self, text: str, position: Position) -> None:
        self._file.write(text.encode())
        self._file.flush()
        self.position = position

    def replace(self, lines: Mapping[int, str]) -> None:
        if lines:
            raise ValueError("`output`: lines of standard output cannot be replaced")


class PartialFile:
    """A file that a later run can resume; opened by `partial_file`."""

    def __init__(
        self, output: Path, file: IO[bytes], facts: Mapping[str, Any], position: Position, digest: "hashlib._Hash"
    ) -> None:
        self.output, self.position = output, position
        self.replaced: dict[int, str] = {}
        self._file, self._facts, self._digest = file, facts, digest

    def append(self, text: str, position: Position) -> None:
        data = text.encode()
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())  # the lines must be on disk before the record, even if the power fails
            self._digest.update(data)
            self._record(position)
        except OSError as error:
            if not self.position.lines:
                raise
            raise ValueError(
                f"{_partial_of(self.output)}: {error.strerror or error}; the first {self.position.lines} lines are "
                "saved: make room, then continue with `resume=True`"
            ) from error
        self.position = position

    def replace(self, lines: Mapping[int, str]) -> None:
        self.replaced.update(lines)  # in the complete output alone: record and partial output agree until then

    def _record(self, position: Position) -> None:
        record = {
            "format": FORMAT,
            "lines": position.lines,
            "input_sha256": position.digest,
            "output_bytes": self._file.tell(),
            "output_sha256": self._digest.hexdigest(),
            "totals": position.totals,
            "made_from": self._facts,
        }
        write_whole(_record_of(self.output), json.dumps({**record, "sha256": _checksum(record)}, indent=1) + "\n")


@contextmanager
def locked_output(output: Path, *, resume: bool = False, restart: bool = False) -> Iterator[None]:
    """Check, before long work begins, that the output can be written, and lock it.

    Partial output of an interrupted run is an error, unless it is to be resumed or discarded.
    """
    if output.exists() and not output.is_file():
        raise ValueError(f"{output}: is not a regular file; omit `output` and redirect standard output instead")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_lock_of(output), timeout=0)
        lock.acquire()
    except Timeout:
        raise ValueError(f"{output}: another process is writing this file") from None
    except OSError as error:
        raise ValueError(f"{output}: cannot be written ({error.strerror or error})") from error
    try:
        before = None if restart else _read(output)
        if resume and before is None and output.exists():
            raise ValueError(f"`resume`: nothing is left to do, {output} is complete; to write it again, omit `resume`")
        if before is not None and not resume:
            raise ValueError(
                f"{_partial_of(output)}: an interrupted run left {before['lines']} lines here; use `resume=True` to "
                "continue, or `restart=True` to discard them"
            )
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@contextmanager
def partial_file(output: Path, facts: Mapping[str, Any], *, resume: bool = False) -> Iterator[PartialFile]:
    """Open a locked output; the file gets its final name when the block ends without an error.

    With `resume` it continues an interrupted run with the same facts, if there is one. An error before the first lines
    leaves no file.
    """
    partial, record = _partial_of(output), _record_of(output)
    before = _same(output, facts) if resume else None
    position = Position(before["lines"], before["input_sha256"], before["totals"]) if before else Position()
    digest = _written(partial, before) if before else hashlib.sha256()
    if not before:
        record.unlink(missing_ok=True)
    with partial.open("r+b" if before else "wb") as file:
        file.truncate(before["output_bytes"] if before else 0)
        file.seek(0, os.SEEK_END)
        opened = PartialFile(output, file, facts, position, digest)
        try:
            yield opened
        except BaseException:
            if not opened.position.lines:
                partial.unlink(missing_ok=True)
            raise
    if opened.replaced:
        _replace_lines(partial, output, opened.replaced)
        partial.unlink()
    else:
        os.replace(partial, output)
    record.unlink(missing_ok=True)


def _replace_lines(partial: Path, output: Path, replaced: Mapping[int, str]) -> None:
    """Write the partial output with other lines in these places; the output gets its name when it is complete."""
    copy = _copy_of(output)
    try:
        with partial.open("rb") as lines, copy.open("wb") as file:
            for number, line in enumerate(lines):
                file.write(replaced[number].encode() if number in replaced else line)
            file.flush()
            os.fsync(file.fileno())
        os.replace(copy, output)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def recorded_facts(output: Path) -> dict[str, Any]:
    """The facts of an interrupted run: model, settings and input format; empty without one."""
    record = _read(output)
    return {} if record is None else dict(record["made_from"])


def refuse_clashes(input_: Path | int | None, output: Path | None, summary: Path | None) -> None:
    """Raise ValueError if one file has two roles in a run, also through links; call it before any file is opened.

    input_: a path, or a file descriptor for standard input.
    """
    name = "standard input" if isinstance(input_, int) else input_
    for path in (output, summary):
        if path is not None and os.path.islink(os.path.realpath(path)):
            raise ValueError(f"{path}: is a loop of symbolic links; choose another name")
    sides = [] if output is None else [_partial_of(output), _record_of(output), _lock_of(output), _copy_of(output)]
    for role, path in (("`output`", output), ("`summary`", summary)):
        if path is not None and path.name.endswith(ENDINGS):
            raise ValueError(f"{role}: {path} has the name of an interrupted run's file; choose another name")
    if _same_file(input_, output):
        raise ValueError(f"`output`: {output} is the input file, which would be overwritten")
    for side in sides:
        if _same_file(input_, side):
            raise ValueError(
                f"`input`: {name} is the file {side}, which `output` {output} overwrites; rename one of them"
            )
    for role, other in (("`output`", output), ("`input`", input_), *(("a file of `output`", side) for side in sides)):
        if _same_file(summary, other):
            raise ValueError(f"`summary`: {summary} is also {role} and would be overwritten")


def _same_file(one: Path | int | None, other: Path | int | None) -> bool:
    """Whether two paths lead to one file, existing or not."""
    if one is None or other is None:
        return False
    try:
        if os.path.samestat(os.stat(one), os.stat(other)):
            return True
    except OSError:  # one of them does not exist
        pass
    return not isinstance(one, int) and not isinstance(other, int) and os.path.realpath(one) == os.path.realpath(other)


def _written(partial: Path, record: Mapping[str, Any]) -> "hashlib._Hash":
    """The running digest of the valid part, after a check that it is what the interrupted run wrote."""
    digest, left = hashlib.sha256(), record["output_bytes"]
    with partial.open("rb") as file:
        while left and (block := file.read(min(left, BLOCK))):
            digest.update(block)
            left -= len(block)
    if digest.hexdigest() != record["output_sha256"]:
        raise ValueError(
            f"{partial}: was changed after the interrupted run wrote it; restore the file, or use `restart=True`"
        )
    return digest


def _same(output: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an interrupted run, after a check that model and settings are the same."""
    record = _read(output)
    if record is None:
        return None
    now, then = json.loads(json.dumps(facts)), record["made_from"]
    different = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    if different:
        raise ValueError(
            f"{_partial_of(output)}: the interrupted run had other settings (different: {', '.join(different)}); give "
            "the same model and settings, or start again with `restart=True`"
        )
    return record


def _read(output: Path) -> dict[str, Any] | None:
    """The record of an interrupted run, if record and partial output exist."""
    partial, record = _partial_of(output), _record_of(output)
    if not partial.exists() or not record.exists():
        return None
    try:
        read = json.loads(record.read_text(encoding="utf-8"))
        if read["format"] != FORMAT:
            raise ValueError("`format`: another version of l0drop wrote it")
        if read.pop("sha256") != _checksum(read):
            raise ValueError("one of its fields was changed")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"the field {error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{record}: damaged ({problem}); restore it, or start again with `restart=True`") from error
    if partial.stat().st_size < read["output_bytes"]:
        raise ValueError(f"{record}: does not belong to {partial.name}; start again with `restart=True`")
    return read


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _partial_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


def _lock_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial.lock")


def _copy_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial.copy")


def _record_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial.json")
