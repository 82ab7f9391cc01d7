"""`log.jsonl` of a run: one JSON object per log entry, with its step and what was logged.

A killed run may leave an incomplete line. Lines have no version: the keys are those that the Trainer and its callbacks
log.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0drop.data.whole import write_whole
from l0drop.runs.json_file import FieldError, FileError, from_json, parsed


@dataclass(frozen=True)
class LogEntry:
    """The keys of an entry that are read again. train_runtime: seconds of an execution, in its last entry."""

    step: int
    train_runtime: float = 0.0


@dataclass(frozen=True)
class TrainingLog:
    """The log file of a run."""

    path: Path

    def append(self, step: int, logged: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **logged}) + "\n")

    def entries(self) -> list[LogEntry]:
        """The complete entries; FileError that names the line if one of them is broken."""
        return [entry for _, entry in self._lines()]

    def cut_after(self, step: int) -> None:
        """Delete the entries of later steps, which a resumed run repeats, and incomplete lines."""
        kept = [line for line, entry in self._lines() if entry.step <= step] if self.path.exists() else []
        write_whole(self.path, "".join(f"{line}\n" for line in kept))

    def _lines(self) -> Iterator[tuple[str, LogEntry]]:
        advice = "delete the line"
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.endswith("}"):
                continue
            named = f"{self.path}, line {number}"
            try:
                yield line, from_json(LogEntry, parsed(line.encode(), named, advice))
            except FieldError as error:
                raise FileError(f"{named}: {error}; {advice}") from error
