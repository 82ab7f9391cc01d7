"""Scores of a finished run at several length penalties, and the test text that is decoded with the best one."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from l0drop.data.text import read_lines
from l0drop.recipe import load_recipe, parse_recipe
from l0drop.runs.run import LengthPenaltyCurve, LengthPenaltyRow, RunFolder, RunMetrics
from l0drop.study.length_penalty import decode_test, length_penalty_curve
from l0drop.training.run import train
from tests.training import tiny


def test_the_own_length_penalty_gives_the_scores_of_the_run(baseline: Path, tmp_path: Path) -> None:
    curve = length_penalty_curve(baseline, [0.6, -8.0])
    own, short = curve.rows
    metrics = RunMetrics.read(RunFolder(baseline).metrics)
    assert metrics.decoding["length_penalty"] == own.length_penalty == 0.6
    assert own.valid == pytest.approx(metrics.valid.score.value)
    assert short.valid != own.valid, "short outputs are preferred"
    curve.write(tmp_path / "length_penalties.json")
    assert LengthPenaltyCurve.read(tmp_path / "length_penalties.json") == curve


def test_the_best_length_penalty_is_the_first_of_equal_ones() -> None:
    rows = [LengthPenaltyRow(*row) for row in ((0.2, 30.0), (0.6, 31.0), (1.0, 31.0))]
    assert LengthPenaltyCurve(run="r", rows=rows, seed=1, decoding={}).best == 0.6


@pytest.mark.parametrize("kind", ["dense", "gated"])
def test_a_run_without_test_text_decodes_it_once_as_training_would(kind: str, baseline: Path, tmp_path: Path) -> None:
    """The same run is trained with the test text, which it then decodes at its own length penalty."""
    make = {"dense": tiny.recipe(tmp_path), "gated": tiny.sparse(tmp_path, str(baseline))}[kind]
    test = make["data"]["test"]
    whole = parse_recipe(make, "test")
    without = parse_recipe({**make, "name": "without", "data": {**make["data"], "test": None}}, "test")
    for recipe in (whole, without):
        train(recipe, tmp_path / "runs", Console(quiet=True))
    run = RunFolder(tmp_path / "runs" / "without")
    assert RunMetrics.read(run.metrics).test is None
    assert not run.outputs_on("test").exists()
    text = [f"data.test.{side}={file}" for side, file in test.items()]
    decode_test(run.path, 0.6, text)
    expected = RunFolder(tmp_path / "runs" / whole.name)
    found, wanted = (RunMetrics.read(one.metrics).test for one in (run, expected))
    assert found.score == wanted.score
    assert found.gates == wanted.gates
    assert (found.gates is None) == (kind == "dense")
    assert (found.sentences, found.length_penalty, wanted.length_penalty) == (24, 0.6, None)
    assert list(read_lines(run.outputs_on("test"))) == list(read_lines(expected.outputs_on("test")))
    assert load_recipe(run.recipe).data.test is None, "the recipe of the run stays"
    before = run.metrics.read_bytes()
    shutil.rmtree(run.model)
    decode_test(run.path, 1.8, text)
    assert run.metrics.read_bytes() == before, "the test text is decoded once"
