"""One step of a model's decoder on the buffers of all slots: from the last tokens to the next ones.

Every family is written as blocks (attention to the target, attention to the memory, feed-forward) with norms before or
after them. Between a block and the next one, one kernel adds the residual and normalizes.

Shapes as in `state.py`; D model width, H heads, K rows of all memories.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.mt5.modeling_mt5 import MT5Block
from transformers.models.t5.modeling_t5 import T5Block
from transformers.models.whisper.modeling_whisper import WhisperDecoder

from l0drop.decoding.decoder import head_of
from l0drop.decoding.gpu.state import SearchTensors, State
from l0drop.decoding.stack import NORMS_FIRST
from l0drop.models.whisper import BiasedDecoderLayer

_NORMS_FIRST = {**NORMS_FIRST, BiasedDecoderLayer: True, T5Block: True, MT5Block: True}
"""The supported layers, and whether they normalize before (True) or after each block."""


class Operations(Protocol):
    """The operations of a step: those of `plain.py`, or kernels."""

    def embed(
        self, state: State, weight_VD: Tensor, scale: float, positions_PD: Tensor | None, offset: int, pad: int | None
    ) -> Tensor: ...

    def add_norm(
        self, x_RD: Tensor, y_RD: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, rms: bool
    ) -> tuple[Tensor, Tensor]: ...

    def self_attention(
        self,
        qkv_R3I: Tensor,
        keys: Tensor,
        values: Tensor,
        state: State,
        heads: int,
        scale: float,
        distances: Tensor | None,
    ) -> Tensor: ...

    def cross_attention(
        self,
        query_RI: Tensor,
        memory_K2I: Tensor,
        bias_K: Tensor,
        state: State,
        heads: int,
        scale: float,
        splits: int,
    ) -> Tensor: ...

    def choose(self, logits_RV: Tensor, state: State, settings: SearchTensors) -> None: ...


@dataclass(frozen=True, eq=False)
class Norm:
    """A layer norm, or a root mean square norm."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    rms: bool

    @classmethod
    def of(cls, module: Any) -> "Norm":
        if isinstance(module, nn.LayerNorm):
            return cls(module.weight.detach(), _detached(module.bias), module.eps, False)
        return cls(module.weight.detach(), None, module.variance_epsilon, True)


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of one layer. norms: of its three blocks."""

    query_key_value: tuple[Tensor, Tensor | None]
    own_out: Callable[[Tensor], Tensor]
    query: Callable[[Tensor], Tensor]
    memory: tuple[Tensor, Tensor | None]
    cross_out: Callable[[Tensor], Tensor]
    feed_forward: Callable[[Tensor], Tensor]
    norms: tuple[Norm, Norm, Norm]


def is_supported(model: Any) -> bool:
    """Whether this model's decoder can be written as a `DecoderStep`: a supported one, with layers as they were."""
    decoder = model.get_decoder()
    layers: Any = getattr(decoder, "block", None) or getattr(decoder, "layers", ())
    if not layers or not all(type(layer) in _NORMS_FIRST for layer in layers):
        return False
    modules: tuple[nn.Module, ...] = (model.get_output_embeddings(), *decoder.modules())
    return all(map(_is_plain, map(type, modules)))


@functools.lru_cache
def _is_plain(kind: type[nn.Module]) -> bool:
    """Whether a step may read the weights of such a module instead of calling it.

    It would leave out adapters, and multiply by quantized weights as they are stored.
    """
    library, *parts = kind.__module__.split(".")
    if library not in ("torch", "transformers", "l0drop") or (library, *parts[:1]) == ("torch", "ao"):
        return False
    return kind is nn.Linear or not issubclass(kind, nn.Linear)


