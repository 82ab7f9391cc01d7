"""The attention that source positions receive in the encoder's last layer, for shorteners that ask for it.

Fused attention returns no weights, and Hugging Face's `output_attentions` would need slow attention in every layer. So
the encoder runs as it is, and the weights of its last layer are computed a second time from that layer's input, by the
layer's own attention module in a private view with eager attention. In training they are computed without dropout.

Shapes: B sentences, N source positions, D model width, H heads.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from l0drop.core.hard_concrete import wide
from l0drop.models.attention import padding_bias
from l0drop.models.view import eval_view

LastWeights = Callable[[Any, Tensor, Tensor], Tensor]
"""The weights [B, H, N, N] of an encoder's last self-attention, from the last layer's input and the padding's bias."""


def of_post_norm(encoder: Any, x_BND: Tensor, bias: Tensor) -> Tensor:
    """In layers that end in a norm, as Marian's and BART's."""
    return _with_eager_attention(encoder.layers[-1].self_attn)(x_BND, attention_mask=bias)[-1]


def of_pre_norm(encoder: Any, x_BND: Tensor, bias: Tensor) -> Tensor:
    """In layers that begin with a norm, as mBART's, M2M100's and PEGASUS's."""
    return of_post_norm(encoder, encoder.layers[-1].self_attn_layer_norm(x_BND), bias)


def of_relative_positions(encoder: Any, x_BND: Tensor, bias: Tensor) -> Tensor:
    """In T5's layers, which begin with a norm and share the first layer's biases for relative positions."""
    first, last = encoder.block[0].layer[0], encoder.block[-1].layer[0]
    positions = first.SelfAttention.compute_bias(*x_BND.shape[1:2] * 2, device=x_BND.device)
    attention = _with_eager_attention(last.SelfAttention)
    return attention(last.layer_norm(x_BND), mask=bias, position_bias=positions)[-1]


@torch.no_grad()
def attention_received(weights: LastWeights, encoder: Any, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
    """[B, N], the attention that each position receives, averaged over heads and real queries; 0 on padding."""
    weights_BHNN = wide(weights(encoder, x_BND, padding_bias(mask_BN, x_BND.dtype)))
    weights_BNN = weights_BHNN.mean(1).masked_fill(~mask_BN[:, :, None], 0)
    return weights_BNN.sum(1) / mask_BN.sum(1, keepdim=True)


def _with_eager_attention(attention: nn.Module) -> Any:
    view = eval_view(attention)
    config = copy.copy(view.config)
    config._attn_implementation = "eager"
    view.__dict__["config"] = config
    return view
