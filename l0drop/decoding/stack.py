"""All layers of a decoder as one module, for one new position.

Hugging Face's layers are general, and a step of a small batch spends a tenth of its time in their overhead. This module
computes a step without it. Six families have the same layers, with norms first or last; T5's layers stay Hugging
Face's.

Shapes: B sentences, k beams, R = B·k rows, H heads, K memory rows, D model width, d head width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.bart.modeling_bart import BartDecoderLayer
from transformers.models.m2m_100.modeling_m2m_100 import M2M100DecoderLayer
from transformers.models.marian.modeling_marian import MarianDecoderLayer
from transformers.models.mbart.modeling_mbart import MBartDecoderLayer
from transformers.models.pegasus.modeling_pegasus import PegasusDecoderLayer
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

from l0drop.decoding import packed_memory
from l0drop.decoding.attention import NAME, attend, current_ancestry, value_blocks
from l0drop.decoding.caches import DecoderCache, MemoryLayer, PrefixLayer
from l0drop.decoding.linear import HALF, LinearKind, PackedLinear, make_linear
from l0drop.decoding.packed_memory import PACK_FROM, PACK_FROM_ALL, PackedMemory

NORMS_FIRST = {
    MarianDecoderLayer: False,
    BartDecoderLayer: False,
    MBartDecoderLayer: True,
    M2M100DecoderLayer: True,
    PegasusDecoderLayer: True,
    WhisperDecoderLayer: True,
}
"""The supported layers, and whether they normalize before (True) or after each block."""

Apply = Callable[[Tensor], Tensor]


def is_supported(layers: nn.ModuleList) -> bool:
    """Whether these are layers of a supported family, with their standard attention."""
    if not all(type(layer) in NORMS_FIRST for layer in layers):
        return False
    attentions: list[Any] = [m for layer in layers for m in (layer.self_attn, layer.encoder_attn)]
    return all(attention.config._attn_implementation == NAME for attention in attentions)


class Stack(nn.Module):
    """The layers of a decoder; called by Hugging Face's decoder as if it were one layer."""

    def __init__(self, layers: nn.ModuleList, kind: LinearKind) -> None:
        super().__init__()
        self.steps = [_DecoderLayer(layer, kind) for layer in layers]

    @property
    def copied_bytes(self) -> int:
        """Size of the packed copies of weights."""
        return sum(step.copied_bytes for step in self.steps)

    def forward(
        self,
        hidden_R1D: Tensor,
        _: Any,
        states_BKD: Tensor,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: DecoderCache | None = None,
        memory_bias: Tensor | None = None,
        **__: Any,
    ) -> Tensor:
        assert past_key_values is not None
        bias_B11K = encoder_attention_mask if memory_bias is None else memory_bias
        ancestry = current_ancestry()
        seen = None if ancestry is None else ancestry.bias
        x_RD = hidden_R1D[:, 0]
        if not past_key_values.memory[0].is_stored:
            for step, memory in zip(self.steps, past_key_values.memory, strict=True):
                step.store(states_BKD, bias_B11K, memory, past_key_values.beams)
        for step, prefix, memory in zip(self.steps, past_key_values.prefix, past_key_values.memory, strict=True):
            x_RD = step(x_RD, seen, bias_B11K, prefix, memory)
        return x_RD[:, None]