class DecoderStep:
    """The decoder of a supported model. Joined weights are copies; all others are the model's own."""

    def __init__(self, model: Any, operations: Operations) -> None:
        self.operations = operations
        decoder, config = model.get_decoder(), model.config
        self.is_t5 = hasattr(decoder, "block")
        layers: Any = decoder.block if self.is_t5 else decoder.layers
        self.norms_first = _NORMS_FIRST[type(layers[0])]
        self.layers = [_t5_layer(layer) if self.is_t5 else _layer(layer) for layer in layers]
        own = layers[0].layer[0].SelfAttention if self.is_t5 else layers[0].self_attn
        self.heads = own.n_heads if self.is_t5 else own.num_heads
        self.scale = 1.0 if self.is_t5 else float(own.scaling)
        self.width = len(self.layers[0].query_key_value[0]) // 3
        weight_VD, bias_V = head_of(model)
        self.head = (weight_VD.detach(), _detached(bias_V))
        self.vocabulary = len(weight_VD)
        final = getattr(decoder, "final_layer_norm", None) or getattr(decoder, "layer_norm", None)
        self.final = None if final is None else Norm.of(final)
        first = getattr(decoder, "layernorm_embedding", None)
        self.first = None if first is None else Norm.of(first)
        self.head_scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0
        self.embedding = decoder.embed_tokens.weight.detach()
        scale: Any = getattr(decoder, "embed_scale", None)
        scale = getattr(decoder.embed_tokens, "embed_scale", 1.0) if scale is None else scale
        # Whisper's decoder has the attribute, but does not use it
        self.embedding_scale = 1.0 if self.is_t5 or isinstance(decoder, WhisperDecoder) else float(scale)
        self.positions, self.offset, self.pad = _positions(decoder)
        self.own_attention = own

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def copied_bytes(self) -> int:
        """Size of the joined weights."""
        joined = [pair for layer in self.layers for pair in (layer.query_key_value, layer.memory)]
        return sum(tensor.nbytes for pair in joined for tensor in pair if tensor is not None)

    def distances(self, positions: int) -> Tensor | None:
        """[H, T], what T5 adds to the scores of self-attention at each distance; None for other families."""
        if not self.is_t5:
            return None
        # of the last of so many positions, whose distances to the others are falling
        bias_1H1T = self.own_attention.compute_bias(1, positions, past_seen_tokens=positions - 1)
        return bias_1H1T[0, :, 0].flip(-1).detach().contiguous()

    def project(self, states_KD: Tensor, out: Tensor) -> None:
        """Write the keys and values of memory rows, side by side, into `out` [L, K, 2I]."""
        for layer, out_K2I in zip(self.layers, out, strict=True):
            weight, bias = layer.memory
            if bias is None:
                torch.mm(states_KD, weight.T, out=out_K2I)
            else:
                torch.addmm(bias, states_KD, weight.T, out=out_K2I)

    def __call__(
        self,
        state: State,
        settings: SearchTensors,
        memory: Tensor,
        bias_K: Tensor,
        splits: int,
        distances: Tensor | None = None,
    ) -> None:
        """Advance every open slot by one token. `memory` [L, K, 2I] are the keys and values of all memories."""
        operations, first = self.operations, self.norms_first
        x = operations.embed(state, self.embedding, self.embedding_scale, self.positions, self.offset, self.pad)
        if self.first is not None:
            _, x = self._add_norm(x, None, self.first)
        norms = [norm for layer in self.layers for norm in layer.norms]
        if first:
            assert self.final is not None
            norms.append(self.final)
            _, y = self._add_norm(x, None, norms[0])
            norms = norms[1:]
        else:
            y = x
        following = iter(norms)

        def join(x_RD: Tensor, block_RD: Tensor) -> tuple[Tensor, Tensor]:
            """The residual, and the input of the next block."""
            total, normed = self._add_norm(x_RD, block_RD, next(following))
            return (total, normed) if first else (normed, normed)

        parts = zip(self.layers, state.keys, state.values, memory, strict=True)
        for layer, keys, values, memory_K2I in parts:
            qkv = F.linear(y, *layer.query_key_value)
            own = operations.self_attention(qkv, keys, values, state, self.heads, self.scale, distances)
            x, y = join(x, layer.own_out(own))
            query = layer.query(y)
            cross = operations.cross_attention(query, memory_K2I, bias_K, state, self.heads, self.scale, splits)
            x, y = join(x, layer.cross_out(cross))
            x, y = join(x, layer.feed_forward(y))
        if not first and self.final is not None:
            _, y = self._add_norm(y, None, self.final)
        y = y if self.head_scale == 1.0 else y * self.head_scale
        operations.choose(F.linear(y, *self.head), state, settings)

    def _add_norm(self, x: Tensor, y: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        return self.operations.add_norm(x, y, norm.weight, norm.bias, norm.eps, norm.rms)


def _layer(layer: Any) -> Layer:
    own, cross = layer.self_attn, layer.encoder_attn
    activation = layer.activation_fn
    return Layer(
        _joined(own.q_proj, own.k_proj, own.v_proj),
        _linear(own.out_proj),
        _linear(cross.q_proj),
        _joined(cross.k_proj, cross.v_proj),
        _linear(cross.out_proj),
        _feed_forward(_linear(layer.fc1), activation, _linear(layer.fc2)),
        tuple(map(Norm.of, (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm))),  # type: ignore[arg-type]
    )


def _t5_layer(block: Any) -> Layer:
    own, cross, last = block.layer[0], block.layer[1], block.layer[2]
    dense, attention = last.DenseReluDense, cross.EncDecAttention
    narrow = _linear(dense.wo)
    if hasattr(dense, "wi"):
        wide = _linear(dense.wi)

        def feed_forward(x: Tensor) -> Tensor:
            return narrow(dense.act(wide(x)).to(dense.wo.weight.dtype))  # float32 in float16 models
    else:
        gate, widen = _linear(dense.wi_0), _linear(dense.wi_1)

        def feed_forward(x: Tensor) -> Tensor:
            return narrow((dense.act(gate(x)) * widen(x)).to(dense.wo.weight.dtype))

    own_attention = own.SelfAttention
    return Layer(
        _joined(own_attention.q, own_attention.k, own_attention.v),
        _linear(own_attention.o),
        _linear(attention.q),
        _joined(attention.k, attention.v),
        _linear(attention.o),
        feed_forward,
        tuple(Norm.of(part.layer_norm) for part in (own, cross, last)),  # type: ignore[arg-type]
    )


def _feed_forward(
    widen: Callable[[Tensor], Tensor], activation: Callable[[Tensor], Tensor], narrow: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    return lambda x: narrow(activation(widen(x)))


def _linear(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight, bias = module.weight.detach(), _detached(module.bias)
    return lambda x: F.linear(x, weight, bias)


@torch.no_grad()
def _joined(*parts: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """The weights of several linear layers as those of one."""
    weight = torch.cat([part.weight for part in parts])
    if all(part.bias is None for part in parts):
        return weight, None
    # the keys of Whisper have no bias
    return weight, torch.cat(
        [torch.zeros_like(part.weight[:, 0]) if part.bias is None else part.bias for part in parts]
    )


def _positions(decoder: Any) -> tuple[Tensor | None, int, int | None]:
    """The table of position embeddings, the row of the first position, and the row that padding tokens have, if any."""
    module = getattr(decoder, "embed_positions", None)
    if module is None:
        return None, 0, None
    if hasattr(module, "weights"):  # M2M100: rows are counted from the padding token's
        return module.weights.detach(), module.padding_idx + 1, module.padding_idx
    return module.weight.detach(), getattr(module, "offset", 0), None


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
