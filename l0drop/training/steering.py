"""Steering λ in a run: by the sparsity of every step, corrected by that of the validation text."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from l0drop.models.modeling import L0DropModel


class Steering(TrainerCallback):
    """Moves λ after every optimizer step; a model with a shortener has none.

    every: the number of steps between measurements of the validation sparsity; None without a target.
    alone: whether there is one process. It has seen all batches of a step; otherwise the model asks the others.
    """

    def __init__(
        self, model: L0DropModel, every: int | None, validation_sparsity: Callable[[], float], *, alone: bool
    ) -> None:
        self.model, self.every, self.validation_sparsity, self.alone = model, every, validation_sparsity, alone
        self.dropped = self.real = 0.0

    def add(self, dropped: float, real: float) -> None:
        """Add the counts of one batch of the step."""
        self.dropped += dropped
        self.real += real

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.model.shortener is not None:
            self.model.training_counts = None  # there is no λ to move, but the next step counts its own tokens
            return
        is_due = self.every is not None and state.global_step % self.every == 0
        validation = self.validation_sparsity() if is_due else None
        seen = self.dropped / self.real if self.alone and self.real else None
        self.model.steer(seen, validation=validation)
        self.dropped = self.real = 0.0
