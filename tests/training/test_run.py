"""From recipe to run folder: the ways to train, logs, files, and errors that stop a run."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from l0drop.core.dial import Dial
from l0drop.data.text import CorpusError
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import RecipeError, parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.training import objective
from l0drop.training import trainer as trainer_module
from l0drop.training.assemble import load_dense
from l0drop.training.averaging import averaged
from l0drop.training.checkpoints import TrainingError, checkpoints
from l0drop.training.run import prepare
from l0drop.training.run import train as trained_run
from tests.training import tiny
from tests.training.compiler import compile_by_shapes, made_at
from tests.training.stopped import stopped_at

QUIET = Console(quiet=True)


def train(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The content of metrics.json."""
    return as_json(trained_run(*arguments, **options))


def run(folder: Path, values: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    metrics = train(parse_recipe(values, "test"), folder / "runs", QUIET)
    return metrics, folder / "runs" / values["name"]


def logged(run_folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]


def test_files_of_a_baseline_run(baseline: Path) -> None:
    names = {path.name for path in baseline.iterdir() if not path.name.startswith(".")}
    assert {"recipe.yaml", "tokenizer", "data", "checkpoints", "log.jsonl", "model", "metrics.json"} <= names
    metrics = json.loads((baseline / "metrics.json").read_text())
    assert metrics["test"]["score"]["signature"].startswith("nrefs:1")
    assert {"commit", "device", "torch", "transformers", "threads", "dtype", "seed", "decoding"} <= set(metrics)
    entries = [entry for entry in logged(baseline) if "loss" in entry]
    assert entries[-1]["cross_entropy"] < entries[0]["cross_entropy"]
    assert {"learning_rate", "grad_norm", "tokens_per_second"} <= set(entries[0])
    assert set(logged(baseline)[-1]) == {"step", "train_runtime"}, "no numbers that assume batches of equal size"


def test_fine_tuning_to_a_target(baseline: Path, tmp_path: Path) -> None:
    metrics, folder = run(tmp_path, tiny.sparse(tmp_path, str(baseline), train={"steps": 60, "save_every": 60}))
    calibration = metrics["calibration"]
    before, after = (abs(calibration[name] - calibration["target"]) for name in ("before", "after"))
    assert after <= before
    assert calibration["after"] == pytest.approx(metrics["valid"]["sparsity"], abs=1e-6)
    entries = [entry for entry in logged(folder) if "loss" in entry]
    assert {"cross_entropy", "penalty", "sparsity", "expected_open_rate", "lambda", "tokens_per_second"} <= set(
        entries[0]
    )
    assert entries[-1]["lambda"] > 0
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    assert isinstance(model, L0DropModel)
    assert 0 <= metrics["test"]["sparsity"] <= 1


def test_a_run_that_misses_its_target_warns_instead_of_failing(baseline: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny.sparse(tmp_path, str(baseline), train={"steps": 2, "save_every": 2}), "test")
    console = Console(file=io.StringIO(), width=400)
    calibration = train(recipe, tmp_path / "runs", console)["calibration"]
    points = 100 * (calibration["after"] - calibration["before"])
    assert points > 5, "model.calibrate refuses this without force"
    assert f"closed {points:.1f} points of encodings that training had left open" in calibration["warning"]
    assert calibration["warning"] in console.file.getvalue()  # type: ignore[attr-defined]
    card = (tmp_path / "runs" / recipe.name / "model" / "README.md").read_text(encoding="utf-8")
    assert f"on held-out text | {calibration['after']:.1%} |" in card


@pytest.mark.parametrize(("share", "without"), [(0.1, 1), (0.4, 7)])
def test_a_new_model_learns_to_read_before_it_drops(tmp_path: Path, share: float, without: int) -> None:
    dropping = {"target_sparsity": 0.4, "start": 1.0}
    _, folder = run(tmp_path, tiny.recipe(tmp_path, "new", l0drop=dropping, train={"steer_over": share}))
    lambdas = [entry["lambda"] for entry in logged(folder) if "loss" in entry]
    assert lambdas[:without] == [0.0] * without
    assert lambdas[without] > 0, "the λ of the next step is logged"


def test_the_model_loads_in_a_fresh_process_and_generates(baseline: Path, tmp_path: Path) -> None:
    _, folder = run(tmp_path, tiny.sparse(tmp_path, str(baseline), train={"steps": 4}))
    program = f"""
import l0drop
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained({str(folder / "model")!r})
tokenizer = AutoTokenizer.from_pretrained({str(folder / "model")!r})
tokens = model.generate(**tokenizer(["the dog sees a cat ."], return_tensors="pt"), max_new_tokens=8)
print("OUTPUT", type(model).__name__, tokenizer.batch_decode(tokens, skip_special_tokens=True))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "OUTPUT L0DropMarianMTModel" in result.stdout


@pytest.mark.parametrize("gating", ["zero", "mask", "weight", "mean"])
def test_gatings_and_layers(baseline: Path, tmp_path: Path, gating: str) -> None:
    layerwise = gating in ("zero", "mask")
    values = tiny.sparse(tmp_path, str(baseline), l0drop={"gating": gating, "lambda_": 0.3, "layerwise": layerwise})
    metrics, folder = run(tmp_path, {**values, "train": {**values["train"], "steps": 3}})
    assert json.loads((folder / "model" / "config.json").read_text())["l0drop"]["gating"] == gating
    assert "sparsity" in metrics["test"]


def test_from_scratch_with_a_ramp(tmp_path: Path) -> None:
    gate = {"lambda_": 0.2, "ramp": {"end": 10}}
    _, folder = run(tmp_path, tiny.recipe(tmp_path, l0drop=gate, train={"steps": 12}))
    seen = [entry["lambda"] for entry in logged(folder) if "loss" in entry]
    assert seen[0] == pytest.approx(0.02)
    assert seen[4] == pytest.approx(0.1)
    assert seen[-1] == pytest.approx(0.2)


def test_gate_only_leaves_the_rest_alone(baseline: Path, tmp_path: Path) -> None:
    _, folder = run(tmp_path, tiny.sparse(tmp_path, str(baseline), train={"steps": 4, "freeze": "all_but_gate"}))
    before, after = (load_file(path / "model" / "model.safetensors") for path in (baseline, folder))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert float(after["gate.weight"].abs().max()) > 0


def test_distillation_from_the_dense_model(baseline: Path, tmp_path: Path) -> None:
    teacher = {"weight": 1.0, "temperature": 2.0}
    _, folder = run(tmp_path, tiny.sparse(tmp_path, str(baseline), train={"steps": 4, "teacher": teacher}))
    entries = [entry for entry in logged(folder) if "loss" in entry]
    assert entries[0]["divergence"] >= 0


def test_source_text_only(baseline: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 4, "targets": "teacher", "teacher": {"weight": 0.0}})
    values["data"]["train"] = {"source": values["data"]["train"]["source"]}
    metrics, folder = run(tmp_path, values)
    assert metrics["corpora"]["train"]["pairs"] > 0.9 * 400
    manifest = json.loads((folder / "data" / "train" / "manifest.json").read_text())
    assert any("teacher" in entry for entry in manifest["request"]["inputs"])


@pytest.mark.parametrize("source_only", [True, False])
def test_without_validation_text_lines_are_held_out(baseline: Path, tmp_path: Path, source_only: bool) -> None:
    distilled = {"targets": "teacher", "teacher": {"weight": 1.0}} if source_only else {}
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 4, **distilled})
    corpus = values["data"]["train"]
    values["data"] = {"train": corpus, "max_source": 32, "max_target": 32, "held_out": 10}
    if source_only:
        values["data"]["train"] = {"source": corpus["source"]}
    said = io.StringIO()
    metrics = train(parse_recipe(values, "test"), tmp_path / "runs", Console(file=said, width=200))
    corpora = metrics["corpora"]
    removed = 400 - corpora["train"]["lines"]
    assert metrics["held_out"] == {"valid": 10, "test": 10, "removed_from_training": removed}
    assert removed >= 20
    line = f"10 validation and 10 test lines held out; {removed} lines removed from training, duplicates included"
    assert said.getvalue().count(line) == 1
    found = {metrics[split].get("references") for split in ("valid", "test")}
    assert found == ({f"outputs of {baseline}"} if source_only else {None})


def test_held_out_lines_are_reported_once_for_runs_of_the_same_text(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, "base", train={"steps": 1})
    values["data"] = {"train": values["data"]["train"], "max_source": 32, "max_target": 32, "held_out": 10}
    tuned = {**values, "name": "tuned", "tokenizer": {}, "model": {"init": str(tmp_path / "runs" / "base")}}
    other = {**tuned, "name": "other", "data": {**values["data"], "held_out": 11}}
    said = []
    for recipe in (values, values, tuned, other):
        console = Console(file=io.StringIO(), width=200)
        train(parse_recipe(recipe, "test"), tmp_path / "runs", console)
        said.append("lines held out;" in console.file.getvalue())  # type: ignore[attr-defined]
    assert said == [True, False, False, True]


def test_a_resumed_run_holds_out_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 10, "save_every": 5, "eval_every": 10})
    values["data"] = {"train": values["data"]["train"], "max_source": 32, "max_target": 32}
    recipe = parse_recipe(values, "test")
    whole = train(recipe, tmp_path / "whole", QUIET)
    stopped_at(7, lambda: train(recipe, tmp_path / "stopped", QUIET), monkeypatch)
    shutil.rmtree(tmp_path / "stopped" / values["name"] / "data")
    stopped = train(recipe, tmp_path / "stopped", QUIET)
    assert stopped["held_out"] == whole["held_out"]
    assert stopped["corpora"] == whole["corpora"]
    one, other = (
        load_file(tmp_path / name / values["name"] / "model" / "model.safetensors") for name in ("whole", "stopped")
    )
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())


def test_elastic_keeps_random_shares_at_every_other_step(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[Any] = []
    original = Dial.turn

    def turn(self: Dial, gates: Any, *others: Any) -> Any:
        if gates.values.requires_grad:  # in training
            shares.append(self.keep)
        return original(self, gates, *others)

    monkeypatch.setattr(Dial, "turn", turn)
    values = tiny.sparse(tmp_path, str(baseline), train={"steps": 6, "elastic": True, "elastic_range": [0.3, 0.9]})
    run(tmp_path, values)
    assert [share is None for share in shares] == 3 * [True, False]
    cut = torch.cat([share for share in shares if share is not None])
    assert len(cut.unique()) == len(cut) > 10, "a different share for each sentence at each step"
    assert 0.3 <= float(cut.min()) < 0.4
    assert 0.8 < float(cut.max()) <= 0.9


def test_early_stopping_stops_and_stays_stopped(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 50, "eval_every": 5, "patience": 1, "learning_rate": 1e-12})
    metrics, folder = run(tmp_path, values)
    assert metrics["steps"] == 10
    (folder / "metrics.json").unlink()
    again, _ = run(tmp_path, values)
    assert again == metrics


@pytest.mark.parametrize("average", [1, 2])
def test_a_run_killed_after_its_last_step_takes_no_further_step(baseline: Path, tmp_path: Path, average: int) -> None:
    steps = {"steps": 10, "save_every": 4, "eval_every": 5, "average": average}
    values = tiny.sparse(tmp_path, str(baseline), train=steps)
    metrics, folder = run(tmp_path, values)
    before, log = load_file(folder / "model" / "model.safetensors"), logged(folder)
    (folder / "metrics.json").unlink()
    shutil.rmtree(folder / "model")
    again, _ = run(tmp_path, values)
    assert again == metrics
    assert again["steps"] == 10
    assert logged(folder) == log
    after = load_file(folder / "model" / "model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_an_interruption_does_not_change_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 20, "save_every": 5, "average": 3, "eval_every": 20})
    recipe = parse_recipe(values, "test")
    train(recipe, tmp_path / "whole", QUIET)
    stopped_at(13, lambda: train(recipe, tmp_path / "stopped", QUIET), monkeypatch)
    train(recipe, tmp_path / "stopped", QUIET)
    whole, stopped = (tmp_path / name / values["name"] for name in ("whole", "stopped"))
    names = ("checkpoint-10", "checkpoint-15", "checkpoint-20")
    assert json.loads((stopped / "metrics.json").read_text())["checkpoints"] == list(names)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, stopped))
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())


@pytest.mark.parametrize(("gated", "fast"), [pytest.param(False, False, marks=pytest.mark.slow), (True, True)])
def test_a_resumed_compiled_run_compiles_at_the_same_batches(
    gated: bool, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped twice."""
    monkeypatch.setattr(torch, "compile", compile_by_shapes)
    settings = {"steps": 12, "save_every": 4, "eval_every": 12, "compile": True, "fast": fast, "accumulation": 2}
    values = tiny.recipe(
        tmp_path, train={**settings, "elastic": gated}
    )  # every other step is cut, which needs other code
    values["l0drop"] = {"target_sparsity": 0.4, "start": 1.0} if gated else None
    recipe = parse_recipe(values, "test")

    def trained(name: str) -> dict[str, torch.Tensor]:
        made_at.clear()
        train(recipe, tmp_path / name, QUIET)
        return load_file(tmp_path / name / values["name"] / "model" / "model.safetensors")

    whole, at_first = trained("whole"), list(made_at)
    stopped_at(5, lambda: trained("stopped"), monkeypatch)
    stopped_at(9, lambda: trained("stopped"), monkeypatch)
    shutil.copytree(tmp_path / "stopped", tmp_path / "forgetful")
    stopped = trained("stopped")
    assert made_at == at_first
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, stopped[name])] == []
    (state,) = (tmp_path / "forgetful").glob("*/checkpoints/checkpoint-9/l0drop.json")
    said = json.loads(state.read_text())
    assert said["compiled_at"] == ([[0, 1]] if gated else [[0]])
    state.write_text(json.dumps(said | {"compiled_at": []}))
    (state.parent / "files.json").unlink()  # its digests would give the change away
    forgetful = trained("forgetful")
    assert made_at != at_first
    assert not all(torch.equal(tensor, forgetful[name]) for name, tensor in whole.items())


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_run_does_not_resume_with_other_text(split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 10, "save_every": 5, "eval_every": 10})
    recipe = parse_recipe(values, "test")
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.L0DropTrainer, "_check_weights", stopped_after_5)
        with pytest.raises(RuntimeError, match="power failure"):
            train(recipe, tmp_path / "runs", QUIET)
    corpus = values["data"][split]
    for side in ("source", "target"):
        lines = Path(corpus[side]).read_text().splitlines(keepends=True)
        Path(corpus[side]).write_text("".join(lines[:-1]))
    if split == "test":
        assert train(recipe, tmp_path / "runs", QUIET)["test"]["sentences"] == len(lines) - 1
        return
    with pytest.raises(TrainingError, match=f"checkpoint-5: was trained with another {split} text"):
        train(recipe, tmp_path / "runs", QUIET)


