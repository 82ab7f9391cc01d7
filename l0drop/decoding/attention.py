"""Attention for beams that share keys: the beams of a sentence are query positions on one memory.

The beams of a sentence also share one store of target keys. `use_ancestry` says which of them each beam descends from,
so nothing is copied when beams are reordered.

Registered under a separate name in transformers' attention interface, so other models are not affected.

Shapes: B sentences, k beams, R = B·k rows, H heads, T query positions, S keys, D head width; n blocks of s keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "l0drop_folded"

TRANSPOSE_FROM = 128
LONGEST_BLOCK = 640
"""Values are stored transposed from this number of keys on, in blocks of at most this size; otherwise it is slower."""


class Ancestry(NamedTuple):
    """The target keys that each beam descends from.

    bias: [B, 1, k, S], 0 for these keys, -inf for others. position: [B, S], the target position of each key.
    """

    bias: Tensor
    position: Tensor


_ANCESTRY: ContextVar[Ancestry | None] = ContextVar("ancestry", default=None)


@contextmanager
def use_ancestry(ancestry: Ancestry | None) -> Iterator[None]:
    """Restrict self-attention to these keys; with None every row attends to all its keys, in order."""
    token = _ANCESTRY.set(ancestry)
    try:
        yield
    finally:
        _ANCESTRY.reset(token)


def current_ancestry() -> Ancestry | None:
    return _ANCESTRY.get()


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

    Without a mask it is self-attention: one new position attends to all keys that it descends from.
    """
    R, H, T, D = query.shape
    B = key.shape[0]
    mask = attention_mask
    ancestry = current_ancestry() if mask is None else None
    if ancestry is not None:
        mask = ancestry.bias
        if position_bias is not None:  # the bias is by target position, but keys are in the order of writing
            position_bias = position_bias[0, :, -1][:, ancestry.position].transpose(0, 1)[:, :, None]
    if position_bias is not None:
        bias = position_bias[:, :, -T:]
        mask = bias if mask is None else bias + mask
    k = R // B
    assert k == 1 or T == 1, "beams become the query positions of one step"
    query_BHqD = query if k == 1 else query.view(B, k, H, D).transpose(1, 2)
    return attend(query_BHqD, key, value, mask, scaling).transpose(1, 2).reshape(R, T, H, D), None


def value_blocks(states_BSD: Tensor) -> tuple[int, int]:
    """Number and size of the blocks in which these states' values are stored transposed; (0, 0) if they are not."""
    keys = states_BSD.shape[1]
    if keys < TRANSPOSE_FROM or not _uses_bmm(states_BSD):
        return 0, 0
    count = -(-keys // LONGEST_BLOCK)
    return count, -(-keys // count)


def _uses_bmm(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Attention of a few query positions: [B, H, q, D].

    On a CPU, multiplying keys by queries is faster than queries by keys, because the result has many rows. For one to
    eight queries it takes two thirds of the time of torch's fused attention, which is optimized for as many queries as
    keys. Transposed values, [B, n, H, D, s], save another third.
    """
    if not _uses_bmm(query):
        mask = None if mask is None else mask.to(query.dtype)  # a GPU requires this dtype
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    B, H, q, D = query.shape
    scale = D**-0.5 if scaling is None else scaling
    scaled_GqD = (query if scale == 1 else query * scale).reshape(B * H, q, D)
    scores_GSq = torch.bmm(key.flatten(0, 1), scaled_GqD.transpose(1, 2))
    scores_BHqS = scores_GSq.transpose(1, 2).contiguous().view(B, H, q, -1)
    if mask is not None:
        scores_BHqS += mask
    weights_BHqS = scores_BHqS.softmax(-1)
    if value.dim() == 4:
        return torch.bmm(weights_BHqS.flatten(0, 1), value.flatten(0, 1)).view(B, H, q, D)
    n, s = value.shape[1], value.shape[-1]
    missing = n * s - weights_BHqS.shape[-1]
    blocks = F.pad(weights_BHqS, (0, missing)) if missing else weights_BHqS
    blocks_NHqs = blocks.unflatten(-1, (n, s)).permute(0, 3, 1, 2, 4).reshape(B * n * H, q, s)
    sums = torch.bmm(value.flatten(0, 2), blocks_NHqs.transpose(1, 2)).view(B, n, H, D, q)
    return (sums[:, 0] if n == 1 else sums.sum(1)).transpose(2, 3)


AttentionInterface.register(NAME, folded_attention)
