"""Output that survives an interruption: it grows in OUTPUT.partial and gets its name when it is whole.

OUTPUT.partial.json says how much of it counts, and what it was made from. Whatever a kill left behind that line is cut
off by the next run, so the two are always of one mind.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock, Timeout

from l0drop.data.whole import write_whole

FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """How far an output has come: lines and digest of the input behind it, and sums over them."""

    lines: int = 0
    digest: str = ""
    totals: Mapping[str, Any] = field(default_factory=dict)


class Output(Protocol):
    """Where output lines go."""

    def append(self, text: str, progress: Progress) -> None:
        """Add whole lines; `progress` holds once they are there."""


class Stream:
    """Standard output, or whatever takes bytes; flushed after every window."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def append(self, text: str, progress: Progress) -> None:
        self._file.write(text.encode())
        self._file.flush()


class PartialFile:
    """A file that can be gone on with; `partial_file` opens one."""

    def __init__(self, output: Path, file: IO[bytes], made_from: Mapping[str, Any], progress: Progress) -> None:
        self.output, self.progress = output, progress
        self._file, self._made_from = file, made_from

    def append(self, text: str, progress: Progress) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())  # what the record speaks of must be there first, even if the power fails
        record = {
            "format": FORMAT,
            "lines": progress.lines,
            "input_sha256": progress.digest,
            "output_bytes": self._file.tell(),
            "totals": progress.totals,
            "made_from": self._made_from,
        }
        write_whole(_record_of(self.output), json.dumps(record, indent=1) + "\n")
        self.progress = progress


@contextmanager
def claimed(output: Path, *, resume: bool = False, restart: bool = False) -> Iterator[None]:
    """Make sure, before long work begins, that the output can be written, and that nobody else does.

    What an interrupted run left is in the way unless it is to be gone on with or thrown away.
    """
    if output.exists() and not output.is_file():
        raise ValueError(f"{output}: is not a regular file; leave --output out and redirect standard output instead")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(output.with_name(f"{output.name}.partial.lock"), timeout=0)
        lock.acquire()
    except Timeout:
        raise ValueError(f"{output}: another process is writing it") from None
    except OSError as error:
        raise ValueError(f"{output}: cannot be written there ({error.strerror or error})") from error
    try:
        before = None if restart else _read(output)
        if before is not None and not resume:
            raise ValueError(
                f"{_partial_of(output)}: an interrupted run left {before['lines']} lines here; go on with --resume, or "
                "throw them away with --restart"
            )
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@contextmanager
def partial_file(output: Path, facts: Mapping[str, Any], *, resume: bool = False) -> Iterator[PartialFile]:
    """Open a claimed output for lines; it takes its final name when the block ends without an error.

    With `resume` it goes on where an interrupted run stopped, if the facts are the same; otherwise it starts anew.
    An error before the first lines leaves nothing behind.
    """
    partial, record = _partial_of(output), _record_of(output)
    before = _same(output, facts) if resume else None
    progress = Progress(before["lines"], before["input_sha256"], before["totals"]) if before else Progress()
    if not before:
        record.unlink(missing_ok=True)
    with partial.open("r+b" if before else "wb") as file:
        file.truncate(before["output_bytes"] if before else 0)
        file.seek(0, os.SEEK_END)
        opened = PartialFile(output, file, facts, progress)
        try:
            yield opened
        except BaseException:
            if not opened.progress.lines:
                partial.unlink(missing_ok=True)
            raise
    os.replace(partial, output)
    record.unlink(missing_ok=True)


def made_from(output: Path) -> dict[str, Any]:
    """What an interrupted output was made from; nothing if there is none."""
    record = _read(output)
    return {} if record is None else dict(record["made_from"])


def _same(output: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an interrupted run of the same model and settings."""
    record = _read(output)
    if record is None:
        return None
    now, then = json.loads(json.dumps(facts)), record["made_from"]
    different = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    if different:
        raise ValueError(
            f"{_partial_of(output)}: the interrupted run was another one (different: {', '.join(different)}); give the "
            "same model and settings, or start anew with --restart"
        )
    return record


def _read(output: Path) -> dict[str, Any] | None:
    """The record of an interrupted run, if its output is there."""
    partial, record = _partial_of(output), _record_of(output)
    if not partial.exists() or not record.exists():
        return None
    try:
        read = json.loads(record.read_text(encoding="utf-8"))
        fine = read["format"] == FORMAT and partial.stat().st_size >= read["output_bytes"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record}: damaged ({error}); start anew with --restart") from error
    if not fine:
        raise ValueError(f"{record}: does not belong to {partial.name}; start anew with --restart")
    return read


def _partial_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


def _record_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial.json")