def test_a_run_does_not_resume_with_another_teacher(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(baseline, tmp_path / "teacher")
    steps = {"steps": 10, "save_every": 5, "eval_every": 10}
    values = tiny.sparse(
        tmp_path, str(baseline), train={**steps, "teacher": {"model": str(tmp_path / "teacher"), "weight": 1.0}}
    )
    recipe = parse_recipe(values, "test")
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.L0DropTrainer, "_check_weights", stopped_after_5)
        with pytest.raises(RuntimeError, match="power failure"):
            train(recipe, tmp_path / "runs", QUIET)
    file = tmp_path / "teacher" / "model" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(TrainingError, match="checkpoint-5: was trained with another teacher"):
        train(recipe, tmp_path / "runs", QUIET)


def stopped_after_5(trainer: Any) -> None:
    if trainer.state.global_step > 5:
        raise RuntimeError("power failure")


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 10, "save_every": 5, "eval_every": 10})
    real, calls = objective.cross_entropy_sum, []

    def breaks(*arguments: Any) -> Any:
        calls.append(1)
        loss = real(*arguments)
        if len(calls) == 10:
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss

    monkeypatch.setattr(objective, "cross_entropy_sum", breaks)
    with pytest.raises(TrainingError, match="weights are not finite after step 10"):
        run(tmp_path, values)
    kept = checkpoints(tmp_path / "runs" / values["name"] / "checkpoints")
    assert [path.name for path in kept] == ["checkpoint-5"]
    monkeypatch.setattr(objective, "cross_entropy_sum", real)
    metrics, _ = run(tmp_path, values)
    assert metrics["steps"] == 10


