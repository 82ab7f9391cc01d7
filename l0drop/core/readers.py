"""Learned gates that read more than one vector through one weight: several encoder layers, or a small network.

Both start with all gates equal, as the learned gate does, and share its sampling, test-time gate and threshold.

Shapes: B sentences, N source positions, L layers, D model width, W width of the network.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l0drop.core.gates import STATES, Gates, LearnedGate, register_gate


@register_gate("layers")
class LayersGate(LearnedGate):
    """log α = Σ_l norm(x_l) · w_l + b over the outputs x_l of some encoder layers (Eq. 9 for more than the last one).

    layers: which ones, counted from 1; 0 is the input of the first layer. The norm brings each x_l to zero mean and
    unit variance, because the outputs of different layers differ in size.
    """

    def __init__(
        self,
        width: int,
        layers: Sequence[int],
        beta: float = 2 / 3,
        epsilon: float = 0.1,
        start: float | None = None,
    ) -> None:
        fine = isinstance(layers, Sequence) and all(type(layer) is int and layer >= 0 for layer in layers)
        if not fine or len(set(layers)) != len(layers) or not layers:
            raise ValueError(f"layers: expected a list of different layers, counted from 1 (0: input), got {layers!r}")
        super().__init__(width * len(layers), beta, epsilon, start)
        self.reads = tuple(layers)

    def forward(
        self,
        encodings: Tensor,
        mask: Tensor,
        input_ids: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
    ) -> Gates:
        if hints is None or STATES not in hints:
            raise ValueError(f"hints: the gate needs {STATES!r}, the outputs of encoder layers {list(self.reads)}")
        return super().forward(hints[STATES], mask, input_ids, hints)

    def log_alpha(self, x_BNLD: Tensor) -> Tensor:
        normal_BNLD = F.layer_norm(x_BNLD, x_BNLD.shape[-1:])
        return normal_BNLD.flatten(2) @ self.weight.to(x_BNLD.dtype) + self.bias.to(x_BNLD.dtype)

    def graph_key(self) -> None:
        """A captured encoder gives its last output only."""


@register_gate("network")
class NetworkGate(LearnedGate):
    """log α = GELU(norm(x) · U + c) · w + b: a network with one hidden layer in place of one vector (Eq. 9).

    hidden: W, the width of the hidden layer. It has D · W + 2 W + 1 parameters and takes about 2 D · W floating-point
    operations per encoding. The norm brings x to zero mean and unit variance.
    """

    def __init__(
        self, width: int, hidden: int = 64, beta: float = 2 / 3, epsilon: float = 0.1, start: float | None = None
    ) -> None:
        if type(hidden) is not int or hidden < 1:
            raise ValueError(f"hidden: expected a positive whole number, got {hidden!r}")
        super().__init__(hidden, beta, epsilon, start)
        self.inner = nn.Linear(width, hidden, dtype=torch.float32)

    def log_alpha(self, x_BND: Tensor) -> Tensor:
        dtype = x_BND.dtype
        normal_BND = F.layer_norm(x_BND, x_BND.shape[-1:])
        hidden_BNW = F.gelu(F.linear(normal_BND, self.inner.weight.to(dtype), self.inner.bias.to(dtype)))
        return hidden_BNW @ self.weight.to(dtype) + self.bias.to(dtype)

    def graph_key(self) -> tuple[Any, ...]:
        return self.beta, self.epsilon
