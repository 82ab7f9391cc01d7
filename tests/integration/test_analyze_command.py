"""`l0drop analyze` as users call it."""

import io
import json
import shutil

import pytest
from rich.console import Console
from typer.testing import CliRunner

from l0drop.app.cli import app
from l0drop.core.groups import GROUPS
from l0drop.runs.analysis import SweepAnalysis
from l0drop.runs.table import for_terminal
from l0drop.study.analysis.parts import NEEDS
from l0drop.study.analysis.tables import SHORT_NAMES, overview_tables
from tests.runs.partial import filled
from tests.study.analysis.conftest import runs as runs  # the fixture


def invoke(*arguments: object):
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def test_a_run(runs, tmp_path) -> None:
    options = ("--sentences", 4, "--entmax", runs / "entmax", "--show", 2, "--threads", 1)
    done = invoke(runs / "sparse", *options, "--output", tmp_path)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert [sentence["sentence"] for sentence in result["maps"]] == [2]
    files = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {"attention-mass.svg", "attention-maps.svg", "groups.svg", "entropy.svg", "positions.svg"} <= files
    for words in (
        "Attention mass per word",
        "Sparsity by group of tokens",
        "Gates closed manually",
        "Does the task need the source?",
    ):
        assert words in done.output


def written(folder):
    """The parts of an analysis, and its figures."""
    result = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    figures = {file.name: file.read_text(encoding="utf-8") for file in (folder / "figures").iterdir()}
    return {part: result[part] for part in NEEDS if part in result}, figures


def test_one_part_leaves_the_others(runs, tmp_path) -> None:
    def parts(sentences, *only):
        done = invoke(runs / "sparse", "--sentences", sentences, "--output", tmp_path, "--threads", 1, *only)
        assert done.exit_code == 0, done.output
        return written(tmp_path)

    before = parts(4, "--only", "mass", "--only", "groups", "--only", "entropy")
    assert [*before[0]] == ["mass", "groups", "entropy"]
    assert parts(4, "--only", "mass") == before
    assert {"attention-mass.svg", "groups.svg", "entropy.svg"} <= before[1].keys()
    added, figures = parts(4, "--only", "places")
    assert added == {**before[0], "places": added["places"]}
    assert figures.keys() - before[1].keys() == {"positions.svg"}
    other, figures = parts(5, "--only", "groups")
    assert [*other] == ["groups"], "another text"
    assert "attention-mass.svg" not in figures


def test_omitted_parts_are_named(baseline, tmp_path) -> None:
    done = invoke(baseline, "--sentences", 4, "--output", tmp_path, "--threads", 1)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())  # lines may break anywhere
    assert "omitted: groups" in said
    assert "has no gates" in said


def test_a_sweep(runs, tmp_path, monkeypatch) -> None:
    shutil.copytree(runs / "mask", tmp_path / "mask")
    score = {"score": {"name": "BLEU", "value": 10.0, "signature": "s"}, "sentences": 24}
    point = {"run": "mask", "kind": "lambda", "value": 0.3, "sparsity": 0.5, "test": score}
    start = {"run": "base", "test": score}
    summary = {"name": "s", "gating": "mask", "points": [point], "baseline": start, "reference": start}
    (tmp_path / "sweep.json").write_text(json.dumps(summary), encoding="utf-8")
    done = invoke(tmp_path, "--sentences", 4, "--threads", 1, "--brief")
    assert done.exit_code == 0, done.output
    assert len(json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))["points"]) == 1
    assert {"quality.svg", "groups.svg", "entropy.svg"} <= {file.name for file in (tmp_path / "figures").iterdir()}
    assert not (tmp_path / "mask" / "analysis.json").exists(), "--brief"
    done = invoke(tmp_path, "--sentences", 4, "--threads", 1)
    assert done.exit_code == 0, done.output
    in_full = json.loads((tmp_path / "mask" / "analysis.json").read_text(encoding="utf-8"))
    assert in_full.keys() >= {"mass", "maps", "interventions", "words"}
    assert "attention-mass.svg" in {file.name for file in (tmp_path / "mask" / "figures").iterdir()}
    shutil.copytree(runs / "sparse", tmp_path / "sparse")
    monkeypatch.setattr("l0drop.study.analysis.job.shown_point", lambda folder: "sparse")
    done = invoke(tmp_path, "--sentences", 4, "--output", tmp_path / "evaluated", "--threads", 1)
    assert done.exit_code == 0, done.output
    assert [file.parent.name for file in (tmp_path / "evaluated").glob("*/analysis.json")] == ["sparse"]
    refused = invoke(tmp_path, "--only", "mass")
    assert "--only, --show, --entmax, --zero-row: are for single runs" in str(refused.exception)


