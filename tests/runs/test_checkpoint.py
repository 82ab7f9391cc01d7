"""The state that a run resumes with: older files are read, broken ones are named, and it stops a run in time."""

import json
import math
import re
from pathlib import Path

import pytest

from l0drop.runs.checkpoint import ResumeState
from l0drop.runs.json_file import FileError


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = ResumeState(
        best=30.5, best_step=4, schedule={"steps": 3, "value": 0.25}, made_from={"train text": "a", "teacher": None},
        compiled_at=[[0, 1], [0]],
    )  # fmt: skip
    state.write(tmp_path / "l0drop.json")
    assert json.loads((tmp_path / "l0drop.json").read_text())["version"] == 1
    assert ResumeState.read(tmp_path / "l0drop.json") == state


@pytest.mark.parametrize(
    ("older", "best"), [('{"best": 2.5, "best_step": 4}', 2.5), ('{"best": NaN}', None), ('{"best": Infinity}', None)]
)
def test_states_of_older_versions_are_read(older: str, best: float | None, tmp_path: Path) -> None:
    (tmp_path / "l0drop.json").write_text(older)
    found = ResumeState.read(tmp_path / "l0drop.json")
    assert (found.best, found.schedule, found.made_from, found.compiled_at) == (best, {}, None, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the whole file: expected an object, got []"),
        ('{"best_step": "four"}', 'best_step: expected a whole number, got "four"'),
        ('{"compiled_at": [0]}', "compiled_at[0]: expected a list, got 0"),
        ('{"version": 2}', "version 2, but this l0drop reads versions up to 1"),
    ],
)
def test_a_broken_state_is_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints" / "checkpoint-4" / "l0drop.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(FileError, match=re.escape(f"{file}: {message}")) as error:
        ResumeState.read(file)
    if "version" not in content:
        assert str(error.value).endswith(f"; restore it, or delete {tmp_path / 'checkpoints'} to train again")


def test_a_run_stops_without_a_better_result() -> None:
    state = ResumeState()
    for step, (value, stopped) in enumerate([(math.nan, False), (1.0, False), (2.0, False), (2.0, False), (1.0, True)]):
        state.remember(value, step, patience=2)
        assert state.stopped_early == stopped, step
    assert (state.best, state.best_step) == (2.0, 2)


def test_other_inputs_are_named() -> None:
    state = ResumeState(made_from={"train text": "a", "valid text": "b"})
    assert state.different({"train text": "a", "valid text": "b"}) == []
    assert state.different({"train text": "x", "valid text": "b", "teacher": "t"}) == ["train text", "teacher"]
    assert ResumeState().different({"train text": "a"}) == [], "older states do not say"
