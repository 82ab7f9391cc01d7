"""Steering λ in a run: by the sparsity of every step, corrected by that of the validation text; then fixing gates."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from transformers import TrainerCallback

from l0drop.core.penalty import Calibration
from l0drop.models.modeling import L0DropModel


class Steering(TrainerCallback):
    """Moves λ after every optimizer step; a model with a shortener has none.

    every: the number of steps between measurements of the validation sparsity; None without a target.
    alone: whether there is one process. It has seen all batches of a step; otherwise the model asks the others.
    until: the number of steps after which gates are fixed, and λ with them; None if they never are.
    """

    def __init__(
        self,
        model: L0DropModel,
        every: int | None,
        validation_sparsity: Callable[[], float],
        *,
        alone: bool,
        until: int | None = None,
    ) -> None:
        self.model, self.every, self.validation_sparsity, self.alone = model, every, validation_sparsity, alone
        self.until = until
        self.dropped = self.real = 0.0

    def add(self, dropped: float, real: float) -> None:
        """Add the counts of one batch of the step."""
        self.dropped += dropped
        self.real += real

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        has_ended = self.until is not None and state.global_step > self.until
        if has_ended or self.model.shortener is not None:  # there is no λ to move
            self.dropped = self.real = 0.0
            self.model.training_counts = None  # the next step counts its own tokens
            return
        is_due = self.every is not None and state.global_step % self.every == 0
        validation = self.validation_sparsity() if is_due else None
        seen = self.dropped / self.real if self.alone and self.real else None
        self.model.steer(seen, validation=validation)
        self.dropped = self.real = 0.0


class FixedGates(TrainerCallback):
    """Calibrates the gates to the target after `first` steps, when they are fixed. A resumed run has done so before.

    held_out: the encoder inputs of the validation text.
    """

    def __init__(self, model: L0DropModel, first: int, held_out: Callable[[], Iterable[dict[str, Any]]]) -> None:
        self.model, self.first, self.held_out = model, first, held_out

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.first and self.model.config.l0drop.target_sparsity is not None:
            calibrated(self.model, self.held_out())


def calibrated(model: L0DropModel, held_out: Iterable[dict[str, Any]]) -> Calibration:
    """Calibrate the gates of a run: its warning goes into metrics.json, and a missed target must not end it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.calibrate(held_out, force=True)
