"""Lines decoded alone, by systems that take turns at every line, in bounded time.

A slow system must not hold up the others, and all must decode the same lines. So the first round ends when one system
has used up its time, with the lines that all have decoded; a system whose time does not suffice for another round is
left out of the later ones.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from l0drop.bench.timing import Say, Stopwatch
from l0drop.runs.benchmark import Percentiles

WARM_UP = 0.25
"""Share of a system's time for lines that are not counted."""


class LinesAlone:
    """The latencies of systems on lines of text. seconds: for each system, the lines to warm up included."""

    def __init__(
        self,
        calls: Mapping[str, Callable[[Sequence[str]], object]],
        lines: Sequence[str],
        rounds: int,
        seconds: float,
        device: str,
    ) -> None:
        self._calls, self._lines, self._rounds, self._seconds, self._device = calls, lines, rounds, seconds, device
        self._spent = dict.fromkeys(calls, 0.0)
        self._times: dict[str, list[list[float]]] = {name: [] for name in calls}
        """Milliseconds by round and line."""
        self._slowest: str | None = None

    def run(self, say: Say, save: Callable[[], None]) -> None:
        """Time the lines; `save` is called after every round."""
        if not self._lines or not self._calls:
            return
        for name in self._calls:
            self._warm_up(name)
        for number in range(self._rounds):
            names = [name for name in self._calls if number == 0 or self._has_time_for_a_round(name)]
            if not names:
                break
            self._round(names, is_first=number == 0)
            say(f"lines alone: round {number + 1} of {self._rounds}, {self.count} lines, {', '.join(names)}")
            save()

    @property
    def count(self) -> int:
        """The lines that all systems have decoded."""
        return min((len(times[0]) if times else 0 for times in self._times.values()), default=0)

    @property
    def rounds(self) -> dict[str, int]:
        return {name: len(times) for name, times in self._times.items()}

    @property
    def latencies(self) -> dict[str, Percentiles]:
        """Over the lines, of the median over rounds."""
        medians = {name: np.median(times, axis=0) for name, times in self._times.items() if times}
        return {name: Percentiles(*map(float, np.percentile(times, [50, 99]))) for name, times in medians.items()}

    @property
    def limited(self) -> list[str]:
        """What was measured less often than asked, and why."""
        said = []
        if 0 < self.count < len(self._lines):
            said.append(f"{self.count} of {len(self._lines)} lines alone: {self._slowest} had no time for more")
        for name, rounds in self.rounds.items():
            if 0 < rounds < self._rounds:
                said.append(f"{name} decoded lines alone in {rounds} of {self._rounds} rounds")
        return said

    def _warm_up(self, name: str) -> None:
        for line in self._lines:
            self._time(name, line)
            if self._spent[name] > WARM_UP * self._seconds:
                break

    def _round(self, names: Sequence[str], is_first: bool) -> None:
        lines = self._lines if is_first else self._lines[: self.count]
        found: dict[str, list[float]] = {name: [] for name in names}
        for index, line in enumerate(lines):
            for name in names[:: -1 if index % 2 else 1]:
                found[name].append(1000 * self._time(name, line))
            if is_first and max(self._spent.values()) > self._seconds:
                self._slowest = max(self._spent, key=self._spent.__getitem__)
                break
        for name, times in found.items():
            self._times[name].append(times)

    def _time(self, name: str, line: str) -> float:
        with (watch := Stopwatch(self._device)):
            self._calls[name]([line])
        self._spent[name] += watch.seconds.wall
        return watch.seconds.wall

    def _has_time_for_a_round(self, name: str) -> bool:
        return self._spent[name] + sum(self._times[name][-1]) / 1000 <= self._seconds