def test_averaging_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    _, folder = run(
        tmp_path, tiny.recipe(tmp_path, train={"steps": 30, "save_every": 10, "average": 2, "keep_checkpoints": 2})
    )
    kept = checkpoints(folder / "checkpoints")
    assert [path.name for path in kept] == ["checkpoint-20", "checkpoint-30"]
    two = [load_file(path / "model.safetensors") for path in kept]
    final = load_file(folder / "model" / "model.safetensors")
    for name, tensor in averaged(kept).items():
        torch.testing.assert_close(tensor, (two[0][name].double() + two[1][name].double()).div(2).float())
        torch.testing.assert_close(final[name], tensor)


def test_too_few_checkpoints_to_average_are_reported(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 4, "save_every": 100, "average": 3})
    console = Console(file=io.StringIO(), width=400)
    train(parse_recipe(values, "test"), tmp_path / "runs", console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the model is the mean of 1 checkpoints, not of 3 (train.average)" in said


def test_accumulation_does_not_change_the_gradient(baseline: Path, tmp_path: Path) -> None:
    norms = {}
    for accumulation in (1, 4):
        values = tiny.sparse(
            tmp_path / str(accumulation),
            str(baseline),
            train={"steps": 3, "accumulation": accumulation, "batch_tokens": 600},
        )
        values["model"] = {**values["model"], "dropout": 0.0}
        _, folder = run(tmp_path / str(accumulation), values)
        entries = [entry for entry in logged(folder) if "loss" in entry]
        norms[accumulation] = [(e["grad_norm"], e["loss"], e["penalty"], e["cross_entropy"]) for e in entries]
    for one, four in zip(norms[1], norms[4], strict=True):
        assert four == pytest.approx(one, rel=1e-5)


# --- errors that stop a run -----------------------------------------------------------------------------------------


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 2})
    run(tmp_path, values)
    with pytest.raises(RecipeError, match=r"holds a run of another recipe \(different: train.steps\)"):
        run(tmp_path, {**values, "train": {**values["train"], "steps": 3}})
    assert run(tmp_path, {**values, "about": "another description"})[0]["steps"] == 2


