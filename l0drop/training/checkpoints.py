"""Checkpoints that stand under their name only when whole, and how to find the last one."""

import os
import re
import shutil
from pathlib import Path

from transformers.trainer import OPTIMIZER_NAME

_NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".partial"


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def step_of(checkpoint: Path) -> int:
    match = _NAME.fullmatch(checkpoint.name)
    assert match, checkpoint
    return int(match[1])


def publish(folder: Path, name: str, keep: int, every: int) -> None:
    """Move a checkpoint that was written into the staging folder to its place, and delete all but the last `keep`.

    A run goes on from the newest alone, so the others keep what is averaged, but not the optimizer's two thirds. An
    older one that is of no `every`-th step was left by an interruption: only to go on from, and never to be averaged.
    """
    place = folder / name
    if place.exists():
        shutil.rmtree(place)  # left by a run that died between this step and the next
    os.replace(folder / STAGING / name, place)
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
    """Remove what an interrupted save left behind."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
