"""Sweeps: the points of a command, the content of sweep.json, stopped and resumed sweeps."""

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate import PartialState
from rich.console import Console

from l0drop.data.text import CorpusError
from l0drop.recipe import RecipeError, dump_recipe, load_recipe, parse_recipe
from l0drop.report.sweep import summary_table
from l0drop.runs import json_file
from l0drop.runs.json_file import as_json, from_json
from l0drop.runs.sweep import Sweep, add_seconds
from l0drop.runs.table import for_terminal
from l0drop.study.sweep import (
    Point,
    lambda_point,
    rule_point,
    start_of,
    target_point,
    write_summary,
)
from l0drop.study.sweep import sweep as trained_sweep
from tests.integration.test_training_commands import ENVIRONMENT, command, free_port, written
from tests.training import tiny

QUIET = Console(quiet=True)
SCORED = {"score": {"name": "BLEU", "value": 30.0, "signature": "s"}, "sentences": 24}
METRICS = {"name": "base", "steps": 20, "seed": 1, "dtype": "fp32", "decoding": {}}
"""The least that a finished run has."""


def rendered(content: Any) -> str:
    """A table as a terminal of 80 columns shows it, with its lines joined."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(content)
    return " ".join(console.export_text().split())


def sweep(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The content of sweep.json."""
    return as_json(trained_sweep(*arguments, **options))


def shown_to_users(summary: dict[str, Any]) -> str:
    table, notes = summary_table(from_json(Sweep, summary))
    return rendered(for_terminal(table)) + " ".join(notes)


def tiny_sweep(folder: Path, init: str, **changes: Any) -> dict[str, Any]:
    train = {"steps": 20, "save_every": 5, "eval_every": 20, **changes.pop("train", {})}
    return tiny.sparse(folder, init, "tiny", train=train, **changes)


def comparable(folder: Path) -> dict[str, Any]:
    """sweep.json without the commit, which may change between runs."""
    summary = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    for entry in (summary, summary["baseline"], summary["continued"], *summary["points"]):
        entry.pop("commit", None)
    return summary


def test_sweep_json_has_the_results_of_every_run(baseline: Path, tmp_path: Path) -> None:
    data = load_recipe(baseline / "recipe.yaml").model_dump()["data"]
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline), data=data, train={"average": 2}), "test")
    points = [lambda_point(3.0), target_point(0.6), lambda_point(0.0)]
    summary = sweep(recipe, points, tmp_path / "runs", console=QUIET)
    folder = tmp_path / "runs" / "tiny-sweep"
    assert {**summary, "version": 1} == json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    assert [(entry["kind"], entry["value"], entry["run"]) for entry in summary["points"]] == [
        ("lambda", 0.0, "lambda-0"), ("lambda", 3.0, "lambda-3"), ("target", 0.6, "target-0.6"),
    ]  # fmt: skip
    for entry in summary["points"]:
        metrics = json.loads((folder / entry["run"] / "metrics.json").read_text(encoding="utf-8"))
        assert entry["sparsity"] == metrics["test"]["sparsity"]
        assert entry["expected_open_rate"] == metrics["test"]["expected_open_rate"]
        assert entry["test"]["score"] == metrics["test"]["score"]
        continued = summary["continued"]["test"]["score"]["value"]
        assert entry["differences"]["test"] == pytest.approx(metrics["test"]["score"]["value"] - continued)
    zero, three, _ = summary["points"]
    assert zero["expected_open_rate"] > three["expected_open_rate"]
    assert summary["baseline"]["run"] == str(baseline)
    assert summary["baseline"]["test"] == json.loads((baseline / "metrics.json").read_text())["test"]
    assert {"commit", "device", "torch"} <= set(summary)
    assert {"signature", "name", "value"} <= set(summary["continued"]["test"]["score"])
    assert "sparsity" not in summary["continued"]
    shown = shown_to_users(summary)
    assert "open rate" not in shown, "easily mistaken for 1 - sparsity"
    for name in ("dense, start", "dense, continued", "lambda-0", "lambda-3", "target-0.6"):
        assert f"│ {name} │" in shown
    assert set(json.loads((folder / "timings.json").read_text())) == {
        "unit", "continued", "lambda-0", "lambda-3", "target-0.6", "version",
    }  # fmt: skip

    # the continued baseline differs from a point in the gate alone
    ours, other = (load_recipe(folder / name / "recipe.yaml").model_dump() for name in ("continued", "lambda-3"))
    assert {key for key in ours if ours[key] != other[key]} == {"name", "l0drop"}

    # a second sweep of the same folder adds to it and repeats nothing
    stamps = {name: (folder / name / "metrics.json").stat().st_mtime_ns for name in ("continued", "lambda-3")}
    more = sweep(recipe, [lambda_point(1.0), lambda_point(3.0)], tmp_path / "runs", console=QUIET)
    assert [entry["run"] for entry in more["points"]] == ["lambda-0", "lambda-1", "lambda-3", "target-0.6"]
    assert stamps == {name: (folder / name / "metrics.json").stat().st_mtime_ns for name in stamps}


