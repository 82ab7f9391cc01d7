"""Scores of a finished run at several length penalties."""

from pathlib import Path

import pytest

from l0drop.runs.run import LengthPenaltyCurve, RunFolder, RunMetrics
from l0drop.study.length_penalty import length_penalty_curve


def test_the_own_length_penalty_gives_the_scores_of_the_run(baseline: Path, tmp_path: Path) -> None:
    curve = length_penalty_curve(baseline, [0.6, -8.0])
    own, short = curve.rows
    metrics = RunMetrics.read(RunFolder(baseline).metrics)
    assert metrics.decoding["length_penalty"] == own.length_penalty == 0.6
    assert (own.valid, own.test) == pytest.approx((metrics.valid.score.value, metrics.test.score.value))
    assert (short.valid, short.test) != (own.valid, own.test), "short outputs are preferred"
    curve.write(tmp_path / "length_penalties.json")
    assert LengthPenaltyCurve.read(tmp_path / "length_penalties.json") == curve
