"""Attention for rows that share keys: the beams of a sentence are query positions on one memory.

So it is with the target as well: the beams of a sentence share one store of what any of them has written, and `among`
says which of it each of them descends from. Nothing is copied when beams are chosen anew.

Registered under a name of its own with transformers' attention interface; models that do not ask for it by that name
never meet it.

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

TURNED_FROM = 128
LONGEST_BLOCK = 640
"""From so many keys on values are turned round, and in how large blocks at most; beyond that it is slower than not."""


class Ancestry(NamedTuple):
    """Which of the keys of the target so far a beam descends from.

    bias: [B, 1, k, S], 0 where it does, -inf elsewhere. position: [B, S], where in the target each key stands.
    """

    bias: Tensor
    position: Tensor


_ANCESTRY: ContextVar[Ancestry | None] = ContextVar("ancestry", default=None)


@contextmanager
def among(known: Ancestry | None) -> Iterator[None]:
    """Inside, self-attention goes by this; None stands for every row attending to all its keys, in order."""
    token = _ANCESTRY.set(known)
    try:
        yield
    finally:
        _ANCESTRY.reset(token)


def ancestry() -> Ancestry | None:
    """What self-attention goes by now."""
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

    No mask stands for self-attention: one new position attends to all that it descends from.
    """
    R, H, T, D = query.shape
    B = key.shape[0]
    mask = attention_mask
    known = ancestry() if mask is None else None
    if known is not None:
        mask = known.bias
        if position_bias is not None:  # by position, where keys stand in the order they were written
            position_bias = position_bias[0, :, -1][:, known.position].transpose(0, 1)[:, :, None]
    if position_bias is not None:
        bias = position_bias[:, :, -T:]
        mask = bias if mask is None else bias + mask
    k = R // B
    assert k == 1 or T == 1, "beams are folded into the query positions of one step"
    query_BHqD = query if k == 1 else query.view(B, k, H, D).transpose(1, 2)
    return attend(query_BHqD, key, value, mask, scaling).transpose(1, 2).reshape(R, T, H, D), None


def turns(states_BSD: Tensor) -> tuple[int, int]:
    """In how many blocks, of how many keys, values of these states are turned round; (0, 0) where they are not."""
    keys = states_BSD.shape[1]
    if keys < TURNED_FROM or not _by_products(states_BSD):
        return 0, 0
    count = -(-keys // LONGEST_BLOCK)
    return count, -(-keys // count)


def _by_products(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Attention of a few query positions: [B, H, q, D].

    On a CPU, the product of keys by queries has many rows where that of queries by keys has few; for one to eight
    queries this takes two thirds of the time of torch's fused attention, which is made for as many queries as keys.
    So it is with values that are turned round, [B, n, H, D, s]: a third less again.
    """
    if not _by_products(query):
        mask = None if mask is None else mask.to(query.dtype)  # a GPU takes no other
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    B, H, q, D = query.shape
    scaled_GqD = (query * (D**-0.5 if scaling is None else scaling)).reshape(B * H, q, D)
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
