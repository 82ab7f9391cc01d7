"""The output layer and its loss in one step, some rows at a time: all logits never stand in memory at once.

The forward pass takes each chunk's logits to its share of the gradients and lets go of them; backward only scales what
is there. Shapes: R rows, one per real target token; D model width; V vocabulary. Everything beside the products is
computed in float32; float64 stays float64.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 2**30
"""Of one chunk's logits: large enough for full speed on a large GPU, small beside the activations of a step."""

Rows = Callable[[Tensor, Tensor | None, Tensor, float, bool], tuple[Tensor, Tensor | None]]


def linear_cross_entropy_sum(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    labels_R: Tensor,
    *,
    bias_V: Tensor | None = None,
    smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
    chunk: int | None = None,
    compiled: bool = False,
) -> Tensor:
    """Label-smoothed cross-entropy of `hidden · weightᵀ + bias`, summed; smoothing spreads over the whole vocabulary.

    dtype: of the three products, for mixed precision; left out, that of `hidden`. chunk: rows at a time; left out, what
    fits `CHUNK_BYTES`. compiled: the part between the products as one kernel.
    """
    dtype = hidden_RD.dtype if dtype is None else dtype
    if chunk is None:
        parts = -(-len(labels_R) * len(weight_VD) * dtype.itemsize // CHUNK_BYTES)
        chunk = max(1, -(-len(labels_R) // max(1, parts)))
    rows = _compiled_rows() if compiled else _rows
    settings = (smoothing, dtype, chunk, rows, torch.is_grad_enabled())
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
        rows: Rows,
        differentiable: bool,
    ) -> Tensor:
        of_hidden, of_weight, of_bias = (wanted and differentiable for wanted in ctx.needs_input_grad[:3])
        h_RD, w_VD, wide = hidden_RD.to(dtype), weight_VD.to(dtype), _wide(dtype)
        total = torch.zeros((), dtype=wide, device=h_RD.device)
        grad_hidden = torch.empty_like(h_RD) if of_hidden else None
        grad_weight = torch.zeros_like(w_VD, dtype=wide) if of_weight else None
        grad_bias = torch.zeros_like(w_VD[:, 0], dtype=wide) if of_bias else None
        for start in range(0, len(labels_R), chunk):
            part = slice(start, start + chunk)
            logits_RV = h_RD[part] @ w_VD.T
            loss, grad_RV = rows(logits_RV, bias_V, labels_R[part], smoothing, of_hidden or of_weight or of_bias)
            del logits_RV
            total += loss
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
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *(None if gradient is None else gradient.to(dtype) * scale for gradient, dtype in gradients), *[None] * 6


def _rows(
    logits_RV: Tensor, bias_V: Tensor | None, labels_R: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The rows' summed loss, (1-s) · (lse - z_gold) + s · (lse - mean z), and its gradient in z."""
    z_RV = logits_RV.to(_wide(logits_RV.dtype))
    if bias_V is not None:
        z_RV = z_RV + bias_V
    share = smoothing / z_RV.shape[1]
    lse_R1 = z_RV.logsumexp(1, keepdim=True)
    gold_R1 = z_RV.gather(1, labels_R[:, None])
    loss = (lse_R1 - (1 - smoothing) * gold_R1 - share * z_RV.sum(1, keepdim=True)).sum()
    if not gradient:
        return loss, None
    is_gold_RV = torch.arange(z_RV.shape[1], device=z_RV.device) == labels_R[:, None]
    grad_RV = (z_RV - lse_R1).exp() - share
    return loss, torch.where(is_gold_RV, grad_RV - (1 - smoothing), grad_RV).to(logits_RV.dtype)


@functools.cache
def _compiled_rows() -> Rows:
    compiled = torch.compile(_rows)

    def rows(logits_RV: Tensor, bias_V: Tensor | None, labels_R: Tensor, smoothing: float, gradient: bool) -> Any:
        for tensor in (logits_RV, labels_R):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)  # every batch has another number of rows
        return compiled(logits_RV, bias_V, labels_R, smoothing, gradient)

    return rows


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a · b, summed in the precision of `total`, which products of lower precision are not on a CPU."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
