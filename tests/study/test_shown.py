"""The point of a sweep that `l0drop analyze` measures in full is the one that the report shows."""

from pathlib import Path

import pytest

from l0drop.report.findings import gather
from l0drop.study.shown import shown_point
from tests.report import folders
from tests.study.test_significance import BAD, GOOD


@pytest.mark.parametrize(("margin", "name"), [(10.0, "target-0.5"), (0.01, "target-0.3"), (99.0, "target-0.8")])
def test_the_analysed_point_is_the_one_that_the_report_shows(tmp_path: Path, margin: float, name: str) -> None:
    folders.sweep(tmp_path, rules=True, margin=margin)
    shown = gather(tmp_path).shown
    assert shown is not None
    assert shown.name == shown_point(tmp_path) == name


def test_the_nearest_point_is_chosen_if_none_is_good_enough(tmp_path: Path) -> None:
    folders.sweep(tmp_path, margin=0.5)
    for name in ("target-0.3", "target-0.5"):
        folders.evaluated(tmp_path / name, BAD, GOOD, 0.3, margin=0.5)
    shown = gather(tmp_path).shown
    assert shown is not None
    assert shown.name == shown_point(tmp_path)


def test_evaluations_that_the_report_does_not_use_choose_nothing(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    folders.evaluated(tmp_path / "target-0.5", folders.OUTPUTS["target-0.5"], GOOD, 0.52, margin=10.0, metric="chrf")
    assert gather(tmp_path).evaluation is None
    assert shown_point(tmp_path) is None


def test_without_evaluations_there_is_no_choice(tmp_path: Path) -> None:
    assert shown_point(folders.sweep(tmp_path, judged=False)) is None
