"""Checkpoints: written completely before they get their name, listed, and pruned."""

import os
import re
import shutil
from pathlib import Path

from transformers.trainer import OPTIMIZER_NAME

_NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".partial"


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


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


def is_resumable(checkpoint: Path) -> bool:
    """Whether the optimizer's state is still there."""
    return (checkpoint / OPTIMIZER_NAME).exists()


def clear_staging(folder: Path) -> None:
    """Remove the leftovers of an interrupted save."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
