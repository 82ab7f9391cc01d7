"""A clock that stands still unless a pretended system works."""

from types import SimpleNamespace

import pytest

from l0drop.bench import batch_sizes, timing


class Clock:
    """Seconds, for all who ask the time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        asked = SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: self.now)
        for module in (batch_sizes, timing):
            patch.setattr(module, "time", asked)

    def work(self, seconds: float) -> None:
        self.now += seconds