def test_an_older_sweep_is_resumed_under_its_own_names(baseline: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline), train={"steps": 2}), "test")
    sweep(recipe, [lambda_point(3.0)], tmp_path / "runs", console=QUIET)
    folder = tmp_path / "runs" / "tiny-sweep"
    (folder / "continued").rename(folder / "reference")
    for file in (folder / "reference" / "recipe.yaml", folder / "reference" / "metrics.json", folder / "sweep.json"):
        file.write_text(file.read_text().replace("continued", "reference"))
    older = json.loads((folder / "sweep.json").read_text())
    assert "continued" not in older
    assert from_json(Sweep, older).continued.run == "reference"
    stamp = (folder / "reference" / "metrics.json").stat().st_mtime_ns
    resumed = sweep(recipe, [lambda_point(1.0)], tmp_path / "runs", console=QUIET)
    assert [entry["run"] for entry in resumed["points"]] == ["lambda-1", "lambda-3"]
    assert resumed["continued"] == older["reference"]
    assert "reference" not in resumed
    assert not (folder / "continued").exists()
    assert (folder / "reference" / "metrics.json").stat().st_mtime_ns == stamp, "it was not trained again"


def test_a_recipe_from_scratch_trains_its_baseline_first(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, l0drop={"lambda_": 0.3, "ramp": {"end": 10}, "gating": "mask"})
    recipe = parse_recipe({**values, "train": {**values["train"], "elastic": True}}, "test")
    fine_tune = ["train.steps=6", "train.schedule=constant"]
    summary = sweep(recipe, [lambda_point(0.5)], tmp_path / "runs", fine_tune=fine_tune, console=QUIET)
    folder = tmp_path / "runs" / "tiny-sweep"
    assert summary["gating"] == "mask"
    assert [summary[name]["steps"] for name in ("baseline", "continued")] == [20, 6]
    assert summary["points"][0]["steps"] == 6
    point = load_recipe(folder / "lambda-0.5" / "recipe.yaml")
    assert point.model.init == str(folder / "baseline")
    assert point.l0drop is not None
    assert (point.l0drop.ramp, point.l0drop.lambda_) == (None, 0.5)
    assert summary["baseline"]["run"] == "baseline"


