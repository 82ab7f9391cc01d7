"""What a stock Hugging Face Trainer needs to train a sparsified model."""

from typing import Any

from accelerate.utils import extract_model_from_parallel
from transformers import TrainerCallback


class SteerCallback(TrainerCallback):
    """Moves the model's λ after every optimizer step: towards the target sparsity, or along its schedule."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        extract_model_from_parallel(model, keep_torch_compile=False).steer()