def without_text(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "data": {**values["data"], "train": {"source": "absent.en", "target": "absent.de"}}}


@pytest.mark.parametrize("start", [prepare, train])
def test_a_missing_text_file_leaves_no_folder(start: Any, tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, "mine", train={"steps": 2})
    console = Console(file=io.StringIO(), width=400)
    with pytest.raises(
        CorpusError, match=r"^absent.en: there is no such file \(data.train.source in the recipe mine\)$"
    ):
        start(parse_recipe(without_text(values), "test"), tmp_path / "runs", console)
    assert not (tmp_path / "runs").exists()
    assert not console.file.getvalue(), "no tokenizer is announced"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("model", {"pretrained": "./absent"}, "model.pretrained: "),
        ("tokenizer", {"pretrained": "./absent"}, "tokenizer.pretrained: "),
        ("model", {"init": "./absent"}, ""),
    ],
)
def test_a_missing_model_leaves_no_folder(section: str, values: dict[str, str], key: str, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny.recipe(tmp_path, **{"tokenizer": {}, section: values}), "test")
    with pytest.raises(ValueError, match=rf"^{key}./absent: there is no such folder"):
        train(recipe, tmp_path / "runs", QUIET)
    assert not (tmp_path / "runs").exists()


def test_the_hub_is_asked_once_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unreachable(url: str) -> None:
        asked.append(url)
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    values = tiny.recipe(tmp_path, tokenizer={}, model={"pretrained": "nobody/has-this"})
    message = r"^model.pretrained: nobody/has-this: there is no such folder, and the Hugging Face hub cannot be reached"
    with pytest.raises(ValueError, match=message):
        run(tmp_path, values)
    assert len(asked) == 1
    with pytest.raises(ValueError, match=r"^nobody/has-this: there is no such folder, and the .* cannot be reached"):
        load_dense("nobody/has-this")
    assert len(asked) == 2