def test_points_that_lack_a_part_leave_their_cells_empty() -> None:
    """Such as LED, whose encoder has no entropies, and text without a tagger."""
    rates = {"content": {"sparsity": 0.25}, "EOS": {"sparsity": None}}
    entropy = {"sparse": {"kept": 1.5, "dropped": 2.5}}
    whole = {"run": "both", "sparsity": 0.5, "groups": {"groups": rates}, "entropy": entropy}
    points = [
        whole,
        {**{key: whole[key] for key in ("run", "sparsity", "groups")}, "left_out": {"entropy": "LED"}},
        {**{key: whole[key] for key in ("run", "sparsity", "entropy")}, "left_out": {"groups": "German"}},
    ]
    content = filled(SweepAnalysis, {"sweep": "s", "points": points})
    assert [table.rows for _, table in overview_tables(content)] == [
        [["both", "50.0%", "25%", ""], ["both", "50.0%", "25%", ""], ["both", "50.0%", "", ""]],
        [["both", "1.50", "2.50"], ["both", "", ""], ["both", "1.50", "2.50"]],
    ]


def test_names_are_not_cut_at_80_columns() -> None:
    rates = {name: {"sparsity": 0.25, "tokens": 1000} for name in GROUPS}
    entropy = {"sparse": {"kept": 1.5, "dropped": 2.5}}
    point = {"run": "target-0.45", "sparsity": 0.451, "groups": {"groups": rates}, "entropy": entropy}
    screen = Console(width=80, record=True, file=io.StringIO())
    content = filled(SweepAnalysis, {"sweep": "runs/toy-translation-sparse-sweep", "points": [point]})
    for title, table in overview_tables(content):
        screen.print(for_terminal(table, title, compact=True))
    shown = screen.export_text()
    assert shown.count("target-0.45 ") == 2
    assert "…" not in shown
    for name in GROUPS:
        assert SHORT_NAMES.get(name, name) in shown


def test_without_references_nothing_scores_100(runs, tmp_path) -> None:
    file = tmp_path / "source.txt"
    file.write_text("the dog sees a cat .\na bird finds the road .\nthe river knows a house .\n", encoding="utf-8")
    done = invoke(runs / "sparse", "--source", file, "--output", tmp_path, "--threads", 1)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "they measure agreement, not quality" in said
    assert "BLEU agreement" in said
    assert "targets: output of sparse" in said
    assert "100.00" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "groups"], "groups: .* has no gates; give a run that was trained with l0drop"),
        (["--baseline", "x"], "--baseline: .* is a baseline itself"),
        (["--only", "everything"], "--only: 'everything' is not one of"),
        (["--entmax", "nowhere/at/all"], "nowhere/at/all: there is no such folder"),
    ],
)
def test_impossible_requests_are_explained(baseline, arguments, message) -> None:
    done = invoke(baseline, "--sentences", 4, *arguments)
    assert isinstance(done.exception, ValueError)
    with pytest.raises(ValueError, match=message):
        raise done.exception
    assert not (baseline / "analysis.json").exists()
