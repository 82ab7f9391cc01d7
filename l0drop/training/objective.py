"""The objective of a training step: label-smoothed cross-entropy, divergence from a teacher, penalty.

Every term is a sum, divided by the totals of the whole optimizer step over all processes and micro-batches. So the
gradient does not depend on how the step is split.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.bart.modeling_bart import shift_tokens_right


@dataclass(frozen=True)
class Totals:
    """The divisors of an optimizer step's sums, over all processes."""

    target_tokens: int
    sentences: int


def cross_entropy_sum(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Label-smoothed cross-entropy, summed over real target tokens; smoothing covers the whole vocabulary."""
    return F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=smoothing, reduction="sum"
    )


def distillation_sum(logits: Tensor, teacher_logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) at a temperature, times its square, summed over real target tokens."""
    real = labels != -100
    student = F.log_softmax(logits[real].float() / temperature, -1)
    teacher = F.log_softmax(teacher_logits[real].float() / temperature, -1)
    return F.kl_div(student, teacher, reduction="sum", log_target=True) * temperature**2


def noise_keys(index: Tensor, step: int, seed: int) -> Tensor:
    """One key per sentence of the corpus, step and seed: the same on any process and in any batch."""
    return index.to(torch.int64) ^ (step << 32) ^ ((seed & 0xFF) << 55)


def decoder_inputs(model: Any, labels: Tensor) -> dict[str, Tensor]:
    """The labels shifted to the right, for a forward pass that computes no loss."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    config = model.config  # M2M100 shifts inside forward only, as BART does
    return {"decoder_input_ids": shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)}