def test_source_only_text_is_translated_once(baseline: Path, tmp_path: Path) -> None:
    values = tiny_sweep(tmp_path, str(baseline), train={"steps": 2, "targets": "teacher", "teacher": {"weight": 0.0}})
    del values["data"]["train"]["target"], values["data"]["test"]["target"]
    summary = sweep(parse_recipe(values, "test"), [lambda_point(0.5)], tmp_path / "runs", console=QUIET)
    folder = tmp_path / "runs" / "tiny-sweep"
    for entry in (summary["continued"], *summary["points"]):
        assert entry["test"]["references"] == f"outputs of {baseline}"
        assert "references" not in entry["valid"]
    shown = shown_to_users(summary).replace(" ", "")  # long paths are wrapped
    assert f"BLEU is measured against outputs of {baseline}: agreement".replace(" ", "") in shown
    assert (folder / "lambda-0.5" / "data").is_symlink()
    assert (folder / "lambda-0.5" / "data" / "train" / "manifest.json").samefile(
        folder / "continued" / "data" / "train" / "manifest.json"
    )


def test_a_baseline_has_scores_only_if_they_were_made_like_the_sweeps(tmp_path: Path) -> None:
    base = tiny.recipe(tmp_path, "base")
    run = tmp_path / "runs" / "base"
    run.mkdir(parents=True)
    (run / "metrics.json").write_text(json.dumps({**METRICS, "valid": SCORED, "test": SCORED}))

    def kept(**changes: Any) -> set[str]:
        recipe = parse_recipe({**base, **changes}, "test")
        (run / "recipe.yaml").write_text(dump_recipe(recipe))
        tuning = parse_recipe(tiny_sweep(tmp_path, str(run)), "test")
        found = start_of(tuning, tmp_path / "runs" / "tiny-sweep")
        assert (found.run, found.steps) == (str(run), 20)
        return {"valid", "test"} & as_json(found).keys()

    assert kept() == {"valid", "test"}
    assert kept(name="other", seed=7) == {"valid", "test"}
    assert kept(data={**base["data"], "test": base["data"]["valid"]}) == {"valid"}
    assert kept(data={**base["data"], "max_source": 16}) == set()
    assert kept(evaluate={**base["evaluate"], "metric": "chrf"}) == set()
    distilled = {**base["train"], "targets": "teacher", "teacher": {"model": "teacher"}}
    sources = {"source": base["data"]["test"]["source"]}
    assert kept(train=distilled, data={**base["data"], "test": sources}) == {"valid"}
    (run / "recipe.yaml").write_text("name: base\nkey: of another version\n")
    found = start_of(parse_recipe(tiny_sweep(tmp_path, str(run)), "test"), tmp_path)
    assert (found.run, found.steps, found.valid, found.test) == (str(run), 20, None, None)


def test_a_score_against_another_teachers_outputs_is_not_shown(tmp_path: Path) -> None:
    distilled = {"targets": "teacher", "teacher": {"model": "init", "weight": 0.0}}
    values = tiny_sweep(tmp_path, str(tmp_path / "base"), train=distilled)
    del values["data"]["test"]["target"]
    tuning = parse_recipe(values, "test")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "metrics.json").write_text(json.dumps({**METRICS, "valid": SCORED, "test": SCORED}))
    stored = {**values, "name": "base", "model": {"init": "elsewhere"}}
    (tmp_path / "base" / "recipe.yaml").write_text(dump_recipe(parse_recipe(stored, "test")))
    found = start_of(tuning, tmp_path)
    assert (found.valid is None, found.test) == (False, None)


