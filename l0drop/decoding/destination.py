"""Where a job writes: a file that a later job can resume, or standard output."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from l0drop.data.text import is_packed
from l0drop.decoding.lines import is_jsonl
from l0drop.decoding.partial import Output, Pipe, locked_output, partial_file, recorded_facts, refuse_clashes


@dataclass(frozen=True)
class Destination:
    """A file, which gets its name when it is whole, or standard output without one.

    as_json: write JSON lines; None: if the file's name ends in .jsonl. summary: a file for totals, settings and
    machine; None: FILE.summary.json beside a file of JSON lines. resume, restart: continue or discard the output of an
    interrupted job, which is an error otherwise.
    """

    file: Path | None = None
    as_json: bool | None = None
    summary: Path | None = None
    resume: bool = False
    restart: bool = False

    def __post_init__(self) -> None:
        if (self.resume or self.restart) and self.file is None:
            raise ValueError(f"`{'resume' if self.resume else 'restart'}`: needs the `output` of the interrupted run")
        if self.resume and self.restart:
            raise ValueError("`resume` and `restart`: give one of them")
        if self.file is not None and is_packed(self.file):
            raise ValueError(
                f"`output`: {self.file} would not be compressed; omit `output` and pipe standard output to gzip or xz"
            )

    @property
    def writes_json(self) -> bool:
        return is_jsonl(self.file) if self.as_json is None else self.as_json

    @property
    def target(self) -> Path | None:
        """The file that is written: of a link its target, so that the link stays."""
        if self.file is not None and self.file.is_symlink() and (self.file.is_file() or not self.file.exists()):
            return Path(os.path.realpath(self.file))
        return self.file

    @property
    def summary_file(self) -> Path | None:
        if self.summary is None and self.target is not None and self.writes_json:
            return self.target.with_name(f"{self.target.name}.summary.json")
        return self.summary

    def refuse(self, source: Path | None) -> None:
        """Raise if one file has two roles; `source` is read, standard input if it is None."""
        refuse_clashes(_descriptor(sys.stdin) if source is None else source, self.target, self.summary_file)
        if self.file is None and source is not None and _is_open_as(source, sys.stdout):
            raise ValueError(f"`input`: {source} is also standard output, which would be appended to it")

    def locked(self) -> AbstractContextManager[None]:
        """Check that it can be written, and lock it; to be entered before long work begins."""
        if self.target is None:
            return nullcontext()
        return locked_output(self.target, resume=self.resume, restart=self.restart)

    @property
    def earlier_facts(self) -> dict[str, Any]:
        """The facts of the job that is resumed; empty without one."""
        return recorded_facts(self.target) if self.target is not None and self.resume else {}

    @contextmanager
    def opened(self, facts: Mapping[str, Any]) -> Iterator[Output]:
        """The output, at the position where an interrupted job with the same facts ended."""
        if self.target is None:
            yield Pipe(sys.stdout.buffer)
            return
        with partial_file(self.target, facts, resume=self.resume) as file:
            yield file


def _descriptor(stream: IO[str]) -> int | None:
    """The file descriptor of a standard stream; None if it is closed or replaced."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _is_open_as(path: Path, stream: IO[str]) -> bool:
    """Whether a regular file is open as this stream."""
    descriptor = _descriptor(stream)
    return descriptor is not None and path.is_file() and os.path.samestat(path.stat(), os.fstat(descriptor))
