"""A recipe that trains in seconds, on text files written by the test."""

import random
from pathlib import Path
from typing import Any

NOUNS = ("dog", "cat", "house", "tree", "river", "stone", "bird", "road")
VERBS = ("sees", "finds", "likes", "knows")
GERMAN = "Hund Katze Haus Baum Fluss Stein Vogel Weg sieht findet mag kennt der ein ."
WORDS = dict(zip((*NOUNS, *VERBS, "the", "a", "."), GERMAN.split(), strict=True))


def write_text(folder: Path, name: str, lines: int, seed: int) -> dict[str, str]:
    """Write two files of parallel text; returns them as a recipe's corpus."""
    source = random.Random(seed)
    sentences = []
    for _ in range(lines):
        words = [source.choice(("the", "a")), source.choice(NOUNS), source.choice(VERBS)]
        words += [source.choice(("the", "a")), source.choice(NOUNS)] * source.randint(1, 3)
        sentences.append([*words, "."])
    files = {}
    for side, translate in (("source", str), ("target", WORDS.__getitem__)):
        file = folder / f"{name}.{side}"
        file.write_text("".join(" ".join(map(translate, words)) + "\n" for words in sentences), encoding="utf-8")
        files[side] = str(file)
    return files


def recipe(folder: Path, name: str = "tiny", **changes: Any) -> dict[str, Any]:
    """A baseline with one layer per side; `changes` replace whole sections, or keys of `train`."""
    folder.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Any] = {
        "name": name,
        "data": {
            "train": write_text(folder, "train", 400, 1),
            "valid": write_text(folder, "valid", 24, 2),
            "test": write_text(folder, "test", 24, 3),
            "max_source": 32,
            "max_target": 32,
        },
        "tokenizer": {"vocab_size": 90},
        "model": {
            "transformer": {
                "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "ffn": 64, "positions": 64,
            }
        },
        "train": {
            "steps": 20, "batch_tokens": 400, "learning_rate": 3e-3, "warmup": 10, "save_every": 10, "eval_every": 20,
            "log_every": 1, "steer_every": 5,
        },
        "evaluate": {"beams": 2, "sentences": 12, "max_new_tokens": 16},
    }  # fmt: skip
    train = {**sections["train"], **changes.pop("train", {})}
    return {**sections, **changes, "train": train}


def sparse(folder: Path, init: str, name: str = "sparse", **changes: Any) -> dict[str, Any]:
    """Fine-tuning from a run folder to a target sparsity."""
    values = recipe(folder, name, **changes)
    del values["tokenizer"]
    return {**values, "model": {"init": init}, "l0drop": values.get("l0drop", {"target_sparsity": 0.4, "start": 1.0})}
