"""Timing several systems in one run.

Machines are shared and noisy: systems are interleaved round by round, CPU time is measured next to wall time, and
results are medians and ratios within one run.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[str], None]


@dataclass
class Timing:
    """Seconds of each round of one system."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)

    @property
    def wall_median(self) -> float:
        return statistics.median(self.wall)


def interleaved(systems: dict[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time each system once per round, in turns, after one round that is not counted."""
    timings = {name: Timing() for name in systems}
    for round_ in range(rounds + 1):
        order = list(systems) if round_ % 2 else list(systems)[::-1]
        for name in order:
            cpu, wall = time.process_time(), time.perf_counter()
            systems[name]()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if round_:
                timings[name].cpu.append(cpu)
                timings[name].wall.append(wall)
    return timings


def ratio(timings: dict[str, Timing], one: str, other: str) -> float:
    """The median, over the rounds that both ran, of one system's CPU time by another's."""
    return statistics.median(a / b for a, b in zip(timings[one].cpu, timings[other].cpu, strict=False))
