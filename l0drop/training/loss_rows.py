"""What stands between the products of the output layer, as one GPU kernel in Triton; imported on a GPU only.

One program per row reads its logits twice, and the second time writes their gradient in their place. Shapes: R rows,
one per target token; V vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def rows(
    logits_RV: Tensor,
    bias_V: Tensor | None,
    labels_R: Tensor,
    smoothing: float,
    gradient: bool,
    lesson: tuple[Tensor, Tensor | None, float, float] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `fused_loss.plain_rows`; what it returns as the gradient is `logits_RV` itself, written over."""
    taught_RV, taught_bias_V, weight, temperature = (None, None, 0.0, 1.0) if lesson is None else lesson
    loss_R = torch.empty(len(labels_R), dtype=torch.float32, device=logits_RV.device)
    divergence_R = torch.empty_like(loss_R) if lesson is not None else None
    arguments: list[Any] = [logits_RV, taught_RV, bias_V, taught_bias_V, labels_R, loss_R, divergence_R]
    _kernel[(len(labels_R),)](
        *arguments, smoothing, weight, temperature, V=logits_RV.shape[1],
        BIASED=bias_V is not None, TAUGHT=lesson is not None, TAUGHT_BIASED=taught_bias_V is not None,
        GRADIENT=gradient, N=BLOCK, num_warps=8,
    )  # fmt: skip
    return loss_R.sum(), None if divergence_R is None else divergence_R.sum(), logits_RV if gradient else None


@triton.jit
def _block(Z, B, start, V: tl.constexpr, BIASED: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """N logits of a row from `start` on, in float32; -inf behind the end."""
    column = start + tl.arange(0, N)
    z = tl.load(Z + column, mask=column < V, other=float("-inf")).to(tl.float32)
    if BIASED:
        z += tl.load(B + column, mask=column < V, other=0.0).to(tl.float32)
    return z


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    LOGITS, TAUGHT_LOGITS, BIAS, TAUGHT_BIAS, LABELS, LOSS, DIVERGENCE, smoothing, weight, temperature,
    V: tl.constexpr, BIASED: tl.constexpr, TAUGHT: tl.constexpr, TAUGHT_BIASED: tl.constexpr, GRADIENT: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    Z = LOGITS + row * V
    label = tl.load(LABELS + row)
    if label < 0:
        tl.store(LOSS + row, 0.0)
        if TAUGHT:
            tl.store(DIVERGENCE + row, 0.0)
        if GRADIENT:
            for start in range(0, V, N):
                column = start + tl.arange(0, N)
                tl.store(Z + column, tl.zeros((N,), dtype=LOGITS.dtype.element_ty), mask=column < V)
    else:
        gold = tl.load(Z + label).to(tl.float32)
        if BIASED:
            gold += tl.load(BIAS + label).to(tl.float32)
        # log Σ exp of logits; of logits and of the teacher's over the temperature; the largest so far kept apart
        top = float("-inf")
        total = 0.0
        summed = 0.0
        soft_top = float("-inf")
        soft_total = 0.0
        taught_top = float("-inf")
        taught_total = 0.0
        apart = 0.0
        for start in range(0, V, N):
            inside = start + tl.arange(0, N) < V
            z = _block(Z, BIAS, start, V, BIASED, N)
            higher = tl.maximum(top, tl.max(z, 0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), 0)
            top = higher
            summed += tl.sum(tl.where(inside, z, 0.0), 0)
            if TAUGHT:
                y = _block(TAUGHT_LOGITS + row * V, TAUGHT_BIAS, start, V, TAUGHT_BIASED, N) / temperature
                soft = z / temperature
                soft_higher = tl.maximum(soft_top, tl.max(soft, 0))
                soft_total = soft_total * tl.exp(soft_top - soft_higher) + tl.sum(tl.exp(soft - soft_higher), 0)
                soft_top = soft_higher
                taught_higher = tl.maximum(taught_top, tl.max(y, 0))
                shrunk = tl.exp(taught_top - taught_higher)
                mass = tl.exp(y - taught_higher)
                taught_total = taught_total * shrunk + tl.sum(mass, 0)
                apart = apart * shrunk + tl.sum(tl.where(inside, mass * (y - soft), 0.0), 0)
                taught_top = taught_higher
        log_total = top + tl.log(total)
        share = smoothing / V
        tl.store(LOSS + row, log_total - (1.0 - smoothing) * gold - share * summed)
        soft_log = soft_top
        taught_log = taught_top
        if TAUGHT:
            soft_log = soft_top + tl.log(soft_total)
            taught_log = taught_top + tl.log(taught_total)
            divergence = apart / taught_total - taught_log + soft_log
            tl.store(DIVERGENCE + row, divergence * temperature * temperature)
        if GRADIENT:
            for start in range(0, V, N):
                column = start + tl.arange(0, N)
                z = _block(Z, BIAS, start, V, BIASED, N)
                grad = tl.exp(z - log_total) - share
                grad = tl.where(column == label, grad - (1.0 - smoothing), grad)
                if TAUGHT:
                    y = _block(TAUGHT_LOGITS + row * V, TAUGHT_BIAS, start, V, TAUGHT_BIASED, N) / temperature
                    apart_here = tl.exp(z / temperature - soft_log) - tl.exp(y - taught_log)
                    grad = (grad + weight * temperature * apart_here) / (1.0 + weight)
                tl.store(Z + column, grad.to(LOGITS.dtype.element_ty), mask=column < V)
