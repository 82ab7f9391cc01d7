"""Keys and values of one decoding run: cross-attention once per sentence, self-attention in a buffer made in advance.

Both are Hugging Face cache classes, so that its decoders read and write them by themselves.

Shapes: B sentences, k beams, R = B·k rows, H heads, S memory rows, T target positions, D head width.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, CacheLayerMixin


class _Layer(CacheLayerMixin):
    """What every layer here has in common: it is filled by `update` alone, and needs no mask."""

    is_compileable = False
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class MemoryLayer(_Layer):
    """Keys and values of the memory, [B, H, S, D]; written at the first step, then read by every beam."""

    keys: Tensor
    values: Tensor

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states.contiguous(), value_states.contiguous()
        return self.keys, self.values

    def keep(self, sentences: Tensor, rows: int) -> None:
        """Leave these sentences and as many memory rows as the longest of them has."""
        self.keys = self.keys[:, :, :rows].index_select(0, sentences)
        self.values = self.values[:, :, :rows].index_select(0, sentences)


class PrefixLayer(_Layer):
    """Keys and values of the target so far, in buffers [R, H, T, D] of which `length` positions are filled."""

    def __init__(self, rows: int, positions: int) -> None:
        super().__init__()
        self.rows, self.positions, self.length = rows, positions, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.positions

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        rows, heads, new, width = key_states.shape
        if self.keys is None:
            shape = (self.rows, heads, self.positions, width)
            self.keys, self.values = key_states.new_empty(shape), value_states.new_empty(shape)
        assert self.values is not None
        end = self.length + new
        beams = self.rows // rows  # the first step has one row per sentence, for all of its beams
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer.view(rows, beams, *buffer.shape[1:])[:, :, :, self.length : end] = states[:, None]
        self.length = end
        step = slice(None, None, beams)
        return self.keys[step, :, :end], self.values[step, :, :end]

    def reorder(self, rows: Tensor, parents: Tensor, start: int) -> None:
        """Give each of `rows` what its parent holds, from position `start` on; before it they hold the same."""
        assert self.keys is not None
        assert self.values is not None
        for buffer in (self.keys, self.values):
            part = buffer[:, :, start : self.length]
            part.index_copy_(0, rows, part.index_select(0, parents))

    def keep(self, rows: Tensor) -> None:
        """Leave these rows."""
        assert self.keys is not None
        assert self.values is not None
        shape = (len(rows), *self.keys.shape[1:])
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(shape)
            new[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows)
            setattr(self, name, new)
        self.rows = len(rows)


class DecoderCache(EncoderDecoderCache):
    """Both caches of a run of R rows."""

    def __init__(self, layers: int, rows: int, positions: int) -> None:
        self.prefix = [PrefixLayer(rows, positions) for _ in range(layers)]
        self.memory = [MemoryLayer() for _ in range(layers)]
        super().__init__(Cache(layers=[*self.prefix]), Cache(layers=[*self.memory]))

    def reorder(self, parents: Tensor, start: int) -> None:
        """Give row r what row parents[r] holds, from position `start` on. Rows that are their own parents stay."""
        if start == self.prefix[0].length:
            return
        rows = (parents != torch.arange(len(parents), device=parents.device)).nonzero().flatten()
        for layer in self.prefix:
            layer.reorder(rows, parents[rows], start)

    def keep(self, sentences: Tensor, rows: Tensor, memory_rows: int) -> None:
        for prefix, memory in zip(self.prefix, self.memory, strict=True):
            prefix.keep(rows)
            memory.keep(sentences, memory_rows)

    @property
    def memory_bytes(self) -> int:
        """What the keys and values of the memory take."""
        tensors = [t for layer in self.memory for t in (layer.keys, layer.values) if torch.is_tensor(t)]
        return sum(t.numel() * t.element_size() for t in tensors)
