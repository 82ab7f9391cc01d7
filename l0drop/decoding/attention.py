"""Attention for rows that share keys: the beams of a sentence are query positions on one memory.

Registered under a name of its own with transformers' attention interface; models that do not ask for it by that name
never meet it.

Shapes: B sentences, k beams, R = B·k rows, H heads, T query positions, S keys, D head width.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "l0drop_folded"


def folded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query [R, H, T, D] on keys and values [B, H, S, D], row r attending to sentence r // k; mask [B, 1, 1, S].

    No mask stands for attending to every key: one new position attends to all before it.
    """
    R, H, T, D = query.shape
    B = key.shape[0]
    mask = attention_mask
    if position_bias is not None:
        bias = position_bias[:, :, -T:]
        mask = bias if mask is None else bias + mask
    if R == B:
        out_RHTD = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
        return out_RHTD.transpose(1, 2), None
    k = R // B
    assert T == 1, "beams are folded into the query positions of one step"
    query_BHkD = query.view(B, k, H, D).transpose(1, 2)
    out_BHkD = F.scaled_dot_product_attention(query_BHkD, key, value, attn_mask=mask, scale=scaling)
    return out_BHkD.transpose(1, 2).reshape(R, 1, H, D), None


AttentionInterface.register(NAME, folded_attention)
