"""Attention over short sentences as one small GPU kernel per direction, in Triton; imported on a GPU only.

The kernels of large models split queries and keys into tiles and read them several times. Here a sentence of up to
`TILE` tokens is one tile: one program per sentence and head reads its queries, keys and values once. The backward
kernel recomputes the weights instead of storing them. All batches and lengths run the same code, so a new shape needs
no new plan.

Shapes: B sentences, T queries, S keys, H heads, D width of a head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from l0drop.core.hard_concrete import keyed_uniforms

TILE = 128
LONGEST = 2 * TILE
"""Lengths above a tile use torch's attention, up to this one; compiled layers are the same for all lengths up to it."""
WIDTHS = (16, 32, 64, 128)


def fits(query_BTHD: Tensor, key_BSHD: Tensor) -> bool:
    """Whether these are short, and of a dtype that the kernel multiplies without rounding."""
    return (
        query_BTHD.dtype in (torch.bfloat16, torch.float16)
        and query_BTHD.shape[3] in WIDTHS
        and query_BTHD.shape[1] <= LONGEST
        and key_BSHD.shape[1] <= LONGEST
    )


def short_attention(
    query_BTHD: Tensor,
    key_BSHD: Tensor,
    value_BSHD: Tensor,
    bias_BS: Tensor | None = None,
    *,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """softmax(query · keyᵀ · scale + bias) · value, [B, T, H, D]; `causal`: query t sees keys up to t.

    seed: a 32-bit integer that determines the dropout mask; None without dropout.
    """
    return _ShortAttention.apply(query_BTHD, key_BSHD, value_BSHD, bias_BS, seed, causal, scale, dropout)


@triton.jit
def _weights(q, k, bias, scale, S, HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """softmax(q·kᵀ · scale + bias) of one sentence and head, [N, N] in float32."""
    row = tl.arange(0, N)[:, None]
    column = tl.arange(0, N)[None, :]
    scores = tl.dot(q, tl.trans(k)) * scale
    if HAS_BIAS:
        scores += bias[None, :]
    seen = column < S
    if CAUSAL:
        seen = seen & (column <= row)
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _mixed(x):  # type: ignore[no-untyped-def]
    """A bijection on 32-bit integers whose output bits look independent (lowbias32)."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _survival(SEED, dropout, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """[N, N], the dropout factors of the weights: 0 or 1 / (1 - dropout), a function of seed, program and position."""
    position = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    key = _mixed(tl.load(SEED).to(tl.uint32) + _mixed(tl.program_id(0).to(tl.uint32)))
    draw = _mixed(position.to(tl.uint32) + key)
    return tl.where((draw >> 8).to(tl.float32) * (1.0 / (1 << 24)) < dropout, 0.0, 1.0 / (1.0 - dropout))


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    Q, K, V, BIAS, OUT, SEED, T, S, H, scale, dropout,
    DROPS: tl.constexpr, HAS_BIAS: tl.constexpr, CAUSAL: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    row, d = tl.arange(0, N), tl.arange(0, D)
    at_query, at_key = (row < T)[:, None], (row < S)[:, None]
    of_query = ((b * T + row[:, None]) * H + h) * D + d[None, :]
    of_key = ((b * S + row[:, None]) * H + h) * D + d[None, :]
    q = tl.load(Q + of_query, mask=at_query, other=0.0)
    k = tl.load(K + of_key, mask=at_key, other=0.0)
    v = tl.load(V + of_key, mask=at_key, other=0.0)
    bias = tl.load(BIAS + b * S + row, mask=row < S, other=0.0).to(tl.float32) if HAS_BIAS else 0.0
    weights = _weights(q, k, bias, scale, S, HAS_BIAS, CAUSAL, N)
    if DROPS:
        weights *= _survival(SEED, dropout, N)
    tl.store(OUT + of_query, tl.dot(weights.to(v.dtype), v).to(OUT.dtype.element_ty), mask=at_query)


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    GRAD, Q, K, V, BIAS, DQ, DK, DV, DBIAS, SEED, T, S, H, scale, dropout,
    DROPS: tl.constexpr, HAS_BIAS: tl.constexpr, BIAS_GRADIENT: tl.constexpr, CAUSAL: tl.constexpr,
    N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    row, d = tl.arange(0, N), tl.arange(0, D)
    at_query, at_key = (row < T)[:, None], (row < S)[:, None]
    of_query = ((b * T + row[:, None]) * H + h) * D + d[None, :]
    of_key = ((b * S + row[:, None]) * H + h) * D + d[None, :]
    q = tl.load(Q + of_query, mask=at_query, other=0.0)
    k = tl.load(K + of_key, mask=at_key, other=0.0)
    v = tl.load(V + of_key, mask=at_key, other=0.0)
    grad = tl.load(GRAD + of_query, mask=at_query, other=0.0)
    bias = tl.load(BIAS + b * S + row, mask=row < S, other=0.0).to(tl.float32) if HAS_BIAS else 0.0
    weights = _weights(q, k, bias, scale, S, HAS_BIAS, CAUSAL, N)
    d_weights = tl.dot(grad, tl.trans(v))
    used = weights
    if DROPS:
        survival = _survival(SEED, dropout, N)
        used = weights * survival
        d_weights *= survival
    dv = tl.dot(tl.trans(used.to(grad.dtype)), grad)
    tl.store(DV + of_key, dv.to(DV.dtype.element_ty), mask=at_key)
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None])
    if BIAS_GRADIENT:
        tl.store(DBIAS + (b * H + h) * S + row, tl.sum(d_scores, 0), mask=row < S)
    d_scores = d_scores.to(q.dtype)
    tl.store(DQ + of_query, (tl.dot(d_scores, k) * scale).to(DQ.dtype.element_ty), mask=at_query)
    tl.store(DK + of_key, (tl.dot(tl.trans(d_scores), q) * scale).to(DK.dtype.element_ty), mask=at_key)


def _tile(query: Tensor, key: Tensor) -> dict[str, Any]:
    tile = max(16, triton.next_power_of_2(max(query.shape[1], key.shape[1])))
    return {"N": tile, "D": query.shape[3], "num_warps": {16: 1, 32: 2, 64: 4, 128: 8}[tile]}


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> Tensor:
    if max(query.shape[1], key.shape[1]) > TILE:
        return _by_torch(query, key, value, bias, seed, causal, scale, dropout).contiguous()
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = torch.empty_like(query)
    B, T, H, _ = query.shape
    _forward_kernel[(B * H,)](
        query, key, value, bias, out, seed, T, key.shape[1], H, scale, dropout,
        DROPS=seed is not None, HAS_BIAS=bias is not None, CAUSAL=causal, **_tile(query, key),
    )  # fmt: skip
    return out


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (B, T, H, _), S = query.shape, key.shape[1]
    d_bias = query.new_empty((B, H, S) if bias_gradient else (0, 0, 0), dtype=torch.float32)
    if max(T, S) > TILE:
        q, k, v = inputs = [x.detach().requires_grad_() for x in (query, key, value)]
        if bias is not None and bias_gradient:
            bias = bias.detach().requires_grad_()
            inputs.append(bias)
        with torch.enable_grad():
            again = _by_torch(q, k, v, bias, seed, causal, scale, dropout)
            found = torch.autograd.grad(again, inputs, grad)
        if bias_gradient:
            d_bias.zero_()[:, 0] = found[3]
        dq, dk, dv = (gradient.contiguous() for gradient in found[:3])
        return dq, dk, dv, d_bias
    grad, query, key, value = grad.contiguous(), query.contiguous(), key.contiguous(), value.contiguous()
    bias = None if bias is None else bias.contiguous()
    dq, dk, dv = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    _backward_kernel[(B * H,)](
        grad, query, key, value, bias, dq, dk, dv, d_bias, seed, T, S, H, scale, dropout,
        DROPS=seed is not None, HAS_BIAS=bias is not None, BIAS_GRADIENT=bias_gradient, CAUSAL=causal,
        **_tile(query, key),
    )  # fmt: skip
    return dq, dk, dv, d_bias


def _by_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> Tensor:
    """The same attention for lengths above a tile; the dropout mask is a function of the seed too."""
    mask = None if bias is None else bias[:, None, None].to(query.dtype)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if seed is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale).transpose(1, 2)
    scores = q @ k.transpose(2, 3) * scale
    scores = scores if mask is None else scores + mask
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:]).triu(1) == 1, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
    positions = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
    draw = keyed_uniforms(seed.to(torch.int64), positions.view(1, -1)).view(weights.shape)
    return (torch.where(draw < dropout, 0, weights / (1 - dropout)) @ v).transpose(1, 2)


_library = torch.library.Library("l0drop", "DEF")
_TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? seed, bool causal, float scale, float dropout"
_library.define(f"short_attention({_TENSORS}) -> Tensor")
_library.define(
    f"short_attention_backward(Tensor grad, {_TENSORS}, bool bias_gradient) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.impl("short_attention", _forward, "CompositeExplicitAutograd")
_library.impl("short_attention_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("l0drop::short_attention", lib=_library)
def _(query: Tensor, *others: Any) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.register_fake("l0drop::short_attention_backward", lib=_library)
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    shape = (query.shape[0], query.shape[2], key.shape[1]) if others[-1] else (0, 0, 0)
    new = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
    return *new, query.new_empty(shape, dtype=torch.float32)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.causal, ctx.scale, ctx.dropout = inputs
        ctx.save_for_backward(*tensors)
        return torch.ops.l0drop.short_attention(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3]
        settings = (ctx.causal, ctx.scale, ctx.dropout, wanted)
        tensors = ctx.saved_tensors
        dq, dk, dv, d_bias = torch.ops.l0drop.short_attention_backward(grad, *tensors, *settings)
        return dq, dk, dv, d_bias.sum(1).to(tensors[3].dtype) if wanted else None, None, None, None, None
