"""How gates behave in the parts of a run: noise that shrinks, then gates that are fixed. Resumed runs repeat both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from l0drop.core.gates import LearnedGate
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Recipe, Train, parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.training import captured
from l0drop.training.fast import FastPath
from l0drop.training.run import train
from l0drop.training.transfers import Early, together
from tests.training import tiny
from tests.training.compiler import compile_by_shapes
from tests.training.stopped import stopped_at

PHASES = {"steps": 12, "save_every": 3, "eval_every": 12, "average": 2, "anneal": 0.4, "fixed_gates": 0.5}
START = 6
"""The step after which gates are fixed."""


def recipe(folder: Path, baseline: Path, **changes: Any) -> Recipe:
    settings = {**PHASES, "steer_over": 0.5, "learning_rate": 1e-2, **changes}
    return parse_recipe(tiny.sparse(folder, str(baseline), train=settings), "test")


def trained(asked: Recipe, runs: Path) -> dict[str, Any]:
    return as_json(train(asked, runs, Console(quiet=True)))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    assert set(one) == set(other)
    return {name for name, tensor in one.items() if not torch.equal(tensor, other[name])}


def logged(folder: Path, name: str) -> list[float]:
    entries = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [entry[name] for entry in entries if "loss" in entry]


@pytest.mark.parametrize(("fast", "precision"), [(False, "fp32"), (True, "bf16")])
def test_only_the_decoder_learns_once_gates_are_fixed(
    fast: bool, precision: str, baseline: Path, tmp_path: Path
) -> None:
    """In bfloat16 the layers' parameters are copies, which must get no gradient either."""
    settings = {"fast": fast, "precision": precision, "weight_decay": 0.1, "average": 1}
    metrics = trained(recipe(tmp_path, baseline, **settings), tmp_path / "runs")
    folder = tmp_path / "runs" / "sparse"
    start, later, end = (weights(folder / "checkpoints" / f"checkpoint-{step}") for step in (START, START + 3, 12))
    shared = {name for name in start if "embed" in name or "shared" in name or "lm_head" in name}
    assert shared, "encoder and decoder share a table"
    decoder = {name for name in start if name.startswith("model.decoder")} - shared
    assert different(later, end) == decoder
    assert different(start, later) == decoder | {"gate.moved"}, "the calibration belongs to the part with fixed gates"
    assert different(weights(tmp_path / "runs" / "sparse" / "checkpoints" / "checkpoint-3"), start) > decoder
    calibration = metrics["calibration"]
    assert calibration["after"] == pytest.approx(metrics["valid"]["sparsity"], abs=1e-6)
    assert calibration["met"]
    assert float(end["gate.moved"]) == pytest.approx(calibration["threshold"] + 2.3979, abs=1e-4)
    lambdas = logged(folder, "lambda")
    assert len(set(lambdas[START:])) == 1 < len(set(lambdas[:START])), "λ stays with the gates"


@pytest.mark.parametrize(("share", "warns"), [(0.0, True), (0.5, False)])
def test_a_calibration_that_the_decoder_has_learned_with_gives_no_warning(
    share: float, warns: bool, baseline: Path, tmp_path: Path
) -> None:
    settings = {"steps": 4, "save_every": 4, "average": 1, "learning_rate": 1e-4, "fixed_gates": share}
    calibration = trained(recipe(tmp_path, baseline, **settings), tmp_path / "runs")["calibration"]
    assert calibration["after"] - calibration["before"] > 0.1
    assert ("warning" in calibration) == warns


