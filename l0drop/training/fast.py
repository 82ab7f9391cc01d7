"""The fast path of training steps on a GPU, without changing the model: its parts, and which of them a run can use."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0drop.recipe import Recipe
from l0drop.training.compiled import Compiled
from l0drop.training.low_precision import LowPrecision, StaticGradients, in_low_precision, quick_zero_grad
from l0drop.training.output_layer import OutputLayer
from l0drop.training.ragged import ragged_attention

logger = logging.getLogger(__name__)

MULTIPLE = 4
"""Lengths are padded to multiples of this if steps may be captured."""


@dataclass(frozen=True)
class ForwardPass:
    """How a model's forward pass runs: inside these contexts, and without the logits of all positions if it can."""

    contexts: tuple[Callable[[], AbstractContextManager[Any]], ...] = ()
    output_layer: OutputLayer | None = None

    def __call__(self, model: Any, arguments: dict[str, Any]) -> tuple[Any, Tensor | None]:
        """The model's output, and the input [B, T, D] of its output layer if that is computed separately."""
        with ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            states = [] if self.output_layer is None else stack.enter_context(self.output_layer.states())
            output = model(**arguments)
        return output, states[0] if states else None


class FastPath:
    """The parts of the fast path that a run uses; those it cannot use are None, with a warning that says why.

    on: `train.fast` of the recipe, by default whether there is a GPU.
    student, teacher: how the forward passes of both models run.
    captures: whether steps are captured as CUDA graphs.
    length_multiple: lengths are padded to a multiple of it. It does not depend on obstacles to capturing, so that
        another gate, or another process, does not change the batches.
    """

    def __init__(
        self, recipe: Recipe, model: Any, teacher: Any, *, device: torch.device, bf16: bool, alone: bool
    ) -> None:
        train = recipe.train
        self.model, self.teacher_model = model, teacher
        by_default = torch.cuda.is_available() and not recipe.is_audio
        self.on = by_default if train.fast is None else train.fast
        self.compiled = _compiled(model) if train.compile else None
        dtype = torch.bfloat16 if bf16 else None
        layer = _output_layer(model, dtype) if self.on else None
        teacher_layer = _output_layer(teacher, dtype) if layer is not None and teacher is not None else None
        if teacher is not None and teacher_layer is None:
            layer = None
        # several processes sum their gradients parameter by parameter during the backward pass
        low = self.on and bf16 and alone and not model.is_gradient_checkpointing
        self.low_precision = LowPrecision(model, torch.bfloat16) if low else None
        self.student = ForwardPass(_running(self.low_precision, self.compiled), layer)
        self.teacher: ForwardPass | None = None
        if teacher is not None:
            contexts = _running(Compiled(teacher) if self.compiled is not None else None)
            if low:
                in_low_precision(teacher, torch.bfloat16)
                contexts = (lambda: torch.autocast(device.type, torch.bfloat16), *contexts)
            self.teacher = ForwardPass(contexts, teacher_layer)
        asked = train.capture
        wanted = (device.type == "cuda" and self.on) if asked is None else asked
        self.length_multiple = train.length_multiple or (MULTIPLE if wanted else None)
        self.captures = wanted and self._can_capture(recipe, device, alone)
        self.gradients = StaticGradients(model, self.low_precision) if self.captures else None

    def _can_capture(self, recipe: Recipe, device: torch.device, alone: bool) -> bool:
        """Whether nothing prevents capturing; otherwise log the reason."""
        config, section = self.model.config, recipe.l0drop
        obstacles = {
            "there is no GPU": device.type != "cuda",
            "train.fast is off": not self.on,
            "there are several processes": not alone,
            "gradient checkpointing is on": self.model.is_gradient_checkpointing,
            "layers are skipped at random (layerdrop)": any(
                getattr(config, name, 0) for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
            ),
            "the model's attention inspects its mask": config._attn_implementation != "sdpa",
            "all logits are computed": self.student.output_layer is None,
            "only learned gates are known not to synchronise with the GPU": section is not None
            and not section.has_learned_gate,
            "l0drop.always_keep is set": section is not None and len(section.always_keep) > 0,
            "there are gates between layers": section is not None and section.layerwise,
        }
        for reason, holds in obstacles.items():
            if holds:
                logger.warning("train.capture: steps are not captured, because %s", reason)
                return False
        return True

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, training steps use attention for batches of any shape, and reset gradients quickly."""
        with ExitStack() as stack:
            if self.on:
                stack.enter_context(ragged_attention(self.model))
                stack.enter_context(quick_zero_grad(self.model, self.gradients))
                if self.teacher_model is not None:
                    stack.enter_context(ragged_attention(self.teacher_model))
            yield


def _compiled(model: Any) -> Compiled | None:
    if model.is_gradient_checkpointing:
        # the recomputation would draw another dropout mask than the compiled pass
        logger.warning("train.compile: ignored, because it cannot be combined with gradient checkpointing")
        return None
    return Compiled(model)


def _output_layer(model: Any, dtype: torch.dtype | None) -> OutputLayer | None:
    try:
        return OutputLayer(model, dtype)
    except ValueError as fault:
        logger.warning("train.fast: all logits are computed (%s)", fault)
        return None


def _running(*parts: LowPrecision | Compiled | None) -> tuple[Callable[[], AbstractContextManager[None]], ...]:
    return tuple(part.running for part in parts if part is not None)
