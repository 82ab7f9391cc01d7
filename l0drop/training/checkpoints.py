"""Checkpoints: written completely before they get their name, listed, pruned, and the state a run resumes with."""

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from transformers.trainer import OPTIMIZER_NAME

from l0drop.data.corpus import file_digest
from l0drop.data.whole import write_whole
from l0drop.runs.checkpoint import STATE, ResumeState, restore_checkpoint
from l0drop.runs.json_file import read_as

_NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".partial"
FILES = "files.json"
"""The digests of a checkpoint's other files."""
WEIGHTS = "model.safetensors"


class TrainingError(ValueError):
    """A run that cannot continue; the message names the step and the remaining checkpoints."""


def resume_state(checkpoint: Path, made_from: Mapping[str, str | None]) -> ResumeState:
    """The state of a checkpoint; TrainingError if it was trained with other inputs."""
    state = ResumeState.read(checkpoint / STATE)
    if different := state.different(made_from):
        raise TrainingError(
            f"{checkpoint}: was trained with another {' and another '.join(different)}; restore the old one, or "
            "train under another `name` of the recipe"
        )
    return state


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
    stored, remedy = checkpoint / FILES, restore_checkpoint(checkpoint / FILES)
    digests: dict[str, str | None] = dict.fromkeys((WEIGHTS, STATE))
    if stored.exists():
        digests = read_as(dict[str, str | None], stored, remedy)
    for name, digest in digests.items():
        if only is not None and name not in only:
            continue
        file = checkpoint / name
        if not file.is_file():
            raise TrainingError(f"{file}: is missing; {remedy}")
        if digest is not None and file_digest(file) != digest:
            raise TrainingError(f"{file}: was changed or cut after it was saved; {remedy}")


def _write_digests(checkpoint: Path) -> None:
    digests = {file.name: file_digest(file) for file in sorted(checkpoint.iterdir()) if file.is_file()}
    write_whole(checkpoint / FILES, json.dumps(digests, indent=1) + "\n")


def is_resumable(checkpoint: Path) -> bool:
    """Whether the optimizer's state is still there."""
    return (checkpoint / OPTIMIZER_NAME).exists()


def clear_staging(folder: Path) -> None:
    """Remove the leftovers of an interrupted save."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