@pytest.mark.parametrize("stop", [START, START + 2])
def test_a_run_resumed_in_the_last_part_repeats_it_to_the_bit(
    stop: int, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recipe(tmp_path, baseline)
    whole = trained(asked, tmp_path / "whole")
    stopped_at(stop, lambda: trained(asked, tmp_path / "stopped"), monkeypatch)
    stopped = trained(asked, tmp_path / "stopped")
    assert stopped["calibration"] == whole["calibration"]
    models = [weights(tmp_path / name / "sparse" / "model") for name in ("whole", "stopped")]
    assert not different(*models)
    for name in ("loss", "grad_norm", "sparsity"):
        assert logged(tmp_path / "whole" / "sparse", name) == logged(tmp_path / "stopped" / "sparse", name)


class Replayed:
    """In place of `Captured` on a CPU: every step runs as the captured one does, on tensors alone."""

    def __init__(self, forward: Any, backward: Any) -> None:
        self.forward, self.backward = forward, backward
        self.variants: set[Any] = set()

    def step(self, inputs: dict[str, torch.Tensor], variant: Any) -> tuple[torch.Tensor, Early]:
        self.variants.add(variant)
        loss, numbers = self.forward(inputs, variant)
        self.backward(loss)
        return loss.detach(), Early(*together(numbers))


def test_captured_steps_have_the_same_phases(baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"fast": True, "length_multiple": 4}
    trained(recipe(tmp_path, baseline, **same), tmp_path / "plain")
    monkeypatch.setattr(captured, "Captured", Replayed)
    monkeypatch.setattr(FastPath, "_can_capture", lambda *_: True)
    trained(recipe(tmp_path, baseline, **same, capture=True), tmp_path / "captured")
    plain, replayed = (weights(tmp_path / name / "sparse" / "model") for name in ("plain", "captured"))
    for name, tensor in plain.items():
        torch.testing.assert_close(replayed[name], tensor, msg=name)


@pytest.mark.slow
def test_a_resumed_compiled_run_has_the_same_phases(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles for the first batches and for fixed gates, but not for every scale of the noise."""
    monkeypatch.setattr(torch, "compile", compile_by_shapes)
    asked = recipe(tmp_path, baseline, compile=True, fast=True, anneal=0.5, length_multiple=32)
    trained(asked, tmp_path / "whole")
    (state,) = (tmp_path / "whole").glob("*/checkpoints/checkpoint-12/l0drop.json")
    assert json.loads(state.read_text())["compiled_at"] == [[0, START]]
    assert len({asked.train.noise_scale(step) for step in range(START)}) == START
    stopped_at(START + 2, lambda: trained(asked, tmp_path / "stopped"), monkeypatch)
    trained(asked, tmp_path / "stopped")
    assert not different(*(weights(tmp_path / name / "sparse" / "model") for name in ("whole", "stopped")))


def test_the_noise_shrinks_to_none_at_the_end_or_where_gates_settle(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrinking = Train(steps=100, anneal=0.2)
    assert [shrinking.noise_scale(step) for step in (0, 80, 90, 99)] == pytest.approx([1, 1, 0.5, 0.05])
    then_settled = Train(steps=100, anneal=0.2, settle=0.3)
    assert [then_settled.noise_scale(step) for step in (49, 50, 60, 70, 99)] == pytest.approx([1, 1, 0.5, 0, 0])
    assert Train(steps=100, settle=0.3).noise_scale(99) is None
    seen: list[tuple[float, bool]] = []
    original = LearnedGate.forward

    def forward(self: LearnedGate, *arguments: Any, **options: Any) -> Any:
        gates = original(self, *arguments, **options)
        if torch.is_grad_enabled():  # a training step
            assert self.noise_scale is not None
            seen.append((float(self.noise_scale), self.settled))
        return gates

    monkeypatch.setattr(LearnedGate, "forward", forward)
    trained(recipe(tmp_path, baseline, anneal=0.5, fixed_gates=0.0, settle=0.25), tmp_path / "runs")
    assert [scale for scale, _ in seen] == pytest.approx([1, 1, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0])
    assert [settled for _, settled in seen] == 9 * [False] + 3 * [True]


def test_gates_are_fixed_without_a_target_too(baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = tiny.sparse(tmp_path, str(baseline), l0drop={"lambda_": 0.3}, train=PHASES)
    monkeypatch.setattr(L0DropModel, "calibrate", lambda *_, **__: pytest.fail("there is no target"))
    metrics = trained(parse_recipe(values, "test"), tmp_path / "runs")
    assert "calibration" not in metrics
    folder = tmp_path / "runs" / "sparse" / "checkpoints"
    assert "gate.weight" not in different(weights(folder / "checkpoint-9"), weights(folder / "checkpoint-12"))