def finished(folder: Path, *names: str) -> None:
    """Run folders with the files that a summary reads."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "metrics.json").write_text(json.dumps({**METRICS, "test": SCORED}))


def runs_in(folder: Path) -> list[str]:
    return [entry["run"] for entry in json.loads((folder / "sweep.json").read_text())["points"]]


def test_a_point_without_its_run_is_removed(tmp_path: Path) -> None:
    tuning = parse_recipe(tiny_sweep(tmp_path, str(tmp_path / "base")), "test")
    finished(tmp_path, "continued", "lambda-1", "lambda-2")
    write_summary(tmp_path, tuning, [lambda_point(1), lambda_point(2)])
    assert runs_in(tmp_path) == ["lambda-1", "lambda-2"]
    shutil.rmtree(tmp_path / "lambda-1")
    write_summary(tmp_path, tuning, [lambda_point(3)])
    assert runs_in(tmp_path) == ["lambda-2"]


def at_once(monkeypatch: pytest.MonkeyPatch, one: Callable[[], None], other: Callable[[], None]) -> None:
    """Start `other` when `one` has read its file and is about to write it."""
    second = threading.Thread(target=other)
    write_whole = json_file.write_whole

    def held_up(file: Path, text: str) -> None:
        if second.ident is None:
            second.start()
            second.join(timeout=0.5)
        write_whole(file, text)

    monkeypatch.setattr(json_file, "write_whole", held_up)
    monkeypatch.setattr("l0drop.study.sweep.provenance", lambda device: None)
    one()
    second.join()


def test_two_sweeps_at_once_lose_no_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = parse_recipe(tiny_sweep(tmp_path, str(tmp_path / "base")), "test")
    finished(tmp_path, "continued", "lambda-1", "lambda-2")
    at_once(
        monkeypatch,
        lambda: write_summary(tmp_path, tuning, [lambda_point(1)]),
        lambda: write_summary(tmp_path, tuning, [lambda_point(2)]),
    )
    assert runs_in(tmp_path) == ["lambda-1", "lambda-2"]


def test_two_sweeps_at_once_lose_no_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "timings.json"
    add_seconds(file, "continued", 1.0)
    at_once(
        monkeypatch, lambda: add_seconds(file, "continued", 2.0), lambda: add_seconds(file, "lambda-1", 4.0)
    )  # fmt: skip
    assert json.loads(file.read_text()) == {"unit": "wall seconds", "continued": 3.0, "lambda-1": 4.0, "version": 1}


def test_points_can_be_other_gates(baseline: Path, tmp_path: Path) -> None:
    """A point is a name with overrides: here the same λ and another gating."""
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline), train={"steps": 2}), "test")
    point = Point("weight", None, ("l0drop.gating=weight",))
    summary = sweep(recipe, [point], tmp_path / "runs", console=QUIET)
    assert summary["points"][0]["run"] == "weight"
    stored = load_recipe(tmp_path / "runs" / "tiny-sweep" / "weight" / "recipe.yaml")
    assert stored.l0drop is not None
    assert stored.l0drop.gating == "weight"


def test_a_folder_of_another_sweep_is_refused(baseline: Path, tmp_path: Path) -> None:
    values = tiny_sweep(tmp_path, str(baseline), train={"steps": 2})
    sweep(parse_recipe(values, "test"), [lambda_point(0.5)], tmp_path / "runs", console=QUIET)
    other = parse_recipe({**values, "seed": 7, "train": {**values["train"], "learning_rate": 1e-3}}, "test")
    with pytest.raises(RecipeError, match=r"tiny-sweep: .*different: seed, train.learning_rate\)"):
        sweep(other, [lambda_point(0.5)], tmp_path / "runs", console=QUIET)


def test_an_invalid_point_is_refused_before_any_run_starts(baseline: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline)), "test")
    with pytest.raises(RecipeError, match="target_sparsity=1.5"):
        sweep(recipe, [target_point(0.5), target_point(1.5)], tmp_path / "runs", console=QUIET)
    assert not (tmp_path / "runs").exists()


def test_torchrun_and_parallel_exclude_each_other(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline)), "test")
    PartialState(cpu=True)
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
    with pytest.raises(ValueError, match="parallel: under torchrun"):
        sweep(recipe, [lambda_point(0.5)], tmp_path / "runs", parallel=2, console=QUIET)


# --- in their own processes -------------------------------------------------------------------------------------------


def run_sweep(recipe: str, runs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = command("sweep", recipe, "--lambda", "0.5,2", "--runs", str(runs), "--threads", "1", *more)
    return subprocess.run(arguments, capture_output=True, text=True, env=ENVIRONMENT, check=False)


@pytest.fixture(scope="module")
def whole(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A recipe, and its uninterrupted sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    recipe = written(folder, tiny_sweep(folder, str(baseline), train={"steps": 60}))
    result = run_sweep(recipe, folder / "runs")
    assert result.returncode == 0, result.stderr
    assert "lambda-0.5" in result.stdout
    return recipe, folder / "runs" / "tiny-sweep"


def killed_at(process: "subprocess.Popen[bytes]", checkpoint: Path) -> None:
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()


@pytest.mark.parametrize("parallel", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_sweep_resumes_with_the_same_result(whole: tuple[str, Path], tmp_path: Path, parallel: int) -> None:
    """With two runs at a time the kill leaves processes behind; the next sweep must wait for them."""
    recipe, uninterrupted = whole
    folder = tmp_path / "tiny-sweep"
    arguments = command("sweep", recipe, "--lambda", "0.5,2", "--runs", str(tmp_path), "--threads", "1")
    process = subprocess.Popen(
        [*arguments, "--parallel", str(parallel)], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    killed_at(process, folder / "lambda-0.5" / "checkpoints" / "checkpoint-10")
    assert not (folder / "lambda-2" / "metrics.json").exists(), "it was killed before its end"
    if parallel == 1:
        assert not (folder / "lambda-0.5" / "metrics.json").exists()
        assert json.loads((folder / "sweep.json").read_text())["points"] == []
    resumed = run_sweep(recipe, tmp_path, "--parallel", str(parallel))
    assert resumed.returncode == 0, resumed.stderr
    assert comparable(folder) == comparable(uninterrupted)


@pytest.mark.slow
def test_ctrl_c_reaches_the_run_processes(whole: tuple[str, Path], tmp_path: Path) -> None:
    recipe, _ = whole
    arguments = command("sweep", recipe, "--lambda", "0.5,2", "--runs", str(tmp_path), "--parallel", "2")
    many = ["--set", "train.steps=5000", "--set", "train.save_every=5000"]
    process = subprocess.Popen([*arguments, *many], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    logs = [tmp_path / "tiny-sweep" / name / "log.jsonl" for name in ("continued", "lambda-0.5")]
    deadline = time.monotonic() + 120
    while not all(log.exists() and log.read_text().count("\n") > 2 for log in logs) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes" in errors
    for log in logs:
        assert list((log.parent / "checkpoints").glob("checkpoint-*"))
    assert not (tmp_path / "tiny-sweep" / "lambda-2" / "checkpoints").exists()


@pytest.mark.slow
def test_a_failed_run_is_named(baseline: Path, tmp_path: Path) -> None:
    values = tiny_sweep(tmp_path, str(baseline), l0drop={"lambda_": 0.5, "always_keep": ["</s>"]})
    recipe = written(tmp_path, values)
    nowhere = ["--set", "l0drop.always_keep=[nothing]"]
    result = run_sweep(recipe, tmp_path / "runs", "--parallel", "2", *nowhere)
    assert result.returncode == 2
    message = " ".join(result.stderr.split())
    assert "l0drop.always_keep: 'nothing' is not in the source vocabulary" in message
    assert "tiny-sweep/lambda-" in message.replace(" ", "")


@pytest.mark.slow
def test_two_processes_train_each_point_together(whole: tuple[str, Path], tmp_path: Path) -> None:
    recipe, alone = whole
    values = yaml.safe_load(Path(recipe).read_text())
    recipe = written(tmp_path, {**values, "train": {**values["train"], "batch_tokens": 600, "steps": 4}})
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    tail = ["-m", "l0drop", "sweep", recipe, "--lambda", "0.5,2", "--runs", str(tmp_path / "runs")]
    result = subprocess.run([*launch, *tail], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    summary = comparable(tmp_path / "runs" / "tiny-sweep")
    assert [entry["steps"] for entry in summary["points"]] == [4, 4]
    assert set(summary) == set(comparable(alone))


def test_gates_by_rule_are_points_too(baseline: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline)), "test")
    points = [rule_point("random:0.5"), rule_point("group"), rule_point("freq")]
    summary = sweep(recipe, points, tmp_path / "runs", console=QUIET)
    found = {entry["kind"]: entry for entry in summary["points"]}
    assert set(found) == {"random", "group", "freq"}
    assert found["random"]["run"] == "random-0.5"
    assert found["random"]["sparsity"] == pytest.approx(0.5, abs=0.1)
    assert 0 < found["freq"]["sparsity"] < 1
    folder = tmp_path / "runs" / "tiny-sweep"
    assert (folder / "freq" / "hints.json").is_file()
    assert not (folder / "freq" / "data").is_symlink()
    assert not (folder / "continued" / "data" / "train" / "hints.frequent").exists()
    log = (folder / "random-0.5" / "log.jsonl").read_text().splitlines()
    steps = [entry for line in log if "loss" in (entry := json.loads(line))]
    assert all("sparsity" in entry and "expected_open_rate" not in entry for entry in steps), "rules expect nothing"


def test_rules_drop_settings_that_need_a_learned_gate(baseline: Path, tmp_path: Path) -> None:
    train = {"steps": 2, "elastic": True, "freeze": "all_but_gate"}
    section = {"gating": "mask", "layerwise": True, "target_sparsity": 0.4}
    recipe = parse_recipe(tiny_sweep(tmp_path, str(baseline), l0drop=section, train=train), "test")
    summary = sweep(recipe, [rule_point("group")], tmp_path / "runs", console=QUIET)
    assert summary["points"][0]["sparsity"] > 0
    stored = load_recipe(tmp_path / "runs" / "tiny-sweep" / "group" / "recipe.yaml")
    assert stored.l0drop is not None
    assert (stored.l0drop.gating, stored.l0drop.layerwise) == ("mask", False)
    assert (stored.train.elastic, stored.train.freeze) == (False, "nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "needs a rate"),
        ("pos:0.5", "takes no rate"),
        ("random:x", "not a number"),
        ("pso", "pso"),
        ("random:2", "`rules` random:2: rate"),
        ("random:nan", "`rules` random:nan: rate"),
        ("learned", "is not a rule"),
    ],
)
def test_invalid_rules_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule_point(text)


def test_a_sweep_of_missing_text_leaves_no_folder(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, l0drop={"target_sparsity": 0.4, "start": 1.0})
    values["data"]["train"] = {"source": "absent.en", "target": "absent.de"}
    with pytest.raises(CorpusError, match=r"^absent.en: there is no such file \(data.train.source"):
        sweep(parse_recipe(values, "test"), [target_point(0.4)], tmp_path / "runs", console=QUIET)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_begins_with_its_cost(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, l0drop={"target_sparsity": 0.4, "start": 1.0}, train={"steps": 2, "eval_every": 2})
    said = Console(file=io.StringIO(), width=80)
    fine_tune = ["train.steps=1", "train.learning_rate=3e-4"]
    sweep(parse_recipe(values, "test"), [target_point(0.6)], tmp_path / "runs", fine_tune=fine_tune, console=said)
    first = said.file.getvalue().splitlines()[0]  # type: ignore[attr-defined]
    assert first == (
        "3 trainings: the baseline (learning rate 0.003, 2 steps), the continued baseline and 1 point (learning rate "
        "0.0003, 1 steps each). The points replace the recipe's l0drop.target_sparsity, 0.4"
    )
    again = Console(file=io.StringIO(), width=80)
    sweep(parse_recipe(values, "test"), [target_point(0.6)], tmp_path / "runs", fine_tune=fine_tune, console=again)
    assert again.file.getvalue().startswith("3 trainings (3 finished): the baseline")  # type: ignore[attr-defined]
