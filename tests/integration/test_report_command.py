"""The command `l0drop report`."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from l0drop.app import cli
from tests.report import folders


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["l0drop", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((captured.out + captured.err).split())

    return run


def test_report_of_a_sweep(tmp_path: Path, report: Callable[..., tuple[int, str]]) -> None:
    folder = folders.sweep(tmp_path / "sweep")
    code, said = report(folder, "--margin", 99)
    assert code == 0, said
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "target-0.8, 79.0% dropped, compared with dense, continued: non-inferior" in page
    assert (folder / "report.md").read_text(encoding="utf-8").startswith("# a &lt;sweep&gt;")
    assert (folder / "figures" / "quality.svg").exists()


def test_folders_without_results_are_refused(tmp_path: Path, report: Callable[..., tuple[int, str]]) -> None:
    for folder, expected in ((tmp_path / "absent", "absent: nothing to report"), (tmp_path, "nothing to report")):
        code, said = report(folder)
        assert code == 2
        assert expected in said
    folders.sweep(tmp_path / "sweep", judged=False)
    (tmp_path / "sweep" / "target-0.3" / "evaluation").mkdir()
    (tmp_path / "sweep" / "target-0.3" / "evaluation" / "metrics.json").write_text("[")
    code, said = report(tmp_path / "sweep")
    assert code == 2
    assert "not JSON" in said
    assert not (tmp_path / "sweep" / "report.html").exists()
