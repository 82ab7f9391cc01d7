"""The output layer and its loss in one operation, in chunks, so that the logits are never in memory all at once.

The forward pass turns each chunk's logits into its share of the gradients and frees them; the backward pass only scales
the gradients. Shapes: R rows, one per target token; D model width; V vocabulary. Rows with a negative label are padding
and are ignored. Everything except the matrix products is computed in float32; float64 stays float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 2**30
"""The size of a chunk's logits: enough for full speed on a large GPU, small compared with a step's activations."""

TeacherLogits = tuple[Tensor, Tensor | None, float, float]
"""A teacher's logits and their bias, the weight of the divergence, and its temperature."""
LossAndGradient = Callable[
    [Tensor, Tensor | None, Tensor, float, bool, TeacherLogits | None], tuple[Tensor, Tensor | None, Tensor | None]
]


@dataclass(frozen=True, eq=False)
class TokenDistillation:
    """A teacher's decoder states and output layer for the same rows, and the weight of the divergence from it."""

    hidden: Tensor
    output_weight: Tensor
    bias: Tensor | None
    weight: float
    temperature: float


def linear_cross_entropy_sum(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    labels_R: Tensor,
    *,
    bias_V: Tensor | None = None,
    smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Label-smoothed cross-entropy of `hidden · weightᵀ + bias`, summed; smoothing spreads over the whole vocabulary.

    dtype: of the three products, for mixed precision (default: that of `hidden`). chunk: rows at a time (default: the
    number that fits `CHUNK_BYTES`).
    """
    return _in_chunks(hidden_RD, weight_VD, bias_V, labels_R, smoothing, dtype, chunk, None)[0]


def distilled_cross_entropy_sum(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    labels_R: Tensor,
    distillation: TokenDistillation,
    *,
    bias_V: Tensor | None = None,
    smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(cross-entropy + weight · divergence) / (1 + weight), then both terms without gradient, all summed over rows.

    The divergence is KL(teacher ‖ student) at the distillation's temperature, times its square.
    """
    return _in_chunks(hidden_RD, weight_VD, bias_V, labels_R, smoothing, dtype, chunk, distillation)


def _in_chunks(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    labels_R: Tensor,
    smoothing: float,
    dtype: torch.dtype | None,
    chunk: int | None,
    distillation: TokenDistillation | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = hidden_RD.dtype if dtype is None else dtype
    if chunk is None:
        parts = -(-len(labels_R) * len(weight_VD) * dtype.itemsize // CHUNK_BYTES)
        chunk = max(1, -(-len(labels_R) // max(1, parts)))
    loss_and_gradient: LossAndGradient = plain_loss_and_gradient
    if hidden_RD.is_cuda and dtype != torch.float64:
        from l0drop.training.loss_kernel import loss_and_gradient
    settings = (smoothing, dtype, chunk, loss_and_gradient, distillation, torch.is_grad_enabled())
    return _LinearCrossEntropy.apply(hidden_RD, weight_VD, bias_V, labels_R, *settings)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        labels_R: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        chunk: int,
        loss_and_gradient: LossAndGradient,
        distillation: TokenDistillation | None,
        differentiable: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_hidden, of_weight, of_bias = (wanted and differentiable for wanted in ctx.needs_input_grad[:3])
        h_RD, w_VD, wide = hidden_RD.to(dtype), weight_VD.to(dtype), _wide(dtype)
        cross_entropy = torch.zeros((), dtype=wide, device=h_RD.device)
        divergence = torch.zeros_like(cross_entropy)
        grad_hidden = torch.empty_like(h_RD) if of_hidden else None
        grad_weight = torch.zeros_like(w_VD, dtype=wide) if of_weight else None
        grad_bias = torch.zeros_like(w_VD[:, 0], dtype=wide) if of_bias else None
        if distillation is not None:
            teacher_RD, teacher_VD = distillation.hidden.to(dtype), distillation.output_weight.to(dtype)
        for start in range(0, len(labels_R), chunk):
            part = slice(start, start + chunk)
            logits_RV = h_RD[part] @ w_VD.T
            teacher = None
            if distillation is not None:
                logits = teacher_RD[part] @ teacher_VD.T
                teacher = (logits, distillation.bias, distillation.weight, distillation.temperature)
            needed = of_hidden or of_weight or of_bias
            loss, kl, grad_RV = loss_and_gradient(logits_RV, bias_V, labels_R[part], smoothing, needed, teacher)
            del logits_RV, teacher
            cross_entropy += loss
            if kl is not None:
                divergence += kl
            if grad_RV is None:
                continue
            if grad_hidden is not None:
                torch.mm(grad_RV, w_VD, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, grad_RV.T, h_RD[part])
            if grad_bias is not None:
                grad_bias += grad_RV.sum(0, dtype=wide)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = [None if t is None else t.dtype for t in (hidden_RD, weight_VD, bias_V)]
        alone = cross_entropy.clone()
        ctx.mark_non_differentiable(alone, divergence)
        if distillation is not None:
            cross_entropy = (cross_entropy + distillation.weight * divergence) / (1 + distillation.weight)
        return cross_entropy, alone, divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *(None if gradient is None else gradient.to(dtype) * scale for gradient, dtype in gradients), *[None] * 7


def plain_loss_and_gradient(
    logits_RV: Tensor,
    bias_V: Tensor | None,
    labels_R: Tensor,
    smoothing: float,
    gradient: bool,
    teacher: TeacherLogits | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss (1-s) · (lse - z_gold) + s · (lse - mean z) and the divergence from the teacher, both summed over rows,
    and the gradient of their weighted sum with respect to z."""
    z_RV = _with_bias(logits_RV, bias_V)
    share = smoothing / z_RV.shape[1]
    is_real_R1 = labels_R[:, None] >= 0
    lse_R1 = z_RV.logsumexp(1, keepdim=True)
    gold_R1 = z_RV.gather(1, labels_R[:, None].clamp_min(0))
    loss_R1 = lse_R1 - (1 - smoothing) * gold_R1 - share * z_RV.sum(1, keepdim=True)
    loss = torch.where(is_real_R1, loss_R1, 0).sum()
    divergence = None
    if teacher is not None:
        teacher_logits_RV, teacher_bias_V, weight, temperature = teacher
        student_RV = (z_RV / temperature).log_softmax(1)
        teacher_RV = (_with_bias(teacher_logits_RV, teacher_bias_V) / temperature).log_softmax(1)
        kl_R1 = (teacher_RV.exp() * (teacher_RV - student_RV)).sum(1, keepdim=True) * temperature**2
        divergence = torch.where(is_real_R1, kl_R1, 0).sum()
    if not gradient:
        return loss, divergence, None
    is_gold_RV = torch.arange(z_RV.shape[1], device=z_RV.device) == labels_R[:, None]
    grad_RV = (z_RV - lse_R1).exp() - share
    grad_RV = torch.where(is_gold_RV, grad_RV - (1 - smoothing), grad_RV)
    if teacher is not None:
        grad_RV = (grad_RV + weight * temperature * (student_RV.exp() - teacher_RV.exp())) / (1 + weight)
    return loss, divergence, torch.where(is_real_R1, grad_RV, 0).to(logits_RV.dtype)


def _with_bias(logits_RV: Tensor, bias_V: Tensor | None) -> Tensor:
    z_RV = logits_RV.to(_wide(logits_RV.dtype))
    return z_RV if bias_V is None else z_RV + bias_V


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a · b, summed in the precision of `total`; on a CPU the product itself has lower precision."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
