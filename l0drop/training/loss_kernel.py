"""The loss between the matrix products of the output layer, as one Triton kernel; imported on a GPU only.

One program per row reads its logits twice, and the second time overwrites them with their gradient. Shapes: R rows, one
per target token; V vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def loss_and_gradient(
    logits_RV: Tensor,
    bias_V: Tensor | None,
    labels_R: Tensor,
    smoothing: float,
    gradient: bool,
    teacher: tuple[Tensor, Tensor | None, float, float] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The same as `fused_loss.plain_loss_and_gradient`; the gradient overwrites `logits_RV`."""
    teacher_RV, teacher_bias_V, weight, temperature = (None, None, 0.0, 1.0) if teacher is None else teacher
    loss_R = torch.empty(len(labels_R), dtype=torch.float32, device=logits_RV.device)
    divergence_R = torch.empty_like(loss_R) if teacher is not None else None
    arguments: list[Any] = [logits_RV, teacher_RV, bias_V, teacher_bias_V, labels_R, loss_R, divergence_R]
    _kernel[(len(labels_R),)](
        *arguments, smoothing, weight, temperature, V=logits_RV.shape[1],
        BIASED=bias_V is not None, DISTILLED=teacher is not None, TEACHER_BIASED=teacher_bias_V is not None,
        GRADIENT=gradient, N=BLOCK, num_warps=8,
    )  # fmt: skip
    return loss_R.sum(), None if divergence_R is None else divergence_R.sum(), logits_RV if gradient else None


@triton.jit
def _block(Z, B, start, V: tl.constexpr, BIASED: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """N logits of a row, starting at `start`, in float32; -inf beyond the end."""
    column = start + tl.arange(0, N)
    z = tl.load(Z + column, mask=column < V, other=float("-inf")).to(tl.float32)
    if BIASED:
        z += tl.load(B + column, mask=column < V, other=0.0).to(tl.float32)
    return z


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    LOGITS, TEACHER_LOGITS, BIAS, TEACHER_BIAS, LABELS, LOSS, DIVERGENCE, smoothing, weight, temperature,
    V: tl.constexpr, BIASED: tl.constexpr, DISTILLED: tl.constexpr, TEACHER_BIASED: tl.constexpr,
    GRADIENT: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    Z = LOGITS + row * V
    label = tl.load(LABELS + row)
    if label < 0:
        tl.store(LOSS + row, 0.0)
        if DISTILLED:
            tl.store(DIVERGENCE + row, 0.0)
        if GRADIENT:
            for start in range(0, V, N):
                column = start + tl.arange(0, N)
                tl.store(Z + column, tl.zeros((N,), dtype=LOGITS.dtype.element_ty), mask=column < V)
    else:
        gold = tl.load(Z + label).to(tl.float32)
        if BIASED:
            gold += tl.load(BIAS + label).to(tl.float32)
        # running log Σ exp, with the maximum kept separately: of the logits, then of the logits and the teacher's
        # logits divided by the temperature
        top = float("-inf")
        total = 0.0
        summed = 0.0
        soft_top = float("-inf")
        soft_total = 0.0
        teacher_top = float("-inf")
        teacher_total = 0.0
        kl = 0.0
        for start in range(0, V, N):
            inside = start + tl.arange(0, N) < V
            z = _block(Z, BIAS, start, V, BIASED, N)
            higher = tl.maximum(top, tl.max(z, 0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), 0)
            top = higher
            summed += tl.sum(tl.where(inside, z, 0.0), 0)
            if DISTILLED:
                y = _block(TEACHER_LOGITS + row * V, TEACHER_BIAS, start, V, TEACHER_BIASED, N) / temperature
                soft = z / temperature
                soft_higher = tl.maximum(soft_top, tl.max(soft, 0))
                soft_total = soft_total * tl.exp(soft_top - soft_higher) + tl.sum(tl.exp(soft - soft_higher), 0)
                soft_top = soft_higher
                teacher_higher = tl.maximum(teacher_top, tl.max(y, 0))
                shrunk = tl.exp(teacher_top - teacher_higher)
                mass = tl.exp(y - teacher_higher)
                teacher_total = teacher_total * shrunk + tl.sum(mass, 0)
                kl = kl * shrunk + tl.sum(tl.where(inside, mass * (y - soft), 0.0), 0)
                teacher_top = teacher_higher
        log_total = top + tl.log(total)
        share = smoothing / V
        tl.store(LOSS + row, log_total - (1.0 - smoothing) * gold - share * summed)
        soft_log = soft_top
        teacher_log = teacher_top
        if DISTILLED:
            soft_log = soft_top + tl.log(soft_total)
            teacher_log = teacher_top + tl.log(teacher_total)
            divergence = kl / teacher_total - teacher_log + soft_log
            tl.store(DIVERGENCE + row, divergence * temperature * temperature)
        if GRADIENT:
            for start in range(0, V, N):
                column = start + tl.arange(0, N)
                z = _block(Z, BIAS, start, V, BIASED, N)
                grad = tl.exp(z - log_total) - share
                grad = tl.where(column == label, grad - (1.0 - smoothing), grad)
                if DISTILLED:
                    y = _block(TEACHER_LOGITS + row * V, TEACHER_BIAS, start, V, TEACHER_BIASED, N) / temperature
                    difference = tl.exp(z / temperature - soft_log) - tl.exp(y - teacher_log)
                    grad = (grad + weight * temperature * difference) / (1.0 + weight)
                tl.store(Z + column, grad.to(LOGITS.dtype.element_ty), mask=column < V)
