"""The tables of the study of documents."""

from dataclasses import replace

import pytest

import document_beams
from l0drop.runs.study import BeamScores, LengthScores
from result_tables.documents import beams_table, controls_table, examples_table, lengths_table
from tests.runs.partial import filled


def row(system, split, length, score, shuffled, **more):
    controls = {"shuffled_source": {"name": "BLEU", "value": shuffled}}
    about = {"system": system, "split": split, "length": length, "examples": 10, "source_tokens": 9 * length}
    return {**about, "score": {"name": "BLEU", "value": score}, "controls": controls, **more}


def scores():
    difference = {"metric": "bleu", "difference": -0.5, "interval": [-0.8, -0.2]}
    rows = []
    for split in ("valid", "test"):
        for length in (512, 1024):
            rows.append(row("on", split, length, 25.0, 5.0))
            rows.append(row("zero-0.6", split, length, 24.5, 5.0, sparsity=0.601, difference=difference))
    return filled(LengthScores, {"what": "", "rows": rows})


def test_quality_by_length():
    table = lengths_table(scores())
    assert table.rows[:2] == [
        ["dense, continued, distilled the same way, one seed", "512", "-", "25.00", "25.00", "-"],
        ["sparse `zero`, target 0.6, one seed", "512", "60.1%", "24.50", "24.50", "-0.50 [-0.80, -0.20]"],
    ]
    assert [cells[1] for cells in table.rows] == ["512", "512", "1,024", "1,024"]


def test_the_loss_is_a_share_of_what_the_source_brings():
    dense, sparse, *_ = controls_table(scores()).rows
    assert dense[2:] == ["25.00", "5.00", "-", "-"]
    assert sparse[5] == "2.5%"


def test_several_baselines_are_shown_by_their_means_and_the_difference_over_them():
    found = scores()
    second = filled(LengthScores, {"what": "", "rows": [row("on", "test", 512, 27.0, 7.0, seed=2)]}).rows
    second += filled(LengthScores, {"what": "", "rows": [row("zero-0.6", "test", 512, 25.5, 7.0, seed=2)]}).rows
    over = {"difference": -1.0, "interval": [-1.5, -0.25], "seeds": 2}
    both = {"system": "zero-0.6", "split": "test", "length": 512, "difference": over}
    over = filled(LengthScores, {"what": "", "rows": [], "over": [both]}).over
    several = replace(found, rows=[*found.rows, *second], over=over)
    dense, sparse, *longer = lengths_table(several).rows
    assert dense[0] == "dense, continued, distilled the same way, two seeds"
    assert dense[3:] == ["25.00", "26.00", "-"]
    assert sparse[2:] == ["60.1%", "24.50", "25.00", "-1.00 [-1.50, -0.25]"]
    assert longer[1][5] == "-0.50 [-0.80, -0.20]"
    shares = controls_table(several).rows
    assert shares[0][2:4] == ["26.00", "6.00"]
    assert shares[1][5] == "5.0%"
    assert len(examples_table(several).rows) == 4


def test_a_run_of_other_steps_has_no_difference():
    found = scores()
    unequal = replace(found, rows=[replace(one, difference=None) for one in found.rows])
    assert {cells[5] for cells in lengths_table(unequal).rows + controls_table(unequal).rows} == {"-"}


def test_examples_are_counted_once():
    assert examples_table(scores()).rows == [
        ["valid", "512", "10", "461"],
        ["valid", "1,024", "10", "922"],
        ["test", "512", "10", "461"],
        ["test", "1,024", "10", "922"],
    ]


@pytest.fixture
def beams() -> BeamScores:
    def one(system, beams, score, seconds, **more):
        about = {"system": system, "beams": beams, "length": 1024, "output_tokens": 9, **more}
        return {"dense": False, **about, "score": {"name": "BLEU", "value": score}, "seconds": seconds}

    difference = {"metric": "bleu", "difference": -0.31}
    rows = [one("on-s1", 4, 25.0, [2.0, 2.2, 1.9]), one("zero-0.6-s1", 4, 24.7, [1.0], difference=difference)]
    rows.append(one("zero-0.6-s1", 4, 24.7, [4.0], difference=difference, dense=True))
    return filled(BeamScores, {"what": "", "dtype": "bfloat16", "rows": rows})


def test_fewer_beams_are_compared_with_the_first_row(beams):
    assert beams_table(beams).rows == [
        ["dense, continued, distilled the same way", "1,024", "4", "25.00", "-", "1.00"],
        ["sparse `zero`, target 0.6", "1,024", "4", "24.70", "-0.31", "2.00"],
        ["sparse `zero`, target 0.6, full memory", "1,024", "4", "24.70", "-0.31", "0.50"],
    ]


def test_the_script_prints_the_table_and_writes_the_file(beams, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(document_beams, "measure", lambda *given: beams)
    arguments = ["--runs", str(tmp_path), "--systems", "on-s1", "zero-0.6-s1", "--json", str(tmp_path / "beams.json")]
    monkeypatch.setattr("sys.argv", ["document_beams.py", *arguments])
    document_beams.main()
    printed = capsys.readouterr().err
    assert all(cell in printed for row in beams_table(beams).rows for cell in row)
    assert (tmp_path / "beams.json").is_file()
