"""Attention for batches of ever changing shapes.

On a GPU, torch prefers cuDNN's attention, which makes a plan for every new shape; that takes many times as long as the
attention itself. And Hugging Face checks whether a mask hides anything, for which the program waits for the GPU.
`ragged_attention` avoids both, through Hugging Face's interface for attention functions.

Shapes: B sentences, T queries, S keys, H heads, D width of a head.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from l0drop.models.attention import padding_bias, register_attention

NAME = "ragged"
"""The name under which this attention is registered with Hugging Face."""


def any_shape(device: torch.device | str) -> AbstractContextManager[Any]:
    """Inside, torch's attention uses kernels that need no plan for a new shape."""
    if torch.device(device).type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


@contextmanager
def ragged_attention(model: Any) -> Iterator[bool]:
    """Inside, a model with `sdpa` attention uses the attention of this module; yields whether it does.

    For training only: targets are padded on the right, so the causal mask hides their padding.
    """
    if model.config._attn_implementation != "sdpa":
        yield False
        return
    model.set_attn_implementation(NAME)
    try:
        with any_shape(model.device):
            yield True
    finally:
        model.set_attn_implementation("sdpa")


@contextmanager
def plain_attention(model: Any) -> Iterator[None]:
    """Inside `ragged_attention`: switch back to the model's own attention, for decoding."""
    ragged = model.config._attn_implementation == NAME
    if ragged:
        model.set_attn_implementation("sdpa")
    try:
        with any_shape(model.device):
            yield
    finally:
        if ragged:
            model.set_attn_implementation(NAME)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The kernel for short sentences if it fits, otherwise torch's attention."""
    if query.is_cuda and position_bias is None and _per_key(attention_mask):
        from l0drop.training.short_attention import fits, short_attention

        q_BTHD, k_BSHD, v_BSHD = (x.transpose(1, 2) for x in (query, key, value))
        causal = attention_mask is None and (module.is_causal if is_causal is None else is_causal)
        if fits(q_BTHD, k_BSHD) and (not causal or q_BTHD.shape[1] == k_BSHD.shape[1]):
            bias_BS = None if attention_mask is None else attention_mask[:, 0, 0]
            scale = q_BTHD.shape[3] ** -0.5 if scaling is None else scaling
            limit = 2**31 - 1
            seed = torch.randint(limit, (1,), dtype=torch.int32, device=query.device) if dropout else None
            out = short_attention(
                q_BTHD, k_BSHD, v_BSHD, bias_BS, causal=causal, scale=scale, dropout=dropout, seed=seed
            )
            return out, None
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        is_causal=is_causal,
        position_bias=position_bias,
        **kwargs,
    )


def _per_key(bias: Tensor | None) -> bool:
    return bias is None or (bias.is_floating_point() and bias.shape[1:3] == (1, 1))


def _mask(
    *, attention_mask: Tensor | None = None, allow_is_causal_skip: bool = False, dtype: Any = None, **kwargs: Any
) -> Tensor | None:
    """[B, 1, 1, S], a bias of the scores, -inf on padding; None for causal attention, which needs no mask."""
    if attention_mask is None or allow_is_causal_skip:
        return None
    return padding_bias(attention_mask, dtype)


register_attention(NAME, _attention, _mask)
