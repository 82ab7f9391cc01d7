"""A sweep and an analysis that are killed at random moments and started again end as if nothing had happened."""

import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from l0drop.app.cli import main
from l0drop.recipe import parse_recipe
from l0drop.study.analysis.parts import NEEDS
from l0drop.study.sweep import lambda_point, sweep
from tests.study.analysis.conftest import runs as runs  # the fixture
from tests.study.test_sweep import comparable, tiny_sweep

KILLS = 5


def finished(work: Callable[[], object], seconds: float | None) -> bool:
    """Run `work` in a forked process, killed after `seconds`; whether it came to its end."""

    def child() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        work()
        sys.stdout.flush()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode == 0


def killed_at_random(work: Callable[[], object], seconds: float, seed: int) -> int:
    """Start `work` again and again, each time killed at a random moment; then let it end. The number of kills."""
    moments = random.Random(seed)
    for kills in range(KILLS):
        if finished(work, moments.uniform(0.05, 0.4) * seconds):
            return kills
    assert finished(work, None)
    return KILLS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_sweep(seed: int, baseline: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline)), "test")

    def into(folder: str) -> Callable[[], object]:
        return lambda: sweep(recipe, [lambda_point(0.5)], tmp_path / folder, console=Console(quiet=True))

    began = time.monotonic()
    assert finished(into("whole"), None)
    assert killed_at_random(into("killed"), time.monotonic() - began, seed) > 0
    whole, killed = (tmp_path / name / "tiny-sweep" for name in ("whole", "killed"))
    assert comparable(killed) == comparable(whole)
    for run in ("continued", "lambda-0.5"):
        one, other = (load_file(folder / run / "model" / "model.safetensors") for folder in (whole, killed))
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.slow
def test_an_analysis(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def into(folder: str) -> Callable[[], object]:
        arguments = ["analyze", runs / "sparse", "--sentences", "4", "--output", tmp_path / folder, "--threads", "1"]

        def work() -> None:
            monkeypatch.setattr(sys, "argv", ["l0drop", *map(str, arguments)])
            try:
                main()
            except SystemExit as end:
                assert not end.code  # noqa: PT017

        return work

    began = time.monotonic()
    assert finished(into("whole"), None)
    assert killed_at_random(into("killed"), time.monotonic() - began, 3) > 0
    whole, killed = (json.loads((tmp_path / name / "analysis.json").read_text()) for name in ("whole", "killed"))
    assert {part for part in NEEDS if part in whole} == {part for part in NEEDS if part in killed}
    assert all(whole[part] == killed[part] for part in NEEDS if part in whole and part != "time")
    assert {path.name for path in (tmp_path / "killed" / "figures").iterdir()} == {
        path.name for path in (tmp_path / "whole" / "figures").iterdir()
    }
