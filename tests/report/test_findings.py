"""The findings that a report gathers from folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from l0drop.report.evaluation import points_table, rules_table, tail_overview
from l0drop.report.findings import Findings, ReportError, gather
from l0drop.report.summary import summary
from l0drop.runs.json_file import FileError
from tests.report import folders
from tests.study.test_significance import BAD, GOOD


def test_the_sparsest_non_inferior_point_is_recommended(tmp_path: Path) -> None:
    found = gather(folders.sweep(tmp_path))
    verdicts = {row.name: judged.kind for row in found.points if (judged := found.verdict(row))}
    assert verdicts == {"target-0.3": "non-inferior", "target-0.5": "non-inferior", "target-0.8": "worse"}
    assert found.recommended is not None
    assert found.recommended.name == "target-0.5"
    assert found.shown == found.recommended
    assert len(found.examples) == 20
    assert [row.name for row in found.rows[:2]] == ["baseline", "reference"]
    verdict, price, scored = summary(found)
    assert verdict.startswith("target-0.5, 52.0% dropped, compared with dense, continued: non-inferior at 10")
    assert "for this pair of models only" in verdict
    assert verdict.endswith("This is the sparsest model that is non-inferior.")
    assert "not measured" in price
    assert "3 models, 31% to 79% dropped" in scored


def test_figures_and_examples_are_of_the_same_model(tmp_path: Path) -> None:
    folder = folders.sweep(tmp_path)
    folders.analysed(folder / "target-0.8", {})
    found = gather(folder)
    assert found.shown is not None
    assert found.shown.name == "target-0.5"
    shown = folder / "target-0.5"
    assert found.analysed == [folder, shown]
    missing = (
        f"{folder / 'target-0.5'} was not analysed (dropped words, attention): l0drop analyze {folder / 'target-0.5'}"
    )
    assert missing in found.missing
    folders.analysed(folder / "target-0.5", {})
    assert missing not in gather(folder).missing


def test_tail_risk_is_shown_for_every_point(tmp_path: Path) -> None:
    table = tail_overview(gather(folders.sweep(tmp_path)))
    assert table is not None
    assert [row[0] for row in table.rows] == ["target-0.3", "target-0.5", "target-0.8"]
    losing = [float(row[1].rstrip("%")) for row in table.rows]
    assert losing[0] == 0 < losing[2]
    assert tail_overview(gather(folders.sweep(tmp_path / "without", judged=False))) is None


def test_a_model_that_is_clearly_worse_is_called_worse(tmp_path: Path) -> None:
    found = gather(folders.sweep(tmp_path), margin=0.5)
    (row,) = (row for row in found.rows if row.name == "target-0.8")
    judged = found.verdict(row)
    assert judged is not None
    assert judged.kind == "worse"
    verdicts = dict(zip([each.name for each in found.rows], column(found, "verdict"), strict=True))
    assert verdicts["target-0.8"] == judged.label
    assert judged.label.startswith("worse by at least ")
    assert verdicts["target-0.3"] == "non-inferior at 0.5"


def test_one_baseline_gives_no_verdict_over_seeds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folders.finished(run, 0.4)
    folders.evaluated(run, GOOD, GOOD, 0.4, seeds=[(GOOD, GOOD)])
    found = gather(run)
    assert found.recommended is None
    (row,) = found.judged
    judged = found.verdict(row)
    assert judged is not None
    assert judged.kind == "no verdict"
    assert "independent baseline" in summary(found)[0]


def test_another_margin_changes_the_verdicts(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    strict = gather(tmp_path, margin=0.01)
    assert strict.recommended is not None
    assert strict.recommended.name == "target-0.3", "its outputs are those of the continued baseline"
    lenient = gather(tmp_path, margin=99)
    assert lenient.recommended is not None
    assert lenient.recommended.name == "target-0.8"
    for margin in (0, float("nan")):
        with pytest.raises(ValueError, match="margin="):
            gather(tmp_path, margin=margin)


def test_a_comparison_with_another_model_gives_no_verdict(tmp_path: Path) -> None:
    """A point far below the continued baseline, evaluated against an even worse model."""
    folders.sweep(tmp_path)
    folders.evaluated(tmp_path / "target-0.8", folders.OUTPUTS["target-0.8"], BAD, 0.79, against="random-0.8")
    found = gather(tmp_path)
    (row,) = (row for row in found.rows if row.name == "target-0.8")
    assert row.lower is None
    assert row.difference is not None
    assert row.difference < -10, "to the continued baseline, as in sweep.json"
    assert found.recommended is not None
    assert found.recommended.name == "target-0.5"
    assert any("target-0.8 was evaluated against" in note and "random-0.8" in note for note in found.missing)


def test_an_evaluation_counts_if_the_continued_baseline_lost_its_files(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    shutil.rmtree(tmp_path / "reference" / "outputs")
    assert gather(tmp_path).recommended == gather(tmp_path).shown is not None


def scores(folder: Path) -> dict[str, float]:
    """The scores in sweep.json by run."""
    sweep = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    return {e["run"]: e["test"]["score"]["value"] for e in (sweep["baseline"], sweep["reference"], *sweep["points"])}


def test_rows_without_an_evaluation_are_scored_as_those_with_one(tmp_path: Path) -> None:
    folders.sweep(tmp_path, judged=False)
    folders.evaluated(tmp_path / "target-0.3", GOOD, GOOD, 0.31)
    found = gather(tmp_path)
    assert [row.name for row in found.rows if row.lower is not None] == ["target-0.3"]
    assert {row.name: row.score for row in found.rows} == pytest.approx(scores(tmp_path))
    folders.evaluated(tmp_path / "target-0.3", GOOD, GOOD, 0.31, sentences=3, metric="chrf")
    found = gather(tmp_path)
    assert (found.metric, found.text) == ("BLEU", "40 lines of the test text")
    assert {row.name: row.score for row in found.rows} == scores(tmp_path)
    assert all(row.lower is None for row in found.rows)
    assert found.evaluation is None
    text = tmp_path / "target-0.3-texts" / "source"
    assert (
        "target-0.3/evaluation differs from sweep.json: metric chrF2, not BLEU; "
        f"text 3 lines of {text}, not 40 lines, as in training."
    ) in found.missing
    assert "Rows of one table must be scored in the same way, so all scores are taken from sweep.json." in found.missing


def test_another_text_of_equal_length_is_detected_by_the_score_of_the_continued_baseline(tmp_path: Path) -> None:
    folders.sweep(tmp_path, judged=False)
    folders.evaluated(tmp_path / "target-0.3", GOOD, BAD, 0.31)
    found = gather(tmp_path)
    assert {row.name: row.score for row in found.rows} == scores(tmp_path)
    assert any("score of reference" in said for said in found.missing)
    folders.evaluated(tmp_path / "target-0.3", GOOD, GOOD, 0.31, tokenize="intl")
    assert any("tok:intl" in said and "signature" in said for said in gather(tmp_path).missing)
    folders.evaluated(tmp_path / "target-0.3", BAD, None, 0.31)
    found = gather(tmp_path)
    assert {row.name: row.score for row in found.rows} == scores(tmp_path), "compared with nothing"
    assert any("score of target-0.3" in said for said in found.missing)


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"metric": "chrf"}, "metric chrF2, not BLEU."),
        ({"tokenize": "intl"}, "tokenisation intl, not 13a."),
        ({"margin": 20.0}, "margin 20, not 10."),
        ({"sentences": 20}, "text 20 lines of "),
        ({"seeds": [(GOOD, GOOD)]}, "seeds 2, not 1."),
    ],
)
def test_evaluations_that_differ_are_not_put_into_one_table(
    tmp_path: Path, changes: dict[str, Any], differs: str
) -> None:
    folders.sweep(tmp_path)
    folders.evaluated(tmp_path / "target-0.5", folders.OUTPUTS["target-0.5"], GOOD, 0.52, **{"margin": 10.0, **changes})
    found = gather(tmp_path)
    assert {row.name: row.score for row in found.rows} == scores(tmp_path)
    assert found.metric == "BLEU"
    assert found.recommended is None
    (said,) = (note for note in found.missing if "target-0.5/evaluation" in note)
    assert f"target-0.5/evaluation differs from target-0.3/evaluation: {differs}" in said
    assert (gather(tmp_path, margin=10.0).recommended is not None) == ("margin" in changes), "one margin for all"


def test_evaluations_decoded_differently_are_not_put_into_one_table(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    file = tmp_path / "target-0.5" / "evaluation" / "metrics.json"
    evaluation = json.loads(file.read_text(encoding="utf-8"))
    folders.put(file, {**evaluation, "generation": {"num_beams": 1}})
    found = gather(tmp_path)
    assert found.recommended is None
    assert any("decoding num_beams 1, not model defaults" in note for note in found.missing)


def test_a_sweep_evaluated_on_another_text_shows_that_text(tmp_path: Path) -> None:
    """All rows come from evaluations; the dense start has none, so its row is omitted."""
    folders.sweep(tmp_path)
    for name, outputs in folders.OUTPUTS.items():
        folders.evaluated(tmp_path / name, outputs, GOOD, folders.SPARSITIES[name], sentences=20, metric="chrf")
    found = gather(tmp_path)
    assert found.metric == "chrF2"
    assert found.text.startswith("20 lines of ")
    assert [row.name for row in found.rows] == ["reference", *folders.OUTPUTS]
    (continued, *points) = found.rows
    for row in points:
        assert row.score - continued.score == pytest.approx(row.difference)


def test_held_out_lines_are_not_called_sentences_of_the_training_text(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folders.finished(run, 0.4)
    folders.evaluated(run, GOOD, GOOD, 0.4)
    file = run / "evaluation" / "metrics.json"
    evaluation = json.loads(file.read_text(encoding="utf-8"))
    counts = {"valid": 40, "test": 40, "removed_from_training": 80}
    inputs = [{"path": "train.en", "size": 1, "sha256": "0"}, {"part": "test", "held_out": counts}]
    folders.put(file, {**evaluation, "inputs": inputs})
    found = gather(run)
    assert found.text == "40 lines held out of train.en"
    assert "BLEU on 40 lines held out of train.en." in summary(found)[2]


def test_scores_against_a_teachers_outputs_are_labelled(tmp_path: Path) -> None:
    folders.sweep(tmp_path, judged=False)
    sweep = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    for entry in (sweep["reference"], *sweep["points"]):
        entry["test"]["references"] = "outputs of runs/base"
    folders.put(tmp_path / "sweep.json", sweep)
    found = gather(tmp_path)
    assert found.text == "40 lines of the test text, against outputs of runs/base"
    assert found.text in points_table(found).note
    folders.evaluated(tmp_path / "target-0.3", GOOD, GOOD, 0.31)
    assert any("references human references, not outputs of runs/base" in note for note in gather(tmp_path).missing)


def test_scores_and_differences_are_means_over_seeds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folders.finished(run, 0.4)
    folders.evaluated(run, GOOD, GOOD, 0.4, seeds=[(BAD, GOOD), (BAD, BAD)])
    found = gather(run)
    base, row = found.rows
    assert row.score == pytest.approx((folders.bleu(GOOD) + 2 * folders.bleu(BAD)) / 3)
    assert row.score - base.score == pytest.approx(row.difference)
    assert row.difference < -1
    verdict, price, scored = summary(found)
    assert "BLEU (mean of 3) on" in scored
    assert f"The mean difference is {row.difference:+.2f} BLEU" in verdict
    assert "in the first pair of models" in price
    assert "Scores and differences are means over 3 pairs of models." in points_table(found).note


def column(found: Findings, head: str) -> list[str]:
    table = points_table(found)
    return [row[list(table.head).index(head)] for row in table.rows]


def test_nothing_is_recommended_without_a_comparison(tmp_path: Path) -> None:
    found = gather(folders.sweep(tmp_path, judged=False))
    assert found.recommended is None
    assert any(
        "0 of 3 models were compared" in note and f"l0drop evaluate {tmp_path}" in note for note in found.missing
    )
    assert summary(found)[0] == "No gated model has been compared with a dense model yet."
    table = points_table(found)
    assert "verdict" not in table.head
    assert column(found, "difference")[2] == "+0.00"


def test_no_point_is_good_enough(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    for name in ("target-0.3", "target-0.5"):
        folders.evaluated(tmp_path / name, BAD, GOOD, 0.3, margin=0.5)
    found = gather(tmp_path, margin=0.5)
    assert found.recommended is None
    verdict = summary(found)[0]
    assert verdict.startswith("No model is shown to be as good as dense, continued within 0.5 BLEU. Closest: ")
    assert found.shown is not None
    assert found.shown.lower == max(row.lower for row in found.points if row.lower is not None)
    assert f"Closest: {found.shown.name} (" in verdict, "the model that the page shows in detail"
    assert found.shown.difference is not None
    assert f" dropped), {-found.shown.difference:.2f} BLEU lower (at least " in verdict
    assert verdict.endswith("), for this pair of models only.")


def test_rules_are_compared_with_the_learned_gate(tmp_path: Path) -> None:
    found = gather(folders.sweep(tmp_path, rules=True))
    table = rules_table(found)
    assert table.head == ["", "kind", "dropped", "BLEU", "difference"]
    names = ["dense, start", "dense, continued", "target-0.3", "target-0.5", "target-0.8", "pos"]
    assert [row[0] for row in table.rows] == names
    assert table.rows[-1][1:3] == ["rule", "45.0%"]
    assert not gather(folders.sweep(tmp_path / "without")).has_rules


def test_speed_is_that_of_the_run_and_no_other(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    folders.bench(tmp_path / "target-0.5", 1.25)
    found = gather(tmp_path)
    assert column(found, "speed-up") == ["", "", "", "1.25", ""]
    assert "takes 80% of" in summary(found)[1]
    folders.put(tmp_path / "target-0.3" / "bench.json", {"systems": {}, "what": "random weights"})
    assert gather(tmp_path).rows[2].speed is None


def test_a_run_with_and_without_its_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folders.finished(run, 0.4, 45.0)
    alone = gather(run)
    assert [(row.name, row.role, row.score) for row in alone.rows] == [("run", "sparse", 45.0)]
    assert alone.recommended is None
    assert "run drops 40.0% of its encodings and reaches 45.00 BLEU on 40 lines" in summary(alone)[2]
    folders.evaluated(run, GOOD, GOOD, 0.4)
    found = gather(run)
    assert [row.role for row in found.rows] == ["dense", "sparse"]
    assert found.recommended is found.rows[1]
    assert ": non-inferior at 0.5 BLEU, for this pair of models only." in summary(found)[0]
    folders.evaluated(run, BAD, GOOD, 0.4)
    assert ": worse by at least " in summary(gather(run))[0]


def test_a_baseline_alone_is_not_recommended(tmp_path: Path) -> None:
    folders.finished(tmp_path / "base")
    folders.evaluated(tmp_path / "base", GOOD, None, None)
    found = gather(tmp_path / "base")
    assert [row.role for row in found.rows] == ["dense"]
    assert found.recommended is None
    folder = tmp_path / "base"
    assert found.missing == [f"{folder} was not analysed (dropped words, attention): l0drop analyze {folder}"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nothing to report"):
        gather(tmp_path)
    folders.put(tmp_path / "metrics.json", "{")
    with pytest.raises(FileError, match=r"metrics\.json: not JSON"):
        gather(tmp_path)
    folders.put(tmp_path / "sweep.json", {"points": []})
    with pytest.raises(FileError, match="sweep.json: name: missing; delete the file, and write it again"):
        gather(tmp_path)


def test_the_demo(tmp_path: Path) -> None:
    found = gather(folders.demo(tmp_path))
    assert [(row.name, row.role) for row in found.rows] == [
        ("baseline", "start"), ("continued", "continued"), ("sparse", "sparse"),
    ]  # fmt: skip
    assert found.analysed == [tmp_path / "sparse"]
    assert "takes 67% of" in summary(found)[1]
    folders.evaluated(tmp_path / "sparse", GOOD, BAD, 0.43, against="baseline")
    assert gather(tmp_path).recommended is None, "compared with the dense start"
    folders.evaluated(tmp_path / "sparse", GOOD, GOOD, 0.43, against="continued")
    found = gather(tmp_path)
    assert found.recommended is not None
    assert found.recommended.name == "sparse"
    assert len(found.examples) == 20
    assert [row.name for row in found.rows] == ["baseline", "continued", "sparse"]
    folders.evaluated(tmp_path / "sparse", BAD, GOOD, 0.43, against="continued", sentences=20, metric="chrf")
    found = gather(tmp_path)
    continued, sparse = found.rows
    assert (found.metric, continued.name) == ("chrF2", "continued")
    assert sparse.score - continued.score == pytest.approx(sparse.difference), "difference and bound are of one text"
    assert sparse.speed is not None
