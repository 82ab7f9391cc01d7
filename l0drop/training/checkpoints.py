"""Checkpoints: written completely before they get their name, listed, pruned, and the state a run resumes with."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer import OPTIMIZER_NAME

from l0drop.data.whole import write_whole

_NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".partial"
STATE = "l0drop.json"
FILES = "files.json"
"""The digests of a checkpoint's other files."""
WEIGHTS = "model.safetensors"


class TrainingError(ValueError):
    """A run that cannot continue; the message names the step and the remaining checkpoints."""


@dataclass
class ResumeState:
    """The state that a resumed run needs in addition to weights and optimizer."""

    best: float | None = None
    best_step: int = 0
    evaluations_without_improvement: int = 0
    stopped_early: bool = False
    schedule: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, float] | None = None
    """Of fixed gates: the fields of `Calibration`."""
    made_from: dict[str, str | None] | None = None
    """Digests of the training and the validation text, and of the teacher's weights."""
    compiled_at: list[list[int]] = field(default_factory=list)
    """Per process, the steps that triggered compilation."""

    @classmethod
    def read(cls, checkpoint: Path) -> "ResumeState":
        try:
            return cls(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise TrainingError(f"{checkpoint / STATE}: is no state of a run ({error}); restore it") from error

    def write(self, checkpoint: Path) -> None:
        write_whole(checkpoint / STATE, json.dumps(vars(self), indent=1))

    def remember(self, value: float, step: int, patience: int | None) -> None:
        """Compare the result of an evaluation with the best one; without a better one for too long, stop early."""
        if self.best is None or value > self.best:
            self.best, self.best_step, self.evaluations_without_improvement = value, step, 0
        else:
            self.evaluations_without_improvement += 1
        self.stopped_early = patience is not None and self.evaluations_without_improvement >= patience

    def check_made_from(self, made_from: dict[str, str | None], checkpoint: Path) -> None:
        """Raise TrainingError if a checkpoint was trained with other inputs."""
        stored = self.made_from
        different = [name for name, digest in made_from.items() if stored and stored.get(name) != digest]
        if different:
            raise TrainingError(
                f"{checkpoint}: was trained with another {' and another '.join(different)}; restore the old one, or "
                "train under another `name` of the recipe"
            )

    def compiled_by(self, process: int) -> list[int]:
        """The steps at which this process compiled; with fewer processes before, the batches differ anyway."""
        if not self.compiled_at:
            return []
        return self.compiled_at[process if process < len(self.compiled_at) else 0]


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first."""
    named = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(named, key=step_of)


def step_of(checkpoint: Path) -> int:
    match = _NAME.fullmatch(checkpoint.name)
    assert match, checkpoint
    return int(match[1])


def publish(folder: Path, name: str, keep: int, every: int) -> None:
    """Move a checkpoint from the staging folder to its name, and delete all but the last `keep`.

    A run resumes from the newest one, so the others keep their weights for averaging, but not the optimizer's state,
    two thirds of the size. An older one whose step is no multiple of `every` was saved by an interruption, to resume
    from; it is never averaged.
    """
    path = folder / name
    _write_digests(folder / STAGING / name)
    if path.exists():
        shutil.rmtree(path)  # left by a run that died between this step and the next
    os.replace(folder / STAGING / name, path)
    shutil.rmtree(folder / STAGING)
    *older, _ = checkpoints(folder)
    for old in older:
        if step_of(old) % every:
            shutil.rmtree(old)
        else:
            (old / OPTIMIZER_NAME).unlink(missing_ok=True)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)


def check_files(checkpoint: Path, only: Collection[str] | None = None) -> None:
    """Raise TrainingError if a file of a checkpoint, or of those in `only`, is missing or was changed.

    A checkpoint without digests, of an earlier version, is checked for its weights and its state alone.
    """
    remedy = f"restore it, or delete {checkpoint.parent} to train again"
    try:
        digests = json.loads((checkpoint / FILES).read_text(encoding="utf-8"))
        if not isinstance(digests, dict):
            raise ValueError(f"expected an object, got {type(digests).__name__}")
    except FileNotFoundError:
        digests = dict.fromkeys((WEIGHTS, STATE))
    except (ValueError, RecursionError) as error:
        raise TrainingError(f"{checkpoint / FILES}: not JSON ({error}); {remedy}") from error
    for name, digest in digests.items():
        if only is not None and name not in only:
            continue
        file = checkpoint / name
        if not file.is_file():
            raise TrainingError(f"{file}: is missing; {remedy}")
        if digest is not None and _digest(file) != digest:
            raise TrainingError(f"{file}: was changed or cut after it was saved; {remedy}")


def _write_digests(checkpoint: Path) -> None:
    digests = {file.name: _digest(file) for file in sorted(checkpoint.iterdir()) if file.is_file()}
    write_whole(checkpoint / FILES, json.dumps(digests, indent=1) + "\n")


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_resumable(checkpoint: Path) -> bool:
    """Whether the optimizer's state is still there."""
    return (checkpoint / OPTIMIZER_NAME).exists()


def clear_staging(folder: Path) -> None:
    """Remove the leftovers of an interrupted save."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
