"""The batch size with which a system is fastest, found without decoding the text in every size to the end.

Sizes are tried from the largest on. A smaller one has more steps in all, so the search ends at the first size that is
clearly slower than the fastest so far; a system that reports its progress is stopped early.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from l0drop.bench.timing import Say, wait_for
from l0drop.runs.gpu_benchmark import Stopped

CLEARLY_SLOWER = 1.15
"""Time relative to the fastest size, from which on no smaller size is tried."""
FAR_BEHIND = 1.5
"""Time relative to the fastest size at the same progress, at which a call is stopped."""

Report = Callable[[float], None]
"""Called with the share of the source tokens that are decoded."""
Decode = Callable[[int, Report], object]
"""Decodes everything in batches of at most so many tokens."""


class FarBehindError(Exception):
    """A call is stopped."""


@dataclass
class Tried:
    """seconds: of the finished calls, by batch size. stopped: the calls that were not finished. untried: sizes."""

    seconds: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, Stopped] = field(default_factory=dict)
    untried: list[int] = field(default_factory=list)

    @property
    def fastest(self) -> int:
        return min(self.seconds, key=self.seconds.__getitem__)


class Progress:
    """The time of one call by the share that is done; raises FarBehindError if a faster call was far ahead there."""

    def __init__(self, device: str, faster: "Progress | None") -> None:
        self._device, self._faster = torch.device(device), faster
        self.shares, self.seconds = [0.0], [0.0]
        self._start = self._now()

    def __call__(self, share: float) -> None:
        self.shares.append(share)
        self.seconds.append(self._now() - self._start)
        if self._faster is not None and share < 1 and self.seconds[-1] > FAR_BEHIND * self._faster.at(share):
            raise FarBehindError

    def at(self, share: float) -> float:
        """The seconds at which this share was done."""
        return float(np.interp(share, self.shares, self.seconds))

    def finish(self) -> float:
        """The seconds of the whole call."""
        seconds = self._now() - self._start
        if self.shares[-1] < 1:
            self.shares.append(1.0)
            self.seconds.append(seconds)
        return seconds

    def _now(self) -> float:
        wait_for(self._device)
        return time.perf_counter()


def try_sizes(decode: Decode, sizes: Sequence[int], device: str, say: Say) -> Tried:
    """Time one call for each of these batch sizes, the largest first, until smaller ones do not pay."""
    tried = Tried()
    fastest: Progress | None = None
    for index, size in enumerate(sizes):
        progress = Progress(device, fastest)
        try:
            decode(size, progress)
        except FarBehindError:
            tried.stopped[size] = Stopped(progress.seconds[-1], progress.shares[-1])
            say(f"batches of {size:,} tokens: stopped after {progress.seconds[-1]:.1f} s")
        else:
            tried.seconds[size] = progress.finish()
            say(f"batches of {size:,} tokens: {tried.seconds[size]:.1f} s")
            if size == tried.fastest:
                fastest = progress
        if size in tried.stopped or tried.seconds[size] > CLEARLY_SLOWER * tried.seconds[tried.fastest]:
            tried.untried = [*sizes[index + 1 :]]
            break
    return tried
