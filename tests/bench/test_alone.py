"""Lines decoded alone: turns, the same lines for all, bounded time; with pretended systems."""

from collections.abc import Callable, Sequence

import pytest

from l0drop.bench.alone import LinesAlone
from l0drop.runs.benchmark import Percentiles
from tests.bench.clock import Clock

LINES = [f"line {number}" for number in range(10)]


class Systems:
    """Systems that take so many seconds for a line, and note the lines."""

    def __init__(self, patch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.clock = Clock(patch)
        self.decoded: list[tuple[str, str]] = []
        self.calls = {name: self._system(name, each) for name, each in seconds.items()}

    def _system(self, name: str, seconds: float) -> Callable[[Sequence[str]], int]:
        def decode(lines: Sequence[str]) -> int:
            (line,) = lines
            self.decoded.append((name, line))
            self.clock.work(seconds)
            return 1

        return decode

    def timed(self, seconds: float, rounds: int = 3, lines: Sequence[str] = LINES) -> tuple[LinesAlone, list[int]]:
        """The latencies, and the number of lines whenever they were saved."""
        alone, saved = LinesAlone(self.calls, lines, rounds, seconds, "cpu"), list[int]()
        alone.run(lambda line: None, lambda: saved.append(alone.count))
        return alone, saved


def test_fast_systems_decode_all_lines_in_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = Systems(monkeypatch, one=0.5, two=0.25)
    alone, saved = systems.timed(100)
    assert saved == [10, 10, 10]
    assert alone.rounds == {"one": 3, "two": 3}
    assert alone.latencies == {"one": Percentiles(500, 500), "two": Percentiles(250, 250)}
    assert alone.limited == []
    turns = [name for name, _ in systems.decoded[20:]]
    assert turns == ["one", "two", "two", "one"] * 15


def test_all_systems_decode_the_lines_for_which_the_slowest_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = Systems(monkeypatch, fast=0.25, slow=2.0)
    alone, saved = systems.timed(12)
    assert saved == [5, 5, 5]  # of 12 seconds, 4 warm up; the next line begins in time
    assert alone.rounds == {"fast": 3, "slow": 1}
    assert alone.limited == [
        "5 of 10 lines alone: slow had no time for more", "slow decoded lines alone in 1 of 3 rounds"
    ]  # fmt: skip
    counted = systems.decoded[10 + 2 :]
    assert {line for _, line in counted} == set(LINES[:5])
    assert sum(name == "slow" for name, _ in counted) == 5


def test_one_line_is_always_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, saved = Systems(monkeypatch, slow=60.0).timed(1)
    assert saved == [1]
    assert alone.latencies == {"slow": Percentiles(60_000, 60_000)}


def test_without_lines_or_systems_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for systems, lines in ((Systems(monkeypatch, one=1.0), []), (Systems(monkeypatch), LINES)):
        alone, saved = systems.timed(10, lines=lines)
        assert (saved, alone.count, alone.latencies, alone.limited) == ([], 0, {}, [])
