"""Timing several systems in one run.

Machines are shared and noisy, so the systems take turns round by round, CPU time is measured in addition to wall time,
and results are medians and ratios within one run.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Progress = Callable[[str], None]


@dataclass
class Timing:
    """Seconds per round of one system."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)

    @property
    def wall_median(self) -> float:
        return statistics.median(self.wall)


def interleaved(
    systems: Mapping[str, Callable[[], object]], rounds: int, warm_up: Callable[[], object] | None = None
) -> dict[str, Timing]:
    """Time each system once per round, in alternating order.

    `warm_up` runs before the first round; the default is one uncounted round.
    """
    timings = {name: Timing() for name in systems}
    if warm_up is not None:
        warm_up()
    for round_ in range(warm_up is not None, rounds + 1):
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
    """CPU time of `one` / CPU time of `other`: the median over the rounds that both ran."""
    return statistics.median(a / b for a, b in zip(timings[one].cpu, timings[other].cpu, strict=False))
