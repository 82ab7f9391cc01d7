"""The search for a batch size spends no more calls than it needs; with pretended systems."""

import pytest

from l0drop.bench.batch_sizes import Report, Tried, try_sizes
from tests.bench.clock import Clock

SIZES = (4096, 1024, 256, 64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tried(clock: Clock, batches: dict[int, list[float]], reports: bool = False) -> Tried:
    """A system whose batches take these seconds, by size; each of them is an equal share of the text."""

    def decode(size: int, report: Report) -> None:
        for number, seconds in enumerate(batches[size]):
            clock.work(seconds)
            if reports:
                report((number + 1) / len(batches[size]))

    return try_sizes(decode, SIZES, "cpu", lambda line: None)


def test_sizes_are_tried_as_long_as_they_are_not_clearly_slower(clock: Clock) -> None:
    found = tried(clock, {4096: [3.0], 1024: [2.0], 256: [2.2], 64: [2.1]})
    assert found.seconds == pytest.approx({4096: 3.0, 1024: 2.0, 256: 2.2, 64: 2.1})
    assert found.fastest == 1024
    assert found.untried == []


def test_no_size_is_tried_after_one_that_is_clearly_slower(clock: Clock) -> None:
    found = tried(clock, {4096: [2.8], 1024: [3.4]})
    assert found.fastest == 4096
    assert [*found.seconds] == [4096, 1024]
    assert found.untried == [256, 64]
    assert clock.now == pytest.approx(6.2)


def test_a_call_that_falls_far_behind_is_stopped(clock: Clock) -> None:
    found = tried(clock, {4096: [4.0, 4.0, 3.0], 1024: [3.0] * 12}, reports=True)
    assert found.seconds == pytest.approx({4096: 11.0})
    (stopped,) = found.stopped.values()
    assert (stopped.seconds, stopped.share) == pytest.approx((3.0, 1 / 12))
    assert found.untried == [256, 64]
    assert clock.now == pytest.approx(14.0)


def test_a_call_is_compared_with_the_same_share_of_the_fastest(clock: Clock) -> None:
    """The longest lines come first: their batches take longer than the mean, in every size."""
    found = tried(clock, {4096: [8.0, 2.0], 1024: [4.5, 4.5, 0.5, 0.5], 256: [13.0, 9.0]}, reports=True)
    assert found.seconds == pytest.approx({4096: 10.0, 1024: 10.0})
    assert found.stopped[256].share == 0.5
    assert found.untried == [64]


def test_a_slow_end_does_not_stop_a_call(clock: Clock) -> None:
    """It is finished, so its time is known."""
    found = tried(clock, {4096: [1.0, 1.0], 1024: [1.0, 9.0]}, reports=True)
    assert found.seconds == pytest.approx({4096: 2.0, 1024: 10.0})
    assert not found.stopped
    assert found.untried == [256, 64]


def test_errors_of_a_system_are_not_hidden() -> None:
    def decode(size: int, report: Report) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        try_sizes(decode, SIZES, "cpu", lambda line: None)
