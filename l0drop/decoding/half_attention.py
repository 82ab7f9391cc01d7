"""The encoder's attention in bfloat16, for an engine with int8 linear layers.

At 2,000 tokens an encoder spends most of its time in attention, which int8 linear layers do not speed up. Some
processors multiply twice as fast in bfloat16, but torch's attention on a CPU does not use it; plain matrix products do.
A measurement decides. Scores, weights and outputs are rounded to bfloat16; sums within a product and softmax are not.

Shapes: B sentences, H heads, T queries, S keys, D width of a head.
"""

import copy
import functools
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from l0drop.models.attention import padding_bias, register_attention

NAME = "half"
"""The name of this attention implementation in Hugging Face's registry."""

MIN_KEYS = 512
"""Used from this number of keys on; with fewer, torch's attention is as fast."""

ROWS = 256
"""Queries per block: their scores should stay in the cache."""

KEYS = 64
"""Keys are padded to a multiple of this number. oneDNN keeps a kernel of two thirds of a megabyte for each of the last
1,024 sizes of a product, and texts of many lengths have thousands of sizes."""

MAX_TIME_RATIO = 0.7
"""Used if a product in bfloat16 takes at most this share of the time in float32."""


def use_half_attention(encoder: Any) -> None:
    """Switch an encoder's `sdpa` attention to this one. It sets attributes of the encoder's modules: pass a view."""
    configs: dict[int, Any] = {}
    for module in encoder.modules():
        config = vars(module).get("config")
        if getattr(config, "_attn_implementation", None) == "sdpa":
            if id(config) not in configs:
                configs[id(config)] = copy.copy(config)
                configs[id(config)]._attn_implementation = NAME
            module.__dict__["config"] = configs[id(config)]


@functools.lru_cache
def is_faster(threads: int) -> bool:
    """Whether products in bfloat16 are clearly faster than in float32 on this machine."""
    q_TD, k_SD = torch.randn(ROWS, 64), torch.randn(1024, 64)
    return _seconds(q_TD.bfloat16(), k_SD.bfloat16()) < MAX_TIME_RATIO * _seconds(q_TD, k_SD)


def _seconds(q_TD: Tensor, k_SD: Tensor) -> float:
    times = []
    with torch.inference_mode():
        for _ in range(8):
            start = time.process_time()
            for _ in range(4):
                torch.mm(q_TD, k_SD.T)
            times.append(time.process_time() - start)
    return min(times)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Products in bfloat16 for long sources, torch's attention otherwise."""
    causal = attention_mask is None and (module.is_causal if is_causal is None else is_causal)
    per_key = attention_mask is None or (attention_mask.is_floating_point() and attention_mask.shape[1:3] == (1, 1))
    if key.shape[2] < MIN_KEYS or causal or dropout or not per_key or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    bias_BS = None if attention_mask is None else attention_mask[:, 0, 0].bfloat16()
    return _bfloat16_attention(query * scale, key, value, bias_BS).to(query.dtype), None


def _bfloat16_attention(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_BS: Tensor | None) -> Tensor:
    """[B, T, H, D], in bfloat16."""
    batch, heads, queries, width = q_BHTD.shape
    keys = k_BHSD.shape[2]
    missing = -keys % KEYS
    if missing:
        k_BHSD, v_BHSD = (F.pad(x, (0, 0, 0, missing)) for x in (k_BHSD, v_BHSD))
        bias_BS = k_BHSD.new_zeros(batch, keys) if bias_BS is None else bias_BS
        bias_BS = F.pad(bias_BS, (0, missing), value=-torch.inf).bfloat16()
    q, k, v = (x.to(torch.bfloat16, memory_format=torch.contiguous_format) for x in (q_BHTD, k_BHSD, v_BHSD))
    out_BTHD = q.new_empty(batch, queries, heads, width)
    # the last block overlaps the one before it, so that all blocks have one size
    blocks = [min(first, max(0, queries - ROWS)) for first in range(0, queries, ROWS)]
    for b in range(batch):
        for h in range(heads):
            for first in blocks:
                scores_TS = torch.mm(q[b, h, first : first + ROWS], k[b, h].T)
                if bias_BS is not None:
                    scores_TS += bias_BS[b]
                out_BTHD[b, first : first + ROWS, h] = torch.mm(scores_TS.softmax(-1), v[b, h])
    return out_BTHD


def _mask(
    *, attention_mask: Tensor | None = None, allow_is_causal_skip: bool = False, dtype: Any = None, **kwargs: Any
) -> Tensor | None:
    """[B, 1, 1, S], -inf on padding, to be added to scores; None without padding."""
    if attention_mask is None or allow_is_causal_skip or bool(attention_mask.all()):
        return None
    return padding_bias(attention_mask, dtype)


register_attention(NAME, _attention, _mask)
