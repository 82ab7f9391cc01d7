"""Stop a run after a step, as its user would."""

from collections.abc import Callable
from typing import Any

import pytest

from l0drop.training.callbacks import Interruption
from l0drop.training.run import Interrupted


def stopped_at(step: int, train_it: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    original = Interruption.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.asked = state.global_step == step
        original(self, args, state, control, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Interruption, "on_step_end", on_step_end)
        with pytest.raises(Interrupted, match=f"stopped at step {step} of"):
            train_it()