def test_a_corrected_recipe_replaces_one_that_wrote_nothing(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 2})
    (tmp_path / "train.target").write_text("ein Hund .\n")
    with pytest.raises(CorpusError, match="has 400 lines but .* has 1"):
        run(tmp_path, values)
    assert (tmp_path / "runs" / "tiny" / "recipe.yaml").exists()
    corrected = {**values, "data": {**values["data"], "train": tiny.write_text(tmp_path, "more", 400, 1)}}
    assert run(tmp_path, corrected)[0]["steps"] == 2


def test_a_tokenizer_with_another_vocabulary_is_refused(baseline: Path, tmp_path: Path) -> None:
    larger = tiny.recipe(tmp_path / "larger", "larger", tokenizer={"vocab_size": 140}, train={"steps": 1})
    larger["data"]["train"] = tiny.write_text(tmp_path, "more", 50, 9)
    _, other = run(tmp_path, larger)
    values = tiny.sparse(tmp_path, str(baseline))
    values["model"] = {"pretrained": str(baseline / "model")}
    values["tokenizer"] = {"pretrained": str(other / "tokenizer")}
    with pytest.raises(ValueError, match="vocabulary has .* entries, but the tokenizer has ids up to"):
        run(tmp_path, values)


def test_an_untrained_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no tokenizer here"):
        run(tmp_path, tiny.sparse(tmp_path, str(tmp_path / "empty")))


