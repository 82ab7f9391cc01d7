"""The tables of the smaller benchmarks; those of decoding, training and the dial are tested with what they measure."""

from pathlib import Path

import pytest

from l0drop.report.benchmark import check_table, drift_table, gate_cost_table, layerwise_table, prediction_table
from l0drop.runs.benchmark import Timing
from l0drop.runs.gate_benchmark import Drift, DriftRow, EvenBatch, GateCost, LayerwiseRow, LayerwiseSpeed
from l0drop.runs.json_file import JsonFile
from l0drop.runs.prediction import SpeedPrediction
from l0drop.runs.provenance import provenance
from tests.snippets import ROOT

COST = GateCost(
    "a step", EvenBatch(2, 3), 1.02, {"with": Timing([3.0, 1.0, 2.0], [4.0, 6.0, 5.0]), "without": Timing([1.0], [1.0])}
)
LAYERWISE = LayerwiseSpeed("an encoder", EvenBatch(2, 3), [LayerwiseRow(0.5, 0.25, 0.5, 0.5)], provenance())
DRIFT = Drift("drift", 0.5, [DriftRow("T5", "zero", "sdpa", "bfloat16", 0.00123, 0.5)], provenance())


def test_the_cost_of_the_gate_is_a_median() -> None:
    title, table = gate_cost_table(COST)
    assert title.startswith("One training step")
    assert table.rows == [["with gate", "2.000", "5.000"], ["without gate", "1.000", "1.000"]]
    assert table.note == "The gate costs +2.0% CPU time (median of 3 rounds)."


def test_layerwise_and_drift_have_a_row_per_measurement() -> None:
    assert layerwise_table(LAYERWISE)[1].rows == [["50%", "0.250", "0.500", "2.00"]]
    assert drift_table(DRIFT)[1].rows == [["T5", "zero", "sdpa", "bfloat16", "1.2e-03", "5.0e-01"]]


@pytest.mark.parametrize("result", [COST, LAYERWISE, DRIFT], ids=lambda result: type(result).__name__)
def test_results_are_read_as_they_were_written(result: JsonFile, tmp_path: Path) -> None:
    result.write(tmp_path / "bench.json")
    assert type(result).read(tmp_path / "bench.json") == result


def test_the_tables_of_the_published_prediction() -> None:
    stored = SpeedPrediction.read(ROOT / "docs" / "results" / "predict.json")
    _, table = prediction_table(stored)
    assert table.head == ["source tokens", "batch 1", "batch 8", "batch 32"]
    assert [row[0] for row in table.rows] == ["16", "32", "64", "128", "256", "512", "1024", "2048"]
    assert table.marked is None
    first = stored.table[0].speed_up
    assert table.rows[0][1] == f"{first['both']:.2f} ({first['decode']:.2f})"
    _, checked = check_table(stored)
    assert checked.rows[0][:4] == ["8", "600", "48%", "2.38 (-1%)"]
