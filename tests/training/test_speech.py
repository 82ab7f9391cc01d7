"""Training a Whisper from audio: texts or a teacher, joined clips, frozen parts, resuming, one process and two."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration

from l0drop import load
from l0drop.data.clips import ClipCorpus
from l0drop.data.text import CorpusError
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.training.assemble import build_model
from l0drop.training.run import prepare
from l0drop.training.run import train as trained_run
from tests.models import whispers
from tests.training import tiny, tiny_speech
from tests.training.stopped import stopped_at

QUIET = Console(quiet=True)
TAUGHT = {"targets": "teacher", "teacher": {"weight": 1.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speech")


def run(values: dict[str, Any], runs: Path) -> tuple[dict[str, Any], Path]:
    return as_json(trained_run(parse_recipe(values, "test"), runs, QUIET)), runs / values["name"]


def logged(run_folder: Path) -> list[dict[str, Any]]:
    entries = map(json.loads, (run_folder / "log.jsonl").read_text().splitlines())
    return [entry for entry in entries if "loss" in entry]


def weights(run_folder: Path) -> dict[str, torch.Tensor]:
    return load_file(run_folder / "model" / "model.safetensors")


def test_a_run_from_texts(folder: Path, tmp_path: Path) -> None:
    metrics, found = run(tiny_speech.recipe(folder, data={"join": 0.5}), tmp_path)
    assert metrics["test"]["score"]["name"] == "WER"
    assert metrics["test"]["score"]["signature"].startswith("unit:word")
    assert metrics["valid"]["sparsity"] == pytest.approx(metrics["calibration"]["after"], abs=1e-6)
    assert metrics["corpora"]["train"]["pairs"] == 24
    entries = logged(found)
    assert {"cross_entropy", "penalty", "sparsity", "expected_open_rate", "lambda"} <= set(entries[0])
    assert 0 < entries[0]["expected_open_rate"] <= 1
    model = load(found)
    assert isinstance(model.model, L0DropModel)
    results = model.transcribe([folder / "test" / "0.wav", whispers.tone(0.3)], max_new_tokens=8)
    lines = (found / "outputs" / "test.txt").read_text().splitlines()
    assert len(lines) == 6
    assert results[0].text == lines[0], "scoring and transcribing agree"


def test_audio_alone_with_a_teacher(folder: Path, tmp_path: Path) -> None:
    values = tiny_speech.recipe(folder, train={**TAUGHT, "steps": 3})
    for split in ("train", "valid"):
        values["data"][split] = {"tsv": str(folder / split / "list.tsv"), "target_column": None}
    metrics, found = run(values, tmp_path)
    assert metrics["valid"]["references"] == f"outputs of {folder / 'whisper'}"
    assert "references" not in metrics["test"], "the test list has texts"
    assert logged(found)[0]["divergence"] >= 0
    _, _, corpora = prepare(parse_recipe(values, "test"), tmp_path, QUIET)
    teacher = load(folder / "whisper")
    expected = [teacher.transcribe([folder / "train" / f"{i}.wav"], max_new_tokens=20)[0].text for i in range(3)]
    assert [corpora["train"].text(i) for i in range(3)] == expected  # type: ignore[union-attr]


STORED = {"targets": "teacher", "teacher": {"weight": 1.0, "top": 8}}
SHORT = {"targets": "teacher", "teacher": {"weight": 1.0, "top": 8, "max_new_tokens": 6}}
WITH_TIMES = {"join": 0.5, "timestamps": 0.6, "cut": 0.7}


def test_stored_distributions_are_the_teachers(folder: Path, tmp_path: Path) -> None:
    vocabulary = whispers.build(multilingual=False).config.vocab_size
    everything = {"targets": "teacher", "teacher": {"weight": 1.0, "temperature": 2.0}}
    stored = {**everything, "teacher": {**everything["teacher"], "top": vocabulary}}  # type: ignore[dict-item]
    _, by_running = run(tiny_speech.recipe(folder, train={**everything, "steps": 3}), tmp_path / "running")
    _, by_storing = run(tiny_speech.recipe(folder, train={**stored, "steps": 3}), tmp_path / "stored")
    for one, other in zip(logged(by_running), logged(by_storing), strict=True):
        assert one["divergence"] > 0
        assert other["divergence"] == pytest.approx(one["divergence"], abs=5e-3)
        assert other["cross_entropy"] == pytest.approx(one["cross_entropy"], abs=5e-3)


def test_stored_distributions_know_times(folder: Path, tmp_path: Path) -> None:
    vocabulary = whispers.build(multilingual=False).config.vocab_size
    running = {"targets": "teacher", "teacher": {"weight": 1.0, "max_new_tokens": 8}, "steps": 3}
    stored = {**running, "teacher": {**running["teacher"], "top": vocabulary}}  # type: ignore[dict-item]
    data = {"timestamps": 0.6}
    _, by_running = run(tiny_speech.recipe(folder, data=data, train=running), tmp_path / "running")
    _, by_storing = run(tiny_speech.recipe(folder, data=data, train=stored), tmp_path / "stored")
    _, untimed = run(tiny_speech.recipe(folder, train=running), tmp_path / "untimed")
    for one, other, third in zip(logged(by_running), logged(by_storing), logged(untimed), strict=True):
        assert other["divergence"] == pytest.approx(one["divergence"], abs=5e-3)
        assert other["cross_entropy"] == pytest.approx(one["cross_entropy"], abs=5e-3)
        assert third["cross_entropy"] != pytest.approx(one["cross_entropy"], abs=5e-3)


def test_the_teacher_writes_the_times_of_generate(folder: Path, tmp_path: Path) -> None:
    taught = {"targets": "teacher", "teacher": {"max_new_tokens": 12}}
    recipe = parse_recipe(tiny_speech.recipe(folder, data={"timestamps": 0.5}, train=taught), "test")
    _, _, corpora = prepare(recipe, tmp_path, QUIET)
    train, valid = corpora["train"], corpora["valid"]
    assert isinstance(train, ClipCorpus)
    assert isinstance(valid, ClipCorpus)
    assert not valid.timed_lengths.any()
    teacher = WhisperForConditionalGeneration.from_pretrained(folder / "whisper").eval()
    first, texts = train.first_time, 0
    for index in range(len(train)):
        inputs = torch.from_numpy(train[index].window(train.window))[None]
        found = teacher.generate(inputs, return_timestamps=True, return_segments=True, max_new_tokens=12)
        ids = train.clip(index, timed=True).target.ids.tolist() if train.timed_lengths[index] else []
        texts += bool(ids)
        expected = []
        samples = len(soundfile.read(folder / "train" / f"{index}.wav")[0])
        for part in found["segments"][0]:
            words = [token for token in part["tokens"].tolist() if token < whispers.EOS]
            start, end = float(part["start"]), min(float(part["end"]), samples / 16_000)
            if words and start < samples / 16_000:
                expected += [first + round(start / 0.02), *words, first + round(end / 0.02)]
        assert ids == expected, index
    assert texts > len(train) // 2


def test_training_on_stored_distributions_runs_no_teacher(folder: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_speech.recipe(folder, train=STORED), "test")
    _, tokenizers, corpora = prepare(recipe, tmp_path, QUIET)
    assert build_model(recipe, tokenizers)[1] is None
    train = corpora["train"]
    assert isinstance(train, ClipCorpus)
    assert {"teacher.values", "teacher.ids"} <= set(train.manifest["columns"])
    shortest = train.frames.argsort()[:2].tolist()  # they fit into one window
    first, second = (train[index].target for index in shortest)
    assert first.teacher is not None
    assert second.teacher is not None
    assert first.teacher.values.shape == (len(first.ids) + 1, 8)
    both = train.joined(shortest).target.teacher
    assert both is not None
    assert len(both.values) == len(first.ids) + len(second.ids) + 1, "one EOS"
    assert both.ids[len(first.ids) :].tolist() == second.teacher.ids.tolist()
    batch = train.collate([train.joined(shortest), train[shortest[0]]])
    assert len(batch["teacher_ids"]) == int((batch["labels"] != -100).sum())
    assert "teacher.ids" not in corpora["valid"].manifest["columns"]


def test_too_many_stored_tokens_are_refused(folder: Path, tmp_path: Path) -> None:
    values = tiny_speech.recipe(folder, train={**STORED, "teacher": {"weight": 1.0, "top": 10_000}})
    with pytest.raises(ValueError, match=r"train\.teacher\.top: 10000 is more than"):
        run(values, tmp_path)


@pytest.mark.parametrize("section", [None, {"gating": "mask", "gate": "open", "cut_padding": 0.04}])
def test_rivals(folder: Path, tmp_path: Path, section: dict[str, Any] | None) -> None:
    values = tiny_speech.recipe(folder, l0drop=section, train={**TAUGHT, "steps": 2})
    metrics, found = run(values, tmp_path)
    result = load(found).transcribe([folder / "test" / "0.wav"], max_new_tokens=8)[0]
    assert result.text == (found / "outputs" / "test.txt").read_text().splitlines()[0]
    assert metrics["test"].get("sparsity", 0.0) == 0.0
    assert (result.rows_kept < result.rows) == (section is not None)


@pytest.mark.parametrize("gated", [True, False])
def test_a_fixed_encoder(folder: Path, tmp_path: Path, gated: bool) -> None:
    l0drop = {"lambda_": 0.1, "start": 1.0} if gated else None
    _, found = run(tiny_speech.recipe(folder, l0drop=l0drop, train={"freeze": "encoder", "steps": 2}), tmp_path)
    before, after = load_file(folder / "whisper" / "model.safetensors"), weights(found)
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) == name.startswith("model.encoder"), name
    assert not gated or float(after["gate.weight"].abs().max()) > 0


@pytest.mark.parametrize(("taught", "data"), [(TAUGHT, {"join": 0.5}), (SHORT, WITH_TIMES)])
def test_a_resumed_run_is_an_uninterrupted_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taught: dict[str, Any], data: dict[str, Any]
) -> None:
    l0drop = {"target_sparsity": 0.4, "start": 1.0, "gating": "mask", "layerwise": [1], "cut_padding": 0.04}
    values = tiny_speech.recipe(folder, l0drop=l0drop, data=data, train={**taught, "accumulation": 2})
    _, whole = run(values, tmp_path / "whole")
    stopped_at(4, lambda: run(values, tmp_path / "parts"), monkeypatch)
    _, parts = run(values, tmp_path / "parts")
    expected, found = weights(whole), weights(parts)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    same = ("loss", "cross_entropy", "divergence", "penalty", "sparsity", "lambda")
    assert [[entry[key] for key in same] for entry in logged(whole)] == [
        [entry[key] for key in same] for entry in logged(parts)
    ]


@pytest.mark.slow
def test_one_process_and_two_take_the_same_steps(folder: Path, tmp_path: Path) -> None:
    values = tiny_speech.recipe(folder, data=WITH_TIMES, train={**SHORT, "steps": 4, "save_every": 4})
    _, one = run(values, tmp_path / "one")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    two = subprocess.run(
        [*launch, "-m", "l0drop", "train", str(file), "--runs", str(tmp_path / "two")],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert two.returncode == 0, two.stderr[-3000:]
    for first, second in zip(logged(one), logged(tmp_path / "two" / "speech"), strict=True):
        for key in ("loss", "cross_entropy", "divergence", "penalty", "sparsity", "lambda"):
            assert second[key] == pytest.approx(first[key], abs=1e-5, rel=1e-5), (first["step"], key)
    outputs = [(place / "outputs" / "test.txt").read_text() for place in (one, tmp_path / "two" / "speech")]
    assert outputs[0].count("\n") == outputs[1].count("\n") == 6


def test_a_missing_clip_is_named(folder: Path, tmp_path: Path) -> None:
    values = tiny_speech.recipe(folder)
    (tmp_path / "list.tsv").write_text("gone.wav\tspeaker\tb1\n")
    values["data"]["valid"] = {"tsv": str(tmp_path / "list.tsv"), "target_column": 2}
    with pytest.raises(CorpusError, match=r"list\.tsv, line 1: .*gone\.wav: there is no such file"):
        run(values, tmp_path / "runs")


def test_tasks_and_models_fit(folder: Path, tmp_path: Path) -> None:
    values = tiny.sparse(tmp_path / "text", "unused")
    values["model"] = {"pretrained": str(folder / "whisper")}
    with pytest.raises(ValueError, match=r"task: .* reads audio: set task: transcription"):
        run(values, tmp_path / "runs")


def test_fixed_embeddings(folder: Path, tmp_path: Path) -> None:
    before = load_file(folder / "whisper" / "model.safetensors")
    _, found = run(tiny_speech.recipe(folder, train={"freeze": "embeddings"}), tmp_path)
    after = weights(found)
    name = "model.decoder.embed_tokens.weight"
    assert torch.equal(after[name], before[name])
    assert not torch.equal(after["model.decoder.layers.0.fc1.weight"], before["model.decoder.layers.0.fc1.weight"])


def test_gates_settle_at_the_end(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(self: L0DropModel, settled: bool) -> None:
        seen.append(settled)

    monkeypatch.setattr(L0DropModel, "settle", recorded)
    run(tiny_speech.recipe(folder, train={"settle": 0.34}), tmp_path)
    assert seen == [False] * 4 + [True] * 2
