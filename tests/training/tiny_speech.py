"""A recipe that trains a tiny random Whisper in seconds, on tones written by the test."""

from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests.models import whispers


def write_audio(folder: Path, name: str, clips: int, seed: int) -> str:
    """Write clips of one window or less and their list; returns the list's path. Its third column is the text."""
    random = np.random.default_rng(seed)
    (folder / name).mkdir(parents=True)
    lines = []
    for clip in range(clips):
        samples = whispers.tone(random.uniform(0.1, 0.48), seed=100 * seed + clip)
        soundfile.write(folder / name / f"{clip}.wav", samples, 16_000)
        words = random.integers(1, 60, random.integers(1, 5))
        lines.append(f"{clip}.wav\tspeaker\t{' '.join(f'{chr(97 + word % 26)}{word}' for word in words)}\n")
    (folder / name / "list.tsv").write_text("".join(lines))
    return str(folder / name / "list.tsv")


def recipe(folder: Path, name: str = "speech", **changes: Any) -> dict[str, Any]:
    """Fine-tuning to a target sparsity; `changes` replace whole sections, or keys of `data` and `train`."""
    if not (folder / "whisper").exists():
        whispers.save(whispers.build(multilingual=False), folder / "whisper")
        for split, clips, seed in (("train", 24, 1), ("valid", 6, 2), ("test", 6, 3)):
            write_audio(folder, split, clips, seed)
    sections: dict[str, Any] = {
        "name": name,
        "task": "transcription",
        "data": {
            **{split: {"tsv": str(folder / split / "list.tsv"), "target_column": 2} for split in ("train", "valid")},
            "test": {"tsv": str(folder / "test" / "list.tsv"), "target_column": 2},
            "max_target": 20,
        },
        "model": {"pretrained": str(folder / "whisper")},
        "l0drop": {"target_sparsity": 0.4, "start": 1.0},
        "train": {
            "steps": 6, "batch_clips": 4, "learning_rate": 1e-3, "schedule": "constant", "warmup": 1, "save_every": 3,
            "eval_every": 6, "log_every": 1, "steer_every": 3,
        },
        "evaluate": {"metric": "wer", "beams": 1, "max_new_tokens": 8},
    }  # fmt: skip
    merged = {key: {**sections[key], **changes.pop(key, {})} for key in ("data", "train", "evaluate")}
    return {**sections, **changes, **merged}
