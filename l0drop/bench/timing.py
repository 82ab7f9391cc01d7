"""Timing several systems in one run.

Machines are shared and noisy, so the systems take turns round by round, CPU time is measured in addition to wall time,
and results are medians and ratios within one run. With a GPU, clocks are read when it has finished its work, and wall
time counts.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from l0drop.runs.benchmark import Seconds, Timing

Say = Callable[[str], None]
"""Called with a line about the progress."""


def require_cuda(otherwise: str = "") -> None:
    """Raise ValueError without a GPU. otherwise: what works without one."""
    if not torch.cuda.is_available():
        raise ValueError(f"device: torch finds no CUDA GPU{otherwise}")


class Stopwatch:
    """Sums CPU and wall time over the blocks it encloses, with the work that they leave to the device."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.seconds = Seconds(0.0, 0.0)
        self._device = torch.device(device)

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(self, *_: object) -> None:
        self.seconds += self._now() - self._start

    def _now(self) -> Seconds:
        wait_for(self._device)
        return Seconds(time.process_time(), time.perf_counter())


def wait_for(device: torch.device) -> None:
    """Return when a GPU has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(wanted: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Systems with round numbers. Every second round runs backwards, so that no system always follows another."""
    for number in range(max(wanted.values())):
        for name in list(wanted)[:: -1 if number % 2 else 1]:
            if number < wanted[name]:
                yield name, number


def interleaved(
    systems: Mapping[str, Callable[[], object]], rounds: int, warm_up: Callable[[], object] | None = None
) -> dict[str, Timing]:
    """Time each system once per round, in alternating order.

    `warm_up` runs before the first round; the default is one uncounted round.
    """
    for call in (warm_up,) if warm_up is not None else reversed(list(systems.values())):
        call()
    timings = {name: Timing() for name in systems}
    for name, _ in in_turns(dict.fromkeys(systems, rounds)):
        with (watch := Stopwatch()):
            systems[name]()
        timings[name].append(watch.seconds)
    return timings


def ratio(timings: Mapping[str, Timing], one: str, other: str) -> float:
    """CPU time of `one` / CPU time of `other`: the median over the rounds that both ran."""
    return statistics.median(a / b for a, b in zip(timings[one].cpu, timings[other].cpu, strict=False))