class _DecoderLayer:
    """One layer: attention to the target so far, attention to the memory, feed-forward network."""

    def __init__(self, layer: Any, kind: LinearKind) -> None:
        own, cross = layer.self_attn, layer.encoder_attn
        self.heads, self.scale = own.num_heads, own.scaling
        self.norm_first = NORMS_FIRST[type(layer)]
        self.halves = kind.endswith(HALF)
        self.packs = kind != "plain" and packed_memory.is_faster(torch.get_num_threads())
        self.copied_bytes = 0
        self.query_key_value = self._joined(own, kind)
        self.query = self._make(cross.q_proj, kind, self.scale)
        linears = (own.out_proj, cross.k_proj, cross.v_proj, cross.out_proj, layer.fc1, layer.fc2)
        made = [self._make(linear, kind) for linear in linears]
        self.own_out, self.key, self.value, self.cross_out, widen, self.narrow = made
        self.widen = _with_activation(widen, layer.activation_fn)
        self.value_weights = None if kind.startswith("int8") else (cross.v_proj.weight, cross.v_proj.bias)
        self.own_norm, self.cross_norm, self.last_norm = map(
            _norm, (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
        )

    def _make(self, linear: nn.Linear, kind: LinearKind, scale: float = 1.0) -> Apply:
        """The layer, times `scale`."""
        made = make_linear(kind, *_scaled(linear, scale))
        self.copied_bytes += 0 if made is None else made.copied_bytes
        if made is not None:
            return made.forward
        return linear.forward if scale == 1 else lambda x: linear.forward(x) * scale

    def _joined(self, attention: Any, kind: LinearKind) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """Scaled query, key and value in one product, if the weights are copied anyway."""
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights, biases = zip(
            *(_scaled(part, scale) for part, scale in zip(parts, (self.scale, 1.0, 1.0), strict=True)), strict=True
        )
        given = biases[0] is not None  # Whisper's keys have none
        filled = [torch.zeros_like(biases[0]) if bias is None else bias for bias in biases if given]
        made = make_linear(kind, torch.cat(weights), torch.cat(filled) if given else None)
        if made is None:
            query = self._make(attention.q_proj, kind, self.scale)
            return lambda x_RD: (query(x_RD), *(part.forward(x_RD) for part in parts[1:]))
        self.copied_bytes += made.copied_bytes
        return lambda x_RD: made.forward(x_RD).chunk(3, -1)

    def __call__(
        self,
        x_RD: Tensor,
        seen: Tensor | None,
        bias_B11K: Tensor | None,
        prefix: PrefixLayer,
        memory: MemoryLayer,
    ) -> Tensor:
        first = self.norm_first
        q_RD, k_RD, v_RD = self.query_key_value(self.own_norm(x_RD) if first else x_RD)
        keys, values = prefix.update(self._row_heads(k_RD), self._row_heads(v_RD))
        x_RD = x_RD + self.own_out(self._attended(q_RD, keys, values, seen))
        x_RD = x_RD if first else self.own_norm(x_RD)
        q_RD = self.query(self.cross_norm(x_RD) if first else x_RD)
        x_RD = x_RD + self.cross_out(self._attended_memory(q_RD, bias_B11K, memory))
        x_RD = x_RD if first else self.cross_norm(x_RD)
        x_RD = x_RD + self.narrow(self.widen(self.last_norm(x_RD) if first else x_RD))
        return x_RD if first else self.last_norm(x_RD)

    def _row_heads(self, x_RD: Tensor) -> Tensor:
        return x_RD.unflatten(-1, (self.heads, -1))[:, :, None]

    def _memory_heads(self, x_BKD: Tensor) -> Tensor:
        return x_BKD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def store(self, states_BKD: Tensor, bias_B11K: Tensor | None, memory: MemoryLayer, beams: int) -> None:
        """Project the memory and keep its keys and values, packed if attention is faster on that."""
        keys = self._memory_heads(self.key(states_BKD))
        sentences, rows = states_BKD.shape[:2]
        enough = rows >= PACK_FROM and sentences * rows >= PACK_FROM_ALL
        if self.packs and enough and (beams > 1 or self.halves):
            assert bias_B11K is not None
            dtype = torch.bfloat16 if self.halves else keys.dtype
            values = self._memory_heads(self.value(states_BKD)).transpose(2, 3)
            memory.packed = PackedMemory.of(keys.to(dtype), values.to(dtype), bias_B11K[:, 0, 0], beams)
        else:
            memory.update(keys, self._values(states_BKD))

    def _values(self, states_BKD: Tensor) -> Tensor:
        """The memory's values; transposed by the product that computes them if that makes `attend` faster."""
        keys = states_BKD.shape[1]
        blocks, size = (0, 0) if self.value_weights is None else value_blocks(states_BKD)
        if self.value_weights is None or not blocks:
            return self._memory_heads(self.value(states_BKD))
        weight_DD, bias_D = self.value_weights
        padded = F.pad(states_BKD, (0, 0, 0, blocks * size - keys)) if blocks * size > keys else states_BKD
        transposed = torch.matmul(weight_DD, padded.unflatten(1, (blocks, size)).transpose(2, 3))
        if bias_D is not None:
            transposed += bias_D[:, None]
        return transposed.unflatten(2, (self.heads, -1))

    def _attended_memory(self, query_RD: Tensor, bias_B11K: Tensor | None, memory: MemoryLayer) -> Tensor:
        if memory.packed is not None:
            return memory.packed.attend(query_RD)
        return self._attended(query_RD, memory.keys, memory.values, bias_B11K)

    def _attended(self, query_RD: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        rows, width = query_RD.shape
        query_BHkd = query_RD.unflatten(0, (len(key), -1)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return attend(query_BHkd, key, value, mask, 1.0).transpose(1, 2).reshape(rows, width)


def _scaled(linear: nn.Linear, scale: float) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a layer, times `scale`."""
    if scale == 1:
        return linear.weight, linear.bias
    return linear.weight.detach() * scale, None if linear.bias is None else linear.bias.detach() * scale


def _norm(module: nn.LayerNorm) -> Apply:
    return lambda x: F.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)


def _with_activation(linear: Any, activation: Any) -> Apply:
    if isinstance(activation, nn.ReLU) or activation is F.relu:
        packed = getattr(linear, "__self__", None)
        if isinstance(packed, PackedLinear):
            return lambda x: packed.forward(x, "relu")
    return lambda x: activation(linear(x))
