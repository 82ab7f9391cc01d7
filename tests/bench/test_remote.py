"""Objects in other processes: results, errors, and the end of the processes."""

import multiprocessing
import os

import pytest

from l0drop.bench.remote import running


class Counter:
    """Counts in its own process."""

    def __init__(self, start):
        if start < 0:
            raise ValueError(f"start: expected at least 0, got {start}")
        self.number = start

    def add(self, number):
        self.number += number
        return self.number, os.getpid()

    def fail(self, kind):
        raise {"value": ValueError("number: wrong"), "other": KeyError("gone")}[kind]

    def die(self):
        os._exit(1)


def counters(**starts):
    # the first call in a process decides the preloaded modules, so these are the benchmark's
    builders = {name: (Counter, (start,)) for name, start in starts.items()}
    return running(builders, preload=["l0drop.bench.decoding"])


def test_each_object_has_its_own_process():
    with counters(one=0, other=10) as remotes:
        assert remotes["one"].ask("add", 1)[0] == 1
        number, one = remotes["one"].ask("add", 2)
        _, other = remotes["other"].ask("add", 0)
        assert number == 3
        assert len({one, other, os.getpid()}) == 3
    assert not multiprocessing.active_children()


def test_errors_are_raised_here():
    with pytest.raises(ValueError, match="start: expected at least 0, got -1"), counters(one=-1):
        pass
    with pytest.raises(ValueError, match="number: wrong") as caught, counters(one=1) as remotes:
        remotes["one"].ask("fail", "value")
    assert caught.value.__notes__ == ["in the process of one"]
    with pytest.raises(RuntimeError, match="KeyError"), counters(one=1) as remotes:
        remotes["one"].ask("fail", "other")
    assert not multiprocessing.active_children()


def test_the_error_names_the_process_that_ended():
    with pytest.raises(RuntimeError, match="one: its process has ended"), counters(one=1) as remotes:
        remotes["one"].ask("die")
    with counters(one=1) as remotes:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="one: its process has ended"):
                remotes["one"].ask("die")
