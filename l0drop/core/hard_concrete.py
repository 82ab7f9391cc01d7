"""The hard-concrete distribution of Louizos et al., as used in the paper (Eq. 6 to 10 and 13). Pure functions.

A gate is a binary-concrete variable with location log α and temperature β, stretched from (0, 1) to (-ε, 1+ε) and
clipped to [0, 1], so that it is exactly 0 and exactly 1 with positive probability.

Everything is computed in at least float32; float64 stays float64. Shapes: B sentences, N source positions; log α may
have any shape.
"""

import math
from typing import Any

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers, as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def threshold(epsilon: float) -> float:
    """t = ln((1+ε)/ε): the test-time gate is 0 exactly if log α <= -t, and 1 exactly if log α >= t."""
    return math.log((1 + epsilon) / epsilon)


def sample(
    log_alpha: Tensor, uniforms: Tensor, beta: float, epsilon: float, noise_scale: Tensor | None = None
) -> Tensor:
    """A gate in [0, 1], sampled with `uniforms` and differentiable in log α (Eq. 6-8).

    noise_scale: s in [0, 1]. The noise is multiplied by s, and β becomes 1 - s · (1 - β): 1 is Eq. 6-8 (as None), 0 the
    test-time gate (Eq. 13).
    """
    log_alpha = wide(log_alpha)
    edge = torch.finfo(log_alpha.dtype).eps
    noise = torch.logit(uniforms.to(log_alpha.dtype).clamp(edge, 1 - edge))
    if noise_scale is None:
        concrete = torch.sigmoid((noise + log_alpha) / beta)
    else:
        concrete = torch.sigmoid((noise_scale * noise + log_alpha) / (1 - noise_scale * (1 - beta)))
    return (concrete * (1 + 2 * epsilon) - epsilon).clamp(0, 1)


def test_time_gate(log_alpha: Tensor, epsilon: float) -> Tensor:
    """ĝ = min(1, max(0, σ(log α)(1+2ε) - ε)) (Eq. 13), exactly 0 and 1 from ∓`threshold` on, despite rounding."""
    log_alpha = wide(log_alpha)
    between = torch.sigmoid(log_alpha) * (1 + 2 * epsilon) - epsilon
    between = between.clamp(torch.finfo(log_alpha.dtype).eps, 1)
    return between.masked_fill(closed(log_alpha, epsilon), 0).masked_fill(log_alpha >= threshold(epsilon), 1)


def closed(log_alpha: Tensor, epsilon: float) -> Tensor:
    """Where the test-time gate is exactly 0."""
    return wide(log_alpha) <= -threshold(epsilon)


def open_probability(log_alpha: Tensor, beta: float, epsilon: float) -> Tensor:
    """P(gate ≠ 0) = 1 - σ(β log(ε/(1+ε)) - log α) of a sampled gate, the term of the penalty (Eq. 10), accurate even
    if tiny."""
    return torch.sigmoid(wide(log_alpha) + beta * threshold(epsilon))


def bounded(log_alpha: Tensor, limit: float) -> Tensor:
    """log α clipped to ±`limit`, with a gradient that can always lead back inside.

    Beyond the limit a gate is open or closed in nearly every sample and gets almost no gradient: it would drift away
    and never return. Outside the limit, gradients that lead further out are set to 0; the others pass.
    """
    return _Bounded.apply(log_alpha, limit)


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_alpha: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(log_alpha)
        ctx.limit = limit
        return log_alpha.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (log_alpha,) = ctx.saved_tensors
        # descent moves against the gradient: above the limit a negative one would move further up
        outward = ((log_alpha > ctx.limit) & (gradient < 0)) | ((log_alpha < -ctx.limit) & (gradient > 0))
        return gradient.masked_fill(outward, 0), None


def keyed_uniforms(key_B: Tensor, position_BN: Tensor, stream: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniforms in (0, 1), each a function of its sentence's key, its position and the stream alone.

    Counter-based: there is no generator, so the numbers do not depend on the batch, the process or the device, and a
    recomputation gives the same ones. Use different keys for independent draws of one sentence, and different streams
    for independent gates on it (layer by layer).
    """
    row_B = _mix(_mix(key_B.to(torch.int64)) + stream + 1)
    bits_BN = _mix(row_B[:, None] + (position_BN.to(torch.int64) + 1) * _GOLDEN)
    digits = 52 if dtype == torch.float64 else 23  # one bit fewer than the significand, so that + 0.5 stays exact
    integer_BN = _logical_right_shift(bits_BN, 64 - digits)
    return (integer_BN.to(dtype) + 0.5) * 2.0**-digits


def keyed_uniform(key_B: Tensor, stream: int) -> Tensor:
    """[B], one such number per sentence."""
    return keyed_uniforms(key_B, torch.zeros_like(key_B)[:, None], stream)[:, 0]


def wide(x: Tensor) -> Tensor:
    """`x` in the precision of gates: float64 stays, everything else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finalizer: a bijection on 64-bit integers whose output bits look independent."""
    z = (z ^ _logical_right_shift(z, 30)) * _MIX_1
    z = (z ^ _logical_right_shift(z, 27)) * _MIX_2
    return z ^ _logical_right_shift(z, 31)


def _logical_right_shift(z: Tensor, by: int) -> Tensor:
    # torch has no unsigned 64-bit arithmetic; >> on int64 repeats the sign bit.
    return (z >> by) & ((1 << (64 - by)) - 1)