def test_nan_loss_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 30, "save_every": 5, "learning_rate": 1e-3})
    real, calls = objective.cross_entropy_sum, []

    def breaks(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        return real(*arguments) * (float("nan") if len(calls) == 8 else 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "cross_entropy_sum", breaks)
        with pytest.raises(TrainingError, match="the loss is nan at step 8; the last good checkpoint is in"):
            run(tmp_path, values)
    kept = checkpoints(tmp_path / "runs" / "tiny" / "checkpoints")
    assert [path.name for path in kept] == ["checkpoint-5"]
    assert not (tmp_path / "runs" / "tiny" / "model").exists()
    assert all(t.isfinite().all() for t in load_file(kept[0] / "model.safetensors").values())


def test_only_the_newest_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 12, "save_every": 3, "keep_checkpoints": 3, "average": 2})
    metrics, folder = run(tmp_path, values)
    *older, newest = checkpoints(folder / "checkpoints")
    assert [path.name for path in older] == ["checkpoint-6", "checkpoint-9"]
    assert (newest / "optimizer.pt").exists()
    assert not any((path / "optimizer.pt").exists() for path in older)
    assert all((path / "model.safetensors").exists() for path in older)
    assert metrics["steps"] == 12
    (folder / "metrics.json").unlink()
    shutil.rmtree(newest)
    with pytest.raises(TrainingError, match="checkpoint-9 has no optimizer state"):
        run(tmp_path, values)


def test_a_full_disk_leaves_no_incomplete_checkpoint(tmp_path: Path) -> None:
    values = tiny.recipe(tmp_path, train={"steps": 10, "save_every": 4})
    real_save = torch.save

    def full(thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if "checkpoint-8" in str(file) and str(file).endswith("optimizer.pt"):
            Path(file).write_bytes(b"half")
            raise OSError(28, "No space left on device", str(file))
        real_save(thing, file, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(TrainingError, match="checkpoint-8 could not be saved at step 8: .*No space left on device"):
            run(tmp_path, values)
    folder = tmp_path / "runs" / "tiny" / "checkpoints"
    assert [path.name for path in folder.iterdir()] == ["checkpoint-4"]
    metrics, _ = run(tmp_path, values)
    assert metrics["steps"] == 10
