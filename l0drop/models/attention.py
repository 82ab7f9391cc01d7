"""Our attention implementations, registered with Hugging Face, and which implementations add a memory's bias.

Shapes: B sentences, S keys.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

_THEIRS = ("sdpa", "eager")
_OURS: set[str] = set()


def register_attention(name: str, attention: Callable[..., Any], mask: Callable[..., Tensor | None]) -> None:
    """Register an attention function that adds a bias [B, 1, 1, S] of any floating dtype, and the maker of its mask."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    _OURS.add(name)


def padding_bias(is_real_BS: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, 1, S], to be added to scores: -inf on padding."""
    bias_BS = torch.zeros(is_real_BS.shape, dtype=dtype, device=is_real_BS.device)
    return bias_BS.masked_fill(~is_real_BS, -torch.inf)[:, None, None]


def check_adds_bias(implementation: str) -> None:
    """Raise ValueError if an attention implementation cannot add a bias to cross-attention."""
    if implementation not in _THEIRS and implementation not in _OURS:
        raise ValueError(
            f"attn_implementation: {implementation!r} cannot add a bias to cross-attention; load the model with "
            'attn_implementation="sdpa" or "eager"'
        )


def needs_bias_like_states(implementation: str) -> bool:
    """Whether the bias must have the states' dtype.

    Eager attention returns the type of the sum; sdpa on a GPU accepts no other type.
    """
    return implementation in _THEIRS
