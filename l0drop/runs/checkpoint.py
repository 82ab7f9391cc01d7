"""`l0drop.json` of a checkpoint: the state that a resumed run needs in addition to weights and optimizer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l0drop.runs.json_file import JsonFile, Settings

STATE = "l0drop.json"


def restore_checkpoint(file: Path) -> str:
    """What to do about a broken file of a checkpoint; none of them can be written again alone."""
    return f"restore it, or delete {file.parent.parent} to train again"


@dataclass(kw_only=True)
class ResumeState(JsonFile):
    """How far a run has got.

    calibration: the fields of `Calibration`, if gates are fixed. made_from: digests of the training and the validation
    text, and of the teacher's weights. compiled_at: per process, the steps that triggered compilation.
    """

    COMMAND = "l0drop train"

    best: float | None = None
    best_step: int = 0
    evaluations_without_improvement: int = 0
    stopped_early: bool = False
    schedule: Settings = field(default_factory=dict)
    calibration: dict[str, float] | None = None
    made_from: dict[str, str | None] | None = None
    compiled_at: list[list[int]] = field(default_factory=list)

    @classmethod
    def remedy(cls, path: Path) -> str:
        return restore_checkpoint(path)

    @staticmethod
    def upgraded(content: Mapping[str, Any]) -> Mapping[str, Any]:
        """An older file may have NaN or an infinity as the best result, which a later one should exceed."""
        best = content.get("best")
        return {**content, "best": None} if isinstance(best, float) and not math.isfinite(best) else content

    def remember(self, value: float, step: int, patience: int | None) -> None:
        """Compare the result of an evaluation with the best one; without a better one for too long, stop early."""
        if math.isfinite(value) and (self.best is None or value > self.best):
            self.best, self.best_step, self.evaluations_without_improvement = value, step, 0
        else:
            self.evaluations_without_improvement += 1
        self.stopped_early = patience is not None and self.evaluations_without_improvement >= patience

    def different(self, made_from: Mapping[str, str | None]) -> list[str]:
        """Which of these inputs are not those that the weights were trained with."""
        stored = self.made_from
        return [name for name, digest in made_from.items() if stored and stored.get(name) != digest]

    def compiled_by(self, process: int) -> list[int]:
        """The steps at which this process compiled; with fewer processes before, the batches differ anyway."""
        if not self.compiled_at:
            return []
        return self.compiled_at[process if process < len(self.compiled_at) else 0]
