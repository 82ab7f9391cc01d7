"""The log of a run: what is appended is read, a killed run's line is skipped, and a broken one is named."""

import math
import re
from pathlib import Path

import pytest

from l0drop.runs.json_file import FileError
from l0drop.runs.log import LogEntry, TrainingLog


def test_entries_are_read_as_they_were_appended(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "log.jsonl")
    log.append(1, {"loss": 2.5, "grad_norm": math.inf})
    log.append(2, {"train_runtime": 3.5})
    assert (
        log.path.read_text() == '{"step": 1, "loss": 2.5, "grad_norm": Infinity}\n{"step": 2, "train_runtime": 3.5}\n'
    )
    assert log.entries() == [LogEntry(1), LogEntry(2, 3.5)]


def test_a_resumed_run_starts_after_its_checkpoint(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "log.jsonl")
    log.cut_after(0)
    assert log.path.read_text() == ""
    lines = [
        '{"step": 1,   "loss": 1.0}\n',
        '{"step": 2, "loss": 1.0}\n',
        '{"step": 3, "loss": 1.0}\n',
        '{"step": 4, "l',
    ]
    log.path.write_text("".join(lines))
    assert [entry.step for entry in log.entries()] == [1, 2, 3], "the last line is incomplete"
    log.cut_after(2)
    assert log.path.read_text() == "".join(lines[:2])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"loss": 1.0}', "step: missing"),
        ('{"step": "two"}', 'step: expected a whole number, got "two"'),
        ('{"step": 2, "train_runtime": "long"}', 'train_runtime: expected a number, got "long"'),
        ("[}", "not JSON"),
    ],
)
def test_a_broken_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "log.jsonl")
    log.path.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(FileError, match=re.escape(f"{log.path}, line 2: {message}") + ".*delete the line"):
        log.entries()
