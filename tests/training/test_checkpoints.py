"""Damaged checkpoints are refused with the file's name, and a checkpoint that could not be written costs nothing."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import TrainerState

from l0drop.recipe import parse_recipe
from l0drop.runs.json_file import FileError
from l0drop.training import checkpoints as checkpoint_files
from l0drop.training.checkpoints import TrainingError, checkpoints
from l0drop.training.run import train
from l0drop.training.trainer import L0DropTrainer
from tests.training import tiny
from tests.training.stopped import stopped_at

TRAIN = {"steps": 8, "save_every": 4, "eval_every": 8}


def run(text: Path, runs: Path) -> Path:
    train(parse_recipe(tiny.recipe(text, train=TRAIN), "test"), runs, Console(quiet=True))
    return runs / "tiny"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after step 6, with a checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        stopped_at(6, lambda: run(folder, folder / "runs"), patch)
    return folder


@pytest.fixture(scope="module")
def expected(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of a run that nothing happened to."""
    return weights(run(stopped, tmp_path_factory.mktemp("whole")))


def weights(run_folder: Path) -> dict[str, torch.Tensor]:
    return load_file(run_folder / "model" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "l0drop.json")
DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "flipped": lambda file: file.write_bytes(file.read_bytes()[:-9] + b"\x55" + file.read_bytes()[-8:]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_a_checkpoint_is_named(name: str, stopped: Path, tmp_path: Path) -> None:
    runs = shutil.copytree(stopped / "runs", tmp_path / "runs")
    newest = checkpoints(runs / "tiny" / "checkpoints")[-1]
    content = (newest / name).read_bytes()
    for damage in DAMAGES.values():
        damage(newest / name)
        with pytest.raises(TrainingError, match=rf"{name}: (is missing|was changed or cut|.*optimizer state)") as error:
            checkpoint_files.check_files(newest)
        assert "\n" not in str(error.value)
        (newest / name).write_bytes(content)
    checkpoint_files.check_files(newest)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_broken_digests_are_named(content: str, stopped: Path, tmp_path: Path) -> None:
    newest = shutil.copytree(checkpoints(stopped / "runs" / "tiny" / "checkpoints")[-1], tmp_path / "checkpoint-6")
    (newest / "files.json").write_text(content)
    with pytest.raises(FileError, match=r"files\.json: (not JSON|the whole file: ).*; restore it, or delete"):
        checkpoint_files.check_files(newest)


def test_a_damaged_run_does_not_resume_and_a_restored_one_does(
    stopped: Path, tmp_path: Path, expected: dict[str, torch.Tensor]
) -> None:
    runs = shutil.copytree(stopped / "runs", tmp_path / "runs")
    kept = runs / "tiny" / "checkpoints"
    state = checkpoints(kept)[-1] / "l0drop.json"
    content = state.read_text()
    state.write_text(json.dumps({**json.loads(content), "best": 1e9}))
    with pytest.raises(TrainingError, match=r"l0drop\.json: was changed or cut after it was saved; restore it"):
        run(stopped, runs)
    state.write_text(content)
    (kept / "checkpoint-9").mkdir()
    with pytest.raises(TrainingError, match=r"checkpoint-9/model\.safetensors: is missing; restore it, or delete"):
        run(stopped, runs)
    (kept / "checkpoint-9").rmdir()
    (kept / "checkpoint-9").write_text("a stray file")
    assert same(weights(run(stopped, runs)), expected)


def _full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("moment", ["weights", "optimizer", "state", "digests", "name"])
def test_a_disk_that_fills_up_in_a_checkpoint_costs_nothing(
    moment: str, stopped: Path, tmp_path: Path, expected: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last whole checkpoint stays, nothing half-written is left, and the resumed run ends with the same bits."""
    runs = shutil.copytree(stopped / "runs", tmp_path / "runs")
    kept = runs / "tiny" / "checkpoints"
    with monkeypatch.context() as patch:
        match moment:
            case "weights":
                patch.setattr("transformers.modeling_utils.safe_save_file", _full)
            case "optimizer":
                patch.setattr(torch, "save", _full)
            case "state":
                patch.setattr(TrainerState, "save_to_json", _full)
            case "digests":
                patch.setattr(checkpoint_files, "write_whole", _full)
            case "name":
                replace = os.replace
                patch.setattr(os, "replace", lambda a, b: _full() if Path(a).name == "checkpoint-8" else replace(a, b))
        said = "checkpoint-8 could not be saved .*No space left.*run the same command again"
        with pytest.raises(TrainingError, match=said):
            run(stopped, runs)
    assert sorted(path.name for path in kept.iterdir()) == ["checkpoint-4", "checkpoint-6"]
    assert same(weights(run(stopped, runs)), expected)


def test_a_gpu_out_of_memory_names_the_remedy_and_costs_nothing(
    stopped: Path, tmp_path: Path, expected: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = shutil.copytree(stopped / "runs", tmp_path / "runs")

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(L0DropTrainer, "_run_step", out_of_memory)
        said = r"out of memory at step 7 .*Tried to allocate.*checkpoint-6.*train\.batch_tokens.*train\.accumulation"
        with pytest.raises(TrainingError, match=said) as error:
            run(stopped, runs)
        assert "\n" not in str(error.value)
    assert same(weights(run(stopped, runs)), expected)
