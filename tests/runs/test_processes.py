"""Joining processes: timeout and device."""

from datetime import timedelta

import pytest
from rich.console import Console
from torch import distributed

from l0drop.decoding.bulk import Processes
from l0drop.recipe import parse_recipe
from l0drop.runs import processes
from l0drop.study.sweep import lambda_point, sweep
from l0drop.training.run import prepare, train
from tests.training import tiny

QUIET = Console(quiet=True)


class Joined(Exception):  # noqa: N818
    """Raised instead of joining."""


CALLS = {
    "prepare": lambda recipe, runs: prepare(recipe, runs, QUIET),
    "train": lambda recipe, runs: train(recipe, runs, QUIET),
    "sweep": lambda recipe, runs: sweep(recipe, [lambda_point(0.1)], runs, console=QUIET),
    "translate": lambda recipe, runs: Processes(),
}


@pytest.mark.parametrize("call", CALLS)
def test_processes_wait_for_hours_of_preparing(call, tmp_path, monkeypatch):
    def joined(cpu, timeout):
        assert timeout > timedelta(days=7)
        raise Joined

    recipe = parse_recipe(tiny.recipe(tmp_path), "test")
    monkeypatch.setattr(processes, "PartialState", joined)
    monkeypatch.setattr(distributed, "is_torchelastic_launched", lambda: True)
    with pytest.raises(Joined):
        CALLS[call](recipe, tmp_path / "runs")


def test_a_gpu_is_used_by_default_if_there_is_one(monkeypatch):
    monkeypatch.setattr(processes, "PartialState", lambda cpu, timeout: cpu)
    for available in (True, False):
        monkeypatch.setattr(processes.torch.cuda, "is_available", lambda available=available: available)
        assert [processes.joined_processes(cpu) for cpu in (None, True, False)] == [not available, True, False]
