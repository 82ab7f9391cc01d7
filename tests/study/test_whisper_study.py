"""The study of Whisper tiny.en: its plans, the recipes of its models, and the settings of its lists."""

import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import soundfile

import whisper_study as study
from l0drop import load
from tests.models import whispers


@pytest.mark.parametrize("plan", study.PLANS)
def test_a_plan_names_models_with_valid_recipes(plan: str, tmp_path: Path) -> None:
    models = study.PLANS[plan]
    assert len(models) == 5, "what fits on one GPU side by side"
    for name in models:
        recipe = study.recipe_of(Namespace(root=tmp_path), name, 100)
        assert (recipe.name, recipe.train.steps) == (name, 100)
        assert recipe.data.timestamps > 0
        assert (recipe.l0drop is None) == name.startswith(study.REFERENCE)


def test_every_model_is_trained_once() -> None:
    trained = [name for plan in study.PLANS.values() for name in plan]
    assert len(trained) == len(set(trained))
    assert study.REFERENCE in study.PLANS["first"], "which all others are compared with"
    assert set(study.MODELS) <= set(trained)
    assert set(study.BRING) <= set(trained)


def test_seeds_differ_in_nothing_else(tmp_path: Path) -> None:
    first, second = (study.recipe_of(Namespace(root=tmp_path), f"zero-70{end}", 100) for end in ("", "-seed-2"))
    assert (first.seed, second.seed) == (1, 2)
    assert second.model_copy(update={"seed": 1, "name": first.name}) == first
    half, whole = (study.recipe_of(Namespace(root=tmp_path), name, 100) for name in ("zero-50", "zero-50-whole"))
    assert (half.data.cut, whole.data.cut) == (0.7, 0.0)
    assert whole.l0drop == half.l0drop
    slow = study.recipe_of(Namespace(root=tmp_path), "zero-70-slow", 100)
    assert (slow.train.steer_over, slow.train.anneal, slow.l0drop) == (0.6, 0.0, first.l0drop)


def test_models_differ_in_their_gates_alone(tmp_path: Path) -> None:
    """The reference sees the same data, steps and learning rates as every gated model."""
    own = {"gate_scale", "anneal", "settle", "steer_every", "steer_over", "steer_gain", "elastic", "elastic_range"}
    reference, *others = (study.recipe_of(Namespace(root=tmp_path), name, 100) for name in study.PLANS["first"])
    for other in others:
        assert other.data == reference.data
        assert other.train.model_dump(exclude=own) == reference.train.model_dump(exclude=own)


def test_the_most_important_lists_come_first() -> None:
    lists = [(name, None) for name in study.LISTS]
    dials = [("pooled", keep) for keep in study.DIALS]
    assert study.work_of("base") == study.work_of("covered") == lists
    assert study.work_of("zero-70-seed-2") == [*lists, *dials]
    assert study.work_of("elastic") == [lists[0], *dials, *lists[1:]], "the curve is what this model is for"


def test_missing_files_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"missing: .*teacher\.tsv.*whisper-tiny.*speech/long/transcripts\.tsv"):
        study.check_inputs(tmp_path)


def test_processes_that_fail_or_take_too_long(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    failed = study.processes(tmp_path, {"plan": ["plan", "first"], "bad": ["plan", "none"]}, time.time() + 60)
    assert failed == ["bad"]
    assert "invalid choice: 'none'" in capfd.readouterr().out
    with pytest.raises(SystemExit, match="no data"):
        study.processes(tmp_path, {"prepare": ["plan", "none"], "other": ["plan", "first"]}, time.time() + 60)
    waits = ["model", str(tmp_path), "zero-70", "--train-until", "600"]  # for data that never come
    started = time.time()
    assert study.processes(tmp_path, {"waits": waits}, time.time() + 2) == ["waits"]
    assert time.time() - started < 60


@pytest.mark.slow
def test_a_whole_plan(tmp_path: Path) -> None:
    """The command for a GPU, on a tiny random Whisper: every model is trained, transcribes all lists, and is judged."""
    whispers.save(whispers.build(multilingual=False, positions=448), tmp_path / "whisper-tiny")
    taught = []
    for seed, part in enumerate(study.PARTS):
        folder = tmp_path / "speech" / part
        folder.mkdir(parents=True)
        lines = []
        for clip in range(12 if part == "train" else 6):
            seconds = 1.3 if part == "long" else 0.12 + 0.03 * (clip % 4)
            soundfile.write(folder / f"{clip}.wav", whispers.tone(seconds, 100 * seed + clip), 16_000)
            text = f"b{clip + 1} c2 d{clip + 3}"
            lines.append(f"{clip}.wav\tspeaker{clip // 3}\t{text}\n")
            if part in ("train", "audio_only"):
                taught.append(f"{part}/{clip}.wav\t{text}\t<|0.00|> {text}<|0.12|>\n")
        (folder / "transcripts.tsv").write_text("".join(lines))
    (tmp_path / "teacher.tsv").write_text("".join(taught))
    limits = ["--steps", "4", "--train-until", "900", "--until", "1200", "--set", "train.batch_clips=4"]
    subprocess.run([sys.executable, study.__file__, "run", tmp_path, tmp_path / "out", *limits], check=True)
    for name in study.LISTS:
        found = json.loads((tmp_path / "evaluation" / name / "metrics.json").read_text())
        names = {Path(system["name"]).name for system in (*found["systems"], found["baseline"])}
        assert names == {*study.PLANS["first"], "whisper-tiny"}
    curve = sorted((tmp_path / "results" / "elastic").glob("pooled-keep-*.json"))
    assert len(curve) == len(study.DIALS)
    shares = [json.loads(file.read_text())["sparsity_of_all"] for file in curve]
    assert shares == sorted(shares, reverse=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} > {"speech.tar.gz", "zero-70.npz"}
    study.publish(Namespace(root=tmp_path, out=tmp_path / "published"))
    assert len(list((tmp_path / "published").iterdir())) == len(study.LISTS)


def test_long_windows_have_room_for_times() -> None:
    settings = {"num_beams": 1, "max_new_tokens": 200}
    assert study.LISTS["pooled"].settings(settings) == settings
    assert study.LISTS["long"].settings(settings) == {"num_beams": 1}
    assert study.LISTS["timed"].settings(settings) == {"num_beams": 1, "return_timestamps": True}


def test_the_teacher_writes_both_transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "MOST_TOKENS", 12)
    whispers.save(whispers.build(multilingual=False), tmp_path / "whisper-tiny")
    for part in ("train", "audio_only"):
        (tmp_path / "speech" / part).mkdir(parents=True)
        soundfile.write(tmp_path / "speech" / part / "a.wav", whispers.tone(0.3, len(part)), 16_000)
        (tmp_path / "speech" / part / "transcripts.tsv").write_text("a.wav\tspeaker\t\n")
    study.teach(Namespace(root=tmp_path))
    lines = [line.split("\t") for line in (tmp_path / "teacher.tsv").read_text().splitlines()]
    assert [file for file, _, _ in lines] == ["train/a.wav", "audio_only/a.wav"]
    model = load(tmp_path / "whisper-tiny")
    for file, text, timed in lines:
        assert text == model.transcribe([tmp_path / "speech" / file], max_new_tokens=12)[0].text
        assert timed.startswith("<|0.")
        assert text != timed
