"""The fuzzer finds a planted defect, makes its case small, and repeats it."""

import json
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.__main__ import fuzz
from tests.fuzz.arguments import STARTS, options


class _Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def restore(self) -> None:
        pass


def rejects_long_lists(case: Any, stage: Any) -> None:
    if len(case) > 2:
        raise KeyError(f"case of {len(case)}")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the fuzzer sends of a target with a defect."""
    target = SimpleNamespace(cases=lambda: st.lists(st.integers(), max_size=20), check=rejects_long_lists)
    monkeypatch.setitem(sys.modules, "tests.fuzz.planted", target)
    monkeypatch.setattr("tests.fuzz.__main__.limit_memory", lambda: None)

    def run(rounds: str, seconds: float = 2) -> list[tuple[str, str, str]]:
        sent: Any = multiprocessing.SimpleQueue()
        fuzz("planted", _Stage(tmp_path / "stage"), rounds, seconds, tmp_path / "kept", sent)
        messages = []
        while not sent.empty():
            messages.append(sent.get())
        return messages

    return run


def test_a_defect_is_found_once_made_small_and_kept(log: Any, tmp_path: Path) -> None:
    found, done = log("7")
    assert found[0] == "found"
    assert "KeyError" in found[2]
    assert "make fuzz TARGET=planted SEED=7." in found[2]
    assert done[0] == "done"
    (file,) = (tmp_path / "kept").iterdir()
    assert str(file) in found[2]
    kept = json.loads(file.read_text())
    assert kept["target"] == "planted"
    assert kept["case"] == [0, 0, 0]


def test_the_round_of_a_finding_gives_it_again(log: Any) -> None:
    first = log("7")[0][2].splitlines()
    rounds = first[-1].rpartition("SEED=")[2]
    assert log(rounds)[0][2].splitlines() == first


def test_every_command_has_its_options() -> None:
    known = options()
    for start in STARTS:
        assert known.get(" ".join(start[:2]), known.get(start[0])), start
