"""The lines and the progress bar that training prints."""

import math
from contextlib import ExitStack
from typing import Any, ClassVar

from transformers import TrainerCallback

from l0drop.recipe import Recipe
from l0drop.training.bars import Bars, Update


class StepLines(TrainerCallback):
    """A progress bar of the steps, and a table of log entries that fits into 80 columns."""

    COLUMNS: ClassVar = {
        "loss": ("loss", 8, ".3f"),
        "cross_entropy": ("cross-entropy", 15, ".3f"),
        "divergence": ("KL", 8, ".3f"),
        "lambda": ("λ", 8, ".3f"),
        "penalty": ("penalty", 9, ".3f"),
        "sparsity": ("dropped", 9, ".1%"),
        "tokens_per_second": ("tokens/s", 11, ",.0f"),
    }
    """For each logged number: the head, the width and the format of its column."""
    LARGE_LAMBDA = 5.0

    def __init__(self, recipe: Recipe, bars: Bars) -> None:
        self.recipe, self.bars = recipe, bars
        self._open = ExitStack()
        self._update: Update | None = None
        self._said: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._update = self._open.enter_context(self.bars.phase(self.recipe.name, state.max_steps))
        self._update(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._update is not None:
            self._update(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not self.bars.shown or not logs:
            return
        if "loss" in logs:
            self._training_line(state.global_step, logs)
        elif "eval_cross_entropy" in logs:
            self._validation_line(state.global_step, logs)

    def _training_line(self, step: int, logs: dict[str, Any]) -> None:
        columns = {name: column for name, column in self.COLUMNS.items() if name in logs}
        if "head" not in self._said:
            self._said.add("head")
            self._explain_loss(logs)
            self._print("   step" + "".join(f"{head:>{width}}" for head, width, _ in columns.values()), dim=True)
        cells = (f"{logs[name]:>{width}{style}}" for name, (_, width, style) in columns.items())
        self._print(f"{step:>7}" + "".join(cells))
        if self._is_steered and logs.get("lambda", 0.0) > self.LARGE_LAMBDA and "λ" not in self._said:
            self._said.add("λ")
            self._print(
                "λ is large because the target has to be reached in few steps. The loss rises with it, because it "
                "includes λ · penalty; compare the cross-entropy instead.",
                dim=True,
            )

    def _explain_loss(self, logs: dict[str, Any]) -> None:
        weight = 0.0 if self.recipe.train.teacher is None else self.recipe.train.teacher.weight
        distilled = f"(cross-entropy + {weight:g} · KL) / {1 + weight:g}"
        terms = distilled if "divergence" in logs else "cross-entropy"
        if "penalty" in logs:
            terms += " + λ · penalty"
        if terms != "cross-entropy":
            self._print(f"loss = {terms}", dim=True)
        if self._is_steered:
            self._print("λ is adjusted to reach the target sparsity", dim=True)

    @property
    def _is_steered(self) -> bool:
        return self.recipe.l0drop is not None and self.recipe.l0drop.target_sparsity is not None

    def _validation_line(self, step: int, logs: dict[str, Any]) -> None:
        found = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
        parts = [] if math.isnan(found["cross_entropy"]) else [f"cross-entropy {found['cross_entropy']:.3f}"]
        parts += [f"{name} {value:.2f}" for name, value in found.items() if name not in ("cross_entropy", "sparsity")]
        parts += [f"{found['sparsity']:.1%} dropped"] if "sparsity" in found else []
        self._print(f"{step:>7}  validation: {', '.join(parts)}")

    def _print(self, text: str, dim: bool = False) -> None:
        self.bars.console.print(text, style="dim" if dim else None, highlight=False, markup=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()
        self._update = None
