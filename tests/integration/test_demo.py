"""The demo: in seconds with a few steps, and in minutes as users see it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from l0drop.app import cli
from l0drop.app import demo_run as demo
from l0drop.app.demo import results_table, struck
from l0drop.recipe import Recipe
from l0drop.runs.demo import DemoTask, Word
from l0drop.runs.table import for_terminal
from tests.runs.partial import filled

REAL_RECIPES = demo.demo_recipes

SYSTEMS = ("baseline", "continued", "sparse")


def few_steps(task: str, settings: demo.DemoSettings, folder: Path) -> dict[str, Recipe]:
    """The demo's recipes with little, short text and three steps."""
    recipes = REAL_RECIPES(task, settings, folder)
    for name, recipe in recipes.items():
        corpora = {split: getattr(recipe.data, split) for split in ("train", "valid", "test")}
        few = {
            split: corpus.model_copy(update={"pairs": 24, "reports": 1, "min_reports": None})
            for split, corpus in corpora.items()
        }
        data = recipe.data.model_copy(update=few)
        train = recipe.train.model_copy(update={"steps": 3, "log_every": 1})
        tokenizer = recipe.tokenizer.model_copy(update={"vocab_size": recipe.tokenizer.vocab_size and 300})
        evaluate = recipe.evaluate.model_copy(update={"beams": 1, "sentences": 5, "max_new_tokens": 5})
        update = {"data": data, "train": train, "tokenizer": tokenizer, "evaluate": evaluate}
        recipes[name] = recipe.model_copy(update=update)
    return recipes


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(demo, "demo_recipes", few_steps)
        monkeypatch.setattr(sys, "argv", ["l0drop", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def test_the_demo_ends_with_one_table_and_a_report_per_task(tmp_path: Path, run: Any) -> None:
    code, out, err = run("demo", "--folder", tmp_path, "--gating", "weight", "--target", 0.45)
    assert code == 0, err
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert list(metrics["tasks"]) == ["documents", "translation"]
    for task, found in metrics["tasks"].items():
        own = json.loads((tmp_path / task / "metrics.json").read_text())
        assert own == {**found, "version": own["version"]}
        assert (found["task"], found["gating"], found["target_sparsity"]) == (task, "weight", 0.45)
        assert set(found["dropped_by_class"]) <= set(demo.CLASSES)
        assert len(found["decoding_cpu_seconds"]["short"]) == demo.ROUNDS
        assert found["threads"] == 1
        assert (tmp_path / task / "sentences.svg").read_text().startswith("<svg")
        report = (tmp_path / task / "report.html").read_text(encoding="utf-8")
        assert "continued" in report
        assert "not counted" not in report, "the languages of both tasks are known"
        for name in SYSTEMS:
            assert (tmp_path / task / name / "model" / "model.safetensors").exists()
            assert (tmp_path / task / name / "metrics.json").exists()
        for phase in range(1, 5):
            assert f"{task} {phase}/4" in err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for expected in ("documents/report.html", "translation/report.html", "sparse, short memory", "<svg"):
        assert expected in page
    for expected in ("dense, start", "dense, continued", "sparse, full gated memory", "sparse, short memory"):
        assert out.count(expected) == 2
    assert "…" not in out + err, "nothing is cut at 80 columns"
    assert max(len(line.replace(str(tmp_path), "runs/demo")) for line in out.splitlines()) <= 80
    assert f"l0drop explain {tmp_path}/translation/sparse" in out

    models = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")}
    code, again, err = run("demo", "--folder", tmp_path, "--gating", "weight", "--target", 0.45)
    assert code == 0, err
    assert "documents: finished before" in err
    assert again == out
    assert {file: file.stat().st_mtime_ns for file in models} == models

    code, _, err = run("demo", "--folder", tmp_path, "--gating", "mask")
    assert code == 2
    assert "holds a demo with other settings" in " ".join(err.split())

    (tmp_path / "report.html").unlink()
    code, _, err = run("report", tmp_path)
    assert code == 0, err
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_the_table_shows_every_system_of_every_task() -> None:
    systems = {name: {"score": {"value": value}} for name, value in zip(SYSTEMS, (80, 90, 89), strict=True)}
    found = {
        "systems": systems, "sparsity": 0.7, "source_tokens": 480.2, "dense_by_short_cpu": 1.5,
        "dense_score": {"name": "rougeLsum", "value": 89.1}, "decoding_cpu_seconds": {"dense": [3, 9, 6], "short": [4]},
    }  # fmt: skip
    console = Console(width=80, record=True, quiet=False, file=None)
    with console.capture() as captured:
        task = filled(DemoTask, found)
        console.print(for_terminal(results_table({"documents": task, "translation": task}), compact=True))
    lines = [line.split() for line in captured.get().splitlines()]
    assert ["documents,", "480", "tokens", "(rougeLsum)"] in lines
    assert ["sparse,", "full", "gated", "memory", "89.10", "70.0%", "6.00"] in lines
    assert ["sparse,", "short", "memory", "89.00", "70.0%", "4.00", "1.50", "x"] in lines


def test_dropped_pieces_are_marked_without_a_terminal_too() -> None:
    words = [
        Word("The", "function", (("The", True),), space_before=False),
        Word("cats", "content", (("cat", False), ("s", True)), space_before=True),
    ]
    assert struck(words, styled=True).plain == "The cats"
    assert struck(words, styled=False).plain == "~~The~~ cat~~s~~"


@pytest.mark.slow
def test_ctrl_c_says_one_line_and_the_demo_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "l0drop", "demo", "--task", "translation", "--folder", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "translation" / "baseline" / "log.jsonl"
    try:
        while not log.exists() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.rstrip().endswith("stopped; the same command resumes")
    assert list((tmp_path / "translation" / "baseline" / "checkpoints").glob("checkpoint-*"))
    assert not (tmp_path / "documents").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("gating", "seed"), [("zero", 1), ("zero", 2), ("mask", 1), ("weight", 1)])
def test_the_demo_keeps_its_promise(
    gating: str, seed: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Little is lost on both tasks, and decoding of documents is faster."""
    command = f"{sys.executable} -m l0drop demo --gating {gating} --seed {seed} --folder {tmp_path}"
    with FileLock(tmp_path_factory.getbasetemp().parent / "demo.lock"):  # two demos at once take three times as long
        result = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    tasks = json.loads((tmp_path / "metrics.json").read_text())["tasks"]
    for task, least, loss in (("documents", 0.6, 1.5), ("translation", 0.38, 2.5)):
        assert tasks[task]["sparsity"] >= least
        assert tasks[task]["difference_to_continued"] >= -loss
    assert tasks["documents"]["dense_by_short_cpu"] > 1.15
