"""The attention that source positions receive in the encoder's last layer, for shorteners that ask for it.

Fused attention returns no weights, and Hugging Face's `output_attentions` would need slow attention in every layer. So
the encoder runs as it is, and the weights of its last layer are computed a second time from that layer's input, by the
layer's own attention module in a private view with eager attention. In training they are computed without dropout.

The input is noted by a stand-in for the last layer, in a view of the encoder that serves one call. Hugging Face's
`output_hidden_states` would install hooks on all layers, at which a compiled layer breaks.

Shapes: B sentences, N source positions, D model width, H heads.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from l0drop.core.hard_concrete import wide
from l0drop.models.attention import padding_bias
from l0drop.models.view import eval_view


@dataclass(frozen=True)
class LastAttention:
    """The last self-attention of a kind of encoder.

    layers: the encoder's attribute with its layers.
    weights: the attention's weights [B, H, N, N], from the encoder, the last layer's input and the bias of padding.
    """

    layers: str
    weights: Callable[[Any, Tensor, Tensor], Tensor]


def _of_post_norm(encoder: Any, x_BND: Tensor, bias: Tensor) -> Tensor:
    return _with_eager_attention(encoder.layers[-1].self_attn)(x_BND, attention_mask=bias)[-1]


def _of_pre_norm(encoder: Any, x_BND: Tensor, bias: Tensor) -> Tensor:
    return _of_post_norm(encoder, encoder.layers[-1].self_attn_layer_norm(x_BND), bias)


def _of_relative_positions(encoder: Any, x_BND: Tensor, bias: Tensor) -> Tensor:
    first, last = encoder.block[0].layer[0], encoder.block[-1].layer[0]
    N = x_BND.shape[1]
    positions = first.SelfAttention.compute_bias(N, N, device=x_BND.device)  # all layers share the first one's
    attention = _with_eager_attention(last.SelfAttention)
    return attention(last.layer_norm(x_BND), mask=bias, position_bias=positions)[-1]


POST_NORM = LastAttention("layers", _of_post_norm)
"""Layers that end in a norm: Marian, BART."""
PRE_NORM = LastAttention("layers", _of_pre_norm)
"""Layers that begin with a norm: mBART, M2M100, PEGASUS."""
RELATIVE_POSITIONS = LastAttention("block", _of_relative_positions)
"""Layers that begin with a norm and share biases for relative positions: T5."""


class LayerWithNotedInput(nn.Module):
    """Stands in for an encoder layer during one call, and notes its input."""

    noted: Tensor

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: Tensor, *others: Any, **arguments: Any) -> Any:
        self.noted = states
        return self.layer(states, *others, **arguments)


def noting_last_input(last: LastAttention, encoder: Any) -> tuple[Any, LayerWithNotedInput]:
    """A view of an encoder, and the stand-in for its last layer in it; the encoder itself stays as it is."""
    *before, layer = getattr(encoder, last.layers)
    stand_in = LayerWithNotedInput(layer)
    view = object.__new__(type(encoder))
    vars(view).update(vars(encoder))
    view.__dict__["_modules"] = {**encoder._modules, last.layers: nn.ModuleList([*before, stand_in])}
    return view, stand_in


@torch.no_grad()
def attention_received(last: LastAttention, encoder: Any, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """[B, N], the attention that each position receives, averaged over heads and real queries; 0 on padding.

    x: the input of the last layer.
    """
    weights_BHNN = wide(last.weights(encoder, x_BND, padding_bias(mask_BN, x_BND.dtype)))
    weights_BNN = weights_BHNN.mean(1).masked_fill(~mask_BN[:, :, None], 0)
    return weights_BNN.sum(1) / mask_BN.sum(1, keepdim=True)


def _with_eager_attention(attention: nn.Module) -> Any:
    view = eval_view(attention)
    config = copy.copy(view.config)
    config._attn_implementation = "eager"
    view.__dict__["config"] = config
    return view
