"""The dial's curve on a tiny run, and runs that have none."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from l0drop.decoding.corpus import decode_corpus
from l0drop.recipe import parse_recipe
from l0drop.report.benchmark import dial_table
from l0drop.runs.run import DialCurve
from l0drop.study import finished
from l0drop.study.dial import dial_curve
from l0drop.training.run import train
from tests.training import tiny


def test_the_curve_keeps_the_requested_shares(baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"elastic": True})
    metrics = train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    run = (tmp_path / "runs" / "sparse").rename(tmp_path / "runs" / "kept")
    before = sorted((tmp_path / "runs").rglob("*"))
    said: list[str] = []

    def decoded(*arguments, **settings):  # type: ignore[no-untyped-def]
        said.append("decoding")
        return decode_corpus(*arguments, **settings)

    monkeypatch.setattr(finished, "decode_corpus", decoded)
    curve = dial_curve(run, [0.25, 1.0], said.append)
    own, quarter, everything = curve.rows
    assert said[::2] == ["warming up", "as trained", "keep 0.25", "keep 1"]
    assert said[1::2] == ["decoding"] * 4
    assert sorted((tmp_path / "runs").rglob("*")) == before, "a renamed run is read from its new folder"
    assert own.sparsity == metrics.test.sparsity
    assert own.score == metrics.test.score
    # n = max(1, round(0.25 · tokens)) of sentences of 10 to 20 tokens
    assert quarter.sparsity == pytest.approx(0.75, abs=0.03)
    assert everything.sparsity == 0
    assert (curve.run, curve.split, curve.sentences) == ("kept", "test", 24)
    curve.write(tmp_path / "dial.json")
    assert DialCurve.read(tmp_path / "dial.json") == curve
    assert "references" not in json.loads((tmp_path / "dial.json").read_text())
    assert dial_table(curve)[1].note == own.score.signature


def test_scores_against_a_teachers_outputs_are_labelled(baseline: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 2, "targets": "teacher", "teacher": {"weight": 0.0}})
    del values["data"]["test"]["target"]
    metrics = train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    curve = dial_curve(tmp_path / "runs" / "sparse", [0.5], lambda text: None)
    assert curve.rows[0].score == metrics.test.score
    assert curve.references == metrics.test.references == f"outputs of {baseline}"
    assert dial_table(curve)[1].note.startswith(f"References: outputs of {baseline}. nrefs:1")


def test_runs_without_a_gate_and_unfinished_runs_are_refused(baseline: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no gate"):
        dial_curve(baseline, [0.5], print)
    with pytest.raises(ValueError, match="not a finished run"):
        dial_curve(tmp_path, [0.5], print)
